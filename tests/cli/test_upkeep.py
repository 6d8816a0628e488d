"""``ackpost check`` and ``ackpost backup`` on files, without a server."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.cli.shell import Shell


@pytest.fixture
def database(shell: Shell, tmp_path: Path) -> Path:
    """An empty database."""
    path = tmp_path / "a.db"
    shell.ok("migrate", "--database-url", f"sqlite:///{path}")
    return path


def test_an_undamaged_database_is_told(shell: Shell, database: Path) -> None:
    """``check`` says what it found, and ends with 0."""
    out = shell.ok("check", "--database-url", f"sqlite:///{database}").out
    assert out == f"{database} is undamaged: 0 events, 0 deliveries pending.\n"


def test_damage_is_told_and_ends_with_1(shell: Shell, database: Path) -> None:
    """A row that no commit can have written is found, and a page overwritten with anything else; one line tells."""
    with closing(apsw.Connection(str(database))) as connection:
        connection.execute("INSERT INTO event (position, tenant, type, fanout) VALUES (1 << 62, 1, 'a', 0)")
    result = shell("check", "--database-url", f"sqlite:///{database}")
    assert result.code == 1
    assert result.out == "1 events newer than the last position given\n"
    assert result.error == f"ackpost: The database {database} is damaged: stop the server and restore a backup."
    content = bytearray(database.read_bytes())
    content[-4096:] = b"x" * 4096
    database.write_bytes(content)
    assert "is damaged" in shell.refused("check", "--database-url", f"sqlite:///{database}")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "There is no database"), (b"", "is not a database of Ackpost"), (b"text " * 5000, "is no database")],
    ids=["missing", "empty", "text"],
)
def test_what_is_no_database_is_told_in_one_line(
    shell: Shell, tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    """Neither command makes a file, nor touches a foreign one."""
    path = tmp_path / "b.db"
    if content is not None:
        path.write_bytes(content)
    for command in (["check"], ["backup", str(tmp_path / "copy.db")]):
        assert complaint in shell.refused(*command, "--database-url", f"sqlite:///{path}")
    assert [one.name for one in tmp_path.iterdir()] == ([] if content is None else ["b.db"])
    assert content is None or path.read_bytes() == content


def test_a_backup_is_a_database_of_its_own(shell: Shell, database: Path, tmp_path: Path) -> None:
    """One file, its owner's alone, undamaged and owned by no server; an existing one is never overwritten."""
    url, target = f"sqlite:///{database}", tmp_path / "copy.db"
    assert "holds all that" in shell.ok("backup", str(target), "--database-url", url).out
    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in tmp_path.iterdir() if one.name.startswith("copy")) == ["copy.db"]
    assert "undamaged" in shell.ok("check", "--database-url", f"sqlite:///{target}").out
    before = target.read_bytes()
    assert "overwrites nothing" in shell.refused("backup", str(target), "--database-url", url)
    assert target.read_bytes() == before
    shell.ok("migrate", "--database-url", f"sqlite:///{target}")


def test_a_backup_that_cannot_be_written_is_told(shell: Shell, database: Path, tmp_path: Path) -> None:
    """A missing folder: one line that names the file."""
    target = tmp_path / "no" / "copy.db"
    refusal = shell.refused("backup", str(target), "--database-url", f"sqlite:///{database}")
    assert f"The backup {target} cannot be written" in refusal
