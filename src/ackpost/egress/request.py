"""One POST on its way through queue, dial and connection; the handle the engine gets for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ackpost.core.outcome import Outcome
from ackpost.core.target import Target
from ackpost.egress.failures import AttemptFailed

if TYPE_CHECKING:
    from ackpost.egress.connection import Connection


class Request:
    """A request, its clock and its one ending. Times are loop times in seconds; phases are milliseconds."""

    __slots__ = (
        "_on_done",
        "began_at",
        "body",
        "connect_ms",
        "connection",
        "deadline",
        "dial",
        "dns_ms",
        "done",
        "head",
        "target",
        "timeout_s",
        "tls_ms",
        "written_at",
    )

    def __init__(
        self, target: Target, headers: bytes, body: bytes, timeout_s: float, on_done: Callable[[Outcome], None]
    ) -> None:
        self.target = target
        self.head = target.request_head + headers
        self.body = body
        self.timeout_s = timeout_s
        self._on_done = on_done
        self.began_at = self.written_at = self.deadline = 0.0
        self.dns_ms = self.connect_ms = self.tls_ms = 0.0
        self.connection: Connection | None = None
        self.dial: asyncio.Task[Connection | AttemptFailed] | None = None
        self.done = False

    def begin(self, now: float) -> None:
        """Start the clock: sending (with a new connection: its look-up) begins now."""
        self.began_at = self.written_at = now
        self.deadline = now + self.timeout_s

    def elapsed_ms(self, now: float) -> float:
        """Milliseconds since sending began."""
        return (now - self.began_at) * 1000

    def fail(self, failure: AttemptFailed, now: float, waited_ms: float = 0.0, read_ms: float = 0.0) -> None:
        """Report that there is no answer."""
        self.finish(
            Outcome(
                code=failure.code,
                phase=failure.phase,
                detail=failure.detail,
                duration_ms=self.elapsed_ms(now),
                phases_ms=(self.dns_ms, self.connect_ms, self.tls_ms, waited_ms, read_ms),
                remote_ip=failure.remote_ip,
            )
        )

    def finish(self, outcome: Outcome) -> None:
        """Report the outcome, once."""
        if not self.done:
            self.done = True
            self.connection = self.dial = None
            self._on_done(outcome)

    def abort(self) -> None:
        """Close the socket, or leave the queue; nothing is reported any more."""
        if self.done:
            return
        self.done = True
        self.body = b""
        if self.connection is not None:
            self.connection.abort()
        elif self.dial is not None:
            self.dial.cancel()
        self.connection = self.dial = None
