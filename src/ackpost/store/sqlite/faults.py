"""Every error of SQLite, mapped to ours in this one place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import apsw
import msgspec

from ackpost.errors import StoreBroken, StoreBusy, StoreCorrupt, StoreError, StoreFull

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_FLUSHES: Final = frozenset({apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC})


@contextmanager
def mapped(path: str, connection: apsw.Connection | None = None) -> Iterator[None]:
    """Turn what SQLite raises inside into a ``StoreError`` that names the file."""
    try:
        yield
    except apsw.Error as error:
        system_errno = 0 if connection is None else connection.system_errno
        raise store_error(error, path, system_errno) from error
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise StoreCorrupt(f"The database {path} is damaged: {error}.") from error


def store_error(error: apsw.Error, path: str, system_errno: int = 0) -> StoreError:
    """Give our error for one of SQLite's; ``system_errno`` tells a full disk from a broken one."""
    if isinstance(error, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return StoreBusy(f"The database {path} is held by another process; try again.")
    if getattr(error, "extendedresult", 0) in _FLUSHES:
        why = f": {os.strerror(system_errno)}" if system_errno else ""
        return StoreBroken(f"The disk did not keep what was written to the database {path}{why}.")
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and system_errno in _NO_SPACE):
        return StoreFull(f"No space is left for the database {path}.")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreCorrupt(f"The database {path} is damaged or is no database: {error}.")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError) or (
        isinstance(error, apsw.IOError) and system_errno in _READ_ONLY
    ):
        return StoreError(f"The database {path} cannot be written: its file or folder is read-only.")
    if isinstance(error, apsw.CantOpenError):
        return StoreError(f"The database {path} cannot be opened: no such folder, or no right to it.")
    return StoreError(f"The database {path} failed: {error}.")
