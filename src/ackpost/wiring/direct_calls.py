"""A direct call's request on a connection, in the place of uvicorn's cycle of task and messages (rule E19).

uvicorn's protocol finds on it the attributes that it reads of its own cycle, so that disconnects, pipelined requests
and the end of the server are still its work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol


class DirectCall(Protocol):
    """What an app offers in ``direct``, by path, for POSTs."""

    def admit(self, headers: list[tuple[bytes, bytes]]) -> int | None:
        """Say, at the end of the headers, whether this request may go the direct way, and for whom."""

    def take(self, tenant: int, body: bytes, answer: Callable[[bytes, bytes], None]) -> None:
        """Do it; ``answer`` gets status line with headers, and body, once."""


class _NobodyWaits:
    """In place of the event that wakes a cycle's task: there is none."""

    def set(self) -> None:
        """Do nothing."""


class DirectRequest:
    """One request from the end of its headers to its answer."""

    __slots__ = (
        "_answered", "_call", "_more", "_tenant", "body", "disconnected", "keep_alive", "more_body",
        "response_complete", "response_started", "transport",
    )  # fmt: skip
    message_event: Final = _NobodyWaits()

    def __init__(self, call: DirectCall, tenant: int, transport: Any, answered: Callable[[], None]) -> None:
        self._call = call
        self._tenant = tenant
        self._answered = answered
        self._more: bytearray | None = None
        self.body = b""
        self.transport = transport
        self.keep_alive = True
        self.more_body = True
        self.disconnected = self.response_started = self.response_complete = False

    def add(self, piece: bytes) -> None:
        """Take a piece of the body; most come in one."""
        if self._more is not None:
            self._more += piece
        elif self.body:
            self._more = bytearray(self.body) + piece
        else:
            self.body = piece

    def start(self) -> None:
        """The request is whole."""
        self.more_body = False
        body = self.body if self._more is None else bytes(self._more)
        self._call.take(self._tenant, body, self.answer)

    def answer(self, head: bytes, body: bytes) -> None:
        """Write the answer in one piece."""
        self.response_started = self.response_complete = True
        if self.disconnected or self.transport.is_closing():
            return
        close = b""
        if b"\r\nconnection: close\r\n" in head:
            self.keep_alive = False
        elif not self.keep_alive:
            close = b"connection: close\r\n"
        self.transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (head, close, len(body), body))
        if not self.keep_alive:
            self.transport.close()
        self._answered()
