"""The other side: a scripted HTTP server on a thread of its own, which keeps each request by its path."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import defaultdict
from types import TracebackType
from typing import Self

import msgspec

from ackpost.testing.faults import FaultServer, SeenRequest
from ackpost.testing.script import Script, Step, parse_script, step_for


class Receiver:
    """Use as a context. ``hook`` makes a URL, ``seen`` gives what came to it, ``wait`` waits for it.

    Without ``bodies`` only their digests are kept, in their place.
    """

    def __init__(self, *, bodies: bool = True) -> None:
        self._bodies = bodies
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="receiver")
        self._server = FaultServer(self._answer, on_request=self._note, keep_max=1)
        self._scripts: dict[str, tuple[Script, int]] = {}
        self._seen: defaultdict[str, list[SeenRequest]] = defaultdict(list)
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def hook(self, path: str, script: str = "200") -> str:
        """Answer by this script from the next request on; give the URL."""
        with self._changed:
            self._scripts[path] = parse_script(script), len(self._seen[path])
        return self._server.url(path)

    def seen(self, path: str) -> list[SeenRequest]:
        """Give the requests to a path so far, oldest first."""
        with self._changed:
            return list(self._seen[path])

    def wait(self, path: str, count: int = 1, within_s: float = 15.0) -> list[SeenRequest]:
        """Wait until a path had so many requests in all, and give them."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self._seen[path]) >= count, within_s)
            assert came, f"{len(self._seen[path])} requests to {path} within {within_s} s, not {count}"
            return list(self._seen[path])

    @property
    def received(self) -> int:
        """How many requests came in all."""
        return self._server.received

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return self._server.open_connections

    def _note(self, request: SeenRequest) -> None:
        if not self._bodies:
            request = msgspec.structs.replace(request, body=hashlib.sha256(request.body).digest())
        with self._changed:
            self._seen[request.path].append(request)
            self._changed.notify_all()

    def _answer(self, request: SeenRequest) -> Step:
        with self._changed:
            script, begin = self._scripts.get(request.path, ((Step(status=404),), 0))
            return step_for(script, len(self._seen[request.path]) - begin - 1)
