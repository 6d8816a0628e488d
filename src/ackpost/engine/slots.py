"""Which deliveries are in flight, in a small memory-mapped file (rule E5).

It survives ``kill -9`` without any fsync: the page cache outlives the process. At the next start what stands in it was
in flight when the process died. One slot: the delivery's position (0 when free), its round, its attempts so far.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final, Protocol

from ackpost.ports.operations import Mark

SLOT: Final = struct.Struct("<qII")


class Slots(Protocol):
    """Marks deliveries as in flight."""

    def take(self, delivery: int, in_round: int, number: int) -> int:
        """Mark a delivery with its round and the attempts made before; give the number of its slot."""

    def free(self, slot: int) -> None:
        """The result is durable."""

    def close(self) -> None:
        """Release the file."""


class SlotFile:
    """A mapped file of ``count`` slots; ``left`` is what stood in it when it was opened, by position.

    Raises: OSError when it cannot be made or finds no room.
    """

    def __init__(self, path: Path, count: int) -> None:
        size_bytes = SLOT.size * count
        with path.open("a+b") as file:
            # Written, not only made longer: a page that finds no room when it is first touched kills the process.
            file.write(bytes(max(0, size_bytes - path.stat().st_size)))
            file.flush()
            self._map = mmap.mmap(file.fileno(), 0)
        marks = SLOT.iter_unpack(self._map[: len(self._map) // SLOT.size * SLOT.size])
        self.left: list[Mark] = [Mark(*mark) for mark in sorted({mark for mark in marks if mark[0]})]
        self._free = list(range(count))

    def clear(self) -> None:
        """Forget what was left: it has been recorded."""
        self._map[:] = bytes(len(self._map))
        self.left = []

    def take(self, delivery: int, in_round: int, number: int) -> int:
        """Mark a delivery as in flight."""
        slot = self._free.pop()
        SLOT.pack_into(self._map, slot * SLOT.size, delivery, in_round, number)
        return slot

    def free(self, slot: int) -> None:
        """Its result is durable."""
        SLOT.pack_into(self._map, slot * SLOT.size, 0, 0, 0)
        self._free.append(slot)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()
