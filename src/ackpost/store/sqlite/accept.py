"""Accepting events, set-wise: a run of ``Accept`` operations becomes a handful of statements (rules E4, E6, E10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ackpost.core.model import FIRST, DeliveryRef, EventPayload
from ackpost.errors import Conflict, FieldError, NotFound, RequestError
from ackpost.ports.operations import Accept, Accepted, AcceptedEvent, NewEvent, Repeated, Result, Stale, Target
from ackpost.store.sqlite.answers import Answers
from ackpost.store.sqlite.ledger import Insert, Ledger
from ackpost.store.sqlite.rows import TRIGGER_CODES, insert_new

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


class _Staged:
    """What one operation would store; nothing of it counts before the whole operation is found good."""

    __slots__ = ("busy", "deliveries", "events", "keys", "refs", "uids")

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.deliveries: list[Any] = []
        self.refs: list[DeliveryRef] = []
        self.keys: dict[tuple[int, str], _Key] = {}
        self.uids: dict[tuple[int, str], tuple[bytes | None, AcceptedEvent]] = {}
        self.busy: set[tuple[int, int]] = set()


class _Run:
    """State shared by the operations of a run: what the database knew before, what the run adds."""

    def __init__(self, ledger: Ledger, operations: Sequence[Accept]) -> None:
        self._ledger = ledger
        self._answers = Answers(ledger, [operation.idempotency for operation in operations])
        self._uids = self._load_uids(operations)
        self._keys = self._load_keys(operations)
        self._busy = self._load_busy(operations) if self._keys else set[tuple[int, int]]()
        self._events: list[Any] = []
        self._deliveries: list[Any] = []
        self._new_uids: list[Any] = []
        self._changed_keys: dict[tuple[int, str], _Key] = {}

    def _load_uids(
        self, operations: Sequence[Accept]
    ) -> dict[tuple[int, str], tuple[bytes | None, AcceptedEvent]]:
        wanted = [(one.tenant, event.uid) for one in operations for event in one.events if event.uid is not None]
        if not wanted:
            return {}
        return {
            (tenant, uid): (digest, AcceptedEvent(position, fanout, sequence, duplicate=True))
            for tenant, uid, digest, position, fanout, sequence in self._ledger.execute(
                _SELECT_UIDS, (_encode(wanted).decode(),)
            )
        }

    def _load_keys(self, operations: Sequence[Accept]) -> dict[tuple[int, str], _Key]:
        wanted = {(one.tenant, event.key) for one in operations for event in one.events if event.key is not None}
        if not wanted:
            return {}
        return {
            (tenant, key): _Key(*state)
            for tenant, key, *state in self._ledger.execute(_SELECT_KEYS, (_encode(wanted).decode(),))
        }

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
        """Judge one operation and stage it.

        Raises: RequestError, and then nothing of the operation is staged.
        """
        repeated = self._answers.repeated(operation.idempotency)
        if repeated is not None:
            return repeated
        version = self._ledger.routing_version(operation.tenant)
        if version is None:
            raise NotFound("There is no such tenant.", code="unknown_tenant")
        if version != operation.routing_version:
            return Stale()
        ledger, staged = self._ledger, _Staged()
        originals = self._find_originals(operation)
        first = position = max(ledger.last_position + 1, operation.now_ms << 20)
        answers: list[AcceptedEvent] = []
        for index, event in enumerate(operation.events):
            known = None if originals is None else originals[index]
            if known is None:
                answer = self._stage(operation, staged, event, index, position)
                position += 1 + len(event.targets)
            elif isinstance(known, int):
                repeated = answers[known]
                answer = AcceptedEvent(repeated.position, repeated.deliveries, repeated.sequence, duplicate=True)
            else:
                answer = known
            answers.append(answer)
        if position > first:
            ledger.allocate(position - first, operation.now_ms)
        self._keep(staged)
        accepted = Accepted(answers, staged.refs)
        self._answers.remember(operation.idempotency, accepted)
        return accepted

    def _find_originals(self, operation: Accept) -> list[AcceptedEvent | int | None] | None:
        """Give for each event the stored one it repeats, or its index in this batch; None where it is new.

        All uids are looked at before any sequence: a repeated publish is a duplicate, not out of sequence (rule E4).
        """
        if all(event.uid is None for event in operation.events):
            return None
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

    def _stage(
        self, operation: Accept, staged: _Staged, event: NewEvent, index: int, position: int
    ) -> AcceptedEvent:
        tenant, now_ms, targets = operation.tenant, operation.now_ms, event.targets
        key_id = sequence = None
        if event.key is not None:
            state = self._number(operation, staged, event, index, position)
            key_id, sequence = state.id, state.last_sequence
        staged.events += (
            position, tenant, event.type, len(targets), key_id, sequence, event.occurred_at_ms, event.uid,
            _encode(event.channels).decode() if event.channels else None, event.metadata, event.data,
        )  # fmt: skip
        if targets:
            occurred_at_ms = now_ms if event.occurred_at_ms is None else event.occurred_at_ms
            payload = EventPayload(position, event.type, occurred_at_ms, event.data, event.key, sequence)
            trigger = TRIGGER_CODES[event.trigger]
            for offset, target in enumerate(targets, start=1):
                self._deliver(staged, target, payload, offset, (tenant, now_ms, trigger, event.trigger, key_id))
        if event.uid is not None:
            duplicate = AcceptedEvent(position, len(targets), sequence, duplicate=True)
            staged.uids[tenant, event.uid] = event.digest, duplicate
        return AcceptedEvent(position, len(targets), sequence)

    def _number(self, operation: Accept, staged: _Staged, event: NewEvent, index: int, position: int) -> _Key:
        name = (operation.tenant, event.key or "")
        before = staged.keys.get(name) or self._keys.get(name)
        last = 0 if before is None else before.last_sequence
        sequence = last + 1 if event.sequence is None else event.sequence
        if sequence <= last:
            text = f"must be above {last}, the last one of this key"
            raise _conflict(operation, index, "sequence", text, "sequence_not_rising")
        state = _Key(position if before is None else before.id, sequence, position)
        staged.keys[name] = state
        return state

    def _deliver(
        self, staged: _Staged, target: Target, payload: EventPayload, offset: int,
        shared: tuple[int, int, int, Any, int | None],
    ) -> None:  # fmt: skip
        tenant, now_ms, trigger, trigger_name, key_id = shared
        waiting, ordered = 0, False
        if target.by_key and key_id is not None and trigger_name != "test":
            ordered = True
            pair = (target.endpoint, key_id)
            waiting = int(pair in self._busy or pair in staged.busy)
            staged.busy.add(pair)
        event = payload.position
        age_start_ms = (
            now_ms if target.paused_since_ms is None else target.paused_since_ms
        ) - target.paused_total_ms
        staged.deliveries += (
            event + offset, offset, tenant, target.endpoint, target.rev, now_ms, age_start_ms, target.pin, trigger,
            key_id if ordered else None, waiting,
        )  # fmt: skip
        if not waiting:
            staged.refs.append(
                DeliveryRef(
                    event + offset, event, tenant, target.endpoint, target.rev, FIRST, now_ms, age_start_ms,
                    target.pin, 1, 0, 0, trigger_name, 0, ordered, payload,
                )
            )  # fmt: skip

    def _keep(self, staged: _Staged) -> None:
        self._events += staged.events
        self._deliveries += staged.deliveries
        if staged.keys:
            self._busy |= staged.busy
            self._keys.update(staged.keys)
            self._changed_keys.update(staged.keys)
        for (tenant, uid), (digest, answer) in staged.uids.items():
            self._new_uids += (tenant, uid, answer.position, digest)
            self._uids[tenant, uid] = digest, answer

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
