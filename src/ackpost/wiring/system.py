"""The real clock and entropy: the only module that may read time and randomness from the machine."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from typing import Final

CLOCK_BEHIND_MAX_MS: Final = 5_000
FOLLOW_BACK_MS: Final = 100.0
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Process time: the wall clock at start plus monotonic time (rule E16). Both are in seconds."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self.monotonic = monotonic
        """Seconds on a clock that never steps."""
        self._offset_ms = wall() * 1000 - monotonic() * 1000

    def now_ms(self) -> int:
        """Milliseconds since the epoch by process time."""
        return int(self.monotonic() * 1000 + self._offset_ms)

    def continue_from(self, last_ms: int) -> int:
        """Go on from the last time that is stored if the wall clock was set back behind it; give by how much it was.

        What is due by the stored times then keeps its distance: nothing waits for an hour to come a second time.
        """
        behind_ms = last_ms - self.now_ms()
        if behind_ms <= CLOCK_BEHIND_MAX_MS:
            return 0
        self._offset_ms += behind_ms
        return behind_ms

    def begin_at(self, now_ms: int) -> None:
        """It is that late by another clock; nothing was told by this one yet."""
        self._offset_ms = now_ms - self.monotonic() * 1000

    def follow(self, offset_ms: int) -> None:
        """Go by another clock, which is so much ahead of monotonic time: forward at once, back in small steps.

        A step back of more than that would hold back for its length what is due by the times told before.
        """
        self._offset_ms = max(float(offset_ms), self._offset_ms - FOLLOW_BACK_MS)

    def boot_s(self) -> float:
        """Seconds on a clock that goes on while the machine sleeps, where the system has one."""
        return time.clock_gettime(_BOOT_CLOCK)

    def wall_s(self) -> int:
        """Seconds since the epoch by the raw wall clock."""
        return int(self._wall())


class SystemEntropy:
    """The machine's randomness; ``unit`` is for jitter only."""

    def __init__(self) -> None:
        self._jitter = random.Random(secrets.randbits(64))

    def unit(self) -> float:
        """Give a number in [0, 1)."""
        return self._jitter.random()

    def token(self, length_bytes: int) -> bytes:
        """Give bytes fit for secrets."""
        return secrets.token_bytes(length_bytes)
