"""Log lines leave through one thread: a reader that stalls (a full pipe) never stalls the event loop (rule E19).

What does not fit into the bounded queue is dropped and counted in ``dropped``, which /metrics shows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

QUEUED_LINES_MAX: Final = 10_000
"""Lines that wait. An attempt's line may keep 16 KiB of its answer in memory until it is written."""

Batch = Callable[[], bytes]


class LineSink:
    """Takes batches (encoded only in its thread) and writes them in order to a file descriptor.

    Not to a stream: its lock, held by a thread that waits for a stalled reader, would keep the process from ending.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._batches: SimpleQueue[tuple[Batch, int] | None] = SimpleQueue()
        self._broken = False
        self._taken = 0
        self._written = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log-lines", daemon=True)
        self._thread.start()

    def put(self, batch: Batch, lines: int = 1) -> None:
        """Queue a batch of so many lines, from the event loop's thread; returns at once."""
        if self._broken or self._taken - self._written >= QUEUED_LINES_MAX:
            self.dropped += 1
            return
        self._taken += lines
        self._batches.put((batch, lines))

    def close(self) -> None:
        """Write what is queued, at most for two seconds."""
        self._batches.put(None)
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while (entry := self._batches.get()) is not None:
            batch, lines = entry
            left = memoryview(batch())
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                self._broken = True  # nobody reads any more, or nothing fits; the work itself goes on
                return
            self._written += lines
            del entry, batch, left
