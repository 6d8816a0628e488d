"""Steps of housekeeping look at a bounded number of rows, and still come to the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from ackpost.core.model import Endpoint, Job, JobKind
from ackpost.ports.operations import (
    CreateJob,
    EndpointSaved,
    JobSaved,
    JobSelector,
    Record,
    ReplaceEndpoint,
    Retain,
    Retained,
    SetEndpointState,
    StepJob,
)
from ackpost.ports.store import DeliveryFilter, EventFilter, Page
from ackpost.store.sqlite import jobs, placing, retention, selecting
from ackpost.store.sqlite.moves import Change
from ackpost.store.values import Hot
from tests.store.sqlite.world import Opened, opened


async def _retain(world: Opened, now_ms: int, steps_max: int) -> tuple[int, int]:
    """Retain events and keys until nothing more is to be done; give how many of each left."""
    events = keys = 0
    for _ in range(steps_max):
        (step,) = await world.store.commit([Retain(now_ms, 0, now_ms, 0, 4, now_ms)])
        assert isinstance(step, Retained)
        events, keys = events + step.removed["events"], keys + step.removed["keys"]
        if not step.more:
            return events, keys
    raise AssertionError("retention does not end")


def test_retention_passes_by_what_must_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending events at the old end of the table do not hide the ones behind them, nor are they looked at for ever."""
    monkeypatch.setattr(retention, "SCAN_ROWS_MAX", 5)

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db", inline=True)
        pending = await world.accept(23, key="a")
        await world.deliver(await world.accept(13, key="b"))
        now_ms = world.now_ms + 1000
        assert await _retain(world, now_ms, 30) == (13, 2)
        assert len((await world.store.events(None, EventFilter(), Page(limit=100)))[0]) == 23
        await world.deliver(pending)
        assert await _retain(world, now_ms, 30) == (23, 0)
        await world.store.close()

    asyncio.run(scenario())


def test_a_wide_event_is_a_step_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is cut off by the deliveries that it would remove, not by events alone."""
    monkeypatch.setattr(retention, "_DELIVERIES_MAX", 2)

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db", inline=True)
        await world.deliver(await world.accept(4))
        now_ms = world.now_ms + 1000
        (step,) = await world.store.commit([Retain(now_ms, 0, 0, 0, 100, now_ms)])
        assert isinstance(step, Retained)
        assert (step.removed["events"], step.more) == (2, True)
        assert await _retain(world, now_ms, 3) == (2, 0)
        await world.store.close()

    asyncio.run(scenario())


async def _run(world: Opened, job: int, steps_max: int) -> Job:
    for _ in range(steps_max):
        (step,) = await world.store.commit([StepJob(job, 2, world.now_ms)])
        assert isinstance(step, JobSaved)
        if step.job.state != "running":
            return step.job
    raise AssertionError("the job does not end")


async def _dead(world: Opened, reasons: list[str]) -> list[int]:
    """Make dead letters with these reasons."""
    refs = await world.accept(len(reasons))
    record = world.record_of(refs)
    for one, reason in zip(record.decisions, reasons, strict=True):
        one.verdict, one.reason = "dead", reason
    await world.store.commit([Record(record.decisions, record.incarnation, record.now_ms)])
    return [ref.position for ref in refs]


async def _job(world: Opened, kind: JobKind, **selector: object) -> int:
    params = msgspec.to_builtins(JobSelector(**selector))  # type: ignore[arg-type] # the test names fields
    draft = Job(position=0, tenant=world.tenant, kind=kind, params=params, created_at_ms=world.now_ms)
    (saved,) = await world.store.commit([CreateJob(draft)])
    assert isinstance(saved, JobSaved)
    return saved.job.position


def test_a_job_finds_the_few_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that meets nothing it is about goes on in the next one, and all are found."""
    monkeypatch.setattr(jobs, "SCAN_ROWS_MAX", 4)

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db", inline=True)
        dead = await _dead(world, ["gone"] + ["poison"] * 11 + ["gone"] + ["poison"] * 6)
        done = await _run(world, await _job(world, "discard", reason="gone"), 12)
        assert (done.state, done.total, done.done, done.skipped) == ("done", 2, 2, 0)
        left = (await world.store.deliveries(None, DeliveryFilter(statuses=("dead",)), Page(limit=100)))[0]
        assert {row.position for row in left} == set(dead) - {dead[0], dead[12]}
        recovered = await _run(world, await _job(world, "recover", endpoint=world.endpoint.position), 30)
        assert (recovered.state, recovered.done, recovered.skipped) == ("done", 17, 2)
        await world.store.close()

    asyncio.run(scenario())


def test_an_endpoint_with_a_long_backlog_is_ended_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backlog is walked by position, also past the rows of others, until the endpoint has none left."""
    monkeypatch.setattr(jobs, "SCAN_ROWS_MAX", 3)

    async def scenario() -> None:
        first = await opened(tmp_path / "a.db", inline=True)
        await first.store.close()
        other = await opened(tmp_path / "a.db", inline=True)
        await other.accept(9)
        mine = Opened(other.store, other.incarnation, other.tenant, first.endpoint)
        await mine.accept(5)
        await other.accept(9)
        await mine.accept(5)
        operation = SetEndpointState(mine.tenant, mine.endpoint.position, "disable", mine.now_ms)
        await mine.store.commit([operation])
        (job,) = await mine.store.open_jobs(10)
        assert (await _run(mine, job.position, 30)).done == 10
        rows = (await mine.store.deliveries(None, DeliveryFilter(), Page(limit=100)))[0]
        statuses = {(row.endpoint, row.status) for row in rows}
        assert statuses == {(mine.endpoint.position, "dead"), (other.endpoint.position, "pending")}
        await mine.store.close()

    asyncio.run(scenario())


def test_an_endpoint_of_many_rows_is_listed_on_the_way(tmp_path: Path) -> None:
    """Where an endpoint has more rows than a page may look at, lists walk by position and give a cursor."""

    async def scenario() -> None:
        first = await opened(tmp_path / "a.db", inline=True)
        await first.store.close()
        other = await opened(tmp_path / "a.db", inline=True)
        mine = Opened(other.store, other.incarnation, other.tenant, first.endpoint)
        refs = await mine.accept(8)
        await other.accept(4)
        other.store._scan_rows_max = 3
        found: list[int] = []
        page = Page(limit=2)
        for _ in range(20):
            wanted = DeliveryFilter(endpoint=mine.endpoint.position)
            rows, cut = await mine.store.deliveries(None, wanted, page)
            found += [row.position for row in rows]
            if not rows and cut is None:
                break
            page.after = rows[-1].position if len(rows) == 2 else cut
        assert found == sorted((ref.position for ref in refs), reverse=True)
        events, cut = await mine.store.events(None, EventFilter(endpoint=mine.endpoint.position), Page(limit=2))
        assert (events, cut) == ([], refs[-1].event + 4)
        await mine.store.close()

    asyncio.run(scenario())


def test_the_total_of_a_great_job_is_known_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where counting would hold up the writer a job begins without a total, and has the right one when it is done."""
    monkeypatch.setattr(selecting, "_QUICK_ROWS", 3)

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db", inline=True)
        await _dead(world, ["gone"] * 4 + ["poison"])
        job = await _job(world, "replay", reason="gone")
        begun = await world.store.job(None, job)
        assert begun is not None
        assert begun.total is None
        done = await _run(world, job, 4)
        assert (done.state, done.total, done.done, done.skipped) == ("done", 4, 4, 0)
        await world.store.close()

    asyncio.run(scenario())


def test_placing_a_row_leaves_alone_what_waits_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows a key has, a step of a switch of order changes a few for each row that it takes."""
    changed: list[int] = []

    def place(change: Change, hots: list[Hot], endpoint: Endpoint) -> None:
        before = change.ledger.connection.total_changes()
        placing.place(change, hots, endpoint)
        changed.append(change.ledger.connection.total_changes() - before)

    async def scenario() -> None:
        world = await opened(tmp_path / "a.db", inline=True, ordering="by-key", on_dead="hold")
        await world.accept(400, key="k")
        policy = msgspec.structs.replace(world.endpoint, policy={"ordering": "by-key"})
        (saved,) = await world.store.commit([ReplaceEndpoint(policy, world.endpoint.rev, world.now_ms)])
        assert isinstance(saved, EndpointSaved)
        assert saved.job is not None
        state = "queued"
        while state != "done":
            (step,) = await world.store.commit([StepJob(saved.job, 40, world.now_ms)])
            assert isinstance(step, JobSaved)
            state = step.job.state
        assert len(await world.store.load_window(world.endpoint.position, 0, after=None, limit=9)) == 1
        await world.store.close()

    monkeypatch.setattr(jobs, "place", place)
    asyncio.run(scenario())
    assert sum(changed) > 0
    assert max(changed) <= 3 * 40
