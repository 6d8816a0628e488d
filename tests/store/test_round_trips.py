"""Exchanges with the database are counted, so that the benchmark can tell what a distance to it would cost."""

from __future__ import annotations

import asyncio

import pytest

from ackpost.ports.operations import RenewLease
from ackpost.testing.store_contract import StoreHarness
from tests.store.harnesses import PostgresHarness, SqliteHarness


@pytest.mark.parametrize("harness", [SqliteHarness(), PostgresHarness()], ids=lambda harness: harness.name)
def test_commits_and_reads_are_counted(harness: StoreHarness) -> None:
    """A read and a commit raise the count; nothing else does."""

    async def story() -> None:
        store = harness.make()
        incarnation = await store.open(node="a", now_ms=1, lease_ms=1000)
        counts = [store.round_trips]
        await store.newest_event_ms()
        await asyncio.sleep(0)
        counts.append(store.round_trips)
        await store.commit([RenewLease("a", incarnation, 2, 1000)])
        await asyncio.sleep(0)
        counts.append(store.round_trips)
        await asyncio.sleep(0)
        counts.append(store.round_trips)
        await harness.dispose(store)
        first, read, written, idle = counts
        assert first < read < written == idle

    asyncio.run(story())
