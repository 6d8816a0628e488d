"""uvicorn with bounds of our own on the header of a request: bytes and time (rule E18)."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
from collections.abc import Collection, Generator, Mapping
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ackpost.errors import ConfigError
from ackpost.wiring.direct_calls import DirectCall, DirectRequest

HEADER_BYTES_MAX: Final = 32 * 1024
HEADER_S: Final = 10.0
BODY_S: Final = 60.0
UNREAD_BYTES_MAX: Final = 8 * 1024 * 1024
"""So much of a body that nobody reads any more is taken, so that an ordinary client gets as far as the answer."""

PIECE_BYTES: Final = 16 * 1024
"""So much is parsed in one go: a request that waits for its turn costs 3 KB, and may have come in 18 bytes."""

KEEP_ALIVE_S: Final = 75
GRACE_S: Final = 3
"""What calls under way get at the end; all but those that wait for an attempt need milliseconds."""

BACKLOG: Final = 2048


def _refusal(status: str, code: str, detail: str) -> bytes:
    title = status.partition(" ")[2]
    body = f'{{"type":"about:blank","title":"{title}","status":{status[:3]},"code":"{code}","detail":"{detail}"}}'
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n{body}".encode()


_HEADER_TOO_LARGE: Final = _refusal(
    "431 Request Header Fields Too Large", "too_large", f"A header may have at most {HEADER_BYTES_MAX} bytes."
)
_NO_HTTP: Final = _refusal("400 Bad Request", "invalid", "This is no valid HTTP/1.1 request.")


_NOTHING_DIRECT: Final[Mapping[bytes, DirectCall]] = {}

_HEARD: Final = -1
"""In place of a number of bytes that the parser kept to itself: it told of something in this piece."""


class _Part(enum.Enum):
    """Which part of a request comes next on a connection."""

    HEADER = HEADER_S
    BODY = BODY_S
    NONE = 0.0


class _Answering:
    """The transport as the answer to an incomplete request sees it: closing waits for the rest of the request.

    A socket that is closed with something unread in it resets the connection, and the client loses the answer.
    """

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        """Write a part of the answer."""
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        """Whether the connection ends."""
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        """Close once the request has been read."""
        self._protocol.close_when_read()


class _Flow(FlowControl):
    """Reads no more from a connection while requests wait for their turn on it: they would wait in memory."""

    def __init__(self, transport: Any, waiting: Collection[object]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        if not self._waiting:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose header (or trailer) is too large, or whose request is too slow.

    Requests that come before earlier ones are answered are parsed a piece at a time: ``_held`` is what came after.
    A request that comes in one piece costs two attributes more. What the app offers as ``direct`` goes without a task.
    """

    def connection_made(self, transport: Any) -> None:
        """Start the clock of the first header."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._held = b""
        self.url = b""
        self.headers = []
        self._piece_bytes = 0
        self._header_bytes = 0
        self._unread_bytes = 0
        self._closes_when_read = False
        self._answering: Any = _Answering(self)
        self._upgrade: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._direct = getattr(self.app, "direct", _NOTHING_DIRECT)
        self._direct_request: DirectRequest | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since_s = 0.0
        self._begin_header()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A next request's header begins."""
        self._unset_keepalive_if_required()
        self._begin_header()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._direct_request = None

    def on_headers_complete(self) -> None:
        """The header is whole."""
        self._stop_timer()
        if self.transport.is_closing():
            return  # parsed on after the end, in the same piece
        if (self._header_bytes or self._piece_bytes > HEADER_BYTES_MAX) and self._is_header_too_large():
            self._refuse(_HEADER_TOO_LARGE)
            return
        self._part = _Part.BODY
        self._unread_bytes = 0
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._upgrade = self._without_upgrade()
            return
        if not self._goes_direct():
            self._describe()
            super().on_headers_complete()

    def _goes_direct(self) -> bool:
        """Take the request as a direct call if it is one and the connection is free for it."""
        call = self._direct.get(self.url)
        if call is None or self.flow.write_paused or self.parser.get_method() != b"POST":
            return False
        cycle = self._current
        if (cycle is not None and not cycle.response_complete) or self.parser.get_http_version() != "1.1":
            return False
        tenant = call.admit(self.headers)
        if tenant is None:
            return False
        request: Any = DirectRequest(call, tenant, self.transport, self._on_direct_answered)
        self.cycle = self._direct_request = request
        return True

    def _describe(self) -> None:
        """Let uvicorn make its description of the request, which a direct call does without."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers

    def on_body(self, body: bytes) -> None:
        """A part of the body; of one that is answered already only so much is taken."""
        self._silent_bytes = _HEARD
        if self.transport.is_closing():
            return  # its header was refused: the bytes belong to no request
        if self._direct_request is not None:
            self._direct_request.add(body)
            return
        cycle = self._current
        if cycle is not None and cycle.response_complete:
            self._unread_bytes += len(body)
            if self._unread_bytes > UNREAD_BYTES_MAX:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._upgrade is not None:
            return  # only the parser takes it for whole
        self._part = _Part.NONE
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self._direct_request is not None:
            self._direct_request.start()
            return
        super().on_message_complete()
        if self._closes_when_read:
            self.transport.close()

    def _on_direct_answered(self) -> None:
        """Go on as uvicorn does after an answer, but with a timer that is moved when it fires, not at every answer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            self._parse_held()
            return
        self._idle_since_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(KEEP_ALIVE_S, self._on_idle_timer)

    def on_response_complete(self) -> None:
        """Go on with the next request, and with what was held for its sake."""
        super().on_response_complete()
        self._parse_held()

    def _on_idle_timer(self) -> None:
        """Close a connection that has been idle since its last direct answer, if uvicorn does not watch it."""
        self._idle_timer = None
        busy = self._part is not _Part.NONE or not self.cycle.response_complete
        idle_s = self.loop.time() - self._idle_since_s
        if busy or self.timeout_keep_alive_task is not None:
            idle_s = 0.0
        if idle_s < KEEP_ALIVE_S:
            self._idle_timer = self.loop.call_later(KEEP_ALIVE_S - idle_s, self._on_idle_timer)
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse what came, as far as requests do not wait for earlier ones to be answered."""
        if len(data) <= PIECE_BYTES and not self.pipeline:
            self._receive(data)
        else:
            self._held += data
            self._parse_held()

    def _parse_held(self) -> None:
        """Parse piece by piece; a turn on the connection that becomes free brings the next."""
        while self._held and not self.pipeline and not self.transport.is_closing():
            data, self._held = self._held[:PIECE_BYTES], self._held[PIECE_BYTES:]
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        """Judge what a piece leaves incomplete."""
        self._piece_bytes = len(data)
        self._parse(data)
        if self._part is _Part.NONE or self.transport.is_closing():
            return
        self._silent_bytes = 0 if self._silent_bytes == _HEARD else self._silent_bytes + len(data)
        if self._is_header_too_large():
            self._refuse(_HEADER_TOO_LARGE)
            return
        if self._timer is None:
            self._start_timer()
        if self._part is _Part.BODY:
            self.cycle.transport = self._answering

    def _parse(self, data: bytes) -> None:
        """Feed the parser.

        At a wish to change the protocol (``Upgrade: h2c`` of Java's HTTP client, say) it would stop and lose the body.
        The wish is ignored, as a server may: the request is parsed anew without it. Source: RFC 9110 §7.8.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            head, self._upgrade = self._upgrade, None
            if head is None:
                self._refuse(_NO_HTTP)
                return
            self.parser = httptools.HttpRequestParser(self)
            self._parse(head + data[pause.args[0] :])
        except httptools.HttpParserError:
            self._refuse(_NO_HTTP)

    def _without_upgrade(self) -> bytes:
        """Write the header that was parsed without its ``Upgrade``."""
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        kept = [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([line, *kept, b"", b""])

    def close_when_read(self) -> None:
        """Close now, or at the end of the request that is answered before it was read."""
        self._closes_when_read = True
        if self._part is _Part.NONE:
            self.transport.close()

    @property
    def _current(self) -> RequestResponseCycle | None:
        """The newest request; uvicorn has none before the first."""
        return self.cycle

    def _begin_header(self) -> None:
        self._part = _Part.HEADER
        self._header_bytes = 0
        self._headers_counted = 0
        self._url_counted = 0
        self._silent_bytes = _HEARD

    def _is_header_too_large(self) -> bool:
        """Count what came of header and trailer; what the parser still keeps to itself is in ``_silent_bytes``."""
        if len(self.headers) > self._headers_counted or len(self.url) > self._url_counted:
            self._header_bytes += sum(len(name) + len(value) for name, value in self.headers[self._headers_counted :])
            self._header_bytes += len(self.url) - self._url_counted
            self._headers_counted, self._url_counted = len(self.headers), len(self.url)
            self._silent_bytes = 0
        return self._header_bytes + self._silent_bytes > HEADER_BYTES_MAX

    def _refuse(self, answer: bytes) -> None:
        """Close; with an answer unless this request has one already, or an earlier one would take it for its own."""
        if not self.transport.is_closing():
            cycle = self._current
            if cycle is None or self._part is _Part.HEADER:
                is_its_turn = cycle is None or cycle.response_complete
            else:
                is_its_turn = not cycle.response_started and not self.pipeline
            if is_its_turn:
                self.transport.write(answer)
            self.transport.close()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._part.value, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        if self._part is not _Part.NONE:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class QuietServer(uvicorn.Server):
    """uvicorn that leaves signals to its caller.

    Its own way is to raise a signal anew once it has served, which would end the process before the node has stopped.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture nothing."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything else is opened; who calls now is answered once the node is ready.

    Raises: ConfigError with one line.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"port: cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    return listener


def uvicorn_config(app: Any) -> uvicorn.Config:
    """Everything uvicorn is told."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        loop="none",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="error",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )
