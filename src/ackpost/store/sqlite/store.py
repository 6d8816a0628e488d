"""The store itself: threads, ownership, commits; the reads are in ``reads`` and its neighbours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import apsw

from ackpost.core.model import Tenant
from ackpost.errors import RequestError, StoreBroken, StoreCorrupt, StoreError, StoreFull, Unavailable
from ackpost.ports.operations import Accept, Operation, Repeated, Result
from ackpost.store.sqlite.commit import apply
from ackpost.store.sqlite.connection import PAGE_BYTES, WAL_BYTES_MAX, open_checkpointer, open_reader, open_writer
from ackpost.store.sqlite.faults import mapped, store_error
from ackpost.store.sqlite.files import Files
from ackpost.store.sqlite.lease import FileLock, check_owner, machine, release_lease, take_lease
from ackpost.store.sqlite.ledger import Ledger
from ackpost.store.sqlite.reads import Reads
from ackpost.store.sqlite.reserve import Reserve
from ackpost.store.sqlite.threads import Checkpointer, InlineRunner, Runner, ThreadRunner
from ackpost.store.values import document_of

Given = TypeVar("Given")

_BUSY_TIMEOUT_MS: Final = 5_000
_CHECKPOINT_BUSY_MS: Final = 50
_READERS: Final = 2

# In pages of the write-ahead log: how far it grows between checkpoints (each copies a page once, however often it was
# changed), and from where on the writer is made to wait for one that lets it begin at the front again.
_CHECKPOINT_PAGES: Final = 16 * 1024 * 1024 // PAGE_BYTES
_RESTART_PAGES: Final = WAL_BYTES_MAX // 2 // PAGE_BYTES
_STUCK_PAGES: Final = 2 * WAL_BYTES_MAX // PAGE_BYTES


class SqliteStore(Reads):
    """A store in one SQLite file. Implements ``ackpost.ports.store.Store``.

    ``inline`` runs everything on the calling thread (simulation). ``salt`` is that of a new database; None lets SQLite
    draw it. ``scan_rows_max`` bounds the rows that one page of a filtered list looks at.
    """

    def __init__(
        self, path: str, *, inline: bool = False, salt: int | None = None, scan_rows_max: int = 10_000
    ) -> None:
        self.path = path
        self.salt = 0
        self.round_trips = 0
        self._inline = inline
        self._scan_rows_max = scan_rows_max
        self._new_salt = salt
        self._host = machine()
        self._lock = FileLock(path)
        self._files = Files(path)
        self._reserve = Reserve(path)
        self._ledger: Ledger | None = None
        self._writer: Runner = InlineRunner()
        self._readers: Runner = InlineRunner()
        self._hot_reader: Runner = InlineRunner()
        self._local = threading.local()
        self._reading: list[apsw.Connection] = []
        self._unused: list[apsw.Connection] = []
        self._checkpointer: Checkpointer | None = None
        self._checkpoint_connection: apsw.Connection | None = None
        self._gate = threading.Lock()
        self._checkpoint_fault: StoreError | None = None
        self._broken: StoreBroken | None = None
        self._wal_pages = 0
        self._nudge_pages = _CHECKPOINT_PAGES

    @property
    def last_ms(self) -> int:
        """The time of the newest position, or up to a second more after a crash; the store is open."""
        assert self._ledger is not None
        return self._ledger.last_position >> 20

    def shortage(self) -> str | None:
        """Tell in one line why no events are accepted although other commits succeed."""
        return str(self._full()) if self._reserve.spent else None

    def _full(self) -> StoreFull:
        return StoreFull(f"No space is left for the database {self.path}.")

    def warning(self) -> str | None:
        """Tell in one line what should be looked at although commits succeed."""
        if self._wal_pages * PAGE_BYTES <= WAL_BYTES_MAX:
            return None
        long_mib = WAL_BYTES_MAX >> 20
        return f"The log of {self.path} is longer than {long_mib} MiB: a process looks at an old state; end that one."

    # ---- ownership

    async def open(self, *, node: str, now_ms: int, lease_ms: int) -> int:
        """Open or create, migrate, take ownership; give this node's incarnation.

        Raises: StoreLocked (another live server), StoreCorrupt, SchemaMismatch, StoreError.
        """
        if self._ledger is not None:
            raise StoreError(f"The database {self.path} is open already.")
        if not self._inline:
            self._writer = ThreadRunner("sqlite-writer")
            self._readers = ThreadRunner("sqlite-reader", _READERS)
            self._hot_reader = ThreadRunner("sqlite-hot-reader")
        try:
            return await self._writer.run(lambda: self._open(node, now_ms, lease_ms))
        except BaseException:
            self._stop_threads()
            raise

    def _open(self, node: str, now_ms: int, lease_ms: int) -> int:
        with mapped(self.path):
            self._lock.take(node, now_ms)
            try:
                connection = open_writer(self.path, _BUSY_TIMEOUT_MS)
                try:
                    ledger = Ledger(connection)
                    self._own(ledger, node, now_ms, lease_ms)
                except BaseException:
                    connection.close()
                    raise
            except BaseException:
                self._lock.release()
                raise
            self.salt = ledger.salt
            self._ledger = ledger
            self._files.remember()
            connection.set_wal_hook(self._on_wal)
            if not self._inline:
                try:
                    self._open_others()
                except BaseException:
                    self._close()
                    raise
            return ledger.incarnation

    def _open_others(self) -> None:
        for _ in range(_READERS + 1):
            self._reading.append(open_reader(self.path, _BUSY_TIMEOUT_MS))
        self._unused = list(self._reading)
        self._reserve.fill()
        self._checkpoint_connection = open_checkpointer(self.path, _CHECKPOINT_BUSY_MS)
        self._checkpointer = Checkpointer(self._checkpoint)

    def _own(self, ledger: Ledger, node: str, now_ms: int, lease_ms: int) -> None:
        ledger.execute("BEGIN IMMEDIATE")
        try:
            is_new = ledger.one("SELECT 1 FROM meta") is None
            if is_new:
                ledger.execute(
                    "INSERT INTO meta (id, salt, position_bound, incarnation, lease_expires_ms)"
                    " VALUES (1, ifnull(?, random() & 0x7fffffffffffffff), 0, 0, 0)",
                    (self._new_salt,),
                )
            take_lease(ledger, database=self.path, node=node, host=self._host, now_ms=now_ms, lease_ms=lease_ms)
            if is_new:
                tenant = Tenant(position=ledger.allocate(1, now_ms), uid="default", created_at_ms=now_ms)
                ledger.execute(
                    "INSERT INTO tenant (position, uid, deleted, routing_version, document) VALUES (?, ?, 0, 1, ?)",
                    (tenant.position, tenant.uid, document_of(tenant)),
                )
            ledger.execute("COMMIT")
        except BaseException:
            ledger.execute("ROLLBACK")
            raise

    async def close(self) -> None:
        """Release ownership and close; no commit may be under way."""
        if self._ledger is None:
            return
        try:
            await self._writer.run(self._close)
        finally:
            self._stop_threads()

    def _close(self) -> None:
        ledger, self._ledger = self._ledger, None
        assert ledger is not None
        if self._checkpointer is not None:
            self._checkpointer.stop()
        self._readers.stop()
        self._hot_reader.stop()
        try:
            self._let_go(ledger)
        finally:
            # The last connection that closes empties the write-ahead log.
            for connection in (*self._reading, self._checkpoint_connection, ledger.connection):
                if connection is not None:
                    connection.close()
            self._files.set_log_aside()
            self._reading, self._checkpoint_connection, self._checkpointer = [], None, None
            self._local = threading.local()
            self._lock.release()

    def _let_go(self, ledger: Ledger) -> None:
        """Say in the database that nobody owns it; one that is broken or gone is left as it is."""
        if self._broken is None:
            self._files.check()
            with mapped(self.path, ledger.connection):
                release_lease(ledger)

    def _stop_threads(self) -> None:
        for runner in (self._readers, self._hot_reader, self._writer):
            runner.stop()
        self._readers = self._hot_reader = self._writer = InlineRunner()

    # ---- commit

    async def commit(self, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        """Apply in order in one durable transaction; a refusal is that operation's result."""
        self.round_trips += 1
        return await self._writer.run(lambda: self._commit(operations))

    def _commit(self, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        ledger = self._ledger
        if ledger is None:
            raise StoreError(f"The database {self.path} is not open.")
        if self._checkpoint_fault is not None:
            self._refuse_if_stuck(self._checkpoint_fault)
        if self._broken is not None:
            raise self._broken
        self._files.check()
        if self._reserve.spent and not self._reserve.fill():
            return self._commit_but_accepts(ledger, operations)
        try:
            return self._commit_whole(ledger, operations)
        except StoreFull:
            if self._inline or not self._reserve.spend():
                raise
        return self._commit_but_accepts(ledger, operations)

    def _commit_but_accepts(
        self, ledger: Ledger, operations: Sequence[Operation]
    ) -> list[Result | Repeated | RequestError]:
        """What little room there is belongs to results of deliveries and to those who make more of it."""
        others = [operation for operation in operations if type(operation) is not Accept]
        if not others:
            raise self._full()
        replies = iter(self._commit_whole(ledger, others))
        return [_refused_for_space() if type(operation) is Accept else next(replies) for operation in operations]

    def _commit_whole(self, ledger: Ledger, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        try:
            with mapped(self.path, ledger.connection), self._gate:
                return self._commit_to(ledger, operations)
        except StoreBroken as broken:
            self._broken = broken
            raise

    def _commit_to(self, ledger: Ledger, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        connection, mark = ledger.connection, ledger.mark()
        connection.execute("BEGIN IMMEDIATE")
        try:
            check_owner(ledger)
            replies = apply(ledger, operations)
            connection.execute("COMMIT")
        except BaseException:
            ledger.restore(mark)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return replies

    # ---- checkpoints (rule E8)

    def _on_wal(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        """Note how long the write-ahead log is after a commit."""
        if pages < self._wal_pages:
            self._nudge_pages = _CHECKPOINT_PAGES
        self._wal_pages = pages
        if pages >= self._nudge_pages:
            self._nudge_pages = pages + _CHECKPOINT_PAGES
            if self._checkpointer is not None:
                self._checkpointer.nudge()
            else:
                _connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Copy the log into the database while the writer goes on; if it is long, hold the writer for the rest.

        A reader that looks at an old state keeps the log long until it ends; then the next try succeeds. So does one
        after any other fault; what was committed is safe in the log meanwhile.
        """
        connection = self._checkpoint_connection
        assert connection is not None
        try:
            pages, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if pages >= _RESTART_PAGES:
                with self._gate:
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.LockedError):
            return
        except apsw.Error as error:
            self._checkpoint_fault = store_error(error, self.path, connection.system_errno)
            if isinstance(self._checkpoint_fault, StoreFull):
                self._reserve.spend()
            return
        self._checkpoint_fault = None

    def _refuse_if_stuck(self, fault: StoreError) -> None:
        """Raise a checkpoint's fault when the log has become too long, or waiting does not help; and try again."""
        if self._checkpointer is not None:
            self._checkpointer.nudge()
        if isinstance(fault, StoreBroken):
            self._broken = fault
        if isinstance(fault, StoreBroken | StoreCorrupt) or self._wal_pages >= _STUCK_PAGES:
            raise fault

    # ---- reads

    async def _read(self, work: Callable[[apsw.Connection], Given]) -> Given:
        self.round_trips += 1
        return await self._readers.run(lambda: self._with_reader(work))

    async def _read_hot(self, work: Callable[[apsw.Connection], Given]) -> Given:
        self.round_trips += 1
        return await self._hot_reader.run(lambda: self._with_reader(work))

    def _with_reader(self, work: Callable[[apsw.Connection], Given]) -> Given:
        ledger = self._ledger
        if ledger is None:
            raise StoreError(f"The database {self.path} is not open.")
        with mapped(self.path):
            if self._inline:
                return work(ledger.connection)
            connection: apsw.Connection | None = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = self._unused.pop()
            # One snapshot: a delivery that moves between tables meanwhile is seen exactly once.
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")


def _refused_for_space() -> Unavailable:
    detail = "No space is left where the database lies; nothing was stored."
    return Unavailable(detail, code="storage_full", retry_after_s=10)
