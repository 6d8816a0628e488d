"""Counts of deliveries (contract §3)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from litestar import get
from litestar.params import QueryParameter
from litestar.types import ControllerRouterHandler

from ackpost.api.guards import Call
from ackpost.api.params import time_of
from ackpost.api.views import time_text
from ackpost.core import ids
from ackpost.service.auth import READERS


class CountsView(msgspec.Struct):
    """Deliveries by status for one `value`: an endpoint's id, an event type, a reason or an error."""

    value: str
    total: int
    counts: dict[str, int]


class StatsView(msgspec.Struct):
    """Counts, most numerous first."""

    by: Literal["endpoint", "type", "reason", "error"]
    since: str | None
    data: list[CountsView]


@get("/v1/stats", roles=READERS, tenants="list", tags=["Statistics"], summary="Count deliveries")
async def stats(
    call: Call,
    by: Annotated[Literal["endpoint", "type", "reason", "error"], QueryParameter(description="What to count by.")],
    since: Annotated[str | None, QueryParameter(description="Only deliveries made since this time (RFC 3339).")] = None,
) -> StatsView:
    """Count deliveries by status for each endpoint, type, reason or error."""
    since_ms = time_of("since", since)
    rows = await call.services.stats.counts(call.tenant, by, since_ms)
    return StatsView(
        by,
        time_text(since_ms),
        [
            CountsView(
                value=row.value or "" if row.endpoint is None else ids.public_id(ids.ENDPOINT, row.endpoint, call.salt),
                total=sum(row.counts.values()),
                counts=row.counts,
            )
            for row in rows
        ],
    )


ROUTES: Final[list[ControllerRouterHandler]] = [stats]
