"""Mass changes in steps (rule E13)."""

from __future__ import annotations

import copy

import msgspec

from ackpost.core.matching import RESERVED_PREFIX, matches, pattern_matches
from ackpost.core.model import Endpoint, Job
from ackpost.core.policy import effective_policy
from ackpost.errors import Conflict, NotFound
from ackpost.ports.operations import JOB_KINDS_BY_USERS, CancelJob, CreateJob, JobSaved, JobSelector, StepJob
from ackpost.testing.reference.state import Change, EventRow, Row, State


def selector_of(job: Job) -> JobSelector:
    """What a job is about."""
    return msgspec.convert(job.params, JobSelector)


def create_job(state: State, op: CreateJob) -> JobSaved:
    """Make a job; it takes only what ended before now."""
    selector = selector_of(op.job)
    if op.job.kind == "recover":
        endpoint = None if selector.endpoint is None else state.endpoint_of(op.job.tenant, selector.endpoint)
        if endpoint is None:
            raise NotFound("The endpoint does not exist.")
        if endpoint.state == "disabled":
            raise Conflict("The endpoint is disabled; enable it first.", code="invalid_state")
    total = None
    if op.job.kind != "recover":
        matching = dead_letters(state, op.job.tenant, selector)
        total = len(matching) if selector.ids is None else len(set(selector.ids))
    job = msgspec.structs.replace(
        copy.deepcopy(op.job), position=state.allocate(1, op.job.created_at_ms), state="queued", total=total, cursor=0
    )
    state.jobs[job.position] = job
    return JobSaved(copy.deepcopy(job))


def cancel_job(state: State, op: CancelJob) -> JobSaved:
    """Stop a job of a user; what it did stays done."""
    job = state.jobs.get(op.job)
    if job is None or job.tenant != op.tenant:
        raise NotFound("The job does not exist.")
    if job.state not in {"queued", "running"}:
        raise Conflict("The job has ended.", code="invalid_state")
    if job.kind not in JOB_KINDS_BY_USERS:
        raise Conflict("This job belongs to a change of an endpoint or a tenant.", code="invalid_state")
    job.state, job.finished_at_ms = "cancelled", op.now_ms
    return JobSaved(copy.deepcopy(job))


def step_job(state: State, op: StepJob) -> JobSaved:
    """Do the next rows of a job."""
    job = state.jobs.get(op.job)
    if job is None:
        raise NotFound("The job does not exist.")
    change = Change(op.now_ms)
    if job.state in {"queued", "running"}:
        job.state = "running"
        steps = {"replay": _replay, "discard": _discard, "recover": _recover, "switch_ordering": _switch_ordering}
        found = steps.get(job.kind, _end_rows)(state, job, op.rows_max, change)
        if found < op.rows_max and job.state == "running":
            _finish(state, job, change)
    return JobSaved(copy.deepcopy(job), sorted(change.touched), change.refs(state))


def _finish(state: State, job: Job, change: Change) -> None:
    job.state, job.finished_at_ms = "done", change.now_ms
    if job.total is None:
        job.total = job.done + job.skipped + job.failed
    else:
        job.skipped = job.total - job.done - job.failed
    selector = selector_of(job)
    if selector.endpoint is None:
        return
    if job.kind == "end_endpoint" and job.done:
        state.announce_dead(job.tenant, selector.endpoint, str(selector.reason), job.done, change)
    if job.kind == "switch_ordering":
        policy = state.policy(selector.endpoint)
        is_holding = policy is not None and policy.ordering == "by-key" and policy.on_dead == "hold"
        if not is_holding and state.drop_holds(selector.endpoint, change):
            _tell(state, {selector.endpoint} - change.touched, change)


def _tell(state: State, endpoints: set[int], change: Change) -> None:
    for endpoint in endpoints:
        state.raise_rev(endpoint)
    change.touched.update(endpoints)


def _cut(job: Job, rows: list[Row], rows_max: int) -> list[Row]:
    """Take the next rows after the cursor and move it."""
    taken = [row for row in rows if row.position > job.cursor][:rows_max]
    if taken:
        job.cursor = taken[-1].position
    return taken


# ---- dead letters


def dead_letters(state: State, tenant: int, selector: JobSelector) -> list[Row]:
    """Dead letters that a selector names, by position."""
    return [
        row for row in state.rows.values() if row.status == "dead" and row.tenant == tenant and _named(row, selector)
    ]


def _named(row: Row, selector: JobSelector) -> bool:
    died_ms = row.ended_at_ms or 0
    return (
        (selector.ids is None or row.position in selector.ids)
        and selector.endpoint in {None, row.endpoint}
        and (selector.type is None or pattern_matches(selector.type, row.type))
        and selector.reason in {None, row.reason}
        and (selector.since_ms is None or died_ms >= selector.since_ms)
        and (selector.until_ms is None or died_ms < selector.until_ms)
    )


def _dead_before(state: State, job: Job, rows_max: int) -> list[Row]:
    rows = dead_letters(state, job.tenant, selector_of(job))
    return _cut(job, [row for row in rows if row.ended_mark < job.position], rows_max)


def _replay(state: State, job: Job, rows_max: int, change: Change) -> int:
    rows = _dead_before(state, job, rows_max)
    able = [row for row in rows if state.events[row.event].data is not None and _takes(state, row.endpoint)]
    _tell(state, {row.endpoint for row in able}, change)
    for row in able:
        state.revive(row, state.endpoints[row.endpoint], "replay", change)
    job.done += len(able)
    job.failed += len(rows) - len(able)
    return len(rows)


def _takes(state: State, endpoint: int) -> bool:
    found = state.endpoints.get(endpoint)
    return found is not None and found.state != "disabled"


def _discard(state: State, job: Job, rows_max: int, change: Change) -> int:
    rows = _dead_before(state, job, rows_max)
    _tell(state, {row.endpoint for row in rows}, change)
    for row in rows:
        state.end(row, "discarded", row.reason, change)
    job.done += len(rows)
    return len(rows)


# ---- recovery


def _span(state: State, tenant: int, selector: JobSelector) -> list[EventRow]:
    """Events accepted in the selector's span, by position; operational ones are left out."""
    return [
        event
        for event in state.events.values()
        if event.tenant == tenant
        and not event.type.startswith(RESERVED_PREFIX)
        and (selector.since_ms is None or event.created_at_ms >= selector.since_ms)
        and (selector.until_ms is None or event.created_at_ms < selector.until_ms)
    ]


def _wanted(event: EventRow, endpoint: Endpoint, selector: JobSelector) -> bool:
    types = selector.event_types
    return matches(endpoint.event_types, endpoint.channels, event.type, event.channels) and (
        types is None or any(pattern_matches(pattern, event.type) for pattern in types)
    )


def _is_unacknowledged(row: Row | None, before: int | None) -> bool:
    if row is None:
        return True
    return row.status in {"dead", "cancelled"} and (before is None or row.ended_mark < before)


def recoverable(state: State, tenant: int, selector: JobSelector) -> int:
    """Deliveries that a recover job would make due now, once the endpoint is enabled."""
    endpoint = None if selector.endpoint is None else state.endpoint_of(tenant, selector.endpoint)
    if endpoint is None:
        return 0
    return sum(
        event.data is not None
        and _wanted(event, endpoint, selector)
        and _is_unacknowledged(state.row_for(event.position, endpoint.position), None)
        for event in _span(state, tenant, selector)
    )


def _recover(state: State, job: Job, rows_max: int, change: Change) -> int:
    selector = selector_of(job)
    endpoint = None if selector.endpoint is None else state.endpoint_of(job.tenant, selector.endpoint)
    if endpoint is None or endpoint.state == "disabled":
        job.state, job.finished_at_ms = "failed", change.now_ms
        job.error = "the endpoint was deleted" if endpoint is None else "the endpoint is disabled"
        return 0
    span = _span(state, job.tenant, selector)
    events = [event for event in span if job.cursor < event.position < job.position][:rows_max]
    if events:
        job.cursor = events[-1].position
    due: list[tuple[EventRow, Row | None]] = []
    for event in events:
        if _wanted(event, endpoint, selector):
            row = state.row_for(event.position, endpoint.position)
            if not _is_unacknowledged(row, job.position):
                job.skipped += 1
            elif event.data is None:
                job.failed += 1
            else:
                due.append((event, row))
    _tell(state, {endpoint.position} if due else set(), change)
    for event, row in due:
        if row is None:
            state.add_missing(event, endpoint, "recover", change)
        else:
            state.revive(row, endpoint, "recover", change)
    job.done += len(due)
    return len(events)


# ---- the store's own jobs


def _end_rows(state: State, job: Job, rows_max: int, change: Change) -> int:
    """End what was pending when an endpoint was disabled, or an endpoint or a tenant deleted."""
    selector = selector_of(job)
    rows = [
        row
        for row in state.rows.values()
        if row.status == "pending" and row.tenant == job.tenant and row.position < job.position
        and selector.endpoint in {None, row.endpoint}
    ]  # fmt: skip
    taken = _cut(job, rows, rows_max)
    for row in taken:
        if job.kind == "end_endpoint":
            state.end_dead(row, str(selector.reason), change)
        else:
            state.end(row, "cancelled", selector.reason, change)
    _tell(state, {row.endpoint for row in taken}, change)
    job.done += len(taken)
    return len(taken)


def _switch_ordering(state: State, job: Job, rows_max: int, change: Change) -> int:
    """Give each pending row of an endpoint the place that the new policy means."""
    endpoint = state.endpoints.get(selector_of(job).endpoint or 0)
    if endpoint is None:
        return 0
    pending = state.pending.get(endpoint.position, {})
    rows = [row for _, row in sorted(pending.items()) if row.position < job.position]
    taken = _cut(job, rows, rows_max)
    for row in taken:
        _place(state, row, endpoint, change)
    _tell(state, {endpoint.position} if taken else set(), change)
    job.done += len(taken)
    return len(taken)


def _place(state: State, row: Row, endpoint: Endpoint, change: Change) -> None:
    policy = effective_policy(endpoint.policy)
    state.leave_order(row)
    row.ordered = (
        policy.ordering == "by-key" and row.key is not None and row.trigger != "test"
        and (row.round == 1 or policy.on_dead == "hold")
    )  # fmt: skip
    if not row.ordered or row.key is None:
        if row.waiting:
            state.let_go(row, change)
        return
    group = state.ordered.setdefault((row.endpoint, row.key), {})
    group[row.position] = row
    if state.is_blocked(row):
        row.waiting = True
    elif row.waiting:
        state.let_go(row, change)
    for other in group.values():
        if other.event > row.event:
            other.waiting = True
