"""A place for a database that can be made full and free again while a server runs on it."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from tests.process.server import Server

_DISK_BYTES: Final = 48 * 1024 * 1024
_GROWTH_BYTES: Final = 1024 * 1024


class Space(Protocol):
    """Where a database lies, and whether it finds room."""

    folder: Path

    def fill(self, server: Server) -> None:
        """Leave no room."""

    def free(self, server: Server) -> None:
        """Give it back."""


class SmallDisk:
    """A file system of its own: what a real full disk does to files, mapped ones too. For root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, server: Server) -> None:
        """Write a file until nothing fits."""
        with self._filler.open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(64 * 1024)):
                pass

    def free(self, server: Server) -> None:
        """Remove that file."""
        self._filler.unlink()


class SmallFiles:
    """A limit on the size of the server's files, for those who may not mount: writing fails likewise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, server: Server) -> None:
        """Let no file grow by more than a little."""
        sizes = [file.stat().st_size for file in self.folder.iterdir()]
        self._limit(server, max(sizes) + _GROWTH_BYTES)

    def free(self, server: Server) -> None:
        """Let files grow; a server that has ended has taken its limit with it."""
        if server.running:
            self._limit(server, resource.RLIM_INFINITY)

    def _limit(self, server: Server, size_bytes: int) -> None:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


@contextlib.contextmanager
def small_space(folder: Path) -> Iterator[Space]:
    """Make a space in a folder."""
    if os.geteuid() != 0:
        yield SmallFiles(folder)
        return
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(disk)], check=True)
    try:
        yield SmallDisk(disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
