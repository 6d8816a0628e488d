"""An outbox in PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg

from ackpost.cli.relay.source import NO_TABLE, Refused, SourceFailed, Turn, Waiting, occurred_at
from ackpost.config import without_password
from ackpost.core.outbox import COLUMNS, TABLE, OutboxRow

_CONNECT_S: Final = 10.0
_COMMAND_S: Final = 60.0
_CLOSE_S: Final = 5.0

# Of the transaction, not the session: it ends with it wherever a pooler shares sessions. No lock of a row is held while
# the server is asked, and no snapshot: what is deleted is locked at the very end.
_TAKE_TURN: Final = f"SELECT pg_try_advisory_xact_lock('{TABLE}'::regclass::oid::bigint)"
_PATIENCE: Final = "SET LOCAL idle_in_transaction_session_timeout = '180s'"
_WAITING: Final = f"""
SELECT {COLUMNS}, (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM (
    SELECT *, sum(octet_length(data)) OVER (ORDER BY number) - octet_length(data) AS before
    FROM (SELECT * FROM {TABLE} WHERE refused IS NULL ORDER BY number LIMIT $1) o
) o WHERE before <= $2 ORDER BY number
"""  # noqa: S608 - constants only
_REMOVE: Final = f"DELETE FROM {TABLE} WHERE number = ANY($1)"  # noqa: S608 - constants only
_SET_ASIDE: Final = (
    f"UPDATE {TABLE} o SET refused = j.reason"  # noqa: S608 - constants only
    " FROM unnest($1::bigint[], $2::text[]) j (number, reason) WHERE o.number = j.number"
)
_REFUSED: Final = (
    f"SELECT {COLUMNS}, refused FROM {TABLE} WHERE refused IS NOT NULL ORDER BY number LIMIT $1"  # noqa: S608 - constants only
)
_RENEW: Final = (
    f"UPDATE {TABLE} o SET refused = NULL, occurred_at = j.occurred_at, created_ms = DEFAULT"  # noqa: S608 - constants only
    " FROM unnest($1::bigint[], $2::text[]) j (number, occurred_at)"
    " WHERE o.number = j.number AND o.refused IS NOT NULL"
)


class PostgresSource:
    """Implements ``Source``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn | None]:
        """See ``Source``."""
        with self._mapped():
            connection = await self._connected()
            transaction = connection.transaction()
            await transaction.start()
            is_ours = await connection.fetchval(_TAKE_TURN)
            await connection.execute(_PATIENCE)
        try:
            yield self if is_ours else None
        except BaseException:
            self._drop()
            raise
        with self._mapped():
            await transaction.commit()

    async def waiting(self, rows_max: int, data_bytes_max: int) -> Waiting:
        """See ``Turn``."""
        with self._mapped():
            rows = await (await self._connected()).fetch(_WAITING, rows_max, data_bytes_max)
        return Waiting([OutboxRow(*tuple(row)[:-1]) for row in rows], rows[0][-1] if rows else 0)

    async def remove(self, numbers: Sequence[int]) -> None:
        """See ``Turn``."""
        with self._mapped():
            await (await self._connected()).execute(_REMOVE, numbers)

    async def set_aside(self, reasons: dict[int, str]) -> None:
        """See ``Turn``."""
        with self._mapped():
            await (await self._connected()).execute(_SET_ASIDE, list(reasons), list(reasons.values()))

    async def refused(self, rows_max: int) -> list[Refused]:
        """See ``Source``."""
        with self._mapped():
            rows = await (await self._connected()).fetch(_REFUSED, rows_max)
        return [Refused(OutboxRow(*tuple(row)[:-1]), row[-1]) for row in rows]

    async def renew(self, rows: Sequence[OutboxRow]) -> None:
        """See ``Source``."""
        with self._mapped():
            numbers, times = [row.number for row in rows], [occurred_at(row) for row in rows]
            await (await self._connected()).execute(_RENEW, numbers, times)

    async def close(self) -> None:
        """See ``Source``."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with self._mapped():
                await connection.close(timeout=_CLOSE_S)

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            # No statement is kept prepared, and so a pooler may lie in between.
            self._connection = await asyncpg.connect(
                self._url, timeout=_CONNECT_S, command_timeout=_COMMAND_S, statement_cache_size=0
            )
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except asyncpg.UndefinedTableError as error:
            self._drop()
            raise SourceFailed(NO_TABLE) from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            self._drop()
            text = without_password(str(error)) or type(error).__name__
            raise SourceFailed(f"the outbox's database: {text}") from error
