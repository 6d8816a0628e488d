"""Connections: one that writes, some that read, one that checkpoints."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import resources
from typing import Final

import apsw

from ackpost.errors import SchemaMismatch, StoreCorrupt, StoreError

APPLICATION_ID: Final = 0x41434B50  # "ACKP"
SCHEMA_VERSION: Final = 1
PAGE_BYTES: Final = 4096
WAL_BYTES_MAX: Final = 64 * 1024 * 1024

SQLITE_VERSION_MIN: Final = 3_051_003
"""Before it a checkpoint beside a writer can damage the file (the write-ahead log's reset)."""

_STATEMENTS_KEPT: Final = 256
_SETTLE_BUSY_MS: Final = 50
_CACHE_KIB: Final = 64 * 1024


def open_writer(path: str, busy_timeout_ms: int) -> apsw.Connection:
    """Open or create the database for writing; nothing is checked but its header.

    Raises: apsw.Error, StoreError, StoreCorrupt, SchemaMismatch.
    """
    if apsw.SQLITE_VERSION_NUMBER < SQLITE_VERSION_MIN:
        raise StoreError(f"SQLite {apsw.sqlite_lib_version()} can damage a database; update apsw to 3.51.3 or later.")
    _make_private(path)
    connection = apsw.Connection(path, statementcachesize=_STATEMENTS_KEPT)
    try:
        _prepare(connection, path, busy_timeout_ms)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: str) -> None:
    """Make a new file its owner's alone: it holds signing secrets. SQLite gives its log the same rights."""
    with suppress(OSError):  # it exists, or cannot be made, which SQLite tells better
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare(connection: apsw.Connection, path: str, busy_timeout_ms: int) -> None:
    connection.set_busy_timeout(busy_timeout_ms)
    check_header(connection, path)
    if connection.pragma("page_count") == 0:
        # Both must be said before the first table; changing them later rewrites the whole file.
        connection.pragma("page_size", PAGE_BYTES)
        connection.pragma("auto_vacuum", "incremental")
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError(f"The database {path} lies where SQLite cannot use its write-ahead log; move it.")
    connection.pragma("synchronous", "full")
    connection.pragma("temp_store", "memory")  # what undoes a statement needs no file: no descriptor, no room elsewhere
    connection.pragma("foreign_keys", 0)
    connection.pragma("cache_size", -_CACHE_KIB)
    connection.pragma("journal_size_limit", WAL_BYTES_MAX)
    connection.wal_autocheckpoint(0)
    _settle_log(connection, busy_timeout_ms)
    _migrate(connection)


def _settle_log(connection: apsw.Connection, busy_timeout_ms: int) -> None:
    """Move what an ended process left in the log into the database, flushed.

    After a flush that failed, the system may show pages of the log that never reached the disk. What follows them in
    the log would be lost with them at a power cut, so nothing may follow. A reader in the way leaves the rest.
    """
    connection.set_busy_timeout(_SETTLE_BUSY_MS)
    with suppress(apsw.BusyError):
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.set_busy_timeout(busy_timeout_ms)


def open_reader(path: str, busy_timeout_ms: int) -> apsw.Connection:
    """Open the database for reading only, and read: later a disk may be read-only or descriptors may be used up."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=_STATEMENTS_KEPT)
    connection.set_busy_timeout(busy_timeout_ms)
    connection.pragma("cache_size", -_CACHE_KIB // 4)
    connection.pragma("schema_version")
    return connection


def open_checkpointer(path: str, busy_timeout_ms: int) -> apsw.Connection:
    """Open the database for moving the write-ahead log."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(busy_timeout_ms)
    connection.pragma("synchronous", "full")
    connection.pragma("journal_size_limit", WAL_BYTES_MAX)
    connection.wal_autocheckpoint(0)
    return connection


def check_header(connection: apsw.Connection, path: str) -> None:
    """Refuse foreign files and newer schemas, by three numbers in the first page."""
    if connection.pragma("schema_version") == 0:
        return
    if connection.pragma("application_id") != APPLICATION_ID:
        raise StoreCorrupt(f"The file {path} is not a database of Ackpost.")
    found = connection.pragma("user_version")
    if found > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"The database {path} has schema {found}, this version of Ackpost works with {SCHEMA_VERSION}: update it."
        )


def _migrate(connection: apsw.Connection) -> None:
    """Apply the missing migrations, each in one transaction."""
    for version in range(connection.pragma("user_version") + 1, SCHEMA_VERSION + 1):
        script = resources.files(__package__).joinpath("migrations", f"{version:04d}.sql").read_text(encoding="utf-8")
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have been faster.
            if connection.pragma("user_version") < version:
                connection.execute(script)
                connection.execute(f"PRAGMA user_version = {version}")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
