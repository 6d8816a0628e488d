"""What a node does besides sending: poll, lease, jobs, retention, clock watch. Each loop ends by cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from ackpost.core.ids import partition_of
from ackpost.engine.engine import Engine
from ackpost.engine.ownership import SharedOwner
from ackpost.engine.writer import Writer
from ackpost.errors import RequestError, StoreError, Unavailable
from ackpost.ports.clock import Clock
from ackpost.ports.operations import JobSaved, Promote, Promoted, RenewLease, Retain, Retained, StepJob
from ackpost.ports.store import Store, Work
from ackpost.ports.telemetry import Telemetry

POLL_S: Final = 1.0
SHARED_POLL_S: Final = 0.9
"""What other nodes changed is seen within a second, the poll itself included (rule E2)."""
SHARED_JOBS_LOOKED_AT: Final = 200
JANITOR_PARTITION: Final = 0
"""Its owner alone does what one node has to do for all."""
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
    """The node's loops. ``stored_ms``: the newest time that was stored when this process opened the store.

    ``pick_up`` looks into an outbox, and says how long to pause.
    """

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
        owner: SharedOwner | None = None,
        pick_up: Callable[[], Awaitable[float]] | None = None,
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
        self._owner = owner
        self._pick_up = pick_up
        self._warned_of: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._scan_after = 0
        self._polls = 0
        self._all_compared_ms = 0
        self._clock_gap_ms = 0
        self._quiet_until_ms = 0
        self._retained_from_ms = stored_ms
        self._began_s = clock.monotonic()

    def start(self) -> None:
        """Begin all loops."""
        self._clock_gap_ms = self._gap_ms()
        loop = asyncio.get_running_loop()
        loops = {"poll": self._poll, "lease": self._renew, "jobs": self._step_jobs, "retention": self._retain}
        if self._owner is None:
            self._engine.lease_until_ms = 0
        else:
            del loops["lease"]
        if self._pick_up is not None:
            loops["outbox"] = self._look_for_others
        for name, work in loops.items():
            wake = self._owner.look_wanted if self._owner is not None and name == "poll" else None
            self._tasks.append(loop.create_task(self._forever(work, wake), name=name))

    async def stop(self) -> None:
        """End all loops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forever(self, work: Callable[[], Awaitable[float]], wake: asyncio.Event | None) -> None:
        """Repeat ``work``, which says how long to pause, or until ``wake``.

        A store in trouble is asked again; the writer reports it.
        """
        while True:
            try:
                pause_s = await work()
            except (StoreError, Unavailable):
                pause_s = POLL_S
            except Exception as error:
                self._engine.on_fatal(error)
                raise
            if wake is None:
                await asyncio.sleep(pause_s)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await wake.wait()
            wake.clear()

    # ------------------------------------------------------------ loops

    async def _poll(self) -> float:
        """Look for work nobody told of, compare revs, watch the clock."""
        self._watch_clock()
        self._watch_store()
        work = await self._look()
        by_others = self._owner is not None and self._owner.hints_may_be_lost()
        await self._compare_revs({item.endpoint for item in work}, by_others=by_others)
        self._engine.found_work(work, by_others=by_others)
        self._scan_after = work[-1].endpoint if len(work) >= SCAN_ENDPOINTS else 0
        self._polls += 1
        if self._polls % SWEEP_EVERY_POLLS == 0 and self._is_janitor():
            promoted = await self._writer.submit(Promote(SWEEP_ROWS, self._clock.now_ms()))
            if isinstance(promoted, Promoted) and promoted.refs:
                self._telemetry.note("order.promoted_by_sweep", deliveries=len(promoted.refs))
        if self._scan_after:
            return 0.01
        return POLL_S if self._owner is None else SHARED_POLL_S

    async def _look(self) -> list[Work]:
        if self._owner is None:
            return await self._store.scan_work(after_endpoint=self._scan_after, limit=SCAN_ENDPOINTS)
        return await self._owner.look(after_endpoint=self._scan_after, limit=SCAN_ENDPOINTS)

    def _is_janitor(self) -> bool:
        owned = self._engine.parts.owned
        return owned is None or JANITOR_PARTITION in owned

    async def _compare_revs(self, with_work: set[int], *, by_others: bool) -> None:
        """A higher rev in the store means that somebody else changed the endpoint or its deliveries (rule E2).

        Endpoints with work that is in no lane's memory are among them: paused ones, and those that had none until now.
        ``by_others``: nodes whose hints may not have arrived may have changed any. Those that were sent to of late are
        compared, too; others are read again before anything is sent to them, and cost nothing until then.
        """
        held: dict[int, int] = {}
        for lane in self._engine.lanes.values():
            if lane.view is None:
                continue
            is_used = by_others and lane.last_start_ms >= self._all_compared_ms
            if lane.known or lane.endpoint in with_work or is_used:
                held[lane.endpoint] = lane.view.endpoint.rev
            elif by_others:
                lane.reload = True
        if by_others:
            self._all_compared_ms = self._clock.now_ms()
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
        if self._owner is not None and not (rebuilding or self._owner.has_jobs):
            return POLL_S / 2
        few = JOBS_AT_ONCE if self._owner is None else SHARED_JOBS_LOOKED_AT
        jobs = await self._store.open_jobs(OPEN_JOBS_MAX if rebuilding else few)
        self._engine.jobs_ended(rebuilding, {job.position for job in jobs})
        owned = self._engine.parts.owned
        jobs = [job for job in jobs if owned is None or partition_of(job.position) in owned]
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

    async def _look_for_others(self) -> float:
        """Pick up what applications wrote into an outbox in the same database."""
        if self._pick_up is None or not self._is_janitor():
            return POLL_S
        return await self._pick_up()

    async def _retain(self) -> float:
        """One small step of retention (rule E16)."""
        if not self._is_janitor():
            return RETENTION_S
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
