"""A disk whose power can be cut: an ext4 file system in a file, of which only what was flushed is there afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")  # the file itself must not be what is slow
_PREFIX: Final = "ackpost-disk-"
_MOUNT: Final = ("-o", "loop,noatime,commit=300")
"""Nothing reaches the disk by age within five minutes: what is not flushed by the server is lost for certain."""


class Disk:
    """The file system is mounted at ``mounted``; ``cut`` keeps what a machine without power would have kept."""

    def __init__(self, folder: Path, mounted: Path, size_mib: int) -> None:
        self.mounted = mounted
        self._folder = folder
        self._cuts = 0
        self._image = folder / "disk-0"
        with self._image.open("wb") as image:
            image.truncate(size_mib << 20)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    def cut(self) -> None:
        """Remember the disk as it is at this moment. Nobody may write to it meanwhile: stop them before."""
        self._cuts += 1
        _run("cp", "--sparse=always", str(self._image), str(self._folder / f"disk-{self._cuts}"))

    def restore(self) -> None:
        """Mount the disk as it was at the cut; the file system's own journal is replayed. Nobody may use it."""
        self.unmount()
        self._image.unlink()
        self._image = self._folder / f"disk-{self._cuts}"
        self._mount()

    def unmount(self) -> None:
        """Take it away if it is there."""
        if self.mounted.is_mount():
            _run("umount", str(self.mounted))

    def break_down(self) -> None:
        """Make the file system give up, as ext4 does when its disk fails: from now on it can only be read."""
        _run("mount", "-o", "remount,abort", str(self.mounted))

    def repair(self) -> None:
        """Mount it anew, writable; nobody may use it."""
        self.unmount()
        self._mount()

    def mount_read_only(self) -> None:
        """Mount it anew, for reading only; nobody may use it."""
        self.unmount()
        _run("mount", *_MOUNT[:-1], f"{_MOUNT[-1]},ro", str(self._image), str(self.mounted))

    def _mount(self) -> None:
        _run("mount", *_MOUNT, str(self._image), str(self.mounted))


@contextlib.contextmanager
def new_disk(size_mib: int = 192) -> Iterator[Disk]:
    """Make an empty one; it is removed whatever happens. Its users must have ended by then."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_MEMORY))
    mounted = folder / "mounted"
    mounted.mkdir()
    try:
        yield Disk(folder, mounted, size_mib)
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    if (folder / "mounted").is_mount():
        # Whoever still holds a file there keeps the loop device until its end, and no longer.
        _run("umount", "--lazy", str(folder / "mounted"))
    shutil.rmtree(folder)


def _sweep() -> None:
    """Remove what processes left behind that were killed."""
    for folder in _MEMORY.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            _remove(folder)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
