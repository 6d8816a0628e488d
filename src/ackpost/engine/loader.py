"""Fills lanes from the store (rule E1): endpoint documents, windows, payloads. Never more than a few loads at once.

A load's snapshot may be older than what happens meanwhile: what ended during it is subtracted, what is in memory wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ackpost.core.model import CLASSES, DeliveryRef, Endpoint, Job
from ackpost.engine.budget import QUEUED_BYTES_MAX
from ackpost.engine.lane import REFS_A_CLASS_MIN, REFS_MAX, WINDOW_REFS, Lane
from ackpost.engine.request import RequestBuilder
from ackpost.errors import AckpostError, StoreError
from ackpost.ports.store import Store

LOADS_AT_ONCE: Final = 4
PREFETCH_REFS: Final = 128
PAYLOADS_A_LOAD: Final = 256
OPEN_JOBS_MAX: Final = 100_000
TROUBLE_PAUSE_S: Final = 0.25


class LoaderHost(Protocol):
    """What the loader needs of the engine."""

    def lane_filled(self, lane: Lane) -> None:
        """A lane has new configuration or references."""

    def note_job(self, job: Job) -> None:
        """A job that is open may hold its endpoint back."""

    def lane_gone(self, lane: Lane) -> None:
        """The endpoint was deleted."""

    def lane_broken(self, lane: Lane, reason: str) -> None:
        """The endpoint as stored cannot be sent to; its deliveries wait until it is changed."""

    def payload_loaded(self, lane: Lane, ref: DeliveryRef) -> None:
        """A reference has its payload, or its data is gone (payload None)."""

    def on_fatal(self, error: BaseException) -> None:
        """Loading broke in a way that nobody expects: the node must stop."""


class Loader:
    """Loads lanes and payloads in bounded tasks."""

    def __init__(
        self,
        store: Store,
        host: LoaderHost,
        make_builder: Callable[[Endpoint], RequestBuilder],
        *,
        learns_of_jobs: bool = False,
    ) -> None:
        """``learns_of_jobs``: other nodes make jobs, too; those that hold an endpoint back are looked for."""
        self._store = store
        self._learns_of_jobs = learns_of_jobs
        self._host = host
        self._make_builder = make_builder
        self._lanes: dict[int, Lane] = {}
        self._payloads: list[tuple[Lane, DeliveryRef]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._loads = 0
        self._payload_task: asyncio.Task[None] | None = None
        self._closed = False

    def want(self, lane: Lane) -> None:
        """Load a lane's configuration and windows soon."""
        if lane.loading or self._closed:
            return
        lane.loading = True
        self._lanes[lane.endpoint] = lane
        if self._loads < LOADS_AT_ONCE:
            self._loads += 1
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(asyncio.get_running_loop().create_task(self._run(self._load_lanes), name="lanes"))

    def want_payload(self, lane: Lane, ref: DeliveryRef) -> None:
        """Load the payload of a reference that was taken for sending."""
        lane.unfetched[ref.position] = ref
        self._payloads.append((lane, ref))
        lane.budget.wanted += 1
        if self._payload_task is None and not self._closed:
            loads = self._run(self._load_payloads)
            self._payload_task = asyncio.get_running_loop().create_task(loads, name="payloads")

    async def close(self) -> None:
        """End the loads under way."""
        self._closed = True
        tasks = [*self._tasks, *([self._payload_task] if self._payload_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, loads: Callable[[], Awaitable[None]]) -> None:
        try:
            await loads()
        except Exception as error:
            self._host.on_fatal(error)
            raise

    async def _load_lanes(self) -> None:
        while self._lanes:
            lane = self._lanes.pop(next(iter(self._lanes)))
            try:
                await self._load_lane(lane)
            except StoreError:
                # The store says itself when it is in trouble (writer.trouble); here only the work must not be lost.
                self._lanes[lane.endpoint] = lane
                await asyncio.sleep(TROUBLE_PAUSE_S)
                continue
            lane.loading = False
            lane.ended_during_load.clear()
            if not lane.deleted:
                self._host.lane_filled(lane)
        # Counted here, not when the task is seen to be done: a lane wanted in between would wait for ever.
        self._loads -= 1

    async def _load_lane(self, lane: Lane) -> None:
        reload = lane.reload or not lane.fresh
        lane.dirty = False
        if reload:
            found = await self._store.load_endpoints([lane.endpoint])
            if self._learns_of_jobs:
                # After the endpoint: a job that came with what was read of it is seen (rule E4).
                for job in await self._store.open_jobs(OPEN_JOBS_MAX):
                    self._host.note_job(job)
            endpoint = found.get(lane.endpoint)
            if endpoint is None:
                lane.deleted = True
                lane.loading = False
                self._host.lane_gone(lane)
                lane.forget_all()
                return
            lane.forget_queued()
            self._configure(lane, endpoint)
            for ref in lane.tests_held():
                stored = await self._store.delivery(ref.tenant, ref.position)
                if stored is None or stored.status != "pending":
                    lane.drop_test(ref)
        if lane.view is not None and lane.builder is not None and lane.view.endpoint.state == "enabled":
            for klass in CLASSES:
                if lane.runs_low(klass):
                    await self._load_window(lane, klass)
        # Touched meanwhile: what was read may be older than the change, so it is read again before anything is sent.
        if reload and not lane.dirty:
            lane.reload = False

    def _configure(self, lane: Lane, endpoint: Endpoint) -> None:
        """An endpoint that cannot be used (written by hand, another server's rules) is parked with its reason."""
        try:
            lane.configure(endpoint, self._make_builder(endpoint), self._store.salt)
        except AckpostError as error:
            lane.park()
            self._host.lane_broken(lane, str(error))

    async def _load_window(self, lane: Lane, klass: int) -> None:
        known = sum(1 for ref in lane.known.values() if ref.klass == klass)
        room = max(REFS_A_CLASS_MIN, min(WINDOW_REFS, REFS_MAX - lane.budget.refs))
        limit = room + known
        lane.complete[klass] = True
        try:
            refs = await self._store.load_window(lane.endpoint, klass, after=None, limit=limit)
        except StoreError:
            lane.complete[klass] = False
            raise
        if lane.view is not None and any(ref.rev > lane.view.endpoint.rev for ref in refs):
            lane.reload = lane.dirty = True  # accepted under a change of the endpoint that nobody told of
        # Payloads first: a reference that is queued without one is overtaken by those behind it while it is fetched.
        await self._prefetch(lane, [ref for ref in refs if ref.position not in lane.known])
        # A hand-off that did not fit during the load has marked the class partial again.
        complete = lane.complete[klass] and len(refs) < limit
        lane.complete[klass] = complete
        lane.loaded(klass, refs, complete=complete)

    async def _prefetch(self, lane: Lane, refs: list[DeliveryRef]) -> None:
        budget = lane.budget
        wanted = refs[: max(0, budget.read_count(PREFETCH_REFS, QUEUED_BYTES_MAX - budget.payload_bytes))]
        if not wanted:
            return
        payloads = await self._store.load_payloads(list({ref.event for ref in wanted}))
        size_bytes = 0
        for ref in wanted:
            payload = payloads.get(ref.event)
            if payload is None:
                continue
            budget.was_read(len(payload.data))
            if budget.has_room(size_bytes + len(payload.data)):
                ref.payload = payload
                size_bytes += len(payload.data)

    async def _load_payloads(self) -> None:
        while self._payloads:
            budget = self._payloads[0][0].budget
            batch = self._payloads[: max(1, budget.read_count(PAYLOADS_A_LOAD))]
            try:
                payloads = await self._store.load_payloads(list({ref.event for _, ref in batch}))
            except StoreError:
                await asyncio.sleep(TROUBLE_PAUSE_S)
                continue
            del self._payloads[: len(batch)]
            budget.wanted -= len(batch)
            for lane, ref in batch:
                payload = payloads.get(ref.event)
                if payload is not None:
                    lane.give_payload(ref, payload)
                self._host.payload_loaded(lane, ref)
        self._payload_task = None
