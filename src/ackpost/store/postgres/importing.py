"""Filling an empty database with what another store holds.

Everything is written in one transaction, which holds this node's row: whoever would take the database over waits for
it. Before it begins, ``meta`` says that the database is incomplete, and the transaction itself takes that back. So a
copy that ended anywhere leaves no row behind, and a database that every server refuses, until a copy succeeds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import asyncpg

from ackpost.core.ids import partition_of
from ackpost.core.model import ApiKey, Endpoint, Job, Tenant
from ackpost.errors import StoreError, StoreLocked
from ackpost.store.portable import TABLES, Batches, Facts, Row, Table
from ackpost.store.postgres.connection import Connection, Place, connect_patiently
from ackpost.store.postgres.days import make_days
from ackpost.store.postgres.export import read_table
from ackpost.store.postgres.faults import LOST, mapped
from ackpost.store.postgres.ledger import DAY_MS, KEPT_DAY, SLOT_BITS, Ledger
from ackpost.store.postgres.migrating import migrate
from ackpost.store.postgres.owning import own, release
from ackpost.store.postgres.querying import NOW_MS
from ackpost.store.values import Document, from_document

NODE: Final = "copy"
_LEASE_MS: Final = 20_000
_DAYS_MAX: Final = 100
_SPARSE: Final = 0.01
"""The oldest days that together have no more than this share of the events get no partitions of their own."""

_FENCE: Final = "SELECT 1 FROM node WHERE id = $1 AND incarnation = $2 AND alive FOR NO KEY UPDATE"
_FINISH: Final = """
UPDATE meta SET salt = $1, incarnation = greatest(incarnation, $2), oldest_day = $3, is_complete = true
"""
_SET_BOUNDS: Final = """
INSERT INTO position_slot SELECT slot, $1 FROM generate_series(0, $2::integer) slot
ON CONFLICT (slot) DO UPDATE SET position_bound = excluded.position_bound
"""

_Derive = Callable[[Row], Row]


class PostgresImport:
    """Implements ``portable.Target``."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: Connection | None = None
        self._transaction: Any = None
        self._ledger: Ledger | None = None
        self._facts = Facts(0, 0, 0, {})
        self._oldest_day = 0

    async def begin(self, facts: Facts, now_ms: int) -> None:
        """Own the database by its own clock, mark it as incomplete, begin the transaction that fills it."""
        connection = self._connection = await connect_patiently(self._place)
        self._facts = facts
        with mapped():
            await migrate(connection, self._place.schema)
            ledger = self._ledger = Ledger(connection)
            try:
                async with connection.transaction():
                    clock_ms = await connection.fetchval(f"SELECT {NOW_MS}")
                    await own(ledger, node=NODE, now_ms=clock_ms, lease_ms=_LEASE_MS, salt=facts.salt, importing=True)
                    await _expect_empty(ledger)
                    await ledger.execute("UPDATE meta SET is_complete = false")
            except asyncpg.LockNotAvailableError as error:
                raise StoreLocked("Another copy into this database runs.") from error
            transaction = connection.transaction()
            await transaction.start()
            self._transaction = transaction
            if await ledger.one(_FENCE, NODE, ledger.incarnation) is None:
                raise StoreLocked("Another copy into this database has begun.")
            await self._make_room(ledger, now_ms)

    async def _make_room(self, ledger: Ledger, now_ms: int) -> None:
        """Make the days that have events, but for the oldest ones with few; what a new database holds goes."""
        await ledger.execute("DELETE FROM tenant")
        last = max(now_ms, self._facts.position_bound >> 20) // DAY_MS
        self._oldest_day = _first_day(self._facts.events_by_day, last)
        for day in range(self._oldest_day, last + 1):
            await make_days(ledger, day)

    async def write(self, table: Table, batches: Batches) -> None:
        """Write all of a table."""
        assert self._connection is not None
        derived, derive = self._derived(table)
        with mapped():
            await self._connection.copy_records_to_table(
                table.name, schema_name=self._place.schema, columns=(*table.columns, *derived),
                records=_each(batches, derive),
            )  # fmt: skip

    def _derived(self, table: Table) -> tuple[tuple[str, ...], _Derive]:
        """Give the columns that are made from the others, and how."""
        column = table.columns.index
        match table.name:
            case "event":
                return ("day",), lambda row: (*row, self._day_of(row[0]))
            case "history":
                return ("day",), lambda row: (*row, self._day_of(row[0] - row[1]))
            case "attempt":
                event = column("event")
                return ("day",), lambda row: (*row, self._day_of(row[event]))
            case "delivery":
                endpoint = column("endpoint")
                return ("partition",), lambda row: (*row, partition_of(row[endpoint]))
            case "tenant":
                return ("created_ms",), _with_times(Tenant, "created_at_ms", flag=column("deleted"))
            case "api_key":
                return ("created_ms",), _with_times(ApiKey, "created_at_ms")
            case "endpoint":
                return ("created_ms",), _with_times(Endpoint, "created_at_ms", flag=column("hears"))
            case "job":
                times = ("created_at_ms", "finished_at_ms")
                return ("created_ms", "finished_ms"), _with_times(Job, *times, flag=column("open"))
            case _:
                return (), lambda row: row

    def _day_of(self, event: int) -> int:
        day = (event >> 20) // DAY_MS
        return day if day >= self._oldest_day else KEPT_DAY

    def rows(self, table: Table) -> Batches:
        """Read back what was written."""
        return read_table(self._connection, table)

    async def finish(self) -> None:
        """Let the positions go on above all that were given, end the transaction, and let PostgreSQL look at it all."""
        connection, ledger = self._connection, self._ledger
        assert connection is not None
        assert ledger is not None
        with mapped():
            facts = self._facts
            await ledger.execute(_FINISH, facts.salt, facts.incarnation, self._oldest_day)
            await ledger.execute(_SET_BOUNDS, facts.position_bound, (1 << SLOT_BITS) - 1)
            ledger.last_position = facts.position_bound
            await release(ledger)
            transaction, self._transaction = self._transaction, None
            await transaction.commit()
            self._ledger = None
            for table in TABLES:
                await connection.execute(f"VACUUM (ANALYZE) {table.name}")
        await connection.close()
        self._connection = None

    async def abandon(self) -> None:
        """Roll back, and own the database no more."""
        connection, self._connection = self._connection, None
        transaction, self._transaction = self._transaction, None
        ledger, self._ledger = self._ledger, None
        if connection is None:
            return
        try:
            if transaction is not None:
                await transaction.rollback()
            if ledger is not None and ledger.incarnation:
                async with connection.transaction():
                    await release(ledger)
        except (asyncpg.PostgresError, *LOST):
            # The database went away: it rolls back by itself, and the lease runs out.
            return
        finally:
            connection.terminate()


async def _expect_empty(ledger: Ledger) -> None:
    """Refuse a database that holds more than a new one does. Raises: StoreError."""
    found = [
        table.name
        for table in TABLES
        if table.name != "tenant" and await ledger.one(f"SELECT 1 FROM {table.name} LIMIT 1") is not None  # noqa: S608 - constants only
    ]
    if await ledger.one("SELECT 1 FROM tenant WHERE uid <> 'default' OR routing_version <> 1 LIMIT 1") is not None:
        found.insert(0, "tenant")
    if found:
        names = ", ".join(found)
        raise StoreError(
            f"The target is not empty, it has rows in: {names}. Name another database, or drop the schema there."
        )


def _first_day(events_by_day: dict[int, int], last: int) -> int:
    """Give the first day that gets partitions of its own."""
    few = sum(events_by_day.values()) * _SPARSE
    passed = 0
    for day in sorted(events_by_day):
        passed += events_by_day[day]
        if passed > few:
            return max(min(day, last), last - _DAYS_MAX)
    return last


async def _each(batches: Batches, derive: _Derive) -> AsyncIterator[Row]:
    async for batch in batches:
        for row in batch:
            yield derive(row)


def _with_times(kind: type[Document], *names: str, flag: int | None = None) -> _Derive:
    """Add what the document, a row's last column, says of times; ``flag`` is a column that is true or false."""

    def derive(row: Row) -> Row:
        document: Any = from_document(kind, row[-1])
        values: list[Any] = list(row)
        if flag is not None:
            values[flag] = bool(values[flag])
        return (*values, *(getattr(document, name) for name in names))

    return derive
