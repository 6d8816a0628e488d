"""The file that says what is in flight."""

from __future__ import annotations

from pathlib import Path

from ackpost.engine.slots import SLOT, SlotFile
from ackpost.ports.operations import Mark


def test_marks_outlive_whoever_made_them(tmp_path: Path) -> None:
    """What was taken and not freed stands in the file for the next one, who clears it once it is recorded."""
    path = tmp_path / "inflight"
    slots = SlotFile(path, 100)
    assert slots.left == []
    first, second = slots.take(70, 1, 0), slots.take(7, 3, 5)
    slots.free(first)
    after_crash = SlotFile(path, 100)
    assert after_crash.left == [Mark(7, 3, 5)]
    after_crash.clear()
    assert after_crash.left == []
    assert SlotFile(path, 100).left == []
    assert first != second


def test_fewer_slots_than_before_still_tell_what_was_left(tmp_path: Path) -> None:
    """A smaller setting at the next start loses no mark."""
    path = tmp_path / "inflight"
    slots = SlotFile(path, 1000)
    for delivery in range(1, 1001):
        slots.take(delivery, 1, 0)
    assert [mark.delivery for mark in SlotFile(path, 10).left] == list(range(1, 1001))


def test_all_of_the_file_has_its_place_on_the_disk(tmp_path: Path) -> None:
    """No mark has to find room later: a mapped page without any would kill the process."""
    path = tmp_path / "inflight"
    SlotFile(path, 3000).close()
    made = path.stat()
    assert made.st_size >= 3000 * SLOT.size
    assert made.st_blocks * 512 >= made.st_size
    SlotFile(path, 9000).close()
    grown = path.stat()
    assert grown.st_size == 9000 * SLOT.size
    assert grown.st_blocks * 512 >= grown.st_size
