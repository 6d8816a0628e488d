"""The database's files: whether those that are open are still those that lie there."""

from __future__ import annotations

import os

from ackpost.errors import StoreError


class Files:
    """Notices that somebody removed or replaced the database or its log.

    The open ones would go on working, and take with them at their closing all that was acknowledged since.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._known: list[tuple[str, tuple[int, int] | None]] = []

    def remember(self) -> None:
        """The files that lie there now are those that were opened."""
        paths = (self._database, f"{self._database}-wal")
        self._known = [(path, _identity(path)) for path in paths]

    def check(self) -> None:
        """Cost two looks at the file system, about 3 µs.

        Raises: StoreError.
        """
        for path, identity in self._known:
            if _identity(path) != identity:
                raise StoreError(f"The file {path} was removed or replaced while the server uses it: put it back.")

    def set_log_aside(self) -> None:
        """After closing: keep a log that was not emptied from being taken for that of a database put in its place.

        SQLite would mix the two. Where the database is only missing, the log waits for it.
        """
        if not self._known:
            return
        (database, opened), (log, opened_log) = self._known
        if _identity(database) not in {None, opened} and opened_log is not None and _identity(log) == opened_log:
            os.replace(log, f"{log}-of-the-replaced")  # noqa: PTH105 - see below


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - called for each commit: Path costs as much again
    except OSError:
        return None
    return found.st_dev, found.st_ino
