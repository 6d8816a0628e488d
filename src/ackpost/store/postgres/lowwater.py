"""Where to begin in the hot index: behind the entries of rows that are gone.

A long transaction anywhere keeps PostgreSQL from forgetting rows that left. Their entries stay at the beginning of
their lane, and each window would walk over all of them: 38 ms after 100,000 deliveries, and rising. So a lane's next
window begins at the lowest due time that can still be there. Rows that come later are due later, but for what waited
for its commit: the bound lags by more than that takes. And now and then a window begins at zero, so that a row that was
due even earlier is only late.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Lane = tuple[int, int]
"""An endpoint and a class."""

LAG_MS: Final = 60_000
WHOLE_EACH_S: Final = 30.0
_LANES_MAX: Final = 50_000


class _Low(NamedTuple):
    due_ms: int
    whole_at_s: float


class LowWater:
    """The bounds of one store, in memory. ``now_s`` is monotonic."""

    __slots__ = ("_lows",)

    def __init__(self) -> None:
        self._lows: dict[Lane, _Low] = {}

    def begin(self, lane: Lane, now_s: float) -> int:
        """Give the due time that the lane's next window begins at; 0: look at all of it."""
        low = self._lows.get(lane)
        return 0 if low is None or now_s - low.whole_at_s >= WHOLE_EACH_S else low.due_ms

    def note(self, lane: Lane, begun_ms: int, first_due_ms: int | None, now_ms: int, now_s: float) -> None:
        """Learn from a window: where it began, its first row's due time (None: it was empty), and the time.

        ``now_ms`` may lie behind the true time, not ahead of it by more than nodes' clocks differ.
        """
        known = self._lows.get(lane)
        whole_at_s = now_s if known is None or not begun_ms else known.whole_at_s
        reached_ms = now_ms - LAG_MS
        if first_due_ms is not None:
            reached_ms = min(reached_ms, first_due_ms)
        if known is None and len(self._lows) >= _LANES_MAX:
            self._lows.clear()
        self._lows[lane] = _Low(max(begun_ms, reached_ms, 0), whole_at_s)
