"""Group commit (rule E6): whatever gathered while the previous commit ran, and is ready now, becomes the next one.

One writer a process. Operations of services and results of attempts share its commits. A group that fails as a whole is
repeated one operation at a time, so that one bad row never fails strangers; results are kept until they are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ackpost.core.decision import Decision
from ackpost.errors import (
    RequestError,
    StoreBroken,
    StoreBusy,
    StoreError,
    StoreFenced,
    StoreFull,
    StoreLocked,
    StoreOutcomeUnknown,
    Unavailable,
)
from ackpost.ports.clock import Clock
from ackpost.ports.commit import Waiter
from ackpost.ports.operations import Accept, Accepted, Operation, Record, Recorded, Repeated, Result
from ackpost.ports.store import Store
from ackpost.ports.telemetry import Telemetry

GROUP_OPERATIONS_MAX: Final = 1000
GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
QUEUE_OPERATIONS_MAX: Final = 10_000
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
RESULTS_A_GROUP_MAX: Final = 1000
GATHER_TURNS_MAX: Final = 4
"""Turns of the event loop that a group may grow in before it is committed; it takes one that brings nothing to end."""
RESULTS_WORTH_A_COMMIT: Final = 500
LINGER_S: Final = 0.025
"""So long results that nobody waits for may wait for a request to share its commit, or for so many of their kind."""

TROUBLE_PAUSE_S: Final = 0.25
STOP_S: Final = 4.0
"""How long a stopping writer tries to store results while the store is in trouble."""

Reply = Result | Repeated | RequestError
Entry = tuple[Operation, Waiter]


class CommitObserver(Protocol):
    """The engine, told of what became durable."""

    def on_result(self, result: Result | Repeated) -> None:
        """An operation of a service was stored."""

    def on_recorded(self, decisions: Sequence[Decision], recorded: Recorded) -> None:
        """Results of attempts were stored."""

    def on_fenced(self) -> None:
        """Other nodes declared this one dead: its results are void."""

    def on_fatal(self, error: BaseException) -> None:
        """The node must stop: it no longer owns the store, or the writer broke."""


class Writer:
    """The one place that calls ``Store.commit``."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        telemetry: Telemetry,
        *,
        incarnation: int,
        node: str,
        shortage: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._incarnation = incarnation
        self._node = node
        self._shortage = shortage
        self._queue: list[Entry] = []
        self._queue_bytes = 0
        self._decisions: list[Decision] = []
        self._under_way: list[Decision] = []
        """Results that are in the commit under way, unless they became void meanwhile."""
        self._wake: asyncio.Event = asyncio.Event()
        self._ripe: asyncio.Event = asyncio.Event()
        """Something is queued that somebody waits for, or that is worth a commit of its own."""
        self._stopping = False
        self._stop_deadline_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self.observer: CommitObserver | None = None
        self.trouble: str | None = None

    def start(self) -> None:
        """Begin to commit."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="writer")

    async def submit(self, operation: Operation) -> Result | Repeated:
        """Wait until the operation is durable and give its result (``ports.commit``)."""
        return await self.enqueue(operation)

    def enqueue(self, operation: Operation) -> asyncio.Future[Result | Repeated]:
        """Queue an operation; the future gives its result. Raises Unavailable when the queue is full."""
        future: asyncio.Future[Result | Repeated] = asyncio.get_running_loop().create_future()
        self.queue(operation, future)
        return future

    def queue(self, operation: Operation, waiter: Waiter) -> None:
        """See ``ports.commit``."""
        if self._stopping or self._task is None:
            raise Unavailable("The server is starting or stopping.", code="starting", retry_after_s=1)
        size_bytes = _size_bytes(operation)
        if len(self._queue) >= QUEUE_OPERATIONS_MAX or self._queue_bytes + size_bytes > QUEUE_BYTES_MAX:
            raise Unavailable("Too many requests wait for the database.", code="overloaded", retry_after_s=1)
        self._queue.append((operation, waiter))
        self._queue_bytes += size_bytes
        self._wake.set()
        self._ripe.set()

    def record(self, decision: Decision, *, urgent: bool = False) -> None:
        """Queue the result of an attempt; it is kept until it is stored. ``urgent``: something waits for that."""
        self._decisions.append(decision)
        self._wake.set()
        if urgent or len(self._decisions) >= RESULTS_WORTH_A_COMMIT:
            self._ripe.set()

    def rejoin(self, incarnation: int) -> None:
        """Go on under a new incarnation: results of requests that the old one sent are void (rule E3)."""
        decisions = [*self._under_way, *self._decisions]
        self._under_way, self._decisions = [], []
        self._forget(decisions)
        self._incarnation = incarnation

    def _forget(self, decisions: list[Decision]) -> None:
        if decisions and self.observer is not None:
            self.observer.on_recorded(decisions, Recorded([False] * len(decisions)))

    @property
    def unrecorded(self) -> int:
        """Results that wait for their commit."""
        return len(self._decisions)

    @property
    def queued(self) -> int:
        """Operations that wait for their commit."""
        return len(self._queue)

    async def stop(self) -> None:
        """Commit all that is queued, then end. Results that a broken store does not take are sent again later."""
        self._stop_deadline_s = self._clock.monotonic() + STOP_S
        self._stopping = True
        self._wake.set()
        self._ripe.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue or self._decisions:
                    await self._linger()
                    await self._gather()
                    self._ripe.clear()
                    await self._commit_group()
                if self._stopping:
                    return
        except Exception as error:
            self._stopping = True
            self._fail_entries(self._queue, _unavailable("The writer has stopped.", "starting"))
            self._queue = []
            if self.observer is None:
                raise
            self.observer.on_fatal(error)

    async def _linger(self) -> None:
        """Let results alone wait a moment: few results of many endpoints change nearly as many pages as many do."""
        ripe = self._queue or len(self._decisions) >= RESULTS_WORTH_A_COMMIT or self._ripe.is_set()
        if ripe or self._stopping:
            return
        timer = asyncio.get_running_loop().call_later(LINGER_S, self._ripe.set)
        await self._ripe.wait()
        timer.cancel()

    async def _gather(self) -> None:
        """Let requests and answers that are here already be read, so that they join the group; waits for none to come.

        A fifth of the processor time at full load: each commit costs as much as recording twenty results.
        """
        before = 0
        for _ in range(GATHER_TURNS_MAX):
            waiting = len(self._queue) + len(self._decisions)
            if waiting == before:
                return
            before = waiting
            await asyncio.sleep(0)

    async def _commit_group(self) -> None:
        entries = self._take_entries()
        decisions = self._decisions[:RESULTS_A_GROUP_MAX]
        del self._decisions[:RESULTS_A_GROUP_MAX]
        operations: list[Operation] = [entry[0] for entry in entries]
        if decisions:
            operations.append(Record(decisions, self._incarnation, self._clock.now_ms(), self._node))
        started = self._clock.monotonic()
        self._under_way = decisions
        try:
            replies = await self._store.commit(operations)
        except StoreError as error:
            decisions, self._under_way = self._under_way, []
            await self._after_failure(entries, decisions, error)
            return
        except Exception:
            self._fail_entries(entries, _unavailable("The writer has stopped.", "outcome_unknown"))
            raise
        self._set_trouble(self._shortage())
        self._telemetry.committed(len(operations), self._clock.monotonic() - started)
        self._resolve(entries, replies)
        if decisions:
            self._tell_recorded(decisions, replies[-1])

    def _take_entries(self) -> list[Entry]:
        """Take the next group from the queue, bounded in operations and bytes (rule E11)."""
        if len(self._queue) <= GROUP_OPERATIONS_MAX and self._queue_bytes <= GROUP_BYTES_MAX:
            entries, self._queue, self._queue_bytes = self._queue, [], 0
            return entries
        taken, taken_bytes = 0, 0
        while taken < min(len(self._queue), GROUP_OPERATIONS_MAX):
            size_bytes = _size_bytes(self._queue[taken][0])
            if taken and taken_bytes + size_bytes > GROUP_BYTES_MAX:
                break
            taken += 1
            taken_bytes += size_bytes
        entries, self._queue = self._queue[:taken], self._queue[taken:]
        self._queue_bytes -= taken_bytes
        return entries

    async def _after_failure(self, entries: list[Entry], decisions: list[Decision], error: StoreError) -> None:
        """Keep the results: they may be stored twice. Operations are repeated one by one, to find the bad one, unless
        they cannot help it, or may be durable already.
        """
        self._set_trouble(str(error))
        if isinstance(error, StoreFenced) and self.observer is not None:
            self._fail_entries(entries, _refusal_for(error))
            self._forget(decisions)
            self.observer.on_fenced()
            return
        self._decisions[:0] = decisions
        if isinstance(error, StoreBroken | StoreLocked):
            self._fail_entries(entries, _refusal_for(error))
            raise error
        if isinstance(error, StoreFull | StoreBusy | StoreOutcomeUnknown):
            self._fail_entries(entries, _refusal_for(error))
        else:
            await self._commit_alone(entries)
        if decisions:
            if self._stopping and self._clock.monotonic() >= self._stop_deadline_s:
                raise error
            await asyncio.sleep(TROUBLE_PAUSE_S)
            self._wake.set()

    async def _commit_alone(self, entries: list[Entry]) -> None:
        for index, entry in enumerate(entries):
            try:
                replies = await self._store.commit([entry[0]])
            except (StoreBroken, StoreLocked) as error:
                self._fail_entries(entries[index:], _refusal_for(error))
                if isinstance(error, StoreFenced) and self.observer is not None:
                    self.observer.on_fenced()
                    return
                raise
            except StoreError as error:
                self._fail_entries([entry], _refusal_for(error))
            else:
                self._resolve([entry], replies)

    def _resolve(self, entries: Sequence[Entry], replies: Sequence[Reply]) -> None:
        observer = self.observer
        events = deliveries = 0
        for (operation, waiter), reply in zip(entries, replies, strict=False):
            if isinstance(reply, RequestError):
                if not waiter.done():
                    waiter.set_exception(reply)
                continue
            if not waiter.done():
                waiter.set_result(reply)
            if type(reply) is Accepted and type(operation) is Accept:
                for event in reply.events:
                    if not event.duplicate:
                        events += 1
                        deliveries += event.deliveries
            if observer is not None:
                observer.on_result(reply)
        if events:
            self._telemetry.accepted(events, deliveries)

    def _tell_recorded(self, decisions: list[Decision], reply: Reply) -> None:
        if not isinstance(reply, Recorded):
            raise StoreError(f"The store refused to record results: {reply!r}")
        self._telemetry.attempts(decisions)
        is_void, self._under_way = not self._under_way, []
        if self.observer is not None and not is_void:
            self.observer.on_recorded(decisions, reply)

    def _set_trouble(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            self._telemetry.note("store.trouble" if trouble else "store.recovered", reason=trouble or self.trouble)
            self.trouble = trouble

    def _fail_entries(self, entries: Sequence[Entry], error: Exception) -> None:
        for _, waiter in entries:
            if not waiter.done():
                waiter.set_exception(error)


def _size_bytes(operation: Operation) -> int:
    """Estimate what an operation holds in memory: only accepted data can be large."""
    if type(operation) is not Accept:
        return 1000
    events = operation.events
    if len(events) == 1:
        return 500 + len(events[0].data)
    return 500 * len(events) + sum(len(event.data) for event in events)


def _refusal_for(error: StoreError) -> Unavailable:
    if isinstance(error, StoreFull):
        return _unavailable("No space is left where the database lies; nothing was stored.", "storage_full", 10)
    if isinstance(error, StoreBusy):
        return _unavailable("The database is busy; nothing was stored.", "overloaded")
    if isinstance(error, StoreOutcomeUnknown):
        return _unavailable("The database went away while it stored this; it may be stored.", "outcome_unknown")
    if isinstance(error, StoreBroken):
        return _unavailable("The disk failed while it stored this; it may be stored.", "outcome_unknown")
    if isinstance(error, StoreFenced):
        return _unavailable("This server lost its lease and comes back; nothing was stored.", "starting")
    if isinstance(error, StoreLocked):
        return _unavailable("This server no longer owns the database; nothing was stored.", "starting")
    return _unavailable("The database could not store this; nothing was stored.", "overloaded")


def _unavailable(detail: str, code: str, retry_after_s: int = 1) -> Unavailable:
    return Unavailable(detail, code=code, retry_after_s=retry_after_s)
