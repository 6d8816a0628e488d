"""Time and chance as arguments; the system's adapters are in ``wiring.system``, tests bring their own."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Process time (rule E16): wall clock at start plus monotonic time, so that a stepped wall clock moves nothing."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch by process time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps."""

    def wall_s(self) -> int:
        """Seconds since the epoch by the raw wall clock: for ``webhook-timestamp`` only."""


class Entropy(Protocol):
    """Where randomness comes from."""

    def unit(self) -> float:
        """Give a number in [0, 1): jitter."""

    def token(self, length_bytes: int) -> bytes:
        """Give bytes fit for secrets."""
