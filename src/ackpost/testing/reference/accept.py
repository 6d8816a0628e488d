"""Accepting events, and remembering what an ``Idempotency-Key`` was answered."""

from __future__ import annotations

import copy

import msgspec

from ackpost.core.limits import SEQUENCE_MAX
from ackpost.errors import Conflict, FieldError, NotFound
from ackpost.ports.operations import (
    Accept,
    Accepted,
    AcceptedEvent,
    Idempotency,
    NewEvent,
    Repeated,
    Result,
    Stale,
)
from ackpost.testing.reference.state import Change, EventRow, IdempotencyRow, KeyRow, Row, State

IDEMPOTENCY_MS = 24 * 3600 * 1000


def recall(state: State, asked: Idempotency) -> Repeated | None:
    """Give the answer stored for a key.

    Raises: Conflict (idempotency_conflict).
    """
    stored = state.idempotency.get((asked.tenant, asked.key))
    if stored is None or asked.now_ms >= stored.stored_ms + IDEMPOTENCY_MS:
        return None
    if stored.digest != asked.digest:
        raise Conflict("Idempotency-Key was used with another request; use a new one.", code="idempotency_conflict")
    return Repeated(copy.deepcopy(stored.result))


def remember(state: State, asked: Idempotency, result: Result) -> None:
    """Store an answer, without what only its first reader can use."""
    if isinstance(result, Stale):
        return
    changes: dict[str, list[int]] = {name: [] for name in ("refs", "touched") if name in result.__struct_fields__}
    kept = copy.deepcopy(msgspec.structs.replace(result, **changes))
    state.idempotency[asked.tenant, asked.key] = IdempotencyRow(asked.digest, kept, asked.now_ms)


def accept(state: State, op: Accept) -> Accepted | Stale:
    """Store events with their deliveries: all or none."""
    if state.live_tenant(op.tenant) is None:
        raise NotFound("The tenant does not exist any more.", code="unknown_tenant")
    if state.routing_versions[op.tenant] != op.routing_version:
        return Stale()
    originals = _check_uids(state, op)
    sequences = _check_sequences(state, op, originals)
    change = Change(op.now_ms)
    answers: list[AcceptedEvent] = []
    for index, event in enumerate(op.events):
        original = originals[index]
        if original is None:
            answers.append(_store(state, op, event, sequences[index], change))
        elif isinstance(original, EventRow):
            answers.append(AcceptedEvent(original.position, original.accepted, original.sequence, duplicate=True))
        else:
            first = answers[original]
            answers.append(AcceptedEvent(first.position, first.deliveries, first.sequence, duplicate=True))
    return Accepted(answers, change.refs(state))


def _check_uids(state: State, op: Accept) -> list[EventRow | int | None]:
    """Find for each event the stored one it repeats, or the index in this batch; None: it is new."""
    found: list[EventRow | int | None] = []
    seen: dict[str, int] = {}
    for index, event in enumerate(op.events):
        if event.uid is None:
            found.append(None)
            continue
        stored = state.uids.get((op.tenant, event.uid))
        original = state.events[stored] if stored is not None else seen.get(event.uid)
        if original is None:
            seen[event.uid] = index
        else:
            digest = original.digest if isinstance(original, EventRow) else op.events[original].digest
            if digest != event.digest:
                message = "was used for another event"
                raise _refusal(
                    op, index, "uid", message, "uid_conflict", "uid was published before with other content."
                )
        found.append(original)
    return found


def _check_sequences(state: State, op: Accept, originals: list[EventRow | int | None]) -> list[int | None]:
    """Number the new events; nothing is stored yet."""
    last: dict[str, int] = {}
    given: list[int | None] = []
    for index, event in enumerate(op.events):
        if event.key is None or originals[index] is not None:
            given.append(None)
            continue
        stored = state.keys.get((op.tenant, event.key))
        before = last.get(event.key, 0 if stored is None else stored.sequence)
        sequence = before + 1 if event.sequence is None else event.sequence
        if sequence <= before:
            message = f"must be above {before}, the last one of this key"
            raise _refusal(op, index, "sequence", message, "sequence_not_rising", f"sequence {message}.")
        if sequence > SEQUENCE_MAX:
            message = f"cannot rise above {SEQUENCE_MAX}, which this key has reached"
            raise _refusal(op, index, "sequence", message, "sequence_not_rising", f"sequence {message}.")
        last[event.key] = sequence
        given.append(sequence)
    return given


def _refusal(op: Accept, index: int, field: str, message: str, code: str, detail: str) -> Conflict:
    loc = ("body", "events", index, field) if op.batch else ("body", field)
    return Conflict(detail, code=code, errors=[FieldError(loc, message)])


def _store(state: State, op: Accept, event: NewEvent, sequence: int | None, change: Change) -> AcceptedEvent:
    position = state.allocate(1 + len(event.targets), op.now_ms)
    occurred_at_ms = position >> 20 if event.occurred_at_ms is None else event.occurred_at_ms
    state.events[position] = EventRow(
        position=position, tenant=op.tenant, type=event.type, uid=event.uid, digest=event.digest, key=event.key,
        sequence=sequence, channels=event.channels, occurred_at_ms=occurred_at_ms,
        metadata=event.metadata, data=event.data, accepted=len(event.targets),
    )  # fmt: skip
    if event.uid is not None:
        state.uids[op.tenant, event.uid] = position
    if event.key is not None and sequence is not None:
        state.keys[op.tenant, event.key] = KeyRow(sequence, position >> 20)
    for delivery, target in enumerate(event.targets, position + 1):
        clock_ms = op.now_ms if target.paused_since_ms is None else target.paused_since_ms
        row = Row(
            position=delivery, tenant=op.tenant, event=position, endpoint=target.endpoint, type=event.type,
            key=event.key, rev=target.rev, pin=target.pin, due_ms=op.now_ms,
            age_start_ms=clock_ms - target.paused_total_ms,
            trigger=event.trigger, ordered=target.by_key and event.key is not None and event.trigger != "test",
        )  # fmt: skip
        state.add(row)
        change.announced.add(delivery)
    return AcceptedEvent(position, len(event.targets), sequence)
