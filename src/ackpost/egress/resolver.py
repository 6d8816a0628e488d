"""Host names to addresses, in few threads of our own and within a time limit.

The event loop's default threads are not used: a resolver that does not answer would occupy them for everybody.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from ackpost.core.outcome import DNS_ERROR, LOCAL_ERROR
from ackpost.egress.failures import AttemptFailed, dns_failure

_CACHED_NAMES_MAX: Final = 4_096
_SILENT_SHARE: Final = 4

Lookup = Callable[[str], Sequence[str]]


class Resolver(Protocol):
    """Gives all addresses of a host name."""

    async def resolve(self, host: str) -> Sequence[str]:
        """Give the addresses of ``host`` (an ASCII name), best first, at least one.

        Raises:
            AttemptFailed: with ``dns_error``, or ``local_error`` when the fault is ours.
        """

    def close(self) -> None:
        """Begin no further look-up."""


def look_up(host: str) -> Sequence[str]:
    """Ask the system's resolver (hosts file included); blocks."""
    infos = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(info[4][0]) for info in infos))


class SystemResolver:
    """``getaddrinfo`` in a bounded pool of threads; equal names asked for at once share one look-up.

    A look-up that gets no answer holds its thread for as long as the system pleases. So names that got none the last
    time have a few threads of their own (a quarter as many more) until they are answered again.

    Args:
        threads: how many look-ups run at once; more wait, inside their time limit.
        timeout_s: limit of one look-up, its wait for a thread included.
        cache_s: how long an answer, or the lack of one, is used again (at most 5 s: addresses are judged at each use,
            but a name's owner expects changes to be seen).
        lookup: replaces the system's resolver in tests.
    """

    def __init__(
        self, *, threads: int = 8, timeout_s: float = 5.0, cache_s: float = 5.0, lookup: Lookup = look_up
    ) -> None:
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="ackpost-dns")
        self._silent_threads = ThreadPoolExecutor(
            max_workers=max(1, threads // _SILENT_SHARE), thread_name_prefix="ackpost-dns-silent"
        )
        self._silent: dict[str, None] = {}
        self._timeout_s = timeout_s
        self._cache_s = cache_s
        self._lookup = lookup
        self._running: dict[str, asyncio.Task[Sequence[str] | AttemptFailed]] = {}
        self._cache: dict[str, tuple[float, Sequence[str] | AttemptFailed]] = {}

    async def resolve(self, host: str) -> Sequence[str]:
        """See ``Resolver.resolve``."""
        now = asyncio.get_running_loop().time()
        cached = self._cache.get(host)
        if cached is not None and now < cached[0]:
            answer = cached[1]
        else:
            task = self._running.get(host)
            if task is None:
                task = self._running[host] = asyncio.create_task(self._ask(host))
                task.add_done_callback(lambda _: self._running.pop(host, None))
            answer = await asyncio.shield(task)
        if isinstance(answer, AttemptFailed):
            raise AttemptFailed(answer.code, answer.detail, phase=answer.phase)
        return answer

    def close(self) -> None:
        """See ``Resolver.close``; look-ups under way end in their threads, unheard."""
        for task in self._running.values():
            task.cancel()
        for threads in (self._threads, self._silent_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, host: str) -> Sequence[str] | AttemptFailed:
        answer = await self._ask_in_thread(host)
        if isinstance(answer, AttemptFailed) and answer.code == LOCAL_ERROR:
            return answer
        if len(self._cache) >= _CACHED_NAMES_MAX:
            self._cache.clear()
        self._cache[host] = (asyncio.get_running_loop().time() + self._cache_s, answer)
        return answer

    async def _ask_in_thread(self, host: str) -> Sequence[str] | AttemptFailed:
        was_silent = host in self._silent
        job = (self._silent_threads if was_silent else self._threads).submit(self._lookup, host)
        waiter = asyncio.wrap_future(job)
        await asyncio.wait({waiter}, timeout=self._timeout_s)
        if not waiter.done():
            never_began = job.cancel()
            waiter.cancel()
            if never_began and not was_silent:
                return AttemptFailed(LOCAL_ERROR, "all threads for look-ups are busy", phase="dns")
            self._note_silence(host)
            return AttemptFailed(DNS_ERROR, f"the resolver did not answer within {self._timeout_s:g} s", phase="dns")
        self._silent.pop(host, None)
        try:
            addresses = waiter.result()
        except OSError as error:
            return dns_failure(error)
        return addresses or AttemptFailed(DNS_ERROR, "the host name has no address", phase="dns")

    def _note_silence(self, host: str) -> None:
        if len(self._silent) >= _CACHED_NAMES_MAX:
            self._silent.pop(next(iter(self._silent)))
        self._silent[host] = None
