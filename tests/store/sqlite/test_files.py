"""How the file and its write-ahead log are kept."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import apsw
import pytest

from ackpost.errors import StoreFull
from ackpost.ports.operations import Retain, Retained
from ackpost.store.sqlite import SqliteStore, store
from tests.store.sqlite.world import LEASE_MS, NOW_MS, Opened, opened


def _wal_bytes(world: Opened) -> int:
    return Path(f"{world.store.path}-wal").stat().st_size


def _writing(world: Opened) -> apsw.Connection:
    assert world.store._ledger is not None
    return world.store._ledger.connection


class _FullDisk:
    """A connection that finds no room."""

    system_errno = 0

    def wal_checkpoint(self, mode: int) -> tuple[int, int]:
        """Fail as SQLite does."""
        raise apsw.FullError("database or disk is full")


async def _without_checkpoints(path: Path) -> Opened:
    """Open a store whose checkpoints are made by the test alone."""
    world = await opened(path)
    assert world.store._checkpointer is not None
    world.store._checkpointer.stop()
    return world


def test_commits_are_durable_and_the_file_can_shrink(tmp_path: Path) -> None:
    """The writer syncs each commit; free pages can be given back; checkpoints are not the writer's work (rule E8)."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        writing = _writing(world)
        wanted = {
            "journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2, "page_size": 4096, "foreign_keys": 0,
            "busy_timeout": 5000, "journal_size_limit": 64 * 1024 * 1024,
        }  # fmt: skip
        assert {name: writing.pragma(name) for name in wanted} == wanted
        await world.store.close()

    asyncio.run(scenario())


def test_a_long_log_is_emptied(tmp_path: Path) -> None:
    """A checkpoint that finds the log long empties it, so that it does not grow for ever under load (R31)."""

    async def scenario() -> None:
        world = await _without_checkpoints(tmp_path / "a.db")
        while _wal_bytes(world) < 33 * 1024 * 1024:
            await world.accept(200, size_bytes=20_000)
        world.store._checkpoint()
        assert _wal_bytes(world) == 0
        await world.accept(1)
        await world.store.close()

    asyncio.run(scenario())


def test_a_reader_that_stays_does_not_stop_the_writer(tmp_path: Path) -> None:
    """While somebody looks at an old state commits go on and the log grows; afterwards it is emptied (R30)."""

    async def scenario() -> None:
        world = await _without_checkpoints(tmp_path / "a.db")
        reader = apsw.Connection(world.store.path, flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM event").fetchall() == [(0,)]
        while _wal_bytes(world) < 33 * 1024 * 1024:
            await world.accept(200, size_bytes=20_000)
            world.store._checkpoint()
        refs = await world.accept(1)
        assert (await world.deliver(refs)).applied == [True]
        assert reader.execute("SELECT count(*) FROM event").fetchall() == [(0,)]
        reader.execute("COMMIT")
        world.store._checkpoint()
        assert _wal_bytes(world) == 0
        reader.close()
        await world.store.close()

    asyncio.run(scenario())


def test_a_checkpoint_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits go on beside a failing checkpoint until the log is too long; then they say why, until one succeeds."""
    monkeypatch.setattr(store, "_STUCK_PAGES", 400)

    async def scenario() -> None:
        world = await _without_checkpoints(tmp_path / "a.db")
        await world.accept(20, size_bytes=20_000)
        good = world.store._checkpoint_connection
        monkeypatch.setattr(world.store, "_checkpoint_connection", _FullDisk())
        world.store._checkpoint()
        await world.accept(200, size_bytes=20_000)
        with pytest.raises(StoreFull):
            await world.accept(1)
        monkeypatch.setattr(world.store, "_checkpoint_connection", good)
        world.store._checkpoint()
        await world.accept(1)
        await world.store.close()

    asyncio.run(scenario())


def test_the_log_leaves_with_the_server(tmp_path: Path) -> None:
    """After a clean end the database is one file, whole by itself."""
    path = tmp_path / "a.db"

    async def scenario() -> None:
        world = await opened(path)
        await world.accept(10)
        await world.store.close()

    asyncio.run(scenario())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.db", "a.db-reserve", "a.db.lock"]
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    assert apsw.Connection(str(copy)).execute("SELECT count(*) FROM event").fetchall() == [(10,)]


def _modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    """Signing secrets stand in the database and its log: others on the machine get neither, whatever the umask."""
    path = tmp_path / "a.db"
    before = os.umask(0o022)
    modes: dict[str, int] = {}

    async def scenario() -> None:
        world = await opened(path)
        await world.accept(1)
        modes.update(_modes(tmp_path))
        await world.store.close()

    try:
        asyncio.run(scenario())
    finally:
        os.umask(before)
    assert {"a.db", "a.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def test_old_events_give_their_space_back(tmp_path: Path) -> None:
    """Retention returns pages to the file system, a few a step."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        await world.deliver(await world.accept(300, size_bytes=15_000))
        writing = _writing(world)
        before = writing.pragma("page_count")
        later_ms = world.now_ms + 1000
        for _ in range(100):
            (step,) = await world.store.commit([Retain(later_ms, 0, 0, 0, 20, later_ms)])
            assert isinstance(step, Retained)
            if not step.more:
                break
        assert await world.store.newest_event_ms() is None
        assert writing.pragma("page_count") < before // 2
        await world.store.close()

    asyncio.run(scenario())


def test_a_caller_that_gives_up_does_not_break_the_commit(tmp_path: Path) -> None:
    """A commit whose caller was cancelled is carried out whole, and the next one follows it."""

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db")
        operation = await world.accept_of(5)
        task = asyncio.create_task(world.store.commit([operation]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await world.accept(1)
        assert len(await world.store.load_window(world.endpoint.position, 0, after=None, limit=100)) == 6
        await world.store.close()

    asyncio.run(scenario())


def test_everything_runs_on_the_calling_thread_when_asked(tmp_path: Path) -> None:
    """Inline, no thread is started and a commit never waits for one: the simulation stays free of chance."""

    async def scenario() -> None:
        inline = SqliteStore(str(tmp_path / "a.db"), inline=True, salt=7)
        opening = inline.open(node="a", now_ms=NOW_MS, lease_ms=LEASE_MS)
        try:
            opening.send(None)
        except StopIteration as done:
            assert done.value == 1
        assert inline.salt == 7
        assert not inline._reading
        await inline.close()

    asyncio.run(scenario())
