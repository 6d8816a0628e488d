"""What leaves by age."""

from __future__ import annotations

from ackpost.ports.operations import Retain, Retained
from ackpost.testing.reference.state import Change, EventRow, Row, State


def retain(state: State, op: Retain) -> Retained:
    """Remove what is older than its cut-off, at most ``rows_max`` objects; nothing pending."""
    change = Change(op.now_ms)
    left = op.rows_max
    removed = dict.fromkeys(("idempotency", "keys", "jobs", "events", "deliveries"), 0)

    answers = sorted((row.stored_ms, key) for key, row in state.idempotency.items())
    for _, key in [(at, key) for at, key in answers if at < op.idempotency_before_ms][:left]:
        del state.idempotency[key]
        removed["idempotency"] += 1
        left -= 1

    keys = sorted((row.used_ms, key) for key, row in state.keys.items())
    for _, key in [(at, key) for at, key in keys if at < op.keys_before_ms][:left]:
        del state.keys[key]
        removed["keys"] += 1
        left -= 1

    letters = [
        row for row in state.rows.values() if row.status == "dead" and (row.ended_at_ms or 0) < op.dead_before_ms
    ]
    letters = letters[:left]
    for row in letters:
        _remove(state, row)
        if state.release(row) and row.key is not None:
            state.promote(row.endpoint, row.key, change)
    left -= len(letters)

    jobs = [job for job in state.jobs.values() if job.finished_at_ms is not None]
    for job in [job for job in jobs if (job.finished_at_ms or 0) < op.events_before_ms][:left]:
        del state.jobs[job.position]
        removed["jobs"] += 1
        left -= 1

    for event in [event for event in state.events.values() if _may_go(state, event, op.events_before_ms)][:left]:
        for position in list(state.rows_of_event.get(event.position, ())):
            _remove(state, state.rows[position])
            removed["deliveries"] += 1
        _remove_event(state, event)
        removed["events"] += 1
        left -= 1
    return Retained(removed=removed, dead_letters=len(letters), more=left == 0)


def _may_go(state: State, event: EventRow, before_ms: int) -> bool:
    statuses = {state.rows[position].status for position in state.rows_of_event.get(event.position, ())}
    return event.created_at_ms < before_ms and statuses.isdisjoint({"pending", "dead"})


def _remove(state: State, row: Row) -> None:
    del state.rows[row.position]
    state.rows_of_event[row.event].remove(row.position)
    state.attempts.pop(row.position, None)


def _remove_event(state: State, event: EventRow) -> None:
    del state.events[event.position]
    state.rows_of_event.pop(event.position, None)
    if event.uid is not None:
        del state.uids[event.tenant, event.uid]
