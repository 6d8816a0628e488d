"""An outbox in an SQLite file.

Nothing is locked while the server is asked. Two relays on one file are right, if wasteful: both may publish a row, and
the server knows the second one by its uid.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import apsw

from ackpost.cli.relay.source import NO_TABLE, Refused, SourceFailed, Turn, Waiting, occurred_at
from ackpost.core.outbox import COLUMNS, TABLE, OutboxRow

_BUSY_MS: Final = 10_000
_NOW_MS: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_WAITING: Final = (
    f"SELECT {COLUMNS}, {_NOW_MS} FROM {TABLE} WHERE refused IS NULL ORDER BY number LIMIT ?"  # noqa: S608 - constants only
)
_REFUSED: Final = (
    f"SELECT {COLUMNS}, refused FROM {TABLE} WHERE refused IS NOT NULL ORDER BY number LIMIT ?"  # noqa: S608 - constants only
)
_RENEW: Final = (
    f"UPDATE {TABLE} SET refused = NULL, occurred_at = ?, created_ms = {_NOW_MS}"  # noqa: S608 - constants only
    " WHERE number = ? AND refused IS NOT NULL"
)


class SqliteSource:
    """Implements ``Source``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: apsw.Connection | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn | None]:
        """See ``Source``."""
        yield self

    async def waiting(self, rows_max: int, data_bytes_max: int) -> Waiting:
        """See ``Turn``."""
        found = Waiting([], 0)
        size = 0
        with self._connected() as connection:
            for *values, now_ms in connection.execute(_WAITING, (rows_max,)):
                row = OutboxRow(*values)
                size += len(row.data)
                if found.rows and size > data_bytes_max:
                    break
                found.rows.append(row)
                found.now_ms = now_ms
        return found

    async def remove(self, numbers: Sequence[int]) -> None:
        """See ``Turn``."""
        sql = f"DELETE FROM {TABLE} WHERE number = ?"  # noqa: S608 - constants only
        self._change(sql, [(number,) for number in numbers])

    async def set_aside(self, reasons: dict[int, str]) -> None:
        """See ``Turn``."""
        sql = f"UPDATE {TABLE} SET refused = ? WHERE number = ?"  # noqa: S608 - constants only
        self._change(sql, [(reason, number) for number, reason in reasons.items()])

    async def refused(self, rows_max: int) -> list[Refused]:
        """See ``Source``."""
        with self._connected() as connection:
            rows = list(connection.execute(_REFUSED, (rows_max,)))
        return [Refused(OutboxRow(*values), str(reason)) for *values, reason in rows]

    async def renew(self, rows: Sequence[OutboxRow]) -> None:
        """See ``Source``."""
        self._change(_RENEW, [(occurred_at(row), row.number) for row in rows])

    async def close(self) -> None:
        """See ``Source``."""
        if self._opened is not None:
            self._opened.close()

    def _change(self, sql: str, values: Sequence[tuple[str | int, ...]]) -> None:
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany(sql, values)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _connected(self) -> Iterator[apsw.Connection]:
        try:
            if self._opened is None:
                opened = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)
                opened.set_busy_timeout(_BUSY_MS)
                self._opened = opened
            yield self._opened
        except apsw.CantOpenError as error:
            raise SourceFailed(f"the outbox's database {self._path} cannot be opened") from error
        except apsw.Error as error:
            missing = isinstance(error, apsw.SQLError) and f"no such table: {TABLE}" in str(error)
            raise SourceFailed(NO_TABLE if missing else f"the outbox's database {self._path}: {error}") from error
