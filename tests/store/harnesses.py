"""The stores that the contract and the differential test are run on."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import asyncpg

from ackpost.ports.store import Store
from ackpost.store.postgres import PostgresStore
from ackpost.store.sqlite import SqliteStore
from ackpost.testing.reference import ReferenceStore, State
from ackpost.testing.reference.state import SALT
from ackpost.testing.store_contract import StoreHarness
from tests.store.postgres.server import shared


class ReferenceHarness:
    """The oracle itself."""

    name = "reference"

    def make(self, *, scan_rows_max: int = 10_000) -> Store:
        """A store over a new state."""
        return ReferenceStore(State(), scan_rows_max=scan_rows_max)

    def reopen(self, store: Store) -> Store:
        """Another store over the same state."""
        assert isinstance(store, ReferenceStore)
        return ReferenceStore(store.durable)

    async def dispose(self, store: Store) -> None:
        """Nothing is left behind by memory."""


class SqliteHarness:
    """SQLite with its threads, or inline as the simulation runs it."""

    name = "sqlite"
    is_inline = False
    folder: str | None = None

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ackpost-store-", dir=self.folder))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        self._count = 0

    def make(self, *, scan_rows_max: int = 10_000) -> Store:
        """A store in a new file."""
        self._count += 1
        path = self._folder / f"{self._count}.db"
        return SqliteStore(str(path), inline=self.is_inline, salt=SALT, scan_rows_max=scan_rows_max)

    def reopen(self, store: Store) -> Store:
        """Another machine's store over the same file: no lock of the operating system stands in for the lease."""
        assert isinstance(store, SqliteStore)
        self._count += 1
        store._lock.release()
        other = SqliteStore(store.path, inline=self.is_inline)
        other._host = f"machine-{self._count}"
        return other

    async def dispose(self, store: Store) -> None:
        """End the threads; the files go with the harness."""
        await store.close()


class InlineSqliteHarness(SqliteHarness):
    """SQLite on the calling thread, in memory where there is a folder for it: many short histories."""

    name = "sqlite-inline"
    is_inline = True
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None


class PostgresHarness:
    """A real PostgreSQL, with a schema for each new store."""

    name = "postgres"

    def __init__(self) -> None:
        self._count = 0
        self._users: dict[str, int] = {}

    def make(self, *, scan_rows_max: int = 10_000) -> Store:
        """A store in a new schema."""
        self._count += 1
        schema = f"test_{os.getpid()}_{id(self):x}_{self._count}"
        self._users[schema] = 1
        return PostgresStore(shared(), schema=schema, salt=SALT, scan_rows_max=scan_rows_max)

    def reopen(self, store: Store) -> Store:
        """Another process's store on the same schema."""
        assert isinstance(store, PostgresStore)
        self._users[store.schema] += 1
        return PostgresStore(store.dsn, schema=store.schema)

    async def dispose(self, store: Store) -> None:
        """End the connections; the last one takes the schema with it."""
        assert isinstance(store, PostgresStore)
        await store.close()
        self._users[store.schema] -= 1
        if self._users[store.schema] == 0:
            connection = await asyncpg.connect(store.dsn)
            await connection.execute(f'DROP SCHEMA IF EXISTS "{store.schema}" CASCADE')
            await connection.close()


HARNESSES: tuple[type[StoreHarness], ...] = (ReferenceHarness, SqliteHarness, PostgresHarness)
