"""What the engine tells about its work, once a batch, never once an event (rule E19)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ackpost.core.decision import Decision


class Telemetry(Protocol):
    """Counters and log lines. Calls return at once and never raise."""

    def accepted(self, events: int, deliveries: int) -> None:
        """Events that became durable with this commit."""

    def committed(self, operations: int, duration_s: float) -> None:
        """One commit and how long it took."""

    def attempts(self, decisions: Sequence[Decision]) -> None:
        """Results that became durable with this commit: counts by outcome code, one wide log line each."""

    def circuit(self, endpoint: int, state: str) -> None:
        """An endpoint's circuit changed."""

    def note(self, name: str, **fields: object) -> None:
        """A rare operational fact: clock step, store trouble and its end, dead letters that left by age, poison."""
