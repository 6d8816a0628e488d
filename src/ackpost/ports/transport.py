"""How the engine sends one POST. The adapter is ``egress``; the simulation brings its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ackpost.core.outcome import Outcome
from ackpost.core.target import Target


class InFlight(Protocol):
    """One request under way."""

    def abort(self) -> None:
        """Close its socket; ``on_done`` is not called any more."""


class Transport(Protocol):
    """Sends POSTs; bounded pools, one deadline from DNS to the last byte, never a redirect."""

    def send(
        self, target: Target, headers: bytes, body: bytes, timeout_s: float, on_done: Callable[[Outcome], None]
    ) -> InFlight:
        """Start one POST; ``on_done`` is called exactly once, on the event loop, never before this returns.

        ``headers`` are complete lines, each with its CR LF, without Host and Content-Length: both are added here.
        """

    async def close(self) -> None:
        """Close all idle connections and abort what is under way."""
