"""Which deliveries are in flight, in a small memory-mapped file (rule E5).

It survives ``kill -9`` without any fsync: the page cache outlives the process. At the next start what stands in it was
in flight when the process died. One slot: the delivery's position, 0 when free.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final, Protocol

SLOT: Final = struct.Struct("<q")


class Slots(Protocol):
    """Marks deliveries as in flight."""

    def take(self, delivery: int) -> int:
        """Mark a delivery; give the number of its slot."""

    def free(self, slot: int) -> None:
        """The result is durable."""

    def close(self) -> None:
        """Release the file."""


class SlotFile:
    """A mapped file of ``count`` slots; ``left`` are the deliveries that stood in it when it was opened.

    Raises: OSError when it cannot be made or finds no room.
    """

    def __init__(self, path: Path, count: int) -> None:
        size_bytes = SLOT.size * count
        with path.open("a+b") as file:
            # Written, not only made longer: a page that finds no room when it is first touched kills the process.
            file.write(bytes(max(0, size_bytes - path.stat().st_size)))
            file.flush()
            self._map = mmap.mmap(file.fileno(), 0)
        left = {position for (position,) in SLOT.iter_unpack(bytes(self._map[: len(self._map) // 8 * 8])) if position}
        self.left: list[int] = sorted(left)
        self._free = list(range(count))

    def clear(self) -> None:
        """Forget what was left: it has been recorded."""
        self._map[:] = bytes(len(self._map))
        self.left = []

    def take(self, delivery: int) -> int:
        """Mark a delivery as in flight."""
        slot = self._free.pop()
        SLOT.pack_into(self._map, slot * SLOT.size, delivery)
        return slot

    def free(self, slot: int) -> None:
        """Its result is durable."""
        SLOT.pack_into(self._map, slot * SLOT.size, 0)
        self._free.append(slot)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()
