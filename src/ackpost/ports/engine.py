"""What services may ask the delivery engine of this process."""

from __future__ import annotations

from typing import Protocol


class EngineView(Protocol):
    """A look into the engine; never changes anything."""

    async def wait_attempt(self, delivery: int, timeout_s: float) -> bool:
        """Wait until an attempt of this delivery has been recorded; False when the time is over first."""

    def in_flight(self, endpoint: int) -> int:
        """Requests under way to an endpoint."""

    def is_rate_held(self, endpoint: int) -> bool:
        """Whether the endpoint's rate limit holds something back now."""

    def held_back(self) -> dict[int, str]:
        """Endpoints with work that is held back now, and by what: paused, circuit, retry_after or rate."""

    def due_unsent(self) -> int:
        """Deliveries in memory that are due, held back by nothing and not under way."""

    def requests_in_flight(self) -> int:
        """Requests under way, to all endpoints."""

    def partitions_owned(self) -> int:
        """Partitions whose endpoints this process delivers to."""

    def readiness(self) -> str | None:
        """None when delivering; else one line why not."""
