"""Log lines leave through one thread: a reader that stalls (a full pipe) never stalls the event loop (rule E19).

What does not fit into the bounded queue is dropped and counted; the next line that gets through tells how many.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, Final

QUEUED_MAX: Final = 2_000
"""Batches of lines that wait; one batch is one commit's attempts or one rare line."""

Batch = Callable[[], bytes]


class LineSink:
    """Takes batches (encoded only in its thread) and writes them in order."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._batches: deque[Batch] = deque()
        self._ready = threading.Semaphore(0)
        self._closing = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log-lines", daemon=True)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        """Queue a batch; returns at once."""
        if len(self._batches) >= QUEUED_MAX:
            self.dropped += 1
            return
        self._batches.append(batch)
        self._ready.release()

    def close(self) -> None:
        """Write what is queued, at most for two seconds."""
        self._closing = True
        self._ready.release()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while True:
            self._ready.acquire()
            if not self._batches:
                if self._closing:
                    return
                continue
            try:
                self._stream.write(self._batches.popleft()())
                if not self._batches:
                    self._stream.flush()
            except (BrokenPipeError, ValueError):
                self._closing = True  # nobody reads any more; the work itself goes on
                self._batches.clear()
                return
