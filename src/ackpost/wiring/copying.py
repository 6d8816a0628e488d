"""Moving all that a database holds into another, empty one; every row that was written is read back and compared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from ackpost.config import Settings
from ackpost.engine.slots import SlotFile
from ackpost.errors import StoreError
from ackpost.ports.operations import Interrupt, RenewLease
from ackpost.ports.store import Store
from ackpost.store.portable import TABLES, Batches, Source, Table, Tally, Target
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.export import PostgresRows, exists
from ackpost.store.postgres.importing import PostgresImport
from ackpost.store.sqlite import SqliteStore
from ackpost.store.sqlite.export import SqliteRows
from ackpost.wiring.node import CRASHES_MAX, LEASE_MS
from ackpost.wiring.system import SystemClock

_NODE: Final = "copy"
_RENEW_S: Final = LEASE_MS / 4000


class Compared(msgspec.Struct):
    """A table's rows in both databases; ``same``: what was read back is what was to be written."""

    table: str
    source: int
    target: int
    same: bool


OnRows = Callable[[str, int, int], None]
"""Called with a table's name, the rows done and those to do: each is read, written, and read back."""


def copy(source: Settings, target: Settings, on_rows: OnRows) -> list[Compared]:
    """Copy a database that no server uses into an empty one, table by table, and compare.

    Where a table differs the target is left as one that no server takes. Raises: StoreError.
    """
    return asyncio.run(_copy(source, target, on_rows))


async def _copy(source: Settings, target: Settings, on_rows: OnRows) -> list[Compared]:
    clock = SystemClock()
    sink = _target(target)
    async with _owned(source, clock) as (rows, renewal):

        def check() -> None:
            if renewal.done():
                renewal.result()

        return await copy_rows(rows, sink, now_ms=clock.now_ms(), on_rows=on_rows, check=check)


async def copy_rows(
    source: Source, target: Target, *, now_ms: int, on_rows: OnRows, check: Callable[[], None]
) -> list[Compared]:
    """Copy and compare; ``check`` is called before the target becomes a store, and raises where it must not."""
    facts = await source.begin()
    try:
        with _about("TO"):
            await target.begin(facts, now_ms)
        compared = [await _copy_table(source, target, table, on_rows) for table in TABLES]
        check()
        if all(one.same for one in compared):
            await target.finish()
    finally:
        await target.abandon()
    return compared


async def _copy_table(source: Source, target: Target, table: Table, on_rows: OnRows) -> Compared:
    total = await source.count(table)
    read, found = Tally(), Tally()

    async def passing(batches: Batches, tally: Tally) -> Batches:
        async for batch in batches:
            tally.add(batch)
            on_rows(table.name, read.rows + found.rows, 2 * total)
            yield batch

    await target.write(table, passing(source.rows(table), read))
    async for _ in passing(target.rows(table), found):
        pass
    return Compared(table.name, total, found.rows, same=read == found and read.rows == total)


@contextmanager
def _about(database: str) -> Iterator[None]:
    """Let a refusal say which of the two databases it is about."""
    try:
        yield
    except StoreError as error:
        raise type(error)(f"{database}: {error}") from error


def _target(settings: Settings) -> Target:
    if settings.is_shared:
        return PostgresImport(PostgresStore(settings.database_url).place)
    raise StoreError("TO: A copy goes into a PostgreSQL only, postgresql://…")


@asynccontextmanager
async def _owned(settings: Settings, clock: SystemClock) -> AsyncIterator[tuple[Source, asyncio.Task[None]]]:
    """Own a database that exists, so that no server changes it meanwhile.

    Gives what reads it, and what renews the lease: that ends only when the database is owned no more.
    """
    with _about("FROM"):
        store, rows = await _source(settings)
        incarnation = await store.open(node=_NODE, now_ms=clock.now_ms(), lease_ms=LEASE_MS)
    renewal = asyncio.create_task(_renew(store, incarnation, clock), name="lease-of-copy")
    try:
        if not settings.is_shared:
            await _note_interrupted(store, settings.database_path, clock)
        yield rows, renewal
    finally:
        renewal.cancel()
        await asyncio.wait([renewal])
        await rows.end()
        await store.close()


async def _source(settings: Settings) -> tuple[SqliteStore | PostgresStore, Source]:
    """Give the store and what reads it. Raises: StoreError where opening would make a new one."""
    if settings.is_shared:
        shared = PostgresStore(settings.database_url)
        if not await exists(shared.place):
            raise StoreError(f"{settings.database_shown} holds nothing of Ackpost.")
        return shared, PostgresRows(shared.place)
    path = settings.database_path
    if not path.is_file():
        raise StoreError(f"There is no database {path}.")
    return SqliteStore(str(path)), SqliteRows(str(path))


async def _renew(store: Store, incarnation: int, clock: SystemClock) -> None:
    while True:
        await asyncio.sleep(_RENEW_S)
        await store.commit([RenewLease(_NODE, incarnation, clock.now_ms(), LEASE_MS)])


async def _note_interrupted(store: Store, database: Path, clock: SystemClock) -> None:
    """Record what was in flight when the last server died: the copy does not know its file (rule E5)."""
    path = database.with_name(f"{database.name}-inflight")
    if not path.exists() or not path.stat().st_size:
        return
    slots = SlotFile(path, 0)
    try:
        if slots.left:
            await store.commit([Interrupt(slots.left, CRASHES_MAX, clock.now_ms(), _NODE)])
            slots.clear()
    finally:
        slots.close()
