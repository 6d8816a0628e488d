"""A wall clock for one process alone, which can be set while it runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tests.needs import need_program

PRELOADED: Final = "/usr/$LIB/faketime/libfaketime.so.1"


class Clock:
    """The wall clock of one process, which can be set while it runs; its monotonic clock goes on."""

    def __init__(self, folder: Path) -> None:
        need_program("faketime", "faketime")
        self._file = folder / "clock"
        self.ahead_s = 0
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process use it."""
        return {
            "LD_PRELOAD": PRELOADED,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, ahead_s: int) -> None:
        """Let it be so much ahead of the true time from now on."""
        self.ahead_s = ahead_s
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}\n", encoding="ascii")
        new.replace(self._file)

    def shown_s(self) -> float:
        """What it shows now."""
        return time.time() + self.ahead_s
