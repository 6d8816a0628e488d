"""What a node does besides sending: poll, lease, jobs, retention, clock watch. Each loop ends by cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from ackpost.engine.engine import Engine
from ackpost.engine.writer import Writer
from ackpost.errors import RequestError, StoreError, Unavailable
from ackpost.ports.clock import Clock
from ackpost.ports.operations import JobSaved, Promote, Promoted, RenewLease, Retain, Retained, StepJob
from ackpost.ports.store import Store
from ackpost.ports.telemetry import Telemetry

POLL_S: Final = 1.0
SCAN_ENDPOINTS: Final = 500
JOB_ROWS: Final = 200
JOBS_AT_ONCE: Final = 10
OPEN_JOBS_MAX: Final = 100_000
JOB_PAUSE_S: Final = 0.02
SWEEP_EVERY_POLLS: Final = 30
SWEEP_ROWS: Final = 500
RETENTION_S: Final = 60.0
RETENTION_ROWS: Final = 500
RETENTION_PAUSE_S: Final = 0.05
CLOCK_STEP_MS: Final = 5000
CLOCK_STEP_QUIET_MS: Final = 600_000
RETENTION_PACE: Final = 2
"""Retention's idea of the present moves so much faster than time passes, at most: it catches up after a pause, and a
clock that is years ahead at a start removes nothing."""
IDEMPOTENCY_MS: Final = 24 * 3600 * 1000
DAY_MS: Final = 24 * 3600 * 1000


class Retention(msgspec.Struct, frozen=True):
    """How long things are kept, in days."""

    events_days: float = 30
    dead_letters_days: float = 90
    keys_days: float = 400


class Housekeeping:
    """The node's loops. ``stored_ms``: the newest time that was stored when this process opened the store."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        engine: Engine,
        clock: Clock,
        telemetry: Telemetry,
        *,
        node: str,
        incarnation: int,
        lease_ms: int,
        retention: Retention,
        stored_ms: int,
        store_warning: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._engine = engine
        self._clock = clock
        self._telemetry = telemetry
        self._node = node
        self._incarnation = incarnation
        self._lease_ms = lease_ms
        self._retention = retention
        self._store_warning = store_warning
        self._warned_of: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._scan_after = 0
        self._polls = 0
        self._clock_gap_ms = 0
        self._quiet_until_ms = 0
        self._retained_from_ms = stored_ms
        self._began_s = clock.monotonic()

    def start(self) -> None:
        """Begin all loops."""
        self._clock_gap_ms = self._gap_ms()
        self._engine.lease_until_ms = 0
        loop = asyncio.get_running_loop()
        for name, work in (
            ("poll", self._poll), ("lease", self._renew), ("jobs", self._step_jobs), ("retention", self._retain),
        ):  # fmt: skip
            self._tasks.append(loop.create_task(self._forever(work), name=name))

    async def stop(self) -> None:
        """End all loops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forever(self, work: Callable[[], Awaitable[float]]) -> None:
        """Repeat ``work``, which says how long to pause. A store in trouble is asked again; the writer reports it."""
        while True:
            try:
                pause_s = await work()
            except (StoreError, Unavailable):
                pause_s = POLL_S
            except Exception as error:
                self._engine.on_fatal(error)
                raise
            await asyncio.sleep(pause_s)

    # ------------------------------------------------------------ loops

    async def _poll(self) -> float:
        """Look for work nobody told of, compare revs, watch the clock."""
        self._watch_clock()
        self._watch_store()
        work = await self._store.scan_work(after_endpoint=self._scan_after, limit=SCAN_ENDPOINTS)
        await self._compare_revs({item.endpoint for item in work})
        self._engine.found_work(work)
        self._scan_after = work[-1].endpoint if len(work) >= SCAN_ENDPOINTS else 0
        self._polls += 1
        if self._polls % SWEEP_EVERY_POLLS == 0:
            promoted = await self._writer.submit(Promote(SWEEP_ROWS, self._clock.now_ms()))
            if isinstance(promoted, Promoted) and promoted.refs:
                self._telemetry.note("order.promoted_by_sweep", deliveries=len(promoted.refs))
        return 0.01 if self._scan_after else POLL_S

    async def _compare_revs(self, with_work: set[int]) -> None:
        """A higher rev in the store means that somebody else changed the endpoint or its deliveries (rule E2).

        Endpoints with work that is in no lane's memory are among them: paused ones, and those that had none until now.
        """
        held = {
            lane.endpoint: lane.view.endpoint.rev
            for lane in self._engine.lanes.values()
            if lane.view and (lane.known or lane.endpoint in with_work)
        }
        if not held:
            return
        revs = await self._store.endpoint_revs(list(held))
        self._engine.touch(endpoint for endpoint, rev in held.items() if revs.get(endpoint) != rev)

    async def _renew(self) -> float:
        if self._engine.lease_until_ms == 0:
            # Nothing is sent before the first renewal: what must be held back from the start is known by then.
            for job in await self._store.open_jobs(OPEN_JOBS_MAX):
                self._engine.note_job(job)
        now_ms = self._clock.now_ms()
        await self._writer.submit(RenewLease(self._node, self._incarnation, now_ms, self._lease_ms))
        self._engine.renewed(now_ms + self._lease_ms * 7 // 8)
        return self._lease_ms / 4000

    async def _step_jobs(self) -> float:
        """One step of each open job, oldest first; the pause keeps them in the background."""
        rebuilding = dict(self._engine.budget.rebuilding)
        jobs = await self._store.open_jobs(OPEN_JOBS_MAX if rebuilding else JOBS_AT_ONCE)
        self._engine.jobs_ended(rebuilding, {job.position for job in jobs})
        for job in jobs[:JOBS_AT_ONCE]:
            try:
                saved = await self._writer.submit(StepJob(job.position, JOB_ROWS, self._clock.now_ms()))
            except Unavailable:
                raise
            except RequestError:
                continue  # cancelled or ended between the look and the step: the job's own state tells
            if isinstance(saved, JobSaved) and saved.job.state in ("done", "failed"):
                self._telemetry.note("job.ended", kind=saved.job.kind, state=saved.job.state, done=saved.job.done)
        return JOB_PAUSE_S if jobs else POLL_S / 2

    async def _retain(self) -> float:
        """One small step of retention (rule E16)."""
        newest_ms = await self._store.newest_event_ms()
        now_ms = self._clock.now_ms()
        if newest_ms is None or now_ms < self._quiet_until_ms:
            return RETENTION_S
        base_ms = self._retention_base_ms(newest_ms, now_ms)
        keep = self._retention
        retained = await self._writer.submit(
            Retain(
                events_before_ms=base_ms - round(keep.events_days * DAY_MS),
                dead_before_ms=base_ms - round(keep.dead_letters_days * DAY_MS),
                keys_before_ms=base_ms - round(keep.keys_days * DAY_MS),
                idempotency_before_ms=now_ms - IDEMPOTENCY_MS,
                rows_max=RETENTION_ROWS,
                now_ms=now_ms,
            )
        )
        if not isinstance(retained, Retained):
            raise StoreError(f"The store answered retention with {type(retained).__name__}.")
        if retained.dead_letters:
            self._telemetry.note("retention.dead_letters_removed", count=retained.dead_letters)
        return RETENTION_PAUSE_S if retained.more else RETENTION_S

    def _retention_base_ms(self, newest_ms: int, now_ms: int) -> int:
        """From when ages are counted back: the newest stored event, unless a clock says that this cannot be.

        Of clocks that disagree the earliest holds, and none may be further ahead of what was stored at the start than
        time has passed since: what is accepted under a wrong clock does not make all others old.
        """
        paced_ms = self._retained_from_ms + round(RETENTION_PACE * (self._clock.monotonic() - self._began_s) * 1000)
        return min(now_ms, newest_ms, self._clock.wall_s() * 1000, paced_ms)

    def _watch_store(self) -> None:
        """Tell when the store begins to need a look, and when it no longer does."""
        warning = self._store_warning()
        if (warning is None) != (self._warned_of is None):
            name = "store.warning_over" if warning is None else "store.warning"
            self._telemetry.note(name, reason=warning or self._warned_of)
            self._warned_of = warning

    # ------------------------------------------------------------ clock

    def _gap_ms(self) -> int:
        return self._clock.wall_s() * 1000 - self._clock.now_ms()

    def _watch_clock(self) -> None:
        """A step of the wall clock moves nothing; it is told, and nothing is removed for ten minutes (rule E16)."""
        gap_ms = self._gap_ms()
        if abs(gap_ms - self._clock_gap_ms) > CLOCK_STEP_MS:
            self._telemetry.note("clock.stepped", step_ms=gap_ms - self._clock_gap_ms)
            self._quiet_until_ms = self._clock.now_ms() + CLOCK_STEP_QUIET_MS
            self._clock_gap_ms = gap_ms
