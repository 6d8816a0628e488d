"""Log lines leave through one thread: a reader that stalls (a full pipe) never stalls the event loop (rule E19).

What does not fit into the bounded queue is dropped and counted in ``dropped``, which /metrics shows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

QUEUED_MAX: Final = 2_000
"""Batches of lines that wait; one batch is one commit's attempts or one rare line."""

Batch = Callable[[], bytes]


class LineSink:
    """Takes batches (encoded only in its thread) and writes them in order to a file descriptor.

    Not to a stream: its lock, held by a thread that waits for a stalled reader, would keep the process from ending.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._broken = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log-lines", daemon=True)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        """Queue a batch; returns at once."""
        if self._broken or self._batches.qsize() >= QUEUED_MAX:
            self.dropped += 1
            return
        self._batches.put(batch)

    def close(self) -> None:
        """Write what is queued, at most for two seconds."""
        self._batches.put(None)
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            left = memoryview(batch())
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                self._broken = True  # nobody reads any more, or nothing fits; the work itself goes on
                return
