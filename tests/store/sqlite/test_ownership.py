"""One server a database, also between processes; others may read."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import apsw
import pytest

from ackpost.errors import StoreError, StoreLocked
from ackpost.ports.operations import TouchApiKeys
from ackpost.store.sqlite import SqliteStore
from tests.store.sqlite.processes import child, hear, tell
from tests.store.sqlite.world import LEASE_MS, NOW_MS, opened


def _refusal(path: Path, node: str = "b") -> str:
    with pytest.raises(StoreLocked) as caught:
        asyncio.run(opened(path, node=node))
    return str(caught.value)


def test_a_second_server_is_refused_with_one_clear_line(tmp_path: Path) -> None:
    """The refusal names the owner and since when it owns the database, even to a node of the same name."""
    path = tmp_path / "a.db"
    with child(path, "first-node", "hold") as owner:
        assert hear(owner) == "open"
        for node in ("second-node", "first-node"):
            assert _refusal(path, node) == (
                f"The database {path} is in use: by node first-node since 2023-11-14T22:13:20.000Z. "
                "Stop that one, or take another file with --database-url."
            )


def test_the_refusal_does_not_wait_for_a_busy_file(tmp_path: Path) -> None:
    """While the owner is writing, a second server is told so, too, and not that the file is busy."""
    path = tmp_path / "a.db"
    with child(path, "first-node", "hold") as owner:
        assert hear(owner) == "open"
        tell(owner, "busy")
        assert hear(owner) == "busy"
        assert "by node first-node since" in _refusal(path)


def test_after_a_clean_end_anybody_may_open(tmp_path: Path) -> None:
    """A server that closed leaves nothing behind that keeps another one out."""
    path = tmp_path / "a.db"
    with child(path, "first-node", "hold") as owner:
        assert hear(owner) == "open"
        tell(owner, "stop")
        assert hear(owner) == "closed"

    async def scenario() -> None:
        world = await opened(path, node="second-node")
        assert world.incarnation == 2
        await world.store.close()

    asyncio.run(scenario())


def test_a_killed_owner_keeps_nobody_waiting(tmp_path: Path) -> None:
    """After kill -9 a server of another name opens at once, long before the lease has run out."""
    path = tmp_path / "a.db"
    with child(path, "first-node", "hold") as owner:
        assert hear(owner) == "open"
        owner.send_signal(signal.SIGKILL)
        owner.wait()

        async def scenario() -> None:
            world = await opened(path, node="second-node")
            assert world.incarnation == 2
            await world.store.close()

        asyncio.run(scenario())


def test_a_lease_of_another_machine_counts_until_it_runs_out(tmp_path: Path) -> None:
    """Where the lock of the operating system cannot tell, the lease row does."""
    path = tmp_path / "a.db"

    async def scenario() -> None:
        world = await opened(path, node="far")
        await world.store.close()
        connection = apsw.Connection(str(path))
        connection.execute(
            "UPDATE meta SET node = 'far', host = 'elsewhere', owned_since_ms = ?, lease_expires_ms = ?",
            (NOW_MS, NOW_MS + LEASE_MS),
        )
        connection.close()
        store = SqliteStore(str(path))
        with pytest.raises(StoreLocked, match=r"by node far since .* another machine"):
            await store.open(node="near", now_ms=NOW_MS + LEASE_MS - 1, lease_ms=LEASE_MS)
        assert await store.open(node="near", now_ms=NOW_MS + LEASE_MS, lease_ms=LEASE_MS) == 2
        await store.close()

    asyncio.run(scenario())


def test_an_owner_that_was_replaced_commits_nothing(tmp_path: Path) -> None:
    """Every commit looks whether this is still the owner (rule E3)."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        operation = await world.accept_of(1)
        connection = apsw.Connection(world.store.path)
        connection.execute("UPDATE meta SET incarnation = incarnation + 1, node = 'b'")
        connection.close()
        with pytest.raises(StoreLocked, match="owned by node b"):
            await world.store.commit([operation])
        assert await world.store.newest_event_ms() is None
        await world.store.close()

    asyncio.run(scenario())


def test_others_may_read_while_the_server_runs(tmp_path: Path) -> None:
    """A second process reads what is committed, and no more."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        await world.accept(3)
        reader = apsw.Connection(world.store.path, flags=apsw.SQLITE_OPEN_READONLY)
        assert reader.execute("SELECT count(*) FROM event").fetchall() == [(3,)]
        reader.close()
        await world.accept(1)
        await world.store.close()

    asyncio.run(scenario())


def test_opening_twice_and_using_after_the_end(tmp_path: Path) -> None:
    """An open store is not opened again; a closed one says that it is closed, for reads and commits."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        with pytest.raises(StoreError, match="open already"):
            await world.store.open(node="a", now_ms=NOW_MS, lease_ms=LEASE_MS)
        await world.store.close()
        await world.store.close()
        with pytest.raises(StoreError, match="not open"):
            await world.store.commit([TouchApiKeys({})])
        with pytest.raises(StoreError, match="not open"):
            await world.store.newest_event_ms()
        assert await world.store.open(node="a", now_ms=NOW_MS, lease_ms=LEASE_MS) == 2
        await world.store.close()

    asyncio.run(scenario())
