"""A disk that is written down: what was written and flushed, in order, so that the power can fail at any moment of it.

SQLite works on real files through it. Afterwards ``Recording.files_at`` makes the files that a machine would find which
lost its power at one moment: all that was flushed before is there; of the writes since then each may be there, or not,
or by halves, as the disk pleased.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

SECTOR_BYTES: Final = 512
_NAME: Final = "recorded"


class Write(msgspec.Struct):
    """Bytes written to a file, or (``data`` None) the file cut to ``offset`` bytes."""

    file: str
    offset: int
    data: bytes | None


class Flush(msgspec.Struct):
    """All writes to a file so far are on the disk."""

    file: str


class Delete(msgspec.Struct):
    """The file was removed, with its folder flushed."""

    file: str


class Forget(msgspec.Struct):
    """The flush failed: what was written before never reaches the disk, though every process sees it until the cut."""

    file: str


class Recording:
    """What was done to the files of a folder; ``len`` is now. The next flush of the file ``to_fail`` fails."""

    def __init__(self) -> None:
        self.steps: list[Write | Flush | Delete | Forget] = []
        self.to_fail: str | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def files_at(self, moment: int, folder: Path, chance: random.Random) -> None:
        """Make the files as they would be found after a power cut at that moment."""
        flushed: dict[str, bytearray] = {}
        pending: dict[str, list[Write]] = {}
        for step in self.steps[:moment]:
            if isinstance(step, Write):
                pending.setdefault(step.file, []).append(step)
            elif isinstance(step, Flush):
                for write in pending.pop(step.file, ()):
                    _apply(flushed.setdefault(step.file, bytearray()), write.offset, write.data)
            else:
                pending.pop(step.file, None)
                if isinstance(step, Delete):
                    flushed.pop(step.file, None)
        for file, writes in pending.items():
            for write in writes:
                _apply_by_chance(flushed.setdefault(file, bytearray()), write, chance)
        for file, content in flushed.items():
            (folder / file).write_bytes(content)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def _apply_by_chance(content: bytearray, write: Write, chance: random.Random) -> None:
    """Nothing of it, all, or some of its sectors reached the disk."""
    kind = chance.randrange(3)
    if write.data is None or kind == 0:
        if kind and write.data is None:
            _apply(content, write.offset, None)
        return
    for start in range(0, len(write.data), SECTOR_BYTES):
        if kind == 1 or chance.random() < 0.5:
            _apply(content, write.offset + start, write.data[start : start + SECTOR_BYTES])


class _Vfs(apsw.VFS):
    def __init__(self, recording: Recording, base: str) -> None:
        self.recording = recording
        self.base = base
        super().__init__(_NAME, base, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> _File:  # noqa: N802 - SQLite's name
        return _File(self.recording, self.base, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - SQLite's name
        super().xDelete(filename, syncdir)
        self.recording.steps.append(Delete(Path(filename).name))


class _File(apsw.VFSFile):
    def __init__(self, recording: Recording, base: str, name: Any, flags: Any) -> None:
        self._recording = recording
        self._name = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary").name
        super().__init__(base, name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - SQLite's name
        super().xWrite(data, offset)
        self._recording.steps.append(Write(self._name, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802 - SQLite's name
        super().xTruncate(size)
        self._recording.steps.append(Write(self._name, size, None))

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        if self._recording.to_fail == self._name:
            self._recording.to_fail = None
            self._recording.steps.append(Forget(self._name))
            raise _flush_failed()
        super().xSync(flags)
        self._recording.steps.append(Flush(self._name))


def _flush_failed() -> apsw.Error:
    error = apsw.IOError("the disk did not take it")
    error.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined] # read by apsw, and not in its stub
    return error


@contextmanager
def recording() -> Iterator[Recording]:
    """Write down what SQLite does meanwhile; the files lie in one folder."""
    made = Recording()
    usual = apsw.vfs_names()[0]
    vfs = _Vfs(made, usual)
    try:
        yield made
    finally:
        apsw.set_default_vfs(usual)
        vfs.unregister()
