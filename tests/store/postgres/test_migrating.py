"""A new schema version beside nodes that read and write: it waits shortly, whole or not at all, and nothing is lost.

There is one version yet. These tests plant a second one, which adds a column to the busiest table.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from ackpost.errors import SchemaMismatch, StoreBusy
from ackpost.store.postgres import PostgresStore, migrating
from ackpost.store.postgres.connection import Place, connect
from ackpost.testing.store_contract.world import LEASE_MS, World
from tests.store.postgres.test_interleaving import until_blocked
from tests.store.postgres.test_sharing import SharedHarness

SECOND = "ALTER TABLE event ADD COLUMN note text; CREATE TABLE remark (id bigint PRIMARY KEY);"


@pytest.fixture(name="second_version")
def _second_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What makes this program one of the next version."""
    scripts = tmp_path / "migrations"
    shutil.copytree(Path(migrating.__file__).with_name("migrations"), scripts)
    (scripts / "0002.sql").write_text(SECOND, encoding="utf-8")

    def begin() -> None:
        monkeypatch.setattr(migrating, "SCHEMA_VERSION", 2)
        monkeypatch.setattr("importlib.resources.files", lambda _: tmp_path)

    return begin


def play(scenario: Callable[[World, PostgresStore, Any], Awaitable[None]]) -> None:
    """Run a scenario with node ``a``, a node that has not opened yet, and a session that stands for a third."""

    async def run() -> None:
        harness = SharedHarness()
        world = await World.begin(harness)
        assert isinstance(world.store, PostgresStore)
        other = harness.reopen(world.store)
        session = await connect(Place(world.store.dsn, world.store.schema))
        try:
            await scenario(world, other, session)
        finally:
            await session.close()
            for store in (world.store, other):
                await harness.dispose(store)

    asyncio.run(run())


async def version(session: Any) -> int:
    """The schema's version."""
    return int(await session.fetchval("SELECT version FROM schema_version"))


async def has_note(session: Any) -> bool:
    """Whether the second version's column is there."""
    return bool(
        await session.fetchval(
            "SELECT count(*) FROM pg_attribute WHERE attrelid = 'event'::regclass AND attname = 'note'"
        )
    )


def test_a_version_is_added_beside_reads_and_writes(
    second_version: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a transaction under way, writes that come meanwhile wait for it, and all of them are there after."""
    monkeypatch.setattr(migrating, "_LOCK_TIMEOUT", "SET LOCAL lock_timeout = '60s'")

    async def scenario(world: World, other: PostgresStore, session: Any) -> None:
        before = await world.one()
        second_version()
        await session.execute("BEGIN")
        await session.fetch("SELECT position FROM event")
        opening = asyncio.ensure_future(other.open(node="b", now_ms=world.now_ms, lease_ms=LEASE_MS))
        await until_blocked(session, opening)
        publishing = asyncio.ensure_future(world.one())
        await session.execute("COMMIT")
        await opening
        meanwhile = await publishing
        assert (await version(session), await has_note(session)) == (2, True)
        after = await world.one()
        for position in (before.position, meanwhile.position, after.position):
            assert (await world.event(position)).data == b'{"n":1}'

    play(scenario)


def test_a_version_that_gets_no_lock_is_not_added(second_version: Callable[[], None]) -> None:
    """Behind a long transaction the start fails in one line and changes nothing; later it succeeds."""

    async def scenario(world: World, other: PostgresStore, session: Any) -> None:
        second_version()
        await session.execute("SET idle_in_transaction_session_timeout = 0")
        await session.execute("BEGIN")
        await session.fetch("SELECT position FROM event")
        with pytest.raises(StoreBusy) as caught:
            await other.open(node="b", now_ms=world.now_ms, lease_ms=LEASE_MS)
        assert "lock timeout" in str(caught.value)
        assert "\n" not in str(caught.value)
        await world.one()
        await session.execute("COMMIT")
        assert (await version(session), await has_note(session)) == (1, False)
        await other.open(node="b", now_ms=world.now_ms, lease_ms=LEASE_MS)
        assert (await version(session), await has_note(session)) == (2, True)

    play(scenario)


def test_nodes_of_two_versions(second_version: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the older version that runs goes on beside the newer; one that starts is refused in one line."""

    async def scenario(world: World, other: PostgresStore, session: Any) -> None:
        second_version()
        await other.open(node="b", now_ms=world.now_ms, lease_ms=LEASE_MS)
        await world.one()
        monkeypatch.undo()
        late = PostgresStore(other.dsn, schema=other.schema)
        with pytest.raises(SchemaMismatch, match=r"has version 2, this program knows 1") as caught:
            await late.open(node="c", now_ms=world.now_ms, lease_ms=LEASE_MS)
        assert "\n" not in str(caught.value)
        await late.close()
        assert await version(session) == 2

    play(scenario)


def test_nodes_that_open_an_empty_database_at_once() -> None:
    """Each makes what is missing or finds it made; all work."""

    async def run() -> None:
        harness = SharedHarness()
        first = harness.make()
        stores = [first, *(harness.reopen(first) for _ in range(3))]
        try:
            incarnations = await asyncio.gather(
                *(store.open(node=f"n{index}", now_ms=1, lease_ms=LEASE_MS) for index, store in enumerate(stores))
            )
            assert sorted(incarnations) == [1, 2, 3, 4]
            tenants = [await store.tenant_by_uid("default") for store in stores]
            assert len({tenant.position for tenant in tenants if tenant is not None}) == 1
            assert None not in tenants
        finally:
            for store in stores:
                await harness.dispose(store)

    asyncio.run(run())


def test_an_untouched_schema_is_left_alone() -> None:
    """Opening a database of this version takes no lock that a reader or a writer would notice."""

    async def scenario(world: World, other: PostgresStore, session: Any) -> None:
        await session.execute("BEGIN")
        await session.execute("LOCK TABLE event, delivery, history, attempt IN SHARE ROW EXCLUSIVE MODE")
        await other.open(node="b", now_ms=world.now_ms, lease_ms=LEASE_MS)
        await session.execute("COMMIT")

    play(scenario)


def test_a_step_that_fails_leaves_nothing(second_version: Callable[[], None], tmp_path: Path) -> None:
    """A version is added whole or not at all."""
    (tmp_path / "migrations" / "0002.sql").write_text(f"{SECOND} SELECT 1 / 0;", encoding="utf-8")

    async def scenario(world: World, other: PostgresStore, session: Any) -> None:
        second_version()
        with pytest.raises(Exception, match="division by zero"):
            await other.open(node="b", now_ms=world.now_ms, lease_ms=LEASE_MS)
        assert (await version(session), await has_note(session)) == (1, False)
        with pytest.raises(asyncpg.UndefinedTableError):
            await session.fetch("SELECT 1 FROM remark")

    play(scenario)
