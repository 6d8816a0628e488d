"""Counts of deliveries (contract §3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackpost.ports.store import StatsBy

if TYPE_CHECKING:
    from ackpost.service.context import Services


class Count(msgspec.Struct):
    """Deliveries by status for one value; ``endpoint`` is set when counted by endpoint, else ``value``."""

    counts: dict[str, int]
    endpoint: int | None = None
    value: str | None = None


class StatsService:
    """Use cases around counts."""

    def __init__(self, services: Services) -> None:
        self._store = services.store

    async def counts(self, tenant: int | None, by: StatsBy, since_ms: int | None) -> list[Count]:
        """Count deliveries, most numerous first. ``since_ms``: of deliveries made since then."""
        rows = await self._store.stats(tenant, by, since_ms)
        counted = [
            Count(counts, endpoint=int(value)) if by == "endpoint" else Count(counts, value=value)
            for value, counts in rows
        ]
        counted.sort(key=lambda one: (-sum(one.counts.values()), one.endpoint or 0, one.value or ""))
        return counted
