"""The store itself: connections, ownership, commits; the reads are in ``reads`` and its neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, TypeVar

import asyncpg
import msgspec

from ackpost.core.outbox import OutboxRow
from ackpost.errors import RequestError, StoreError, StoreFenced, StoreLocked, StoreOutcomeUnknown
from ackpost.ports.cluster import ClusterState, Looked
from ackpost.ports.operations import Operation, Repeated, Result, StepJob
from ackpost.ports.store import Page
from ackpost.store.postgres import outbox, reads_engine, sharing
from ackpost.store.postgres.commit import apply
from ackpost.store.postgres.connection import (
    Connection,
    Place,
    connect,
    expect_role_settings,
    make_pool,
    on_one_session,
)
from ackpost.store.postgres.faults import LOST, RACED, is_lost, mapped, store_error
from ackpost.store.postgres.ledger import Ledger
from ackpost.store.postgres.lowwater import LowWater
from ackpost.store.postgres.migrating import migrate
from ackpost.store.postgres.owning import own, release
from ackpost.store.postgres.querying import NOW_MS, Reader
from ackpost.store.postgres.reads import Reads
from ackpost.store.postgres.sharing import Sharing

Given = TypeVar("Given")

SCHEMA: Final = "ackpost"
_READERS_MAX: Final = 8
_LISTS_MAX: Final = 4
_TRIES: Final = 6
_CLOSE_S: Final = 5.0
_PATIENCE_S: Final = 5.0
"""How long a read waits for a connection."""

# A COMMIT that waits for a standby and is ended by the statement timeout says that all is well, while the standby has
# nothing. Without that timeout it is the connection's patience that ends: then the outcome is unknown, and told so.
_COMMIT: Final = "SET LOCAL statement_timeout = 0; COMMIT"


class PostgresStore(Reads):
    """A store in a schema of a PostgreSQL database. Implements ``ackpost.ports.store.Store``.

    With ``sharing`` other nodes have it open, too: then it is a ``ports.cluster.SharedStore``; without, it is this
    process's alone while it is open. ``salt`` is that of a new database; None lets PostgreSQL draw it.
    ``scan_rows_max`` bounds the rows that one page of a filtered list looks at. One connection writes; at most
    ``readers_max`` read. ``pooled``: see ``Place``. ``outbox_table``: ``schema.table`` that applications write to
    (``ports.outbox``).
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = SCHEMA,
        salt: int | None = None,
        scan_rows_max: int = 10_000,
        readers_max: int = _READERS_MAX,
        sharing: Sharing | None = None,
        pooled: bool = False,
        outbox_table: str | None = None,
    ) -> None:
        self._place = Place(dsn, schema, pooled)
        self._outbox_table = "" if outbox_table is None else outbox.quoted_table(outbox_table)
        self.dsn = dsn
        self.schema = schema
        self.salt = 0
        self.round_trips = 0
        self._new_salt = salt
        self._scan_rows_max = scan_rows_max
        self._readers_max = readers_max
        self._sharing = sharing
        self._low_water = LowWater()
        self._ledger: Ledger | None = None
        self._writer: Connection | None = None
        self._pool: Any = None
        self._turn = asyncio.Lock()
        self._settled_jobs: set[int] = set()
        self._lists = asyncio.Semaphore(_LISTS_MAX)

    @property
    def place(self) -> Place:
        """Where the database is."""
        return self._place

    @property
    def last_ms(self) -> int:
        """The time of the newest position, or up to a second more after a crash; the store is open."""
        return 0 if self._ledger is None else self._ledger.last_position >> 20

    def shortage(self) -> str | None:
        """What keeps the database from taking more; the server behind the connection tells that by its errors."""
        return None

    def warning(self) -> str | None:
        """What the operator should look at."""
        return None

    def _note_query(self, _query: object) -> None:
        """Count one exchange with the server."""
        self.round_trips += 1

    # ---- ownership

    async def open(self, *, node: str, now_ms: int, lease_ms: int) -> int:
        """Open or create, migrate, take ownership; give this node's incarnation.

        Raises: StoreLocked (another live server), StoreCorrupt, SchemaMismatch, StoreError.
        """
        if self._ledger is not None:
            raise StoreError("The database is open already.")
        connection = await connect(self._place, self._note_query)
        try:
            with mapped():
                if self._place.pooled:
                    await expect_role_settings(self._place, connection)
                await migrate(connection, self.schema)
                ledger = Ledger(connection)
                ledger.outbox_table = self._outbox_table
                async with connection.transaction():
                    if self._sharing is None:
                        await own(ledger, node=node, now_ms=now_ms, lease_ms=lease_ms, salt=self._new_salt)
                    else:
                        await sharing.join(ledger, self._sharing, node=node, now_ms=now_ms, salt=self._new_salt)
                ledger.committed()
            self._pool = await make_pool(self._place, self._readers_max, self._note_query)
        except BaseException:
            connection.terminate()
            raise
        self._writer, self._ledger, self.salt = connection, ledger, ledger.salt
        return ledger.incarnation

    async def close(self) -> None:
        """Release ownership and close; no commit may be under way."""
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            return
        pool, self._pool = self._pool, None
        try:
            with mapped():
                connection = await self._connected(ledger)
                async with connection.transaction():
                    await release(ledger)
        finally:
            connection, self._writer = self._writer, None
            if connection is not None:
                await _end(connection)
            await _end(pool)

    async def _connected(self, ledger: Ledger) -> Connection:
        """Give the writing connection, a new one where the last was lost."""
        if self._writer is None or self._writer.is_closed():
            self._writer = None
            self._writer = ledger.connection = await connect(self._place, self._note_query)
        return self._writer

    def _drop_writer(self) -> None:
        """Let the next commit connect anew."""
        if self._writer is not None:
            self._writer.terminate()
            self._writer = None

    # ---- commit

    async def commit(self, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        """Apply in order in one durable transaction; a refusal is that operation's result.

        A transaction that met a faster one (the same new key, or a deadlock) is done anew.
        """
        async with self._turn:
            ledger = self._ledger
            if ledger is None:
                raise StoreError("The database is not open.")
            if ledger.is_shared:
                await self._settle_jobs({one.job for one in operations if type(one) is StepJob})
            for _ in range(_TRIES - 1):
                try:
                    return await self._commit(ledger, operations)
                except RACED:
                    continue
            with mapped():
                return await self._commit(ledger, operations)

    async def _commit(self, ledger: Ledger, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        newest_day, is_committing = ledger.newest_day, False
        try:
            connection = await self._begin(ledger)
            replies = await apply(ledger, operations)
            is_committing = True
            _expect_commit(await connection.execute(_COMMIT))
        except BaseException as error:
            ledger.failed(newest_day)
            if not isinstance(error, Exception):
                # Cancelled: whatever the server does now, nobody hears of it.
                self._drop_writer()
                raise
            if is_committing and is_lost(error):
                self._drop_writer()
                raise StoreOutcomeUnknown("The database went away during a commit.") from error
            await self._undo(error)
            if self._sharing is not None and isinstance(error, StoreLocked):
                raise StoreFenced(str(error)) from error
            if isinstance(error, (asyncpg.PostgresError, *LOST)) and not isinstance(error, RACED):
                raise store_error(error) from error
            raise
        ledger.committed()
        return replies

    async def _settle_jobs(self, jobs: set[int]) -> None:
        """Before the first step of a job: wait for the commits that began under the state before it (rule E13)."""
        new = jobs - self._settled_jobs
        if new:
            await self._read_one(sharing.settle)
            self._settled_jobs = jobs

    async def _begin(self, ledger: Ledger) -> Connection:
        """Begin a transaction, on a new connection where the last one was lost while nobody used it."""
        is_old = self._writer is not None
        connection = await self._connected(ledger)
        try:
            await connection.execute("BEGIN")
        except LOST:
            self._drop_writer()
            if not is_old:
                raise
            connection = await self._connected(ledger)
            await connection.execute("BEGIN")
        return connection

    async def _undo(self, error: BaseException) -> None:
        """Roll back, or drop the connection where that cannot be known to have worked."""
        writer = self._writer
        if writer is None or writer.is_closed() or is_lost(error):
            self._drop_writer()
            return
        try:
            await writer.execute("ROLLBACK")
        except (asyncpg.PostgresError, *LOST):
            self._drop_writer()

    # ---- ports.cluster.SharedStore

    async def look(self, partitions: Sequence[int], *, after_endpoint: int, limit: int) -> Looked:
        """Work of some partitions only, and whether there are jobs, in one round trip."""
        return await self._read_one(lambda c: reads_engine.look(c, partitions, after_endpoint, limit))

    async def clock_ms(self) -> int:
        """The time of the database."""
        now_ms: int = await self._read_one(lambda c: c.fetchval(f"SELECT {NOW_MS}"))
        return now_ms

    async def cluster(self) -> ClusterState:
        """Who lives and who owns what."""
        return await self._read_one(sharing.state)

    async def take_over(self) -> list[str]:
        """Declare nodes dead whose lease has run out; free their partitions."""
        return await self._read_one(lambda c: sharing.take_over(c, self._open_ledger().node))

    async def claim(self, partitions: Collection[int]) -> list[int]:
        """Own those of them that are free; none when this node was declared dead."""
        ledger = self._open_ledger()
        return await self._read_one(lambda c: sharing.claim(c, ledger.node, ledger.incarnation, partitions))

    async def release(self, partitions: Collection[int]) -> None:
        """Own these no longer."""
        ledger = self._open_ledger()
        await self._read_one(lambda c: sharing.release(c, ledger.node, ledger.incarnation, partitions))

    async def leave(self) -> None:
        """Tell that this node is stopping."""
        ledger = self._open_ledger()
        await self._read_one(lambda c: sharing.leave(c, ledger.node, ledger.incarnation))

    async def rejoin(self) -> int:
        """Come back after having been declared dead, owning nothing; give the new incarnation.

        Raises: StoreLocked when another process has taken this node's name.
        """
        async with self._turn:
            ledger, mine = self._open_ledger(), self._sharing
            if mine is None:
                raise StoreError("The database is not shared.")
            with mapped():
                connection = await self._connected(ledger)
                async with connection.transaction():
                    await sharing.rejoin(ledger, mine, node=ledger.node, now_ms=self.last_ms)
                ledger.committed()
            return ledger.incarnation

    # ---- ports.outbox.Outbox

    async def outbox_is_there(self) -> bool:
        """Whether the table exists."""
        return await self._read_one(lambda c: outbox.is_there(c, self._outbox_table))

    async def outbox_waiting(self, rows_max: int, data_bytes_max: int) -> list[OutboxRow]:
        """The oldest rows that are not set aside."""
        return await self._read_one(lambda c: outbox.waiting(c, self._outbox_table, rows_max, data_bytes_max))

    async def set_outbox_aside(self, reasons: dict[int, str]) -> None:
        """Keep rows as refused."""
        await self._read_one(lambda c: outbox.set_aside(c, self._outbox_table, reasons))

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            raise StoreError("The database is not open.")
        return self._ledger

    # ---- reads

    async def _read_one(self, work: Callable[[Reader], Awaitable[Given]]) -> Given:
        async def on_one(connection: Reader) -> Given:
            async with on_one_session(self._place, connection):
                return await work(connection)

        return await self._with_reader(on_one if self._place.pooled else work)

    async def _with_reader(self, work: Callable[[Reader], Awaitable[Given]]) -> Given:
        pool = self._pool
        if pool is None:
            raise StoreError("The database is not open.")
        with mapped():
            for _ in range(_TRIES - 1):
                try:
                    async with pool.acquire(timeout=_PATIENCE_S) as connection:
                        return await work(connection)
                except (asyncpg.PostgresError, *LOST) as error:
                    # It was lost while nobody used it, perhaps; the next one is new, or refused.
                    if not is_lost(error) or isinstance(error, asyncio.TimeoutError):
                        raise
            async with pool.acquire(timeout=_PATIENCE_S) as connection:
                return await work(connection)

    async def _final(self, page: Page) -> Page:
        """Let an ascending page end where other nodes still commit: nothing that comes later is skipped (rule E15)."""
        if self._sharing is None or not page.ascending:
            return page
        return msgspec.structs.replace(page, final_ms=await self._read_one(sharing.settle))

    async def _read(self, work: Callable[[Reader], Awaitable[Given]]) -> Given:
        async def one_moment(connection: Reader) -> Given:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await work(connection)

        async with self._lists:
            return await self._with_reader(one_moment)


def _expect_commit(status: str) -> None:
    """Raise where PostgreSQL rolled back without an error, because a statement had failed and nobody noticed."""
    if status != "COMMIT":
        raise StoreError(f"The database answered a commit with {status}.")


async def _end(connection: Any) -> None:
    """Close a connection or a pool, by force if it does not end by itself."""
    try:
        await asyncio.wait_for(connection.close(), _CLOSE_S)
    except (asyncpg.PostgresError, *LOST):
        connection.terminate()
