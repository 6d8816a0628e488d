"""Mass changes in steps (rule E13): replay, discard, recover, switching the order."""

from __future__ import annotations

import msgspec

from ackpost.core.model import REPLAY, Endpoint, Job
from ackpost.ports.operations import (
    Cancel,
    CancelJob,
    CreateJob,
    DeleteEndpoint,
    DeliveriesChanged,
    Done,
    EndpointSaved,
    ExpireData,
    Idempotency,
    JobSaved,
    JobSelector,
    NewEvent,
    Redeliver,
    Repeated,
    ReplaceEndpoint,
    StepJob,
)
from ackpost.ports.store import Page
from ackpost.testing.store_contract.world import BY_KEY, HOLD, World, target_of


async def _dead(world: World, endpoint: Endpoint, count: int, type: str = "a") -> list[int]:
    """Make dead letters; give their positions."""
    events = (NewEvent(type, b"1", targets=(target_of(endpoint),)) for _ in range(count))
    await world.publish(*events, tenant=endpoint.tenant)
    rows = [ref for ref in await world.due(endpoint) if ref.number == 0][-count:]
    await world.record(*(world.result(ref, "dead", reason="permanent_failure") for ref in rows))
    return [ref.position for ref in rows]


async def _step(world: World, job: Job, rows_max: int) -> JobSaved:
    return await world.do(StepJob(job.position, rows_max, world.now_ms), JobSaved)


async def check_replay_makes_dead_letters_due(world: World) -> None:
    """Steps of at most ``rows_max`` begin new rounds, count, hand over, and end the job."""
    endpoint = await world.endpoint()
    rows = await _dead(world, endpoint, 5)
    job = await world.job("replay", all=True)
    assert (job.state, job.total, job.done, job.kind, job.tenant) == ("queued", 5, 0, "replay", world.tenant)
    assert await world.store.open_jobs(9) == [job]
    rev = (await world.endpoint_now(endpoint)).rev
    world.later(100)
    saved = await _step(world, job, 2)
    assert (saved.job.state, saved.job.done, saved.touched) == ("running", 2, [endpoint.position])
    assert [ref.position for ref in saved.refs] == rows[:2]
    (ref, _) = saved.refs
    assert (ref.round, ref.klass, ref.trigger, ref.rev, ref.due_ms) == (2, REPLAY, "replay", rev + 1, world.now_ms)
    await world.restart()
    await _step(world, job, 2)
    done = (await _step(world, job, 2)).job
    assert (done.state, done.done, done.skipped, done.failed, done.finished_at_ms) == ("done", 5, 0, 0, world.now_ms)
    assert await world.store.open_jobs(9) == []
    assert await world.store.job(world.tenant, job.position) == done
    assert len(await world.due(endpoint)) == 5
    again = await _step(world, job, 2)
    assert (again.job, again.refs, again.touched) == (done, [], [])


async def check_job_takes_only_what_ended_before_it(world: World) -> None:
    """A row that dies after the job was made, or dies again, is not taken: each once."""
    endpoint = await world.endpoint()
    rows = await _dead(world, endpoint, 3)
    job = await world.job("replay", all=True)
    later = await _dead(world, endpoint, 1)
    await world.do(Redeliver(world.tenant, world.now_ms, delivery=rows[2]), DeliveriesChanged)
    await world.die(await world.first_due(endpoint))
    await _step(world, job, 1)
    await world.die(await world.first_due(endpoint))
    done = await world.run_job(job.position)
    assert (done.total, done.done, done.skipped) == (3, 2, 1)
    assert [(await world.delivery(row)).status for row in (*rows, *later)] == ["dead", "pending", "dead", "dead"]


async def check_replay_of_what_cannot_be_sent_fails(world: World) -> None:
    """Rows without data, or of endpoints disabled or gone, stay dead and count as failed."""
    endpoint, disabled = await world.endpoint(), await world.endpoint(url="https://example.org/")
    deleted = await world.endpoint(url="https://example.net/")
    rows = [(await _dead(world, target, 1))[0] for target in (endpoint, disabled, deleted)]
    rows += await _dead(world, endpoint, 1)
    await world.do(ExpireData(world.tenant, rows[0] - 1, world.now_ms), Done)
    await world.run_job((await world.set_state(disabled, "disable")).job)
    await world.do(DeleteEndpoint(world.tenant, deleted.position, world.now_ms), Done)
    done = await world.run_job((await world.job("replay", all=True)).position)
    assert (done.total, done.done, done.failed, done.skipped) == (4, 1, 3, 0)
    assert [(await world.delivery(row)).status for row in rows] == ["dead", "dead", "dead", "pending"]


async def check_selectors(world: World) -> None:
    """A selector's conditions all hold: ids, endpoint, type, reason, time of death; counts agree with the job."""
    first, second = await world.endpoint(), await world.endpoint(url="https://example.org/")
    other = await world.new_tenant("other")
    await _dead(world, await world.endpoint(tenant=other.position), 1, "order.made")
    a = (await _dead(world, first, 1, "order.made"))[0]
    middle_ms = world.later(1000)
    b = (await _dead(world, second, 1, "order.paid"))[0]
    world.later(1000)
    c = (await world.publish(NewEvent("user.made", b"1", targets=(target_of(first),)))).events[0].position + 1
    await world.record(world.ending((await world.due(first))[0], "age_exceeded"))
    for selector, rows in (
        ({"all": True}, [a, b, c]),
        ({"ids": (c, a, 5, a)}, [a, c]),
        ({"endpoint": first.position}, [a, c]),
        ({"type": "order.*"}, [a, b]),
        ({"type": "order.paid"}, [b]),
        ({"reason": "age_exceeded"}, [c]),
        ({"since_ms": middle_ms}, [b, c]),
        ({"until_ms": middle_ms}, [a]),
        ({"since_ms": middle_ms, "until_ms": middle_ms + 1, "endpoint": second.position}, [b]),
        ({"endpoint": first.position, "type": "order.*", "reason": "age_exceeded"}, []),
    ):
        chosen = msgspec.convert(selector, JobSelector)
        assert await world.store.count_dead(world.tenant, chosen, 100) == len(rows), selector
        assert await world.store.count_dead(world.tenant, chosen, 1) == min(1, len(rows))
        job = await world.job("replay", **msgspec.to_builtins(chosen))
        total = 3 if chosen.ids else len(rows)
        done = await world.run_job(job.position)
        assert (done.total, done.done, done.skipped) == (total, len(rows), total - len(rows)), selector
        pending = [row.position for row in await world.all_deliveries(statuses=("pending",))]
        assert pending == rows, selector
        dead = [ref for target in (first, second) for ref in await world.due(target)]
        times = {a: middle_ms - 1000, b: middle_ms, c: middle_ms + 1000}
        for ref in dead:
            reason = "age_exceeded" if ref.position == c else "permanent_failure"
            world.now_ms, kept_ms = times[ref.position], world.now_ms
            await world.record(world.result(ref, "dead", reason=reason))
            world.now_ms = kept_ms


async def check_discarding(world: World) -> None:
    """Discarded ones leave the dead letters, keep their reason, and can still be redelivered."""
    endpoint = await world.endpoint()
    rows = await _dead(world, endpoint, 3)
    world.later(10)
    done = await world.run_job((await world.job("discard", ids=tuple(rows[:2]))).position)
    assert (done.total, done.done) == (2, 2)
    row = await world.delivery(rows[0])
    assert (row.status, row.reason, row.ended_at_ms) == ("discarded", "permanent_failure", world.now_ms)
    assert [dead.position for dead in await world.all_deliveries(statuses=("dead",))] == rows[2:]
    assert (await world.event(rows[0] - 1)).status == "delivered"


async def check_cancelled_job_stops(world: World) -> None:
    """What it did stays; no later step does more; cancelling twice, or an unknown one, is refused."""
    endpoint = await world.endpoint()
    await _dead(world, endpoint, 3)
    job = await world.job("replay", all=True)
    await _step(world, job, 1)
    other = await world.new_tenant("other")
    await world.refused(CancelJob(other.position, job.position, world.now_ms), 404, "not_found")
    world.later(7)
    cancelled = (await world.do(CancelJob(world.tenant, job.position, world.now_ms), JobSaved)).job
    assert (cancelled.state, cancelled.done, cancelled.finished_at_ms) == ("cancelled", 1, world.now_ms)
    assert (await _step(world, job, 9)).job == cancelled
    assert len(await world.due(endpoint)) == 1
    await world.refused(CancelJob(world.tenant, job.position, world.now_ms), 409, "invalid_state")
    await world.refused(StepJob(99, 1, world.now_ms), 404, "not_found")
    ending = (await world.set_state(endpoint, "disable")).job
    assert ending is not None
    await world.refused(CancelJob(world.tenant, ending, world.now_ms), 409, "invalid_state")


async def check_creating_a_job_is_idempotent_by_key(world: World) -> None:
    """A repeated Idempotency-Key gives the first job."""
    params = msgspec.to_builtins(JobSelector(all=True))
    draft = Job(position=0, tenant=world.tenant, kind="replay", params=params, created_at_ms=world.now_ms)
    operation = CreateJob(draft, Idempotency(world.tenant, "k", b"d", world.now_ms))
    first = await world.do(operation, JobSaved)
    assert await world.answer(operation) == Repeated(first)
    assert len(await world.store.jobs(world.tenant, Page())) == 1


async def check_job_without_work_ends_at_its_first_step(world: World) -> None:
    """Nothing to do is done at once."""
    job = (await _step(world, await world.job("replay", all=True), 1)).job
    assert (job.state, job.total, job.done) == ("done", 0, 0)


async def check_replay_keeps_the_order_of_a_held_key(world: World) -> None:
    """Replayed dead ones of one key wait for each other under hold."""
    endpoint = await world.endpoint(policy=HOLD)
    await world.publish(*(NewEvent("a", b"1", key="k") for _ in range(3)))
    await world.run_job((await world.set_state(endpoint, "disable")).job)
    await world.set_state(endpoint, "enable")
    fourth = await world.one("a", key="k")
    job = await world.job("replay", all=True)
    saved = await _step(world, job, 10)
    rows = await world.all_deliveries()
    assert [ref.position for ref in saved.refs] == [rows[0].position]
    assert [row.waiting for row in rows] == [False, True, True, True]
    for row in rows:
        assert [ref.position for ref in await world.due(endpoint)] == [row.position]
        await world.deliver(await world.first_due(endpoint))
    assert (await world.event(fourth.position)).status == "delivered"


# ---------------------------------------------------------------- recover


async def check_recover_finds_what_was_not_acknowledged(world: World) -> None:
    """Missing, dead and cancelled ones of the span that the filter takes are due; others skipped or failed."""
    endpoint = await world.endpoint(event_types=("order.*",))
    await world.set_state(endpoint, "disable")
    too_early = await world.one()
    since_ms = world.later(1000)
    missing = await world.one()
    unwanted = await world.one("user.made")
    gone = await world.one()
    await world.do(ExpireData(world.tenant, gone.position, world.now_ms), Done)
    await world.set_state(endpoint, "enable")
    events = (await world.publish(*(NewEvent("order.made", b"1") for _ in range(5)))).events
    refs = await world.due(endpoint)
    await world.deliver(refs[0])
    await world.die(refs[1])
    await world.do(Cancel(world.tenant, world.now_ms, delivery=refs[2].position), DeliveriesChanged)
    await world.die(refs[3])
    await world.run_job((await world.job("discard", ids=(refs[3].position,))).position)
    until_ms = world.later(1000)
    too_late = await world.one()
    world.later(1000)
    selector = JobSelector(endpoint=endpoint.position, since_ms=since_ms, until_ms=until_ms)
    assert await world.store.count_recoverable(world.tenant, selector, world.now_ms) == 3
    job = await world.job("recover", **msgspec.to_builtins(selector))
    assert job.total is None
    rev = (await world.endpoint_now(endpoint)).rev
    first = await _step(world, job, 1)
    (ref,) = first.refs
    assert (ref.event, ref.round, ref.klass, ref.trigger) == (missing.position, 1, REPLAY, "recover")
    assert (ref.position > events[-1].position, ref.rev, first.touched) == (True, rev + 1, [endpoint.position])
    assert (await world.delivery(ref.position)).created_at_ms == world.now_ms
    done = await world.run_job(job.position, rows_max=3)
    assert (done.state, done.total, done.done, done.skipped, done.failed) == ("done", 7, 3, 3, 1)
    pending = {row.event: row.round for row in await world.all_deliveries(statuses=("pending",))}
    expected = {missing.position: 1, events[1].position: 2, events[2].position: 2, events[4].position: 1}
    assert pending == expected | {too_late.position: 1}
    for event in (too_early, unwanted, gone):
        assert await world.all_deliveries(event=event.position) == []


async def check_recover_uses_the_filter_of_now(world: World) -> None:
    """Types and channels as they are now decide, and the selector's own types."""
    endpoint = await world.endpoint(event_types=("none",))
    for type, channels in (
        ("a.x", ("c",)),
        ("a.y", ()),
        ("b.x", ("c",)),
        ("ackpost.test", ("c",)),
        ("a.x", ("d", "c")),
    ):
        await world.one(type, channels=channels)
    present = await world.endpoint_now(endpoint)
    changed = msgspec.structs.replace(present, event_types=("*", "ackpost.*"), channels=("c",))
    await world.do(ReplaceEndpoint(changed, present.rev, world.now_ms), EndpointSaved)
    for types, expected in ((("a.*",), 2), (("b.x", "zzz"), 1), (None, 3)):
        selector = JobSelector(endpoint=endpoint.position, event_types=types)
        assert await world.store.count_recoverable(world.tenant, selector, world.now_ms) == expected
    done = await world.run_job((await world.job("recover", endpoint=endpoint.position)).position)
    assert (done.done, done.total) == (3, 3), "operational events are not recovered"


async def check_recover_takes_each_once(world: World) -> None:
    """Events accepted later, and rows that die meanwhile, are not taken."""
    endpoint = await world.endpoint()
    rows = await _dead(world, endpoint, 3)
    job = await world.job("recover", endpoint=endpoint.position)
    await _step(world, job, 1)
    await world.die(await world.first_due(endpoint))
    await world.do(Redeliver(world.tenant, world.now_ms, delivery=rows[2]), DeliveriesChanged)
    await world.die(await world.first_due(endpoint))
    await _dead(world, endpoint, 1)
    done = await world.run_job(job.position)
    assert (done.done, done.skipped) == (2, 1)


async def check_recover_needs_an_endpoint_that_takes(world: World) -> None:
    """Unknown: 404, disabled: 409; disabled or deleted meanwhile: the job fails and says why."""
    endpoint = await world.endpoint()
    await world.one()
    other = await world.new_tenant("other")
    for tenant, position, status, code in ((world.tenant, 5, 404, "not_found"),
                                           (other.position, endpoint.position, 404, "not_found")):  # fmt: skip
        params = msgspec.to_builtins(JobSelector(endpoint=position))
        await world.refused(CreateJob(Job(position=0, tenant=tenant, kind="recover", params=params)), status, code)
    job = await world.job("recover", endpoint=endpoint.position)
    await world.run_job((await world.set_state(endpoint, "disable")).job)
    params = msgspec.to_builtins(JobSelector(endpoint=endpoint.position))
    draft = Job(position=0, tenant=world.tenant, kind="recover", params=params)
    await world.refused(CreateJob(draft), 409, "invalid_state")
    selector = JobSelector(endpoint=endpoint.position)
    assert await world.store.count_recoverable(world.tenant, selector, world.now_ms) == 1, "what enabling would bring"
    failed = (await _step(world, job, 5)).job
    assert (failed.state, failed.error, failed.done) == ("failed", "the endpoint is disabled", 0)
    assert failed.finished_at_ms == world.now_ms
    await world.set_state(endpoint, "enable")
    job = await world.job("recover", endpoint=endpoint.position)
    await world.do(DeleteEndpoint(world.tenant, endpoint.position, world.now_ms), Done)
    assert (await _step(world, job, 5)).job.error == "the endpoint was deleted"


# ---------------------------------------------------------------- switching the order


async def _policy(world: World, endpoint: Endpoint, policy: dict[str, str]) -> int:
    present = await world.endpoint_now(endpoint)
    changed = msgspec.structs.replace(present, policy=policy)
    job = (await world.do(ReplaceEndpoint(changed, present.rev, world.now_ms), EndpointSaved)).job
    assert job is not None
    return job


async def check_switching_to_by_key(world: World) -> None:
    """What was pending without order gets its place: the oldest of each key is due, the others wait."""
    endpoint = await world.endpoint()
    await world.publish(*(NewEvent("a", b"1", key=key) for key in ("k", "l", "k", "k")), NewEvent("a", b"1"))
    job = await _policy(world, endpoint, BY_KEY)
    late = await world.one(key="k")
    done = await world.run_job(job, rows_max=2)
    assert (done.kind, done.done, done.total) == ("switch_ordering", 5, 5)
    rows = await world.all_deliveries()
    assert [row.waiting for row in rows] == [False, False, True, True, False, True]
    assert [ref.ordered for ref in await world.due(endpoint)] == [True, True, False]
    await world.deliver(await world.first_due(endpoint))
    assert rows[2].position in {ref.position for ref in await world.due(endpoint)}
    assert (await world.delivery(late.position + 1)).waiting


async def check_switching_to_best_effort(world: World) -> None:
    """Everything that waited is due; holds are gone."""
    endpoint = await world.endpoint(policy=HOLD)
    await world.publish(*(NewEvent("a", b"1", key=key) for key in ("k", "k", "k", "l", "l")))
    await world.die(await world.first_due(endpoint), hold=True)
    job = await _policy(world, endpoint, {})
    world.later(50)
    await world.run_job(job, rows_max=2)
    due = await world.due(endpoint)
    assert [ref.ordered for ref in due] == [False] * 4
    assert {ref.due_ms for ref in due} == {world.now_ms, world.now_ms - 50}
    await world.one(key="k")
    assert await world.store.pending_counts() == {"due": 5, "waiting": 0}


async def check_switching_from_hold_to_skip(world: World) -> None:
    """Keys that were held go on, one after the other."""
    endpoint = await world.endpoint(policy=HOLD)
    await world.publish(*(NewEvent("a", b"1", key="k") for _ in range(3)))
    await world.die(await world.first_due(endpoint), hold=True)
    rows = await world.all_deliveries()
    saved = await world.do(StepJob(await _policy(world, endpoint, BY_KEY), 10, world.now_ms), JobSaved)
    assert saved.job.state == "done"
    assert [ref.position for ref in saved.refs] == [rows[1].position]
    assert saved.touched == [endpoint.position]
    assert [row.waiting for row in await world.all_deliveries()] == [False, False, True]


async def check_switching_back_cancels_the_first_switch(world: World) -> None:
    """Only the newest switch of an endpoint runs."""
    endpoint = await world.endpoint()
    await world.publish(*(NewEvent("a", b"1", key="k") for _ in range(3)))
    first = await _policy(world, endpoint, BY_KEY)
    second = await _policy(world, endpoint, {})
    assert [job.position for job in await world.store.open_jobs(9)] == [second]
    assert (await world.run_job(first)).state == "cancelled"
    await world.run_job(second)
    assert len(await world.due(endpoint)) == 3
