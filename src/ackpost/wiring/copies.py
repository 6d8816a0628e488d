"""A look at a database, and a copy of it: beside a running server or without one."""

from __future__ import annotations

from pathlib import Path

from ackpost.config import Settings
from ackpost.store.sqlite import copies
from ackpost.store.sqlite.copies import Condition


def examine(settings: Settings) -> Condition:
    """Read the whole database. Raises: StoreError."""
    return copies.examine(str(settings.database_path))


def back_up(settings: Settings, target: Path) -> int:
    """Copy the database into a new file; give its size in bytes. Raises: StoreError."""
    return copies.back_up(str(settings.database_path), target)
