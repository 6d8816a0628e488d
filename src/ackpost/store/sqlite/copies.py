"""The database as a whole: is it undamaged, and a copy of it at one moment. A server may run on it meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import apsw
import msgspec

from ackpost.errors import StoreCorrupt, StoreError
from ackpost.store.sqlite.connection import check_header
from ackpost.store.sqlite.faults import mapped

PROBLEMS_MAX: Final = 100

_BUSY_TIMEOUT_MS: Final = 5_000
_STEP_PAGES: Final = 4_096

# What no commit can leave behind. Retention takes deliveries before their events, so numbers per event may differ.
_IMPOSSIBLE: Final = {
    "pending deliveries without their event": (
        "SELECT count(*) FROM delivery d WHERE NOT EXISTS"
        " (SELECT 1 FROM event e WHERE e.position = d.position - d.event_offset)"
    ),
    "dead letters without their event": (
        "SELECT count(*) FROM dead_letter d WHERE NOT EXISTS"
        " (SELECT 1 FROM event e WHERE e.position = d.position - d.event_offset)"
    ),
    "deliveries that are pending and ended at once": (
        "SELECT count(*) FROM delivery d WHERE d.position IN (SELECT position FROM history)"
        " OR d.position IN (SELECT position FROM dead_letter)"
    ),
    "events newer than the last position given": (
        "SELECT count(*) FROM event WHERE position > (SELECT position_bound FROM meta)"
    ),
}


class Condition(msgspec.Struct):
    """What a look at a whole database found; without ``problems`` it is undamaged."""

    problems: list[str]
    events: int = 0
    pending: int = 0


def examine(path: str) -> Condition:
    """Read all of a database and compare its parts.

    Raises: StoreError when it cannot be read at all, or is none of ours.
    """
    with _reading(path) as connection:
        found = [row[0] for row in connection.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})")]
        if found != ["ok"]:
            return Condition(found)
        counts = {name: _count(connection, sql) for name, sql in _IMPOSSIBLE.items()}
        return Condition(
            [f"{count} {name}" for name, count in counts.items() if count],
            events=_count(connection, "SELECT count(*) FROM event"),
            pending=_count(connection, "SELECT count(*) FROM delivery"),
        )


def back_up(path: str, target: Path) -> int:
    """Copy a database, as it is at this moment, into a new file that only its owner may read; give its size in bytes.

    The copy is owned by no server. It appears under its name when it is complete and on the disk.
    Raises: StoreError.
    """
    partial = target.with_name(f"{target.name}.partial")
    if target.exists():
        raise StoreError(f"The file {target} exists already; a backup overwrites nothing.")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with _reading(path) as source, mapped(str(partial)):
            _copy(source, str(partial))
        partial.rename(target)
        _flush_folder(target.resolve().parent)
    except OSError as error:
        raise StoreError(f"The backup {target} cannot be written: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


@contextmanager
def _reading(path: str) -> Iterator[apsw.Connection]:
    """Open for reading and hold one moment of it: what is committed meanwhile is not seen."""
    if not Path(path).is_file():
        raise StoreError(f"There is no database {path}.")
    with mapped(path), closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
        if connection.pragma("schema_version") == 0:
            raise StoreCorrupt(f"The file {path} is not a database of Ackpost.")
        check_header(connection, path)
        connection.execute("BEGIN")
        _count(connection, "SELECT count(*) FROM meta")
        yield connection


def _copy(source: apsw.Connection, partial: str) -> None:
    with closing(apsw.Connection(partial)) as copy:
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(_STEP_PAGES)
        copy.pragma("journal_mode", "delete")
        copy.pragma("synchronous", "extra")
        copy.execute("UPDATE meta SET node = NULL, host = NULL, lease_expires_ms = 0")


def _count(connection: apsw.Connection, sql: str) -> int:
    for (count,) in connection.execute(sql):
        return int(count)
    raise StoreCorrupt("A count gave no row.")


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
