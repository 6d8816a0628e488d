"""An HTTP server that answers by script, well or badly, and keeps every request as it came.

It is the other side in Ackpost's own tests, in its demo and in ``ackpost listen``; for loopback and test networks.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

import msgspec

from ackpost.testing import answers
from ackpost.testing.script import Script, Step, parse_script, step_for

_HEAD_BYTES_MAX: Final = 1024 * 1024
_BODY_BYTES_MAX: Final = 64 * 1024 * 1024
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)
_ANY_PATH: Final = "*"

Answer = Callable[["SeenRequest"], Step]


class SeenRequest(msgspec.Struct, frozen=True):
    """A request as it came. ``number`` and ``connection`` count from 1; ``at_s`` is the event loop's time.

    ``step`` is the script's answer to it; None when a function answers.
    """

    number: int
    connection: int
    method: str
    path: str
    version: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    at_s: float
    step: Step | None = None

    def header(self, name: str) -> str | None:
        """Give the first header of this name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class FaultServer:
    """Answers by script; use as ``async with FaultServer("500*2,200") as server: … server.url("/hook")``.

    Args:
        script: a script, a mapping from path to script (``*`` for the others), or a function from request to step.
        host: where to listen.
        port: 0 picks a free one.
        ssl_context: for https.
        on_request: called with each request when it was read, before it is answered.
        idle_s: an idle connection is closed after this long.
        keep_max: only so many requests are kept, the newest; None: all.
    """

    def __init__(
        self,
        script: str | Script | Mapping[str, str | Script] | Answer = "200",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        ssl_context: ssl.SSLContext | None = None,
        on_request: Callable[[SeenRequest], None] | None = None,
        idle_s: float = 60.0,
        keep_max: int | None = None,
    ) -> None:
        self._answer = script if callable(script) else None
        if isinstance(script, str | tuple):
            script = {_ANY_PATH: script}
        self._scripts = {} if callable(script) else {path: _script(one) for path, one in script.items()}
        self._used: dict[str, int] = {}
        self._host = host
        self._port = port
        self._ssl_context = ssl_context
        self._on_request = on_request
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.requests: list[SeenRequest] = []
        self._keep_max = keep_max
        self.received = 0
        self.connections = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(
            self._serve, self._host, self._port, ssl=self._ssl_context, limit=_HEAD_BYTES_MAX
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._port

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._tasks)

    def url(self, path: str = "/") -> str:
        """The URL of a path on this server."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._ssl_context is None else 'https'}://{host}:{self._port}{path}"

    async def seen(self, count: int, timeout_s: float = 10.0) -> list[SeenRequest]:
        """Wait until ``count`` requests were read, and give all that are kept.

        Raises:
            TimeoutError: they did not come in time.
        """
        if self.received < count:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((count, waiter))
            await asyncio.wait_for(waiter, timeout_s)
        return self.requests

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        try:
            while await self._exchange(reader, writer, number):
                pass
        except (ConnectionError, ssl.SSLError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the other side went away: its right, and not ours to report
        except (asyncio.LimitOverrunError, ValueError):
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> bool:
        """Read one request and answer it; say whether the connection goes on."""
        step = self._step_before_reading()
        if step is not None:
            return await self._act(step, reader, writer)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._idle_s)
        line, *lines = head[:-4].decode("latin-1").split("\r\n")
        method, path, version = line.split(" ", 2)
        headers = tuple((name, value.strip()) for name, _, value in (text.partition(":") for text in lines))
        step = None if self._answer else self._next_step(path)
        body = b"" if step is not None and step.kind == "early" else await _read_body(reader, headers)
        at_s = asyncio.get_running_loop().time()
        request = SeenRequest(self.received + 1, connection, method, path, version, headers, body, at_s, step)
        self._record(request)
        if step is None:
            assert self._answer is not None
            step = self._answer(request)
        return await self._act(step, reader, writer)

    async def _act(self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if step.delay_s:
            await asyncio.sleep(step.delay_s)
        if step.kind == "hang" and step.where == "before":
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport reads too
            await asyncio.get_running_loop().create_future()
        end = await answers.answer(step, writer)
        if end == answers.HANG:
            while await reader.read(_HEAD_BYTES_MAX):
                pass
        elif end == answers.RESET:
            reset(writer)
        return end == answers.KEEP

    def _record(self, request: SeenRequest) -> None:
        self.received += 1
        self.requests.append(request)
        if self._keep_max is not None:
            del self.requests[: -self._keep_max]
        if self._on_request is not None:
            self._on_request(request)
        for count, waiter in self._waiters:
            if count <= self.received and not waiter.done():
                waiter.set_result(None)

    def _step_before_reading(self) -> Step | None:
        script = self._scripts.get(_ANY_PATH)
        if script is None:
            return None
        step = step_for(script, self._used.get(_ANY_PATH, 0))
        return self._next_step(_ANY_PATH) if step.where == "before" else None

    def _next_step(self, path: str) -> Step:
        key = next((one for one in (path, path.partition("?")[0]) if one in self._scripts), _ANY_PATH)
        used = self._used.get(key, 0)
        self._used[key] = used + 1
        return step_for(self._scripts[key], used) if key in self._scripts else Step(status=404)


async def _read_body(reader: asyncio.StreamReader, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Raises: ValueError for a framing that is wrong, or a body over 64 MiB."""
    fields = {name.lower(): value for name, value in headers}
    if fields.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(_length(fields.get("content-length", "0"), 10, 0))
    body = bytearray()
    while size := _length((await reader.readuntil(b"\r\n")).partition(b";")[0].decode("latin-1"), 16, len(body)):
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)


def _length(text: str, base: int, before: int) -> int:
    length = int(text, base)
    if not 0 <= length <= _BODY_BYTES_MAX - before:
        raise ValueError("the body is too large")
    return length


def reset(writer: asyncio.StreamWriter) -> None:
    """Cut a connection with a TCP reset instead of an orderly close."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()


def _script(one: str | Script) -> Script:
    return parse_script(one) if isinstance(one, str) else one
