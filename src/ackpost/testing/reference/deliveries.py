"""What people do to deliveries: redeliver, cancel, expire data; and the sweep for rows stuck in waiting."""

from __future__ import annotations

from ackpost.core.model import Endpoint
from ackpost.errors import Conflict, DataExpired, NotFound
from ackpost.ports.operations import (
    Cancel,
    DeliveriesChanged,
    Done,
    ExpireData,
    Promote,
    Promoted,
    Redeliver,
)
from ackpost.testing.reference.state import Change, EventRow, Row, State


def redeliver(state: State, op: Redeliver) -> DeliveriesChanged:
    """Make deliveries due now: a new round, or sooner if still pending."""
    event, rows = _asked(state, op)
    wanted: Endpoint | None = None
    if op.endpoint is not None and op.delivery is None:
        wanted = state.endpoint_of(op.tenant, op.endpoint)
        if wanted is None:
            raise NotFound("The endpoint does not exist.")
        rows = [row for row in rows if row.endpoint == op.endpoint]
    if event.data is None:
        raise DataExpired("The event's data has expired; it cannot be sent again.")
    open_rows = [row for row in rows if _takes(state, row.endpoint)]
    if (rows and not open_rows) or (wanted is not None and wanted.state == "disabled"):
        raise Conflict("The endpoint is disabled or was deleted; enable it first.", code="invalid_state")
    change = Change(op.now_ms)
    touched = {row.endpoint for row in open_rows} if wanted is None else {wanted.position}
    for endpoint in touched:
        state.raise_rev(endpoint)
    for row in open_rows:
        if row.status != "pending":
            state.revive(row, state.endpoints[row.endpoint], op.trigger, change)
        elif not row.waiting:
            row.due_ms = op.now_ms
            change.due.add(row.position)
    if wanted is not None and not rows:
        open_rows = [state.add_missing(event, wanted, op.trigger, change)]
    return DeliveriesChanged(sorted(row.position for row in open_rows), sorted(touched), change.refs(state))


def _asked(state: State, op: Redeliver | Cancel) -> tuple[EventRow, list[Row]]:
    """Find the event and its deliveries that an operation is about."""
    if op.delivery is not None:
        row = state.row_of(op.tenant, op.delivery)
        if row is None:
            raise NotFound("The delivery does not exist.")
        return state.events[row.event], [row]
    event = None if op.event is None else state.event_of(op.tenant, op.event)
    if event is None:
        raise NotFound("The event does not exist.")
    return event, [state.rows[position] for position in state.rows_of_event.get(event.position, ())]


def _takes(state: State, endpoint: int) -> bool:
    found = state.endpoints.get(endpoint)
    return found is not None and found.state != "disabled"


def cancel(state: State, op: Cancel) -> DeliveriesChanged:
    """End pending deliveries."""
    rows = [row for row in _asked(state, op)[1] if row.status == "pending"]
    if op.delivery is not None and not rows:
        raise Conflict("The delivery has ended.", code="invalid_state")
    change = Change(op.now_ms)
    for row in rows:
        state.end(row, "cancelled", None, change)
    touched = sorted({row.endpoint for row in rows})
    for endpoint in touched:
        state.raise_rev(endpoint)
    return DeliveriesChanged([row.position for row in rows], touched, change.refs(state))


def expire_data(state: State, op: ExpireData) -> Done:
    """Remove an event's data; what is still to be sent of it is dead."""
    event = state.event_of(op.tenant, op.event)
    if event is None:
        raise NotFound("The event does not exist.")
    if event.data is None:
        return Done(op.event)
    event.data = None
    change = Change(op.now_ms)
    rows = [state.rows[position] for position in state.rows_of_event.get(op.event, ())]
    rows = [row for row in rows if row.status == "pending"]
    for row in rows:
        state.end_dead(row, "data_expired", change)
    endpoints = sorted({row.endpoint for row in rows})
    for endpoint in endpoints:
        state.raise_rev(endpoint)
    for endpoint in endpoints:
        count = sum(row.endpoint == endpoint for row in rows)
        state.announce_dead(op.tenant, endpoint, "data_expired", count, change)
    change.touched.update(endpoints)
    return Done(op.event, sorted(change.touched))


def promote(state: State, op: Promote) -> Promoted:
    """Free waiting rows that nobody will free any more: a bug elsewhere if there is one."""
    change = Change(op.now_ms)
    waiting = sorted(row.position for group in state.ordered.values() for row in group.values() if row.waiting)
    stuck = [state.rows[position] for position in waiting if not state.is_blocked(state.rows[position])]
    for row in stuck[: op.rows_max]:
        state.let_go(row, change)
    return Promoted(change.refs(state))
