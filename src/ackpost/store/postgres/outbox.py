"""The outbox of applications that share this database: a table of theirs, in a schema of theirs."""

from __future__ import annotations

from typing import Final

from ackpost.core.outbox import COLUMNS, OutboxRow
from ackpost.errors import StoreError
from ackpost.store.postgres.connection import quoted
from ackpost.store.postgres.querying import Reader

_IS_THERE: Final = """
SELECT has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE')
FROM (SELECT to_regclass($1)::oid) t (oid)
"""


def quoted_table(name: str) -> str:
    """Quote ``schema.table``."""
    return ".".join(quoted(part) for part in name.split("."))


def remove_sql(table: str) -> str:
    """Give the statement that deletes rows by number."""
    return f"DELETE FROM {table} WHERE number = ANY($1)"  # noqa: S608 - a quoted name


async def is_there(connection: Reader, table: str) -> bool:
    """Say whether the table exists.

    Raises: StoreError when it does, but this role may not read, change or delete its rows.
    """
    is_allowed: bool | None = await connection.fetchval(_IS_THERE, table)
    if is_allowed is False:
        raise StoreError(f"The role of this server needs SELECT, UPDATE and DELETE on {table}.")
    return is_allowed is not None


async def waiting(connection: Reader, table: str, rows_max: int, data_bytes_max: int) -> list[OutboxRow]:
    """Give the oldest rows that are visible and not set aside; nothing is remembered from one look to the next."""
    rows = await connection.fetch(
        f"SELECT {COLUMNS} FROM ("  # noqa: S608 - constants and a quoted name
        " SELECT *, sum(octet_length(data)) OVER (ORDER BY number) - octet_length(data) AS before"
        f" FROM (SELECT * FROM {table} WHERE refused IS NULL ORDER BY number LIMIT $1) o"
        ") o WHERE before <= $2 ORDER BY number",
        rows_max,
        data_bytes_max,
    )
    return [OutboxRow(*row) for row in rows]


async def set_aside(connection: Reader, table: str, reasons: dict[int, str]) -> None:
    """Keep rows as refused, each with its reason."""
    await connection.execute(
        f"UPDATE {table} o SET refused = j.reason"  # noqa: S608 - a quoted name
        " FROM unnest($1::bigint[], $2::text[]) j (number, reason) WHERE o.number = j.number",
        list(reasons),
        list(reasons.values()),
    )
