"""How an endpoint does (contract §3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ackpost.core.model import Endpoint
from ackpost.ports.store import Page
from ackpost.service.deliveries import DeliveryService, ShownAttempt

if TYPE_CHECKING:
    from ackpost.service.context import Services


class Health(msgspec.Struct):
    """Figures of now and of the last hour; rates and percentiles None without attempts."""

    in_flight: int
    backlog: int
    oldest_due_ms: int | None
    success_rate_1h: float | None
    p50_ms: float | None
    p99_ms: float | None
    last_success_ms: int | None
    last_failure: ShownAttempt | None


class HealthService:
    """Use cases around an endpoint's figures and attempts."""

    def __init__(self, services: Services, deliveries: DeliveryService) -> None:
        self._store = services.store
        self._clock = services.clock
        self._engine = services.engine
        self._deliveries = deliveries

    async def health(self, endpoint: Endpoint) -> Health:
        """Read the figures of one endpoint."""
        stored = await self._store.endpoint_health(endpoint.position, self._clock.now_ms())
        total = stored.good_1h + stored.bad_1h
        latencies_ms = sorted(stored.latencies_ms)
        failures = [] if stored.last_failure is None else [stored.last_failure]
        shown = await self._deliveries.show_attempts(failures)
        return Health(
            in_flight=self._engine.in_flight(endpoint.position),
            backlog=stored.pending,
            oldest_due_ms=stored.oldest_due_ms,
            success_rate_1h=stored.good_1h / total if total else None,
            p50_ms=_percentile(latencies_ms, 50),
            p99_ms=_percentile(latencies_ms, 99),
            last_success_ms=stored.last_success_ms,
            last_failure=shown[0] if shown else None,
        )

    async def attempts(self, endpoint: Endpoint, page: Page) -> list[ShownAttempt]:
        """List the attempts of all its deliveries."""
        rows = await self._store.attempts(endpoint.tenant, delivery=None, endpoint=endpoint.position, page=page)
        return await self._deliveries.show_attempts(rows)


def _percentile(ascending: Sequence[float], percent: int) -> float | None:
    """Nearest rank: the smallest value that at least ``percent`` of all do not exceed."""
    if not ascending:
        return None
    return round(ascending[-(-len(ascending) * percent // 100) - 1], 2)
