"""All resources of the API: one file each."""

from __future__ import annotations

from typing import Final

from litestar.types import ControllerRouterHandler

from ackpost.api import api_keys, events, system, tenants

ROUTES: Final[list[ControllerRouterHandler]] = [
    *events.ROUTES,
    *tenants.ROUTES,
    *api_keys.ROUTES,
    *system.ROUTES,
]
