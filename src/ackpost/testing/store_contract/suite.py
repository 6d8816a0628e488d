"""Finding and running the checks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Final

from ackpost.testing.store_contract import (
    accepting,
    announcing,
    changing,
    endpoints,
    jobs,
    ordering,
    owning,
    reading,
    recording,
    retaining,
    tenants,
)
from ackpost.testing.store_contract.world import StoreHarness, World

Case = Callable[[World], Awaitable[None]]

_PREFIX: Final = "check_"
_MODULES: Final[tuple[ModuleType, ...]] = (
    owning, accepting, ordering, recording, changing, endpoints, tenants, jobs, announcing, retaining, reading,
)  # fmt: skip


def cases() -> list[Case]:
    """Every check, in the order of reading."""
    return [
        function
        for module in _MODULES
        for name, function in inspect.getmembers(module, inspect.iscoroutinefunction)
        if name.startswith(_PREFIX) and function.__module__ == module.__name__
    ]


async def run(harness: StoreHarness, case: Case) -> None:
    """Play one check on a new store, then see that the invariants hold."""
    world = await World.begin(harness)
    try:
        await case(world)
        if not world.is_over:
            await world.look()
    finally:
        for store in world.stores:
            await harness.dispose(store)
