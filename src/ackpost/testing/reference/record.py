"""Storing what attempts came to."""

from __future__ import annotations

import msgspec

from ackpost.core.decision import Decision, EndpointChange
from ackpost.core.model import FIRST, RETRY, Attempt, Endpoint
from ackpost.core.outcome import DELIVERED, INTERRUPTED
from ackpost.ports.operations import Interrupt, Interrupted, Record, Recorded
from ackpost.testing.reference.endpoints import disable
from ackpost.testing.reference.state import Change, Row, State

_BODY_OF_SUCCESS_BYTES_MAX = 1024
_BODIES_OF_NEWEST_FAILURES = 3


def record(state: State, op: Record) -> Recorded:
    """Apply decisions, each only if its delivery is still where the attempt found it."""
    if op.incarnation != state.committing:
        return Recorded([False] * len(op.decisions))
    change = Change(op.now_ms)
    positions = [state.allocate(1, op.now_ms) if _is_attempt(decision) else 0 for decision in op.decisions]
    applied: list[bool] = []
    holds_good: list[bool] = []
    for decision, position in zip(op.decisions, positions, strict=True):
        is_new = position > 0 and _store_attempt(state, _attempt(decision, position, op.node))
        applied.append(_apply(state, decision, change))
        holds_good.append(is_new or applied[-1])
        endpoint = state.endpoint_of(decision.tenant, decision.endpoint)
        if holds_good[-1] and decision.endpoint_change is not None and endpoint is not None:
            _change_endpoint(state, endpoint, decision.endpoint_change, change)
    for index, decision in enumerate(op.decisions):
        for told in decision.announcements:
            if applied[index] if told.type == "ackpost.delivery.dead" else holds_good[index]:
                state.announce(decision.tenant, told.type, told.about, told.data, change)
    return Recorded(applied, change.refs(state), sorted(change.touched))


def _is_attempt(decision: Decision) -> bool:
    """Whether an attempt was used: only those are shown and counted."""
    return decision.outcome is not None and decision.verdict != "again"


def _apply(state: State, decision: Decision, change: Change) -> bool:
    row = state.row_of(decision.tenant, decision.delivery)
    before = decision.number - 1 if _is_attempt(decision) else decision.number
    if row is None or row.round != decision.round or row.number != before:
        return False
    if row.status != "pending":
        return _apply_late(state, row, decision, change)
    if decision.verdict == "again":
        row.due_ms, row.crashes = _due_ms(decision), decision.crashes
        return True
    _count(row, decision)
    if decision.verdict == "retry":
        row.due_ms, row.crashes = _due_ms(decision), decision.crashes
        row.klass = RETRY if row.klass == FIRST else row.klass
    else:
        state.end(row, decision.verdict, decision.reason, change, hold=decision.hold, at_ms=decision.ended_at_ms)
    return True


def _apply_late(state: State, row: Row, decision: Decision, change: Change) -> bool:
    """The delivery was ended while the request ran: the attempt counts, and a success still does."""
    if not _is_attempt(decision):
        return False
    _count(row, decision)
    if decision.verdict != "delivered" or row.status not in {"cancelled", "dead"}:
        return False
    state.end(row, "delivered", None, change, at_ms=decision.ended_at_ms)
    return True


def _count(row: Row, decision: Decision) -> None:
    if decision.outcome is not None:
        row.number, row.round_attempts = decision.number, row.round_attempts + 1
        row.note(decision.outcome.code, decision.outcome.status_code)


def _due_ms(decision: Decision) -> int:
    assert decision.due_ms is not None, "retry and again carry a due time"
    return decision.due_ms


def _change_endpoint(state: State, endpoint: Endpoint, wanted: EndpointChange, change: Change) -> None:
    change.touched.add(endpoint.position)
    if wanted.clear_failing:
        endpoint.first_failure_ms = endpoint.last_failure_ms = None
        endpoint.failing_announced = False
    for name in ("circuit", "retry_after_until_ms", "first_failure_ms", "last_failure_ms", "failing_announced"):
        value = getattr(wanted, name)
        if value is not None:
            setattr(endpoint, name, value)
    if wanted.disable_reason is not None and endpoint.state != "disabled":
        reason = "gone" if wanted.disable_reason == "gone" else "endpoint_disabled"
        disable(state, endpoint, wanted.disable_reason, reason, change.now_ms)


def interrupt(state: State, op: Interrupt) -> Interrupted:
    """Count the crash of the process against what was in flight (rule E5)."""
    change = Change(op.now_ms)
    rows: list[Row] = []
    poisoned: dict[tuple[int, int], int] = {}
    for mark in op.marks:
        row = state.rows.get(mark.delivery)
        if row is None or row.status != "pending" or (row.round, row.number) != (mark.round, mark.number):
            continue
        rows.append(row)
        row.crashes, row.number, row.round_attempts = row.crashes + 1, row.number + 1, row.round_attempts + 1
        is_dead = row.crashes >= op.crashes_max
        endpoint = state.endpoints.get(row.endpoint)
        attempt = Attempt(
            position=state.allocate(1, op.now_ms), delivery=row.position, event=row.event, endpoint=row.endpoint,
            tenant=row.tenant, number=row.number, round=row.round, trigger=row.trigger, started_at_ms=op.now_ms,
            duration_ms=0.0, code=INTERRUPTED, version=1 if endpoint is None else endpoint.version,
            next_due_ms=None if is_dead else op.now_ms, node=op.node,
        )  # fmt: skip
        _store_attempt(state, attempt)
        row.note(INTERRUPTED, None)
        row.due_ms, row.klass = op.now_ms, RETRY if row.klass == FIRST else row.klass
        if is_dead:
            state.end_dead(row, "poison", change)
            poisoned[row.endpoint, row.tenant] = poisoned.get((row.endpoint, row.tenant), 0) + 1
    for (endpoint_position, tenant), count in sorted(poisoned.items()):
        state.announce_dead(tenant, endpoint_position, "poison", count, change)
    left = sorted(row.position for row in rows if row.status == "pending")
    return Interrupted(pending=len(rows), dead=len(rows) - len(left), deliveries=left)


# ---- attempts


def _attempt(decision: Decision, position: int, node: str) -> Attempt:
    outcome = decision.outcome
    assert outcome is not None
    return Attempt(
        position=position, delivery=decision.delivery, event=decision.event, endpoint=decision.endpoint,
        tenant=decision.tenant, number=decision.number, round=decision.round, trigger=decision.trigger,
        started_at_ms=decision.started_at_ms, duration_ms=outcome.duration_ms, code=outcome.code,
        status_code=outcome.status_code, phase=outcome.phase, detail=outcome.detail, phases_ms=outcome.phases_ms,
        remote_ip=outcome.remote_ip, version=decision.version, response_headers=outcome.response_headers,
        response_body=outcome.response_body, truncated=outcome.truncated,
        next_due_ms=decision.due_ms if decision.verdict == "retry" else None, node=node,
    )  # fmt: skip


def _store_attempt(state: State, attempt: Attempt) -> bool:
    """Insert or do nothing on conflict; say whether it is new."""
    known = state.attempts.setdefault(attempt.delivery, [])
    if any((other.round, other.number) == (attempt.round, attempt.number) for other in known):
        return False
    if attempt.code == DELIVERED:
        known.append(_cut(attempt, _BODY_OF_SUCCESS_BYTES_MAX))
        return True
    known.append(attempt)
    failures = [index for index, other in enumerate(known) if other.code != DELIVERED]
    for index in failures[1:-_BODIES_OF_NEWEST_FAILURES]:
        known[index] = _cut(known[index], 0)
    return True


def _cut(attempt: Attempt, bytes_max: int) -> Attempt:
    if len(attempt.response_body) <= bytes_max:
        return attempt
    return msgspec.structs.replace(attempt, response_body=attempt.response_body[:bytes_max], truncated=True)
