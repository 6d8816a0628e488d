"""What a read sees while others commit."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import apsw

from ackpost.ports.operations import RenewLease
from tests.store.sqlite.world import LEASE_MS, NOW_MS, opened


def test_one_read_sees_one_state_of_the_database(tmp_path: Path) -> None:
    """All statements of one read look at the same state, so that what moves between tables is seen exactly once."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        looked, committed = threading.Event(), threading.Event()

        def look_twice(connection: apsw.Connection) -> tuple[object, object]:
            sql = "SELECT lease_expires_ms FROM meta"
            first = connection.execute(sql).get
            looked.set()
            assert committed.wait(10)
            return first, connection.execute(sql).get

        reading = asyncio.create_task(world.store._read(look_twice))
        await asyncio.to_thread(looked.wait, 10)
        await world.store.commit([RenewLease("a", world.incarnation, NOW_MS + 1000, LEASE_MS)])
        committed.set()
        first, second = await reading
        assert first == second == NOW_MS + LEASE_MS
        third = await world.store._read(lambda connection: connection.execute("SELECT lease_expires_ms FROM meta").get)
        assert third == NOW_MS + 1000 + LEASE_MS
        await world.store.close()

    asyncio.run(scenario())
