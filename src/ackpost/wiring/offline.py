"""What is done to a database while no server runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ackpost.config import Settings
from ackpost.ports.store import Store
from ackpost.store.postgres import PostgresStore
from ackpost.store.sqlite import SqliteStore
from ackpost.wiring import keys
from ackpost.wiring.system import SystemClock, SystemEntropy

Given = TypeVar("Given")

_NODE = "offline"
_LEASE_MS = 20_000


def migrate(settings: Settings) -> None:
    """Bring the schema to this version's; a database that is not there yet is made.

    Raises: StoreError.
    """

    async def nothing(_store: Store, _incarnation: int) -> None:
        """Opening migrates."""

    asyncio.run(with_store(settings, nothing))


def create_operator_key(settings: Settings, name: str) -> str:
    """Make one more operator key and give its text.

    Raises: StoreError.
    """
    return asyncio.run(
        with_store(settings, lambda store, _: keys.create_operator_key(store, SystemClock(), SystemEntropy(), name))
    )


async def with_store(settings: Settings, work: Callable[[Store, int], Awaitable[Given]]) -> Given:
    """Do something as the database's owner; ``work`` gets the store and its incarnation.

    Raises: StoreError.
    """
    store = PostgresStore(settings.database_url) if settings.is_shared else SqliteStore(str(settings.database_path))
    incarnation = await store.open(node=_NODE, now_ms=SystemClock().now_ms(), lease_ms=_LEASE_MS)
    try:
        return await work(store, incarnation)
    finally:
        await store.close()
