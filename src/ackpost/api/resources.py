"""All resources of the API: one file each."""

from __future__ import annotations

from typing import Final

from litestar.types import ControllerRouterHandler

from ackpost.api import system

ROUTES: Final[list[ControllerRouterHandler]] = [*system.ROUTES]
