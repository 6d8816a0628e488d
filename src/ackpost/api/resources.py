"""All resources of the API: one file each."""

from __future__ import annotations

from typing import Final

from litestar.types import ControllerRouterHandler

from ackpost.api import (
    api_keys,
    dead_letters,
    deliveries,
    docs,
    endpoint_actions,
    endpoints,
    events,
    jobs,
    metrics,
    nodes,
    stats,
    system,
    tenants,
)

ROUTES: Final[list[ControllerRouterHandler]] = [
    *endpoints.ROUTES,
    *endpoint_actions.ROUTES,
    *events.ROUTES,
    *deliveries.ROUTES,
    *dead_letters.ROUTES,
    *jobs.ROUTES,
    *stats.ROUTES,
    *tenants.ROUTES,
    *api_keys.ROUTES,
    *metrics.ROUTES,
    *nodes.ROUTES,
    *system.ROUTES,
    *docs.ROUTES,
]
