"""The HTTP client: one pool of kept-alive connections, bounded per host and in all; implements ``ports.transport``.

A request takes the connection of its host that was used last. Without one it opens another, if the bounds allow it,
else it waits, first come first served; its clock starts when sending does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from ackpost.core.addresses import AddressPolicy
from ackpost.core.outcome import LOCAL_ERROR, Outcome
from ackpost.core.target import Target
from ackpost.egress.connection import Connection
from ackpost.egress.dialer import Dial, Dialer
from ackpost.egress.failures import AttemptFailed
from ackpost.egress.limits import Limits
from ackpost.egress.request import Request
from ackpost.egress.resolver import Resolver, SystemResolver

_TOO_LATE = AttemptFailed(LOCAL_ERROR, "this server may not send any more")


class ClientStats(msgspec.Struct, frozen=True):
    """Numbers of now. ``open`` counts sockets (being opened or closed too); ``queued`` requests wait for one."""

    open: int
    idle: int
    in_flight: int
    queued: int


class _Host:
    """What is open to one scheme, host and port."""

    __slots__ = ("idle", "key", "open", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.idle: list[Connection] = []
        self.waiting: deque[Request] = deque()
        self.open = 0


class HttpClient:
    """Sends POSTs (``ports.transport.Transport``). Made inside the running event loop, used on it only.

    Args:
        policy: which addresses may be dialled.
        resolver: host names to addresses; the system's by default.
        ssl_context: trust and TLS version; by default the system's authorities and TLS ≥ 1.2.
        limits: numbers of connections, and seconds.
        may_write: asked when a request that had to wait for its connection is about to be written.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        resolver: Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits or Limits()
        self._may_write = may_write
        self._resolver = resolver or SystemResolver()
        self._dialer = Dialer(policy, self._resolver, ssl_context or _default_context(), self._limits)
        self._hosts: dict[str, _Host] = {}
        self._starved: dict[str, _Host] = {}  # hosts with waiting requests that only the bound in all holds back
        self._idle: dict[Connection, None] = {}  # of all hosts, longest idle first
        self._connections: dict[Connection, None] = {}  # in order, so that closing is, too
        self._dials: dict[asyncio.Task[Connection | AttemptFailed], None] = {}
        self._open = 0
        self._closed = False
        self._all_lost = asyncio.Event()

    def send(
        self, target: Target, headers: bytes, body: bytes, timeout_s: float, on_done: Callable[[Outcome], None]
    ) -> Request:
        """See ``Transport.send``."""
        request = Request(target, headers, body, timeout_s, on_done)
        if self._closed:
            self._loop.call_soon(request.fail, AttemptFailed(LOCAL_ERROR, "the server is stopping"), 0.0)
            return request
        host = self._hosts.get(target.pool_key)
        if host is None:
            host = self._hosts[target.pool_key] = _Host(target.pool_key)
        now = self._loop.time()
        while host.idle:
            connection = host.idle.pop()
            del self._idle[connection]
            if connection.is_fresh(now):
                request.begin(now)
                connection.start(request, now)
                return request
            connection.close()
        host.waiting.append(request)
        self._pump(host)
        return request

    async def close(self) -> None:
        """See ``Transport.close``."""
        self._closed = True
        for host in self._hosts.values():
            while host.waiting:
                host.waiting.popleft().abort()
        self._starved.clear()
        for task in self._dials:
            task.cancel()
        for connection in self._connections:
            connection.abort()
        while self._open:
            self._all_lost.clear()
            await self._all_lost.wait()
        self._resolver.close()

    def stats(self) -> ClientStats:
        """Count sockets and requests."""
        return ClientStats(
            open=self._open,
            idle=len(self._idle),
            in_flight=self._open - len(self._idle),
            queued=sum(len(host.waiting) for host in self._hosts.values()),
        )

    # --- called by connections --------------------------------------------------------------------------------------

    def released(self, connection: Connection) -> None:
        """Give the connection to the request that waits longest for this host, else keep it."""
        host = self._hosts[connection.key]
        now = self._loop.time()
        if host.waiting and not connection.is_fresh(now):
            connection.close()
            return
        while host.waiting:
            request = host.waiting.popleft()
            if request.done:
                continue
            request.begin(now)
            if self._may_write():
                connection.start(request, now)
                return
            request.fail(_TOO_LATE, now)
        host.idle.append(connection)
        self._idle[connection] = None
        if self._starved:
            self._evict()

    def unusable(self, connection: Connection) -> None:
        """Keep the connection no longer."""
        if connection in self._idle:
            del self._idle[connection]
            self._hosts[connection.key].idle.remove(connection)

    def lost(self, connection: Connection) -> None:
        """A socket is gone: somebody else may open one."""
        if connection in self._connections:
            del self._connections[connection]
            self._gone(self._hosts[connection.key])

    # --- opening ----------------------------------------------------------------------------------------------------

    def _pump(self, host: _Host) -> None:
        """Open connections for what waits, as far as the bounds allow."""
        while host.waiting and host.open < self._limits.connections_per_host_max:
            if self._open >= self._limits.connections_max:
                self._starved[host.key] = host
                self._evict()
                return
            request = host.waiting.popleft()
            if not request.done:
                self._dial(host, request)

    def _dial(self, host: _Host, request: Request) -> None:
        host.open += 1
        self._open += 1
        request.begin(self._loop.time())
        request.dial = task = self._loop.create_task(self._connect(host, request))
        self._dials[task] = None
        task.add_done_callback(partial(self._dialled, host, request))

    async def _connect(self, host: _Host, request: Request) -> Connection | AttemptFailed:
        dial = Dial()
        factory = partial(Connection, self, host.key, self._loop, self._limits.idle_s)
        try:
            return await self._dialer.open(request.target, request.deadline, dial, factory)
        except AttemptFailed as failure:
            return failure
        finally:
            request.dns_ms, request.connect_ms, request.tls_ms = dial.dns_ms, dial.connect_ms, dial.tls_ms

    def _dialled(self, host: _Host, request: Request, task: asyncio.Task[Connection | AttemptFailed]) -> None:
        self._dials.pop(task, None)
        if task.cancelled():
            self._gone(host)
            return
        result = self._unexpected(task) or task.result()
        failure = result.early_failure() if isinstance(result, Connection) else result
        if failure is None and not self._may_write():
            failure = _TOO_LATE
        if isinstance(result, Connection):
            if failure is None and not request.done and not self._closed:
                self._connections[result] = None
                result.start(request, self._loop.time())
                return
            result.abort()
        self._gone(host)
        if failure is not None and not self._closed:
            request.fail(failure, self._loop.time())

    def _unexpected(self, task: asyncio.Task[Connection | AttemptFailed]) -> AttemptFailed | None:
        """A fault of ours is told to the event loop's handler, and still ends the attempt."""
        error = task.exception()
        if error is None:
            return None
        self._loop.call_exception_handler({"message": "opening a connection failed", "exception": error, "task": task})
        return AttemptFailed(LOCAL_ERROR, f"unexpected {type(error).__name__} while connecting")

    def _evict(self) -> None:
        """Make room for another host by closing what was idle longest."""
        if self._idle:
            connection = next(iter(self._idle))
            self.unusable(connection)
            connection.close()

    def _gone(self, host: _Host) -> None:
        host.open -= 1
        self._open -= 1
        if self._closed:
            if not self._open:
                self._all_lost.set()
            return
        self._serve(host)
        while self._starved and self._open < self._limits.connections_max:
            self._serve(self._starved.pop(next(iter(self._starved))))

    def _serve(self, host: _Host) -> None:
        self._pump(host)
        if not host.open and not host.waiting:
            self._hosts.pop(host.key, None)


def _default_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
