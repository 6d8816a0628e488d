"""Bytes of a file that changed by themselves: no event disappears without a word (R33)."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from ackpost.core.model import EventPayload
from ackpost.errors import StoreError
from ackpost.store.sqlite import SqliteStore, copies
from tests.store.sqlite.world import LEASE_MS, NOW_MS, opened

COPIES = 80
DAMAGED_BYTES = (1, 64, 4096)


async def _fill(path: Path) -> dict[int, EventPayload]:
    """Make a file with events of several sizes, some of them delivered."""
    world = await opened(path)
    refs = []
    for size_bytes in (10, 500, 3_000, 30_000):
        refs += await world.accept(30, size_bytes=size_bytes, key="k")
    await world.deliver(refs[::2])
    await world.store.close()
    return {ref.event: ref.payload for ref in refs if ref.payload is not None}


async def _read(path: Path, events: list[int]) -> dict[int, EventPayload]:
    """Start on the file and read what a delivery would. Raises: StoreError."""
    store = SqliteStore(str(path))
    await store.open(node="a", now_ms=NOW_MS, lease_ms=LEASE_MS)
    try:
        return await store.load_payloads(events)
    finally:
        await store.close()


def _examined(path: Path) -> bool:
    """Whether the look at the whole file finds the damage."""
    try:
        return copies.examine(str(path)).problems != []
    except StoreError:
        return True


@pytest.mark.parametrize("length_bytes", DAMAGED_BYTES)
def test_damaged_bytes_hide_no_event(tmp_path: Path, length_bytes: int) -> None:
    """Wherever bytes change, all events are read, or an error tells, or ``check`` does; within data nobody can tell."""
    whole = tmp_path / "whole.db"
    stored = asyncio.run(_fill(whole))
    chance = random.Random(length_bytes)
    content = whole.read_bytes()
    seen: Counter[str] = Counter()
    for _ in range(COPIES):
        damaged = bytearray(content)
        start = chance.randrange(0, len(content) - length_bytes + 1)
        start -= start % length_bytes
        damaged[start : start + length_bytes] = bytes(255 - byte for byte in damaged[start : start + length_bytes])
        copy = tmp_path / "copy.db"
        copy.write_bytes(damaged)
        found = _examined(copy)
        try:
            read = asyncio.run(_read(copy, list(stored)))
        except StoreError:
            seen["refused or told when met"] += 1
            continue
        lost = stored.keys() - read.keys()
        assert not lost or found, f"{len(lost)} events are gone without a word: {length_bytes} bytes at {start}"
        changed = [event for event in read if read[event] != stored[event]]
        what = "found by check" if found else "within data" if changed else "in free space"
        seen[what] += 1
    shutil.rmtree(tmp_path)
    print(f"\n{length_bytes} damaged bytes, {COPIES} copies: {dict(seen)}")
    assert seen["refused or told when met"] + seen["found by check"] > 0
