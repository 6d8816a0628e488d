"""Reading a whole database in the form that stores are moved in."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final, TypeVar

import apsw

from ackpost.store.portable import Batches, Facts, Pace, Table
from ackpost.store.sqlite.connection import open_reader
from ackpost.store.sqlite.faults import mapped
from ackpost.store.sqlite.threads import InlineRunner, Runner, ThreadRunner

Given = TypeVar("Given")

_BUSY_TIMEOUT_MS: Final = 5_000
_DAY_MS: Final = 24 * 3600 * 1000

# What these tables do not say themselves. An endpoint's versions outlive it: then its deliveries know the tenant.
_ELSEWHERE: Final = {
    ("endpoint_version", "tenant"): (
        "coalesce((SELECT e.tenant FROM endpoint e WHERE e.position = t.endpoint),"
        " (SELECT a.tenant FROM attempt a WHERE a.endpoint = t.endpoint LIMIT 1),"
        " (SELECT h.tenant FROM history h WHERE h.endpoint = t.endpoint LIMIT 1),"
        " (SELECT d.tenant FROM dead_letter d WHERE d.endpoint = t.endpoint LIMIT 1),"
        " (SELECT min(position) FROM tenant))"
    ),
    ("key_hold", "tenant"): (
        "coalesce((SELECT e.tenant FROM endpoint e WHERE e.position = t.endpoint),"
        " (SELECT e.tenant FROM event e WHERE e.position = t.event))"
    ),
    ("late_delivery", "tenant"): "(SELECT e.tenant FROM event e WHERE e.position = t.event)",
}


def select_all(table: Table) -> str:
    """Give the statement that reads a table in its own order."""
    columns = ", ".join(_ELSEWHERE.get((table.name, column), column) for column in table.columns)
    return f"SELECT {columns} FROM {table.name} t"  # noqa: S608 - constants only


class SqliteRows:
    """Implements ``portable.Source``, beside the store that owns the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._runner: Runner = InlineRunner()
        self._connection: apsw.Connection | None = None

    async def begin(self) -> Facts:
        """Hold one moment."""
        self._runner = ThreadRunner("sqlite-copy")
        return await self._run(self._begin)

    def _begin(self) -> Facts:
        connection = self._connection = open_reader(self._path, _BUSY_TIMEOUT_MS)
        connection.execute("BEGIN")
        row: Any = connection.execute("SELECT salt, incarnation, position_bound FROM meta").fetchone()
        sql = f"SELECT (position >> 20) / {_DAY_MS}, count(*) FROM event GROUP BY 1"  # noqa: S608 - constants only
        days: Any = connection.execute(sql).fetchall()
        salt, incarnation, position_bound = row
        return Facts(salt, incarnation, position_bound, dict(days))

    async def count(self, table: Table) -> int:
        """Count the rows of a table."""
        sql = f"SELECT count(*) FROM {table.name}"  # noqa: S608 - constants only
        rows: Any = await self._run(lambda: self._open().execute(sql).fetchall())
        return int(rows[0][0])

    async def rows(self, table: Table) -> Batches:
        """Read a table in its own order."""
        cursor = await self._run(lambda: self._open().execute(select_all(table)))
        pace = Pace(table)
        while batch := await self._run(lambda: list(islice(cursor, pace.rows))):
            yield batch
            pace.note(batch)

    async def end(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._runner.run(connection.close)
        self._runner.stop()

    def _open(self) -> apsw.Connection:
        assert self._connection is not None
        return self._connection

    async def _run(self, work: Callable[[], Given]) -> Given:
        def mapping() -> Given:
            with mapped(self._path):
                return work()

        return await self._runner.run(mapping)
