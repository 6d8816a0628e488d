"""Every error of PostgreSQL and of the way to it, mapped to ours in this one place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from ackpost.errors import StoreBusy, StoreCorrupt, StoreError, StoreFull

LOST: Final = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""The connection is gone, or of no use any more; but see ``is_lost``."""


class Rerouted(Exception):
    """Routing versions changed while a transaction waited for its fence."""


RACED: Final = (
    Rerouted,
    asyncpg.UniqueViolationError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,
)
"""Another transaction was faster: the same work, done anew, finds what that one left."""

_BUSY: Final = (
    Rerouted,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.TooManyConnectionsError,
    asyncpg.OutOfMemoryError,
    asyncpg.ReadOnlySQLTransactionError,
)


def is_lost(error: BaseException) -> bool:
    """Say whether the connection cannot be used any more; a value that asyncpg cannot send is not the connection's."""
    return isinstance(error, LOST) and not isinstance(error, ValueError)


@contextmanager
def mapped() -> Iterator[None]:
    """Turn what asyncpg raises inside into a ``StoreError``."""
    try:
        yield
    except (asyncpg.PostgresError, *LOST, Rerouted) as error:
        raise store_error(error) from error


def store_error(error: BaseException) -> StoreError:
    """Give our error for one of PostgreSQL's or of the connection to it. Values of rows never get into its text."""
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFull("No space is left where the database lies.")
    if isinstance(error, asyncpg.DataCorruptedError | asyncpg.IndexCorruptedError):
        return StoreCorrupt(f"The database is damaged: {_text(error)}.")
    if isinstance(error, asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError):
        return StoreError("The database refused user or password.")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return StoreError("The database does not exist; create it first.")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return StoreBusy("The database takes no writes: it is a standby, or is being switched over.")
    if isinstance(error, _BUSY):
        return StoreBusy(f"The database is busy: {_text(error)}.")
    if is_lost(error):
        return StoreBusy(f"The database cannot be reached: {_text(error)}.")
    return StoreError(f"The database failed: {_text(error)}.")


def _text(error: BaseException) -> str:
    """Give the error's own line; PostgreSQL puts values into the detail, which is left out."""
    text = error.args[0] if error.args else ""
    return f"{type(error).__name__}: {text}" if isinstance(text, str) and text else type(error).__name__
