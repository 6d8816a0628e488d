"""What a node holds in memory for all its lanes together (rule E12): references, and bytes of data."""

from __future__ import annotations

from typing import Final

QUEUED_BYTES_MAX: Final = 24 * 1024 * 1024
"""Data that is kept for later only as long as all that is held is no more."""
DATA_BYTES_MAX: Final = 64 * 1024 * 1024
"""Data under way or not yet recorded; at this bound nothing more is read or sent."""
READ_BYTES: Final = 4 * 1024 * 1024
"""What one read of data aims at."""
LARGE_BYTES: Final = 4096
"""Smaller data under way is bounded by the number of requests."""
NOT_KEPT_BYTES: Final = 64 * 1024
"""Data so large is read again for a next attempt rather than held while an answer is awaited."""
_AT_FIRST_BYTES: Final = 64 * 1024


class Budget:
    """Counts for all lanes.

    ``rebuilding`` are endpoints whose order is being rebuilt, by which job: they send nothing meanwhile (rule E4).
    ``wanted`` counts references whose data is to be read.
    """

    __slots__ = ("_large", "large_bytes", "payload_bytes", "rebuilding", "refs", "typical_bytes", "wanted")

    def __init__(self) -> None:
        self.rebuilding: dict[int, int] = {}
        self.refs = 0
        self.payload_bytes = 0
        self.wanted = 0
        self.typical_bytes = _AT_FIRST_BYTES
        self.large_bytes = 0
        self._large: dict[int, int] = {}

    def has_room(self, size_bytes: int) -> bool:
        """Whether data may be kept that is not needed yet."""
        return self.payload_bytes + size_bytes <= QUEUED_BYTES_MAX

    def is_kept(self, size_bytes: int) -> bool:
        """Whether data that went out is kept for a next attempt."""
        return size_bytes < NOT_KEPT_BYTES and self.payload_bytes <= QUEUED_BYTES_MAX

    def may_read(self) -> bool:
        """Whether one more reference may have its data read now."""
        return self.payload_bytes + (self.wanted + 1) * self.typical_bytes <= DATA_BYTES_MAX

    def may_send(self) -> bool:
        """Whether another request may start."""
        return self.large_bytes < DATA_BYTES_MAX

    def read_count(self, most: int, room_bytes: int = DATA_BYTES_MAX) -> int:
        """How many payloads to read in one go, by the size of those that were read before."""
        return min(most, min(READ_BYTES, room_bytes) // self.typical_bytes)

    def was_read(self, size_bytes: int) -> None:
        """Learn from data that was read: up at once, down slowly."""
        typical_bytes = self.typical_bytes
        if size_bytes >= typical_bytes:
            self.typical_bytes = size_bytes
        else:
            self.typical_bytes = max(1, typical_bytes - (typical_bytes - size_bytes + 15) // 16)

    def started(self, delivery: int, size_bytes: int) -> None:
        """Data goes out; until its result is durable it is held."""
        if size_bytes >= LARGE_BYTES:
            self._large[delivery] = size_bytes
            self.large_bytes += size_bytes

    def recorded(self, delivery: int) -> None:
        """The result is durable."""
        if self._large:
            self.large_bytes -= self._large.pop(delivery, 0)
