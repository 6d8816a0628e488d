"""uvicorn with bounds of our own on the header of a request: bytes and time (rule E18)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ackpost.errors import ConfigError

HEADER_BYTES_MAX: Final = 32 * 1024
HEADER_S: Final = 10.0
KEEP_ALIVE_S: Final = 75
GRACE_S: Final = 3
"""What calls under way get at the end; all but those that wait for an attempt need milliseconds."""
BACKLOG: Final = 2048
_TOO_LARGE_BODY: Final = (
    b'{"type":"about:blank","title":"Header too large","status":431,"code":"too_large","detail":"Use fewer headers"}'
)
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/problem+json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_TOO_LARGE_BODY), _TOO_LARGE_BODY)
)


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose header is too large or too slow, before anything is asked of the app."""

    def connection_made(self, transport: Any) -> None:
        """Start the clock of the first header."""
        super().connection_made(transport)
        self._in_header = True
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = self.loop.call_later(HEADER_S, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A next request's header begins."""
        self._in_header = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The header is whole."""
        self._in_header = False
        self._header_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a header that is not complete yet."""
        super().data_received(data)
        if self._in_header and not self.transport.is_closing():
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES_MAX:
                self.transport.write(_TOO_LARGE)
                self.transport.close()
            elif self._header_timer is None:
                self._header_timer = self.loop.call_later(HEADER_S, self._too_slow)

    def _too_slow(self) -> None:
        self._header_timer = None
        if self._in_header and not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


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
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )
