"""Room that is kept for the time when the disk is full: results can still be recorded, and data deleted."""

from __future__ import annotations

import os
from typing import Final

RESERVE_BYTES: Final = 8 * 1024 * 1024

_CHUNK: Final = bytes(1024 * 1024)
_FREE_BYTES_MIN: Final = 2 * RESERVE_BYTES
"""So much must be free before the reserve is filled again: filling it must not be what fills the disk."""


class Reserve:
    """A file beside the database that is given up when a commit finds no room, and filled again when there is some."""

    def __init__(self, database: str) -> None:
        self._path = f"{database}-reserve"
        self._folder = os.path.dirname(os.path.abspath(database))  # noqa: PTH100, PTH120 - for statvfs, which takes text
        self.spent = False

    def fill(self) -> bool:
        """Take the room, if the disk has enough; say whether it is there."""
        self.spent = not self._is_full() and not self._filled()
        return not self.spent

    def spend(self) -> bool:
        """Give the room to the database; say whether there was any."""
        had_some, self.spent = not self.spent, True
        try:
            os.truncate(self._path, 0)
        except OSError:
            return False
        return had_some

    def _is_full(self) -> bool:
        try:
            return os.stat(self._path).st_size >= RESERVE_BYTES  # noqa: PTH116 - as above
        except OSError:
            return False

    def _filled(self) -> bool:
        try:
            room = os.statvfs(self._folder)
            if room.f_bavail * room.f_frsize < _FREE_BYTES_MIN:
                return False
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                left = RESERVE_BYTES
                while left:
                    left -= os.write(descriptor, _CHUNK[:left])
            finally:
                os.close(descriptor)
        except OSError:
            self.spend()
            return False
        return True
