"""A server on a file that it cannot use says why in one line, leaves the file as it is, and does not exit with 0.

Ports, keys, settings and databases of other servers: ``tests/cli/test_starts.py``.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ackpost.store.sqlite import SqliteStore
from tests.process.server import Server


def _complaint(server: Server) -> str:
    """Start a server that must fail; give its one line."""
    code, lines = server.fail()
    assert code == 1
    assert len(lines) == 1, lines
    assert lines[0].startswith("ackpost: ")
    assert server.ended == []
    return lines[0]


def _make(path: Path) -> None:
    async def make() -> None:
        store = SqliteStore(str(path), inline=True)
        await store.open(node="a", now_ms=1_700_000_000_000, lease_ms=1000)
        await store.close()

    asyncio.run(make())


def _foreign_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (id INTEGER)")


def _newer_schema(path: Path) -> None:
    _make(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")


def _damaged(path: Path) -> None:
    """Overwrite all pages but the first, which tells only that it is a database."""
    _make(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_foreign_database, "not a database of Ackpost"),
        (_newer_schema, "has schema 99"),
        (_damaged, "is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    """Another program's database, one of a newer version and a damaged one are named."""
    path = tmp_path / "ackpost.db"
    spoil(path)
    before = path.read_bytes()
    line = _complaint(Server(tmp_path, database=path))
    assert str(path) in line
    assert words in line
    assert path.read_bytes() == before


def test_a_folder_without_the_right_to_write_is_refused(tmp_path: Path) -> None:
    """A folder that its user may not write to is refused by name."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    # Rights do not bind root, for whom a folder of the kernel stands in.
    path = Path("/proc/ackpost.db") if os.geteuid() == 0 else folder / "ackpost.db"
    assert str(path) in _complaint(Server(tmp_path, database=path))


def test_no_room_for_the_marks_of_what_is_in_flight_is_refused(tmp_path: Path) -> None:
    """The file beside the database is named when it cannot be made."""
    path = tmp_path / "ackpost.db"
    Path(f"{path}-inflight").mkdir()
    assert f"{path}-inflight" in _complaint(Server(tmp_path, database=path))
