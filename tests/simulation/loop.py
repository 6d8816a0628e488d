"""An asyncio loop in virtual time: it jumps to the next timer, draws the order of callbacks, and kills processes.

A *process* is a context: every callback, task and timer started inside belongs to it. Killing drops all of them between
two callbacks, as ``kill -9`` does: nothing is cleaned up. Freezing holds them back until the process goes on.
Works with private parts of ``asyncio.BaseEventLoop`` (``_ready``, ``_scheduled``); ``test_loop.py`` watches them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Stuck(AssertionError):
    """Nothing is left that could ever happen, and the main task waits."""


def process_here() -> Process | None:
    """Give the process that this code belongs to."""
    return _PROCESS.get()


class Network(Protocol):
    """Where connections come from."""

    async def connect(self, factory: Callable[[], Any], ip: str, port: int) -> tuple[Any, Any]:
        """See ``loop.create_connection``."""

    async def start_tls(self, transport: Any, protocol: Any) -> Any:
        """See ``loop.start_tls``."""


class Process:
    """What can be killed or frozen as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)

    def __repr__(self) -> str:
        return f"Process({self.name})"


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of one simulated world. ``before`` is called before each callback of a process, and may kill it."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.before: Callable[[Process], None] | None = None
        self.on_error: Callable[[dict[str, Any]], None] | None = None
        self.network: Network | None = None
        self.shuffling = True
        self.steps = 0
        self._now_s = 0.0
        self._held: list[asyncio.Handle] = []
        self._made: list[asyncio.Task[Any]] = []
        self._owners: dict[asyncio.Task[Any], Process | None] = {}
        self.errors: list[dict[str, Any]] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_error)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def thaw(self, process: Process) -> None:
        """Let a frozen process go on with what it was about to do."""
        process.frozen = False
        still: list[asyncio.Handle] = []
        for handle in self._held:
            (self._ready.append if self._process_of(handle) is process else still.append)(handle)
        self._held = still

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override] # no threads here
        """Run it on the loop itself, a callback later."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - it is the future's, as of any executor
                future.set_exception(error)

        self.call_soon(run)
        return future

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **given: Any) -> Any:  # type: ignore[override] # what is used of it
        """Ask the simulated network."""
        assert self.network is not None
        return await self.network.connect(factory, host, port)

    async def start_tls(self, transport: Any, protocol: Any, sslcontext: Any, **given: Any) -> Any:
        """Ask the simulated network."""
        assert self.network is not None
        return await self.network.start_tls(transport, protocol)

    def run_once(self) -> None:
        """One turn: move the time if nothing is ready, then run what is."""
        scheduled, ready = self._scheduled, self._ready
        if not ready and not self._stopping:
            while scheduled and scheduled[0].cancelled():
                heapq.heappop(scheduled)
            if not scheduled:
                raise Stuck("nothing is left to happen")
            self._now_s = max(self._now_s, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now_s:
            ready.append(heapq.heappop(scheduled))
        turn = list(ready)
        ready.clear()
        if self.shuffling:
            self.random.shuffle(turn)
        for handle in turn:
            self._run_handle(handle)

    def _run_handle(self, handle: asyncio.Handle) -> None:
        process = self._process_of(handle)
        if process is not None:
            if process.alive and self.before is not None and not process.frozen:
                self.before(process)
            if not process.alive:
                return
            if process.frozen:
                self._held.append(handle)
                return
        if not handle.cancelled():
            self.steps += 1
            handle._run()

    _run_once = run_once

    def _process_of(self, handle: asyncio.Handle) -> Process | None:
        context: contextvars.Context = handle._context  # type: ignore[attr-defined] # private, but there since 3.7
        return context.get(_PROCESS)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no threads to wake the loop from."""

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **given: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **given)
        self._made.append(task)
        context = given.get("context")
        self._owners[task] = _PROCESS.get() if context is None else context.get(_PROCESS)
        return task

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # When a future is collected says nothing about the run: tasks are looked at in the end.
        if not str(context.get("message")).endswith("was never retrieved"):
            self.errors.append(context)
            if self.on_error is not None:
                self.on_error(context)

    def note_forgotten(self) -> None:
        """Add the errors of living processes' tasks that nobody looked at."""
        for task in self._made:
            if task.done() and task._log_traceback:
                process = self._owners.get(task)
                if process is None or process.alive:
                    self.errors.append({"message": f"{task.get_name()} failed", "exception": task.exception()})

    def dispose(self) -> None:
        """Drop what killed processes left, without a word, and close the loop."""
        for task in self._made:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined] # a killed process's task is meant to vanish
                with contextlib.suppress(RuntimeError):
                    task.get_coro().close()
        self._made.clear()
        self._owners.clear()
        self._ready.clear()
        self._scheduled.clear()
        self._held.clear()
        self.close()


def run(loop: VirtualLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run a main coroutine to its end in virtual time, then drop the rest."""
    try:
        task = loop.create_task(main)
        loop.run_until_complete(task)
        return task.result()
    finally:
        loop.note_forgotten()
        loop.dispose()
