"""A copy that differs from its source, or ended early, is a database that no server takes; the next copy mends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ackpost.errors import StoreError
from ackpost.store.portable import Batches, Row, Table
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.importing import PostgresImport
from ackpost.store.sqlite import SqliteStore
from ackpost.store.sqlite.export import SqliteRows
from ackpost.testing.store_contract.world import LEASE_MS
from ackpost.wiring.copying import Compared
from tests.store.harnesses import PostgresHarness
from tests.store.moving.test_core import CONTENT, LATER_MS, content_of, file, lost, move

Spoil = Callable[[Row], list[Row]]


class Spoiled(PostgresImport):
    """Writes one table otherwise than it was given: ``spoil`` gives what becomes of its first row."""

    table = "history"
    spoil: Spoil = staticmethod(lambda row: [row])

    async def write(self, table: Table, batches: Batches) -> None:
        """Write all of a table."""
        await super().write(table, self._spoiled(batches) if table.name == self.table else batches)

    async def _spoiled(self, batches: Batches) -> Batches:
        is_first = True
        async for batch in batches:
            yield [*self.spoil(batch[0]), *batch[1:]] if is_first else batch
            is_first = False


class Torn(SqliteRows):
    """A source that fails in the middle."""

    async def rows(self, table: Table) -> Batches:
        """Read a table."""
        async for batch in super().rows(table):
            yield batch
            if table.name == "attempt":
                raise StoreError("The disk is gone.")


def _with_another_body(row: Row) -> list[Row]:
    return [(*row[:-1], b"other")]


def _shifted(row: Row) -> list[Row]:
    return [(row[0] + 1, *row[1:])]


async def _copy(source: SqliteRows, store: PostgresStore) -> list[Compared]:
    return await move(source, PostgresImport(store.place))


def _play(folder: Path, spoiling: Callable[[Path, PostgresStore], Awaitable[None]]) -> None:
    """Spoil a copy, see its target refused, copy again, see all."""
    path = file(folder)

    async def run() -> None:
        source = SqliteStore(str(path))
        await source.open(node="a", now_ms=LATER_MS, lease_ms=LEASE_MS)
        await source.close()
        harness = PostgresHarness()
        store = harness.make()
        assert isinstance(store, PostgresStore)
        try:
            await spoiling(path, store)
            with pytest.raises(StoreError, match="a copy that has not ended"):
                await store.open(node="a", now_ms=LATER_MS, lease_ms=LEASE_MS)
            assert all(one.same for one in await _copy(SqliteRows(str(path)), store))
            await store.open(node="a", now_ms=LATER_MS, lease_ms=LEASE_MS)
            assert lost(CONTENT, await content_of(store)) == []
        finally:
            await harness.dispose(store)

    asyncio.run(run())


@pytest.mark.parametrize("spoil", [lambda _: [], lambda row: [row, *_shifted(row)], _with_another_body])
def test_a_row_that_is_missing_added_or_changed_is_noticed(tmp_path: Path, spoil: Spoil) -> None:
    """The table is named, and the target is not finished."""

    async def spoiling(path: Path, store: PostgresStore) -> None:
        target = Spoiled(store.place)
        target.spoil = spoil
        assert [one.table for one in await move(SqliteRows(str(path)), target) if not one.same] == ["history"]

    _play(tmp_path, spoiling)


def test_a_source_that_fails_leaves_no_row(tmp_path: Path) -> None:
    """Its error is the copy's; the target can be copied to at once."""

    async def spoiling(path: Path, store: PostgresStore) -> None:
        with pytest.raises(StoreError, match="The disk is gone"):
            await _copy(Torn(str(path)), store)

    _play(tmp_path, spoiling)


def test_a_source_that_was_lost_to_another_finishes_nothing(tmp_path: Path) -> None:
    """Whoever took the source over may have changed it while it was read."""

    async def spoiling(path: Path, store: PostgresStore) -> None:
        def check() -> None:
            raise StoreError("Another node owns the database now.")

        with pytest.raises(StoreError, match="Another node owns"):
            await move(SqliteRows(str(path)), PostgresImport(store.place), check)

    _play(tmp_path, spoiling)
