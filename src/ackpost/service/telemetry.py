"""Counters of this process, added to once a batch (rule E19) and read when somebody asks for ``/metrics``."""

from __future__ import annotations

import asyncio
import bisect
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ackpost.core.decision import Decision
from ackpost.ports.clock import Clock

COMMIT_SIZE_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
COMMIT_SECONDS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LAG_PROBE_S: Final = 0.5
ATTEMPT_SECONDS_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts of values up to each bound, and above the last one."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Counters:
    """What happened since the process started. It is a ``ports.telemetry.Telemetry`` that only counts."""

    def __init__(self) -> None:
        self.events_accepted = 0
        self.deliveries_made = 0
        self.attempts_by_outcome: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.dead_by_reason: Counter[str] = Counter()
        self.circuit_changes: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.commit_size = Histogram(COMMIT_SIZE_BOUNDS)
        self.commit_s = Histogram(COMMIT_SECONDS_BOUNDS)
        self.attempt_s = Histogram(ATTEMPT_SECONDS_BOUNDS)
        self.loop_lag_s = 0.0
        self.loop_lag_max_s = 0.0

    def accepted(self, events: int, deliveries: int) -> None:
        """Events that became durable with one commit."""
        self.events_accepted += events
        self.deliveries_made += deliveries

    def committed(self, operations: int, duration_s: float) -> None:
        """One commit and how long it took."""
        self.commit_size.add(operations)
        self.commit_s.add(duration_s)

    def attempts(self, decisions: Sequence[Decision]) -> None:
        """Results that became durable with one commit."""
        outcomes = self.attempts_by_outcome
        for decision in decisions:
            outcome = decision.outcome
            if outcome is not None:
                outcomes[outcome.code] += 1
                self.attempt_s.add(outcome.duration_ms / 1000)
            if decision.verdict in {"delivered", "dead", "discarded"}:
                self.endings[decision.verdict] += 1
                if decision.verdict == "dead":
                    self.dead_by_reason[decision.reason or "unknown"] += 1

    def circuit(self, endpoint: int, state: str) -> None:  # noqa: ARG002 - the port names it; metrics have no such label
        """An endpoint's circuit changed."""
        self.circuit_changes[state] += 1

    def note(self, name: str, **fields: object) -> None:  # noqa: ARG002 - the port names them; a counter needs none
        """A rare operational fact."""
        self.notes[name] += 1

    @property
    def log_batches_dropped(self) -> int:
        """Log lines nobody read in time, in batches; a telemetry that writes lines says how many."""
        return 0

    def lag(self, lag_s: float) -> None:
        """How late the event loop ran a timer just now."""
        self.loop_lag_s = lag_s
        self.loop_lag_max_s = max(self.loop_lag_max_s, lag_s)


async def watch_loop(counters: Counters, clock: Clock) -> None:
    """Measure how late the event loop runs its timers, until cancelled."""
    while True:
        before = clock.monotonic()
        await asyncio.sleep(LAG_PROBE_S)
        counters.lag(max(0.0, clock.monotonic() - before - LAG_PROBE_S))
