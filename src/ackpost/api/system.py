"""Whether the server lives, and whether it works: for machines that watch it."""

from __future__ import annotations

from typing import Final

import msgspec
from litestar import get
from litestar.datastructures import State
from litestar.types import ControllerRouterHandler

from ackpost.errors import Unavailable
from ackpost.service.context import Services


class Health(msgspec.Struct):
    """The process lives."""

    status: str


class Readiness(msgspec.Struct):
    """Both parts work."""

    status: str
    store: str
    engine: str


@get("/healthz", public=True, tags=["System"], summary="Liveness")
async def healthz() -> Health:
    """Answer as long as the process lives."""
    return Health("ok")


@get("/readyz", public=True, tags=["System"], summary="Readiness")
async def readyz(state: State) -> Readiness:
    """Answer 200 when store and delivery engine work, else 503."""
    services: Services = state.services
    trouble = services.engine.readiness()
    if trouble is not None:
        raise Unavailable(trouble, code="starting", retry_after_s=1)
    await services.store.newest_event_ms()
    return Readiness("ok", store="ok", engine="ok")


ROUTES: Final[list[ControllerRouterHandler]] = [healthz, readyz]
