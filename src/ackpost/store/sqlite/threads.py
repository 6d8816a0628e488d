"""The threads that SQLite runs on, so that no disk ever stops the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

Given = TypeVar("Given")

Work = Callable[[], Any]
_Entry = tuple[Work, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Runner(Protocol):
    """Runs calls, one after another or on several threads."""

    async def run(self, work: Callable[[], Given]) -> Given:
        """Call ``work`` and give what it gives or raises."""

    def stop(self) -> None:
        """End after what is queued; waits for it."""


class InlineRunner:
    """Everything on the calling thread: for simulation, where threads would bring chance."""

    async def run(self, work: Callable[[], Given]) -> Given:
        """Call ``work`` at once."""
        return work()

    def stop(self) -> None:
        """Nothing runs."""


class ThreadRunner:
    """A fixed number of threads with one queue.

    A hand-over costs a queue entry and one ``call_soon_threadsafe``, a third of what an executor's future does.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._queue: SimpleQueue[_Entry | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, work: Callable[[], Given]) -> Given:
        """Call ``work`` on one of the threads; a caller that is cancelled does not stop it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Given] = loop.create_future()
        self._queue.put((work, loop, future))
        return await future

    def stop(self) -> None:
        """End the threads after what is queued; again does nothing."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join()

    def _serve(self) -> None:
        while (entry := self._queue.get()) is not None:
            work, loop, future = entry
            try:
                given, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - handed to the caller, whatever it is
                given, error = None, raised
            try:
                loop.call_soon_threadsafe(_resolve, future, given, error)
            except RuntimeError:
                # The loop was closed while this ran: nobody waits any more.
                continue
            del entry, work, future, given, error


def _resolve(future: asyncio.Future[Any], given: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(given)
    else:
        future.set_exception(error)


class Checkpointer:
    """Moves the write-ahead log into the database, away from the writer (rule E8).

    ``checkpoint`` is called on the thread after ``nudge``, never twice at once.
    """

    def __init__(self, checkpoint: Callable[[], None]) -> None:
        self._checkpoint = checkpoint
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="sqlite-checkpoint", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Let it run soon; calls while it waits are one."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                return
            self._checkpoint()
