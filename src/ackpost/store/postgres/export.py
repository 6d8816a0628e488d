"""Reading a whole database in the form that stores are moved in."""

from __future__ import annotations

from typing import Final

from ackpost.store.portable import Batches, Facts, Pace, Table
from ackpost.store.postgres.connection import Connection, Place, connect_patiently
from ackpost.store.postgres.faults import mapped
from ackpost.store.postgres.ledger import DAY_MS

_FLAGS: Final = frozenset({"deleted", "hears", "open"})
# Where the other side may number the rows as they come, and tell their age by that.
_ORDERS: Final = {"idempotency": "ORDER BY created_ms, tenant, key"}


async def read_table(connection: Connection, table: Table) -> Batches:
    """Read a table, inside a transaction."""
    columns = ", ".join(f"{column}::integer" if column in _FLAGS else column for column in table.columns)
    with mapped():
        order = _ORDERS.get(table.name, "")
        cursor = await connection.cursor(f"SELECT {columns} FROM {table.name} {order}")  # noqa: S608 - constants only
    pace = Pace(table)
    while True:
        with mapped():
            batch = [tuple(record) for record in await cursor.fetch(pace.rows)]
        if not batch:
            return
        yield batch
        pace.note(batch)


async def exists(place: Place) -> bool:
    """Say whether a store was ever made there. Raises: StoreError."""
    connection = await connect_patiently(place)
    try:
        with mapped():
            return await connection.fetchval("SELECT to_regclass('meta')") is not None
    finally:
        connection.terminate()


class PostgresRows:
    """Implements ``portable.Source``, beside the store that owns the database."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: Connection | None = None

    async def begin(self) -> Facts:
        """Hold one moment."""
        connection = self._connection = await connect_patiently(self._place)
        with mapped():
            await connection.transaction(isolation="repeatable_read", readonly=True).start()
            salt, incarnation = await connection.fetchrow("SELECT salt, incarnation FROM meta")
            bound = await connection.fetchval("SELECT max(position_bound) FROM position_slot")
            sql = f"SELECT (position >> 20) / {DAY_MS}, count(*) FROM event GROUP BY 1"  # noqa: S608 - constants only
            return Facts(salt, incarnation, bound, dict(await connection.fetch(sql)))

    async def count(self, table: Table) -> int:
        """Count the rows of a table."""
        assert self._connection is not None
        with mapped():
            return int(await self._connection.fetchval(f"SELECT count(*) FROM {table.name}"))  # noqa: S608 - constants only

    def rows(self, table: Table) -> Batches:
        """Read a table."""
        return read_table(self._connection, table)

    async def end(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
