"""Accepting events, set-wise: a run of ``Accept`` operations becomes a handful of statements (rules E4, E6, E10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ackpost.core.limits import SEQUENCE_MAX
from ackpost.core.model import FIRST, DeliveryRef, EventPayload
from ackpost.errors import Conflict, FieldError, NotFound, RequestError
from ackpost.ports.operations import Accept, Accepted, AcceptedEvent, NewEvent, Repeated, Result, Stale
from ackpost.store.sqlite.answers import Answers
from ackpost.store.sqlite.ledger import Insert, Ledger
from ackpost.store.sqlite.rows import insert_new
from ackpost.store.values import TRIGGER_CODES

_encode = msgspec.json.Encoder().encode

_insert_event = Insert(
    "event", "position, tenant, type, fanout, key_id, sequence, occurred_at_ms, uid, channels, metadata, data"
)
_insert_uid = Insert("event_uid", "tenant, uid, event, digest")
_upsert_key = Insert(
    "key_state",
    "id, tenant, key, last_sequence, last_event",
    "ON CONFLICT (id) DO UPDATE SET last_sequence = excluded.last_sequence, last_event = excluded.last_event",
)

_SELECT_UIDS: Final = (
    "SELECT u.tenant, u.uid, u.digest, e.position, e.fanout, e.sequence FROM json_each(?) j"
    " CROSS JOIN event_uid u ON u.tenant = j.value ->> 0 AND u.uid = j.value ->> 1"
    " CROSS JOIN event e ON e.position = u.event"
)
_SELECT_KEYS: Final = (
    "SELECT k.tenant, k.key, k.id, k.last_sequence, k.last_event FROM json_each(?) j"
    " CROSS JOIN key_state k ON k.tenant = j.value ->> 0 AND k.key = j.value ->> 1"
)
_SELECT_BUSY: Final = (
    "SELECT j.value ->> 0, j.value ->> 1 FROM json_each(?) j WHERE EXISTS (SELECT 1 FROM delivery d"
    " WHERE d.endpoint = j.value ->> 0 AND d.key_id = j.value ->> 1)"
    " OR EXISTS (SELECT 1 FROM key_hold h WHERE h.endpoint = j.value ->> 0 AND h.key_id = j.value ->> 1)"
)


class _Key(msgspec.Struct, gc=False):
    """A key's numbering: ``id`` is the position of its first event."""

    id: int
    last_sequence: int
    last_event: int


class _Run:
    """State shared by the operations of a run: what the database knew before, what the run adds."""

    def __init__(self, ledger: Ledger, operations: Sequence[Accept]) -> None:
        self._ledger = ledger
        self._answers = Answers(ledger, [operation.idempotency for operation in operations])
        uids: list[tuple[int, str]] = []
        keys: set[tuple[int, str]] = set()
        for operation in operations:
            for event in operation.events:
                if event.uid is not None:
                    uids.append((operation.tenant, event.uid))
                if event.key is not None:
                    keys.add((operation.tenant, event.key))
        self._has_uids, self._has_keys = bool(uids), bool(keys)
        self._uids = self._load_uids(uids) if uids else {}
        self._keys = self._load_keys(keys) if keys else {}
        self._busy = self._load_busy(operations) if self._keys else set[tuple[int, int]]()
        self._events: list[Any] = []
        self._deliveries: list[Any] = []
        self._new_uids: list[Any] = []
        self._changed_keys: dict[tuple[int, str], _Key] = {}

    def _load_uids(self, wanted: list[tuple[int, str]]) -> dict[tuple[int, str], tuple[bytes | None, AcceptedEvent]]:
        return {
            (tenant, uid): (digest, AcceptedEvent(position, fanout, sequence, duplicate=True))
            for tenant, uid, digest, position, fanout, sequence in self._ledger.execute(
                _SELECT_UIDS, (_encode(wanted).decode(),)
            )
        }

    def _load_keys(self, wanted: set[tuple[int, str]]) -> dict[tuple[int, str], _Key]:
        rows = self._ledger.execute(_SELECT_KEYS, (_encode(wanted).decode(),))
        return {(tenant, key): _Key(*state) for tenant, key, *state in rows}

    def _load_busy(self, operations: Sequence[Accept]) -> set[tuple[int, int]]:
        """Give the (endpoint, key) pairs of known keys behind which a new delivery has to wait."""
        wanted = {
            (target.endpoint, state.id)
            for one in operations
            for event in one.events
            if event.key is not None and (state := self._keys.get((one.tenant, event.key))) is not None
            for target in event.targets
            if target.by_key
        }
        if not wanted:
            return set()
        return set(self._ledger.all(_SELECT_BUSY, (_encode(wanted).decode(),)))

    def take(self, operation: Accept) -> Result | Repeated:
        """Check one operation whole, then stage it.

        Raises: RequestError, and then nothing of the operation is staged.
        """
        if operation.idempotency is not None:
            repeated = self._answers.repeated(operation.idempotency)
            if repeated is not None:
                return repeated
        version = self._ledger.routing_version(operation.tenant)
        if version is None:
            raise NotFound("The tenant does not exist any more.", code="unknown_tenant")
        if version != operation.routing_version:
            return Stale()
        originals = self._find_originals(operation) if self._has_uids else None
        sequences = self._check_sequences(operation, originals) if self._has_keys else None
        accepted = self._stage_all(operation, originals, sequences)
        if operation.idempotency is not None:
            self._answers.remember(operation.idempotency, accepted)
        return accepted

    def _stage_all(
        self, operation: Accept, originals: list[AcceptedEvent | int | None] | None, sequences: list[int | None] | None
    ) -> Accepted:
        ledger, tenant, now_ms = self._ledger, operation.tenant, operation.now_ms
        first = position = max(ledger.last_position + 1, now_ms << 20)
        answers: list[AcceptedEvent] = []
        refs: list[DeliveryRef] = []
        for index, event in enumerate(operation.events):
            original = None if originals is None else originals[index]
            if original is None:
                sequence = None if sequences is None else sequences[index]
                self._stage(event, (position, tenant, now_ms, sequence), refs)
                answers.append(AcceptedEvent(position, len(event.targets), sequence))
                position += 1 + len(event.targets)
            elif isinstance(original, int):
                one = answers[original]
                answers.append(AcceptedEvent(one.position, one.deliveries, one.sequence, duplicate=True))
            else:
                answers.append(original)
        if position > first:
            ledger.allocate(position - first, now_ms)
        return Accepted(answers, refs)

    def _find_originals(self, operation: Accept) -> list[AcceptedEvent | int | None]:
        """Give for each event the stored one it repeats, or its index in this batch; None where it is new.

        All uids are looked at before any sequence: a repeated publish is a duplicate, not out of sequence (rule E4).
        """
        seen: dict[str, int] = {}
        found: list[AcceptedEvent | int | None] = []
        for index, event in enumerate(operation.events):
            original: AcceptedEvent | int | None = None
            if event.uid is not None:
                stored = self._uids.get((operation.tenant, event.uid))
                if stored is not None:
                    digest, original = stored
                elif event.uid in seen:
                    original = seen[event.uid]
                    digest = operation.events[original].digest
                else:
                    seen[event.uid] = index
                if original is not None and digest != event.digest:
                    text = "was used for another event"
                    raise _conflict(operation, index, "uid", text, "uid_conflict")
            found.append(original)
        return found

    def _check_sequences(
        self, operation: Accept, originals: list[AcceptedEvent | int | None] | None
    ) -> list[int | None]:
        """Number the new events with a key."""
        last: dict[str, int] = {}
        given: list[int | None] = []
        for index, event in enumerate(operation.events):
            if event.key is None or (originals is not None and originals[index] is not None):
                given.append(None)
                continue
            before = last.get(event.key)
            if before is None:
                state = self._keys.get((operation.tenant, event.key))
                before = 0 if state is None else state.last_sequence
            sequence = before + 1 if event.sequence is None else event.sequence
            if sequence <= before:
                text = f"must be above {before}, the last one of this key"
                raise _conflict(operation, index, "sequence", text, "sequence_not_rising")
            if sequence > SEQUENCE_MAX:
                text = f"cannot rise above {SEQUENCE_MAX}, which this key has reached"
                raise _conflict(operation, index, "sequence", text, "sequence_not_rising")
            last[event.key] = sequence
            given.append(sequence)
        return given

    def _stage(self, event: NewEvent, place: tuple[int, int, int, int | None], refs: list[DeliveryRef]) -> None:
        """Take in one event; ``place`` is position, tenant, time, sequence."""
        position, tenant, now_ms, sequence = place
        targets = event.targets
        key_id = None
        if event.key is not None and sequence is not None:
            key_id = self._count(tenant, event.key, sequence, position)
        self._events += (
            position, tenant, event.type, len(targets), key_id, sequence, event.occurred_at_ms, event.uid,
            _encode(event.channels).decode() if event.channels else None, event.metadata, event.data,
        )  # fmt: skip
        if event.uid is not None:
            self._new_uids += (tenant, event.uid, position, event.digest)
            duplicate = AcceptedEvent(position, len(targets), sequence, duplicate=True)
            self._uids[tenant, event.uid] = event.digest, duplicate
        if not targets:
            return
        occurred_at_ms = position >> 20 if event.occurred_at_ms is None else event.occurred_at_ms
        payload = EventPayload(position, event.type, occurred_at_ms, event.data, event.key, sequence)
        trigger, trigger_code = event.trigger, TRIGGER_CODES[event.trigger]
        ordered_key = None if trigger == "test" else key_id
        deliveries = self._deliveries
        for offset, target in enumerate(targets, start=1):
            pin, endpoint, rev = target.pin, target.endpoint, target.rev
            start_ms = now_ms if target.paused_since_ms is None else target.paused_since_ms
            start_ms -= target.paused_total_ms
            ordered = target.by_key and ordered_key is not None
            waiting = ordered_key is not None and ordered and self._queue(endpoint, ordered_key)
            deliveries += (
                position + offset, offset, tenant, endpoint, rev, now_ms, start_ms, pin, trigger_code,
                ordered_key if ordered else None, 1 if waiting else 0,
            )  # fmt: skip
            if not waiting:
                refs.append(DeliveryRef(
                    position + offset, position, tenant, endpoint, rev, FIRST, now_ms, start_ms, pin, 1, 0, 0, trigger,
                    0, ordered, payload,
                ))  # fmt: skip

    def _count(self, tenant: int, key: str, sequence: int, position: int) -> int:
        """Note a key's newest event and give the key's id."""
        state = self._keys.get((tenant, key))
        if state is None:
            state = self._keys[tenant, key] = _Key(position, sequence, position)
        else:
            state.last_sequence, state.last_event = sequence, position
        self._changed_keys[tenant, key] = state
        return state.id

    def _queue(self, endpoint: int, key_id: int) -> bool:
        """Say whether a new delivery of a key has to wait; the next one has to wait for it."""
        if (endpoint, key_id) in self._busy:
            return True
        self._busy.add((endpoint, key_id))
        return False

    def flush(self) -> None:
        """Write what was staged."""
        connection = self._ledger.connection
        if self._events:
            _insert_event.run(connection, self._events)
        if self._deliveries:
            insert_new.run(connection, self._deliveries)
        if self._new_uids:
            _insert_uid.run(connection, self._new_uids)
        if self._changed_keys:
            _upsert_key.rows(
                connection,
                [(one.id, tenant, key, one.last_sequence, one.last_event)
                 for (tenant, key), one in self._changed_keys.items()],
            )  # fmt: skip
        self._answers.flush(self._ledger)


def accept(ledger: Ledger, operations: Sequence[Accept]) -> list[Result | Repeated | RequestError]:
    """Store the events of a run of operations; each is stored whole or refused whole."""
    run = _Run(ledger, operations)
    results: list[Result | Repeated | RequestError] = []
    for operation in operations:
        try:
            results.append(run.take(operation))
        except RequestError as refusal:
            results.append(refusal)
    run.flush()
    return results


def _conflict(operation: Accept, index: int, field: str, text: str, code: str) -> Conflict:
    loc = ("body", "events", index, field) if operation.batch else ("body", field)
    return Conflict(f"{field} {text}.", code=code, errors=[FieldError(loc, text)])
