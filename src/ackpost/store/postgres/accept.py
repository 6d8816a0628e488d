"""Accepting events, set-wise: a run of ``Accept`` operations becomes a handful of statements (rules E4, E6, E10).

Two runs at once. Keys are numbered under the lock of their rows. A new uid, a new key or an Idempotency-Key that
another transaction inserts meanwhile makes this one wait at the unique key and fail; ``commit`` then does the whole
group anew, and finds what the other one left.

Routing (rule E10). The versions are read plainly, in a statement of this transaction: whatever change was answered
before one of these requests came is seen. They are looked at once more by the statement that inserts, which sees all
that was committed before this transaction got its fence. A change that commits after that was not answered when the
request came, so the accept may stand before it; its deliveries then carry the rev of before, and whoever has to find
all of them waits for the fence first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ackpost.core.ids import partition_of
from ackpost.core.limits import SEQUENCE_MAX
from ackpost.core.model import FIRST, DeliveryRef, EventPayload
from ackpost.errors import Conflict, FieldError, NotFound, RequestError
from ackpost.ports.operations import Accept, Accepted, AcceptedEvent, NewEvent, Repeated, Result, Stale
from ackpost.store.postgres import outbox
from ackpost.store.postgres.answers import Answers
from ackpost.store.postgres.days import ensure_day
from ackpost.store.postgres.faults import Rerouted
from ackpost.store.postgres.ledger import DAY_MS, Insert, Ledger, insert_sql
from ackpost.store.postgres.rows import NEW_TYPED
from ackpost.store.values import TRIGGER_CODES

_encode = msgspec.json.Encoder().encode

_EVENT_TYPED: Final = (
    "position bigint, day integer, tenant bigint, type text, fanout integer, key_id bigint, sequence bigint,"
    " occurred_at_ms bigint, uid text, channels text, metadata bytea, data bytea"
)
_EVENT_WIDTH: Final = _EVENT_TYPED.count(",") + 1
_DELIVERY_WIDTH: Final = NEW_TYPED.count(",") + 1
_VERSIONS = _EVENT_WIDTH + _DELIVERY_WIDTH
_IS_ROUTED: Final = f"""
WHERE (SELECT count(*) FROM tenant t
    JOIN unnest(${_VERSIONS + 1}::bigint[], ${_VERSIONS + 2}::bigint[]) v (tenant, version) ON v.tenant = t.position
    WHERE NOT t.deleted AND t.routing_version = v.version) = cardinality(${_VERSIONS + 1})
"""  # noqa: S608 - constants only
INSERT_EVENTS: Final = (
    f"WITH d AS ({insert_sql('delivery', NEW_TYPED, _IS_ROUTED, first=_EVENT_WIDTH + 1)})"
    f" {insert_sql('event', _EVENT_TYPED, _IS_ROUTED)}"
)
"""Writes nothing when a routing version has changed."""
_insert_uid = Insert("event_uid", "tenant bigint, uid text, event bigint, digest bytea")
_upsert_key = Insert(
    "key_state",
    "tenant bigint, key text, id bigint, last_sequence bigint, last_event bigint",
    "ON CONFLICT (id, tenant) DO UPDATE SET last_sequence = excluded.last_sequence, last_event = excluded.last_event",
)

SELECT_UIDS: Final = (
    "SELECT u.tenant, u.uid, u.digest, e.position, e.fanout, e.sequence"  # noqa: S608 - constants only
    " FROM unnest($1::bigint[], $2::text[]) j (tenant, uid)"
    " JOIN event_uid u ON u.tenant = j.tenant AND u.uid = j.uid"
    f" JOIN event e ON e.position = u.event AND (e.day = -1 OR e.day = (u.event >> 20) / {DAY_MS})"
)
LOCK_NAMED_KEYS: Final = (
    "SELECT k.tenant, k.key, k.id, k.last_sequence, k.last_event"
    " FROM unnest($1::bigint[], $2::text[]) j (tenant, key)"
    " JOIN key_state k ON k.tenant = j.tenant AND k.key = j.key ORDER BY k.id FOR NO KEY UPDATE OF k"
)
# Not EXISTS: PostgreSQL may turn that, beside OR, into a table of all there is.
SELECT_BUSY: Final = (
    "SELECT j.endpoint, j.key_id FROM unnest($1::bigint[], $2::bigint[]) j (endpoint, key_id)"
    " WHERE (SELECT 1 FROM delivery d WHERE d.endpoint = j.endpoint AND d.key_id = j.key_id LIMIT 1) IS NOT NULL"
    " OR (SELECT 1 FROM key_hold h WHERE h.endpoint = j.endpoint AND h.key_id = j.key_id LIMIT 1) IS NOT NULL"
)


class _Key(msgspec.Struct, gc=False):
    """A key's numbering: ``id`` is the position of its first event."""

    id: int
    last_sequence: int
    last_event: int


def keys_of(operations: Iterable[Accept]) -> set[tuple[int, str]]:
    """Give the keys, with their tenants, of what is to be accepted."""
    return {(one.tenant, event.key) for one in operations for event in one.events if event.key is not None}


async def lock_named_keys(ledger: Ledger, keys: set[tuple[int, str]]) -> dict[tuple[int, str], _Key]:
    """Lock the known ones of these keys until the commit, in the order that all use, and give their numbering."""
    if not keys:
        return {}
    rows = await ledger.all(LOCK_NAMED_KEYS, *zip(*keys, strict=True))
    return {(tenant, key): _Key(*state) for tenant, key, *state in rows}


class _Run:
    """State shared by the operations of a run: what the database knew before, what the run adds."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._answers = Answers()
        self._uids: dict[tuple[int, str], tuple[bytes | None, AcceptedEvent]] = {}
        self._keys: dict[tuple[int, str], _Key] = {}
        self._busy: set[tuple[int, int]] = set()
        self._has_uids = self._has_keys = False
        self._events: list[tuple[Any, ...]] = []
        self._deliveries: list[tuple[Any, ...]] = []
        self._new_uids: list[tuple[Any, ...]] = []
        self._changed_keys: dict[tuple[int, str], _Key] = {}
        self._moved: list[int] = []
        self._versions: dict[int, int] = {}

    async def load(self, operations: Sequence[Accept]) -> None:
        """Read what the checks need; the keys first locked, then what is pending of them looked at (rule E4)."""
        ledger = self._ledger
        await self._answers.load(ledger, [operation.idempotency for operation in operations])
        uids = {(one.tenant, event.uid) for one in operations for event in one.events if event.uid is not None}
        keys = keys_of(operations)
        self._has_uids, self._has_keys = bool(uids), bool(keys)
        if uids:
            rows = await ledger.all(SELECT_UIDS, *zip(*uids, strict=True))
            self._uids = {
                (tenant, uid): (digest, AcceptedEvent(position, fanout, sequence, duplicate=True))
                for tenant, uid, digest, position, fanout, sequence in rows
            }
        self._keys = await lock_named_keys(ledger, keys)
        if self._keys:
            self._busy = await self._load_busy(operations)
        await ledger.load_versions(operation.tenant for operation in operations)

    async def _load_busy(self, operations: Sequence[Accept]) -> set[tuple[int, int]]:
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
        return {(row[0], row[1]) for row in await self._ledger.all(SELECT_BUSY, *zip(*wanted, strict=True))}

    def take(self, operation: Accept) -> Result | Repeated:
        """Check one operation whole, then stage it.

        Raises: RequestError, and then nothing of the operation is staged.
        """
        if operation.idempotency is not None:
            repeated = self._answers.repeated(operation.idempotency)
            if repeated is not None:
                return repeated
        version = self._ledger.versions[operation.tenant]
        if version is None:
            raise NotFound("The tenant does not exist any more.", code="unknown_tenant")
        if version != operation.routing_version:
            return Stale()
        self._versions[operation.tenant] = version
        originals = self._find_originals(operation) if self._has_uids else None
        sequences = self._check_sequences(operation, originals) if self._has_keys else None
        accepted = self._stage_all(operation, originals, sequences)
        self._moved += operation.outbox
        if operation.idempotency is not None:
            self._answers.remember(operation.idempotency, accepted)
        return accepted

    def _stage_all(
        self, operation: Accept, originals: list[AcceptedEvent | int | None] | None, sequences: list[int | None] | None
    ) -> Accepted:
        events = operation.events
        count = sum(
            1 + len(event.targets)
            for index, event in enumerate(events)
            if originals is None or originals[index] is None
        )  # fmt: skip
        if sequences is not None:
            self._rise_above(operation)
        position = self._ledger.allocate(count, operation.now_ms) if count else 0
        answers: list[AcceptedEvent] = []
        refs: list[DeliveryRef] = []
        for index, event in enumerate(events):
            original = None if originals is None else originals[index]
            if original is None:
                sequence = None if sequences is None else sequences[index]
                self._stage(event, (position, operation.tenant, operation.now_ms, sequence), refs)
                answers.append(AcceptedEvent(position, len(event.targets), sequence))
                position += 1 + len(event.targets)
            elif isinstance(original, int):
                one = answers[original]
                answers.append(AcceptedEvent(one.position, one.deliveries, one.sequence, duplicate=True))
            else:
                answers.append(original)
        return Accepted(answers, refs)

    def _rise_above(self, operation: Accept) -> None:
        """Let the positions lie above the last event of each key, which another node with a faster clock accepted.

        The order of a key is that of its events' positions; its lock makes it that of the sequences, too.
        """
        ledger = self._ledger
        for event in operation.events:
            state = None if event.key is None else self._keys.get((operation.tenant, event.key))
            if state is not None and state.last_event > ledger.last_position:
                ledger.last_position = state.last_event

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
        self._events.append((
            position, self._ledger.day_of(position), tenant, event.type, len(targets), key_id, sequence,
            event.occurred_at_ms, event.uid, _encode(event.channels).decode() if event.channels else None,
            event.metadata, event.data,
        ))  # fmt: skip
        if event.uid is not None:
            self._new_uids.append((tenant, event.uid, position, event.digest))
            duplicate = AcceptedEvent(position, len(targets), sequence, duplicate=True)
            self._uids[tenant, event.uid] = event.digest, duplicate
        if not targets:
            return
        occurred_at_ms = position >> 20 if event.occurred_at_ms is None else event.occurred_at_ms
        payload = EventPayload(position, event.type, occurred_at_ms, event.data, event.key, sequence)
        trigger, trigger_code = event.trigger, TRIGGER_CODES[event.trigger]
        ordered_key = None if trigger == "test" else key_id
        for offset, target in enumerate(targets, start=1):
            pin, endpoint, rev = target.pin, target.endpoint, target.rev
            start_ms = now_ms if target.paused_since_ms is None else target.paused_since_ms
            start_ms -= target.paused_total_ms
            ordered = target.by_key and ordered_key is not None
            waiting = ordered_key is not None and ordered and self._queue(endpoint, ordered_key)
            self._deliveries.append((
                position + offset, offset, tenant, endpoint, rev, now_ms, start_ms, pin, trigger_code,
                ordered_key if ordered else None, 1 if waiting else 0, partition_of(endpoint),
            ))  # fmt: skip
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

    async def flush(self) -> None:
        """Write what was staged: events with their deliveries, then what is unique, each in order (rule E4)."""
        ledger = self._ledger
        if self._events:
            await ensure_day(ledger, self._events[0][1])
            await ensure_day(ledger, self._events[-1][1])
            events = zip(*self._events, strict=True)
            deliveries = zip(*self._deliveries, strict=True) if self._deliveries else [()] * _DELIVERY_WIDTH
            versions = zip(*sorted(self._versions.items()), strict=True)
            if await ledger.execute(INSERT_EVENTS, *events, *deliveries, *versions) != len(self._events):
                raise Rerouted
        await self._answers.flush(ledger)
        await _insert_uid.rows(ledger, sorted(self._new_uids))
        await _upsert_key.rows(ledger, [
            (tenant, key, one.id, one.last_sequence, one.last_event)
            for (tenant, key), one in sorted(self._changed_keys.items())
        ])  # fmt: skip
        if self._moved:
            # Some may be gone: another node, or a relay, published them; then these events were found as duplicates.
            await ledger.execute(outbox.remove_sql(ledger.outbox_table), self._moved)


async def accept(ledger: Ledger, operations: Sequence[Accept]) -> list[Result | Repeated | RequestError]:
    """Store the events of a run of operations; each is stored whole or refused whole."""
    run = _Run(ledger)
    await run.load(operations)
    results: list[Result | Repeated | RequestError] = []
    for operation in operations:
        try:
            results.append(run.take(operation))
        except RequestError as refusal:
            results.append(refusal)
    await run.flush()
    return results


def _conflict(operation: Accept, index: int, field: str, text: str, code: str) -> Conflict:
    loc = ("body", "events", index, field) if operation.batch else ("body", field)
    return Conflict(f"{field} {text}.", code=code, errors=[FieldError(loc, text)])
