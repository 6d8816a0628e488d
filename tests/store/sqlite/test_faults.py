"""Full disks, damaged files, missing rights: one clear error each, and nothing half done."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from ackpost.errors import SchemaMismatch, StoreBusy, StoreCorrupt, StoreError, StoreFull, Unavailable
from ackpost.ports.operations import Accepted, Done, Idempotency, RenewLease, Repeated
from ackpost.store.sqlite import SqliteStore, connection
from ackpost.store.sqlite.reserve import RESERVE_BYTES
from tests.store.sqlite.processes import ROOT, child, hear
from tests.store.sqlite.world import LEASE_MS, NOW_MS, Opened, opened


def _open(path: Path) -> None:
    async def scenario() -> None:
        world = await opened(path)
        await world.store.close()

    asyncio.run(scenario())


def _writing(world: Opened) -> apsw.Connection:
    ledger = world.store._ledger
    assert ledger is not None
    return ledger.connection


def test_a_full_database_refuses_and_goes_on_later(tmp_path: Path) -> None:
    """Without room a group is refused whole; reads work; with room again the same commits succeed."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        writing = _writing(world)
        writing.pragma("max_page_count", writing.pragma("page_count") + 30)
        stored = 0

        async def fill() -> None:
            nonlocal stored
            while True:
                stored += len(await world.accept(10, size_bytes=3000))

        with pytest.raises(StoreFull, match=r"No space is left for the database .*a\.db"):
            await fill()
        assert len(await world.store.load_window(world.endpoint.position, 0, after=None, limit=1000)) == stored
        writing.pragma("max_page_count", 1_000_000)
        refs = await world.accept(10, size_bytes=3000)
        assert all((await world.deliver(refs)).applied)
        await world.store.close()

    asyncio.run(scenario())


def test_without_room_only_events_are_refused(tmp_path: Path) -> None:
    """The kept room is given up: the events of a group are refused, what else is in it is stored; then all again."""
    reserve = tmp_path / "a.db-reserve"

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        assert reserve.stat().st_size == RESERVE_BYTES
        writing = _writing(world)
        large = await world.accept_of(100, size_bytes=3000)
        writing.pragma("max_page_count", writing.pragma("page_count") + 3)
        renewal = RenewLease("a", world.incarnation, NOW_MS + 1, LEASE_MS)
        replies = await world.store.commit([large, renewal, large])
        assert [type(reply) for reply in replies] == [Unavailable, Done, Unavailable]
        assert [reply.code for reply in replies if isinstance(reply, Unavailable)] == ["storage_full"] * 2
        assert reserve.stat().st_size == 0
        assert "No space is left" in (world.store.shortage() or "")
        writing.pragma("max_page_count", 1_000_000)
        await world.accept(1)
        assert world.store.shortage() is None
        assert reserve.stat().st_size == RESERVE_BYTES
        await world.store.close()

    asyncio.run(scenario())


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    """The operating system's limit on files is met in the middle of commits; none of them is stored by halves."""
    path = tmp_path / "a.db"
    with child(path, "a", "fill") as process:
        assert hear(process) == f"No space is left for the database {path}."
        accepted, stored = hear(process).split()
        assert accepted == stored
        assert int(stored) > 0
        assert hear(process) == "ok"


def test_a_failed_group_leaves_no_trace(tmp_path: Path) -> None:
    """An error in the middle of a group undoes it all, and positions, versions and sequences are as before."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        writing = _writing(world)
        writing.execute(
            "CREATE TRIGGER boom BEFORE INSERT ON event WHEN new.uid = 'boom' BEGIN SELECT RAISE(ABORT, 'boom'); END"
        )
        assert world.store._ledger is not None
        last = world.store._ledger.last_position
        good, bad = await world.accept_of(3, key="k"), await world.accept_of(1, uid="boom", key="k")
        with pytest.raises(StoreError, match="boom"):
            await world.store.commit([good, bad])
        assert await world.store.newest_event_ms() is None
        first = (await world.accept(1, key="k"))[0]
        assert first.payload is not None
        assert first.payload.sequence == 1
        assert first.event == last + 1
        await world.store.close()

    asyncio.run(scenario())


def test_an_answer_that_is_not_stored_leaves_no_effect(tmp_path: Path) -> None:
    """The answer to an Idempotency-Key and its event are stored together or not at all, and repeated once."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        writing = _writing(world)
        asked = await world.accept_of(1)
        asked.idempotency = Idempotency(world.tenant, "again", b"digest", NOW_MS)
        writing.execute("CREATE TRIGGER boom BEFORE INSERT ON idempotency BEGIN SELECT RAISE(ABORT, 'boom'); END")
        with pytest.raises(StoreError, match="boom"):
            await world.store.commit([asked])
        writing.execute("DROP TRIGGER boom")
        answers = [await world.store.commit([asked]) for _ in range(2)]
        assert [type(answer) for (answer,) in answers] == [Accepted, Repeated]
        assert writing.execute("SELECT count(*) FROM event").fetchall() == [(1,)]
        await world.store.close()

    asyncio.run(scenario())


def test_a_held_file_is_busy_and_passes(tmp_path: Path) -> None:
    """A process that holds the file longer than the busy timeout gives StoreBusy; afterwards commits go on."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        _writing(world).set_busy_timeout(1)
        other = apsw.Connection(world.store.path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            await world.accept(1)
        other.execute("ROLLBACK")
        other.close()
        await world.accept(1)
        await world.store.close()

    asyncio.run(scenario())


def test_garbage_is_no_database(tmp_path: Path) -> None:
    """A file with anything else in it is refused and left as it is."""
    path = tmp_path / "a.db"
    path.write_bytes(b"what is this? " * 1000)
    with pytest.raises(StoreCorrupt, match=r"a\.db"):
        _open(path)
    assert path.read_bytes() == b"what is this? " * 1000


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    """A SQLite database of another program is not touched."""
    path = tmp_path / "a.db"
    foreign = apsw.Connection(str(path))
    foreign.execute("CREATE TABLE theirs (a)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="not a database of Ackpost"):
        _open(path)
    assert path.read_bytes() == before


def test_damage_is_found_where_it_is_met(tmp_path: Path) -> None:
    """Overwritten pages give StoreCorrupt from the read that meets them."""
    path = tmp_path / "a.db"

    async def scenario() -> None:
        world = await opened(path)
        refs = await world.accept(200, size_bytes=3000)
        await world.store.close()
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(size // 2)
            file.write(b"\xff" * (size // 2 - 4096))
        store = SqliteStore(str(path))

        async def read() -> None:
            await store.open(node="a", now_ms=NOW_MS, lease_ms=LEASE_MS)
            await store.load_payloads([ref.event for ref in refs])

        with pytest.raises(StoreCorrupt):
            await read()
        await store.close()

    asyncio.run(scenario())


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """An older program does not write into a database that a newer one has migrated."""
    path = tmp_path / "a.db"
    _open(path)
    newer = apsw.Connection(str(path))
    newer.pragma("user_version", connection.SCHEMA_VERSION + 1)
    newer.close()
    with pytest.raises(SchemaMismatch, match="update it"):
        _open(path)


def test_a_failed_migration_leaves_the_file_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration is applied whole or not at all."""
    path = tmp_path / "a.db"
    scripts = tmp_path / "migrations"
    scripts.mkdir()
    (scripts / "0001.sql").write_text("CREATE TABLE meta (a); CREATE TABLE meta (b);", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.resources.files", lambda _: tmp_path)
        with pytest.raises(StoreError, match="meta already exists"):
            _open(path)
    _open(path)


@pytest.mark.parametrize("place", ["missing/a.db", "."])
def test_a_place_that_cannot_hold_a_file(tmp_path: Path, place: str) -> None:
    """A missing folder, or a folder in place of the file, is told in one line with the path."""
    path = tmp_path / place
    with pytest.raises(StoreError) as caught:
        _open(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


_OPEN_WITHOUT_RIGHTS = """
import asyncio, os, sys
from pathlib import Path
from tests.store.sqlite.world import opened
async def once(path):
    await (await opened(Path(path))).store.close()
asyncio.run(once(sys.argv[2]))  # loads all that Python loads late
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    asyncio.run(once(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("old", [False, True], ids=["new file", "old file"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, old: bool) -> None:
    """Without the right to write the server does not start, and says which file it is about."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "a.db"
    if old:
        _open(path)
        for file in folder.iterdir():
            file.chmod(0o444)
    folder.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        if parent.owner() == folder.owner() and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o111)
    done = subprocess.run(
        [sys.executable, "-c", _OPEN_WITHOUT_RIGHTS, str(path), str(tmp_path / "b.db")], cwd=ROOT,
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
    )  # fmt: skip
    folder.chmod(0o755)
    assert done.stdout.startswith("StoreError The database"), (done.stdout, done.stderr)
    assert str(path) in done.stdout


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose checkpoints can damage the file is not used (R32)."""
    monkeypatch.setattr(apsw, "SQLITE_VERSION_NUMBER", 3_051_002)
    with pytest.raises(StoreError, match="update apsw"):
        _open(tmp_path / "a.db")
    assert not (tmp_path / "a.db").exists()


def test_commits_need_no_descriptor(tmp_path: Path) -> None:
    """Where all file descriptors are used up, everything that opened before is stored, undone and read as ever."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        refs = [ref for _ in range(20) for ref in await world.accept(100, size_bytes=1000)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                (tmp_path / "b").open("w")
            refs += await world.accept(100, size_bytes=1000)
            assert all((await world.deliver(refs)).applied)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await world.store.close()

    asyncio.run(scenario())
