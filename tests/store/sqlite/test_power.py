"""The power fails at hundreds of moments of a recorded disk: what was acknowledged is there, whole, and only that."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from ackpost.errors import StoreBroken
from ackpost.store.sqlite import SqliteStore, copies
from tests.store.sqlite.cutting import Recording, recording
from tests.store.sqlite.world import LEASE_MS, NOW_MS, opened

MOMENTS = 200
MOMENTS_OF_THE_UNSAFE = 40


class Promise(NamedTuple):
    """From a moment on these events are stored; ``ended`` are deliveries whose results are."""

    moment: int
    events: list[int]
    ended: list[int]


async def _work(path: Path, disk: Recording, *, synchronous: str | None = None) -> list[Promise]:
    """Accept, record, checkpoint and stop in order, as a server does; say from when on each was acknowledged.

    ``synchronous`` None leaves the store its own setting.
    """
    promises: list[Promise] = []
    world = await opened(path, inline=True)
    assert world.store._ledger is not None
    if synchronous is not None:
        world.store._ledger.connection.pragma("synchronous", synchronous)
    for number in range(40):
        refs = await world.accept(1 + number % 5, size_bytes=1 + 977 * (number % 7), key=f"k{number % 3}")
        promises.append(Promise(len(disk), [ref.event for ref in refs], []))
        if number % 3 == 0:
            assert all((await world.deliver(refs)).applied)
            promises.append(Promise(len(disk), [], [ref.position for ref in refs]))
        if number in {12, 25}:
            world.store._ledger.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    await world.store.close()
    return promises


async def _missing(folder: Path, promises: list[Promise]) -> int:
    """Start on the files; count what was promised and is not there. Whatever is there must be whole."""
    path = folder / "a.db"
    served = SqliteStore(str(path), inline=True)
    await served.open(node="a", now_ms=NOW_MS + 10_000, lease_ms=LEASE_MS)
    assert served._ledger is not None
    stored = {position for (position,) in served._ledger.all("SELECT position FROM event")}
    ended = {position for (position,) in served._ledger.all("SELECT position FROM history")}
    missing = sum(len(set(one.events) - stored) + len(set(one.ended) - ended) for one in promises)
    half = served._ledger.one(
        "SELECT count(*) FROM event e WHERE NOT EXISTS (SELECT 1 FROM delivery d WHERE d.position = e.position + 1)"
        " AND NOT EXISTS (SELECT 1 FROM history h WHERE h.position = e.position + 1)"
    )
    assert half == (0,)
    await served.close()
    assert copies.examine(str(path)).problems == []
    return missing


def _losses(tmp_path: Path, *, moments: int, synchronous: str | None = None) -> list[int]:
    """Cut the power at many moments; give what each cut took of what had been promised before it."""
    original = tmp_path / "original"
    original.mkdir()
    with recording() as disk:
        promises = asyncio.run(_work(original / "a.db", disk, synchronous=synchronous))
    chance = random.Random(1)
    begin = promises[0].moment
    losses = []
    for moment in sorted(chance.sample(range(begin, len(disk) + 1), moments)):
        folder = tmp_path / "cut"
        folder.mkdir()
        disk.files_at(moment, folder, chance)
        losses.append(asyncio.run(_missing(folder, [one for one in promises if one.moment <= moment])))
        shutil.rmtree(folder)
    found = f"{moments} of {len(disk) - begin} moments, losses at {sum(map(bool, losses))}"
    print(f"\nsynchronous={synchronous or 'as set'}: {found}")
    return losses


def test_no_moment_of_a_power_cut_loses_what_was_acknowledged(tmp_path: Path) -> None:
    """Writes that were not flushed are lost, kept or torn at random; what a commit answered is there, undamaged."""
    assert not any(_losses(tmp_path, moments=MOMENTS))


def test_without_flushing_each_commit_there_are_such_moments(tmp_path: Path) -> None:
    """With ``synchronous=NORMAL`` the same cuts lose acknowledged events: the test above can fail."""
    assert (
        sum(map(bool, _losses(tmp_path, moments=MOMENTS_OF_THE_UNSAFE, synchronous="normal")))
        > MOMENTS_OF_THE_UNSAFE / 4
    )


def test_after_a_failed_flush_nothing_is_built_on_what_only_memory_holds(tmp_path: Path) -> None:
    """A commit whose flush failed, a restart that still sees it, more commits, a power cut: all of these are there."""
    original = tmp_path / "original"
    original.mkdir()
    path = original / "a.db"

    async def scenario(disk: Recording) -> list[Promise]:
        promises = []
        world = await opened(path, inline=True)
        refs = await world.accept(3, size_bytes=5_000)
        promises.append(Promise(len(disk), [ref.event for ref in refs], []))
        disk.to_fail = "a.db-wal"
        with pytest.raises(StoreBroken):
            await world.accept(3, size_bytes=5_000)
        with pytest.raises(StoreBroken):
            await world.accept(1)
        assert world.store._ledger is not None
        world.store._ledger.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        await world.store.close()  # as dead as can be: the log is left behind
        assert path.with_name("a.db-wal").stat().st_size > 0
        world = await opened(path, inline=True)
        for _ in range(5):
            refs = await world.accept(2, size_bytes=5_000)
            promises.append(Promise(len(disk), [ref.event for ref in refs], []))
        disk.files_at(len(disk), tmp_path, random.Random(1))
        await world.store.close()
        return promises

    with recording() as disk:
        promises = asyncio.run(scenario(disk))
    assert asyncio.run(_missing(tmp_path, promises)) == 0
