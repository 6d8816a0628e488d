"""Mass changes in steps (rule E13): cursor and changes commit together, changes depend on the present state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from ackpost.core.ids import partition_of
from ackpost.core.model import Endpoint, Job
from ackpost.errors import Conflict, NotFound
from ackpost.ports.operations import JOB_KINDS_BY_USERS, CancelJob, CreateJob, JobSaved, JobSelector, StepJob
from ackpost.store.postgres.announcing import announce
from ackpost.store.postgres.endpoint_states import is_open, load_job, store_job
from ackpost.store.postgres.endpoints import endpoint_of
from ackpost.store.postgres.ledger import Ledger
from ackpost.store.postgres.moves import (
    Change,
    add_missing,
    cancel_pending,
    death_notice,
    discard_dead,
    end_dead,
    holds_keys,
    is_by_key,
    open_endpoints,
    raise_revs,
    revive,
)
from ackpost.store.postgres.ordering import drop_holds
from ackpost.store.postgres.placing import place
from ackpost.store.postgres.querying import Where, rows_of
from ackpost.store.postgres.rows import load_ended, load_endpoint, load_hot
from ackpost.store.postgres.selecting import (
    Candidate,
    candidates,
    count_all_dead,
    dead_condition,
    dead_source,
    is_wanted,
    span_of,
)
from ackpost.store.values import Ended, Hot

SCAN_ROWS_MAX: Final = 10_000
"""So many rows one step looks at, at most, to find those that it is about."""


def selector_of(job: Job) -> JobSelector:
    """What a job is about."""
    return msgspec.convert(job.params, JobSelector)


async def create_job(ledger: Ledger, op: CreateJob) -> JobSaved:
    """Make a job; it takes only what ended before now."""
    selector = selector_of(op.job)
    total: int | None = None
    if op.job.kind == "recover":
        if (await endpoint_of(ledger, op.job.tenant, selector.endpoint or 0)).state == "disabled":
            raise Conflict("The endpoint is disabled; enable it first.", code="invalid_state")
    elif selector.ids is not None:
        total = len(set(selector.ids))
    else:
        # Where it is None it becomes known at the job's end: counting must not hold up the writer.
        total = await count_all_dead(ledger.connection, op.job.tenant, selector)
    position = ledger.allocate(1, op.job.created_at_ms)
    before = await ledger.bound_of_all() if ledger.is_shared else 0
    job = msgspec.structs.replace(op.job, position=position, state="queued", total=total, cursor=0, before=before)
    await store_job(ledger, job)
    return JobSaved(job)


async def cancel_job(ledger: Ledger, op: CancelJob) -> JobSaved:
    """Stop a job of a user; what it did stays done."""
    job = await load_job(ledger, op.job)
    if job is None or job.tenant != op.tenant:
        raise NotFound("The job does not exist.")
    if not is_open(job):
        raise Conflict("The job has ended.", code="invalid_state")
    if job.kind not in JOB_KINDS_BY_USERS:
        raise Conflict("This job belongs to a change of an endpoint or a tenant.", code="invalid_state")
    job.state, job.finished_at_ms = "cancelled", op.now_ms
    await store_job(ledger, job)
    return JobSaved(job)


async def step_job(ledger: Ledger, op: StepJob) -> JobSaved:
    """Do the next rows of a job."""
    job = await load_job(ledger, op.job)
    if job is None:
        raise NotFound("The job does not exist.")
    change = Change(ledger, op.now_ms)
    if is_open(job):
        await _begin(job, ledger)
        steps: dict[str, Callable[[Job, int, Change], Awaitable[bool]]] = {
            "replay": _replay, "discard": _discard, "recover": _recover, "switch_ordering": _switch_ordering,
        }  # fmt: skip
        more = await steps.get(job.kind, _end_rows)(job, op.rows_max, change)
        await change.settle()
        if not more and job.state == "running":
            await _finish(job, change)
        await store_job(ledger, job)
    return JobSaved(job, sorted(change.touched), await change.refs())


async def _begin(job: Job, ledger: Ledger) -> None:
    """Settle what the job is about. For the store's own jobs that is all that was made under the state of before.

    What other nodes had not committed then is there by now: see ``PostgresStore.commit``.
    """
    if ledger.is_shared and not job.before and job.state == "queued":
        job.before = await ledger.bound_of_all()
    job.state = "running"


def _before(job: Job) -> int:
    """Give the position from which on rows are none of the job's."""
    return job.before or job.position


async def _finish(job: Job, change: Change) -> None:
    job.state, job.finished_at_ms = "done", change.now_ms
    if job.total is None:
        job.total = job.done + job.skipped + job.failed
    else:
        job.skipped = job.total - job.done - job.failed
    endpoint = selector_of(job).endpoint
    if endpoint is None:
        return
    if job.kind == "end_endpoint" and job.done:
        await announce(
            change, [death_notice(change.ledger, job.tenant, endpoint, str(selector_of(job).reason), job.done)]
        )
    if job.kind == "switch_ordering":
        found = await load_endpoint(change.ledger, endpoint)
        if found is None or not holds_keys(found):
            change.keys |= (dropped := await drop_holds(change.ledger, endpoint))
            await change.settle()
            await _tell(change, {endpoint} - change.touched if dropped else set())


async def _tell(change: Change, endpoints: set[int]) -> None:
    await raise_revs(change.ledger, endpoints)
    change.touched |= endpoints


# ---- dead letters


async def _dead_before(job: Job, rows_max: int, change: Change) -> tuple[list[Ended], bool]:
    """Take the next dead letters that ended before the job was made; say whether there may be more."""
    ledger, selector = change.ledger, selector_of(job)
    scan = Where()
    scan.add("position > ? AND ended_mark < ?", job.cursor, _before(job))
    scan.equal("endpoint", selector.endpoint)
    inner = f"FROM dead_letter WHERE {scan.sql} ORDER BY position"
    where = dead_condition(job.tenant, selector)
    source = dead_source(selector, f"(SELECT * {inner} LIMIT ?)")
    sql = f"SELECT d.position {source} WHERE {where.sql} ORDER BY d.position LIMIT ?"
    values = (*scan.values, SCAN_ROWS_MAX, *where.values, rows_max)
    found = [row[0] for row in await rows_of(ledger.connection, sql, values)]
    if len(found) == rows_max:
        job.cursor = found[-1]
        return list((await load_ended(ledger, found)).values()), True
    sql = f"SELECT position {inner} LIMIT 1 OFFSET ?"
    last = await rows_of(ledger.connection, sql, (*scan.values, SCAN_ROWS_MAX - 1))
    job.cursor = last[0][0] if last else (found[-1] if found else job.cursor)
    return list((await load_ended(ledger, found)).values()), bool(last)


async def _replay(job: Job, rows_max: int, change: Change) -> bool:
    rows, more = await _dead_before(job, rows_max, change)
    ledger = change.ledger
    expired = await _expired(ledger, [row.event for row in rows])
    endpoints = await open_endpoints(ledger, {row.endpoint for row in rows})
    able = sorted(
        (row for row in rows if row.endpoint in endpoints and row.event not in expired), key=lambda row: row.position
    )
    told = {row.endpoint for row in able}
    await _tell(change, told)
    for position in told:
        endpoints[position].rev += 1
    if able:
        await revive(change, able, endpoints, "replay")
    job.done += len(able)
    job.failed += len(rows) - len(able)
    return more


async def _expired(ledger: Ledger, events: list[int]) -> set[int]:
    sql = "SELECT position FROM event WHERE position = ANY($1) AND data IS NULL"
    return {row[0] for row in await ledger.all(sql, events)}


async def _discard(job: Job, rows_max: int, change: Change) -> bool:
    rows, more = await _dead_before(job, rows_max, change)
    await _tell(change, {row.endpoint for row in rows})
    if rows:
        await discard_dead(change, rows)
    job.done += len(rows)
    return more


# ---- recovery


async def _recover(job: Job, rows_max: int, change: Change) -> bool:
    ledger, selector = change.ledger, selector_of(job)
    endpoint = await load_endpoint(ledger, selector.endpoint or 0)
    if endpoint is None or endpoint.tenant != job.tenant or endpoint.state == "disabled":
        job.state, job.finished_at_ms = "failed", change.now_ms
        deleted = endpoint is None or endpoint.tenant != job.tenant
        job.error = "the endpoint was deleted" if deleted else "the endpoint is disabled"
        return False
    low, high = span_of(selector)
    span = (max(low, job.cursor), min(high, _before(job)))
    events = await candidates(ledger.connection, endpoint, span, rows_max, SCAN_ROWS_MAX)
    more = len(events) == rows_max
    if events:
        job.cursor = events[-1].event
    if not more:
        sql = "SELECT position FROM event WHERE position > $1 AND position < $2 ORDER BY position LIMIT 1 OFFSET $3"
        last = await ledger.one(sql, *span, SCAN_ROWS_MAX - 1)
        if last is not None:
            job.cursor, more = last[0], True
    due: list[Candidate] = []
    for one in events:
        if is_wanted(one, endpoint, selector):
            if not one.is_unacknowledged(_before(job)):
                job.skipped += 1
            elif one.expired:
                job.failed += 1
            else:
                due.append(one)
    if due:
        await _tell(change, {endpoint.position})
        endpoint.rev += 1
        await _make_due(change, due, endpoint)
    job.done += len(due)
    return more


async def _make_due(change: Change, due: list[Candidate], endpoint: Endpoint) -> None:
    """Revive or make the deliveries; where order counts, one after another."""
    groups = [[one] for one in due] if is_by_key(endpoint) else [due]
    for group in groups:
        known = [one.delivery for one in group if one.delivery is not None]
        if known:
            rows = sorted((await load_ended(change.ledger, known)).values(), key=lambda row: row.position)
            await revive(change, rows, {endpoint.position: endpoint}, "recover")
        missing = [one.event for one in group if one.delivery is None]
        if missing:
            await add_missing(change, missing, endpoint.tenant, endpoint, "recover")


# ---- the store's own jobs


FEW_PENDING: Final = """
SELECT position FROM delivery WHERE waiting = 0 AND partition = $1 AND endpoint = $2
UNION ALL SELECT position FROM delivery WHERE waiting = 1 AND key_id IS NOT NULL AND endpoint = $2 LIMIT $3
"""
WALK_PENDING: Final = """
SELECT position FROM (
    SELECT * FROM delivery WHERE position > $1 AND position < $2 ORDER BY position LIMIT $3) d
WHERE tenant = $4 AND endpoint = coalesce($5, endpoint) ORDER BY position LIMIT $6
"""
WALK_END: Final = """
SELECT position FROM delivery WHERE position > $1 AND position < $2 ORDER BY position LIMIT 1 OFFSET $3 - 1
"""


async def _pending_before(job: Job, rows_max: int, change: Change) -> tuple[list[Hot], bool]:
    """Take the next pending rows made before the job; say whether there may be more.

    An endpoint with few rows is found by index; else the backlog is walked by position, a bounded piece a step.
    """
    ledger, endpoint = change.ledger, selector_of(job).endpoint
    if endpoint is not None:
        found = await ledger.all(FEW_PENDING, partition_of(endpoint), endpoint, SCAN_ROWS_MAX)
        if len(found) < SCAN_ROWS_MAX:
            taken = sorted(row[0] for row in found if job.cursor < row[0] < _before(job))[:rows_max]
            return await _take(job, taken, change), len(taken) == rows_max
    span = (job.cursor, _before(job), SCAN_ROWS_MAX)
    taken = [row[0] for row in await ledger.all(WALK_PENDING, *span, job.tenant, endpoint, rows_max)]
    if len(taken) == rows_max:
        return await _take(job, taken, change), True
    last = await ledger.one(WALK_END, *span)
    hots = await _take(job, taken, change)
    if last is not None:
        job.cursor = last[0]
    return hots, last is not None


async def _take(job: Job, positions: list[int], change: Change) -> list[Hot]:
    if positions:
        job.cursor = positions[-1]
    return sorted((await load_hot(change.ledger, positions)).values(), key=lambda hot: hot.position)


async def _end_rows(job: Job, rows_max: int, change: Change) -> bool:
    """End what was pending when an endpoint was disabled, or an endpoint or a tenant deleted."""
    reason = selector_of(job).reason
    hots, more = await _pending_before(job, rows_max, change)
    if job.kind == "end_endpoint":
        await end_dead(change, hots, str(reason))
    else:
        await cancel_pending(change, hots, reason)
    await _tell(change, {hot.endpoint for hot in hots})
    job.done += len(hots)
    return more


async def _switch_ordering(job: Job, rows_max: int, change: Change) -> bool:
    """Give each pending row of an endpoint the place that the new policy means."""
    endpoint = await load_endpoint(change.ledger, selector_of(job).endpoint or 0)
    if endpoint is None:
        return False
    hots, more = await _pending_before(job, rows_max, change)
    await place(change, hots, endpoint)
    await _tell(change, {endpoint.position} if hots else set())
    job.done += len(hots)
    return more
