"""What a store knows, as dictionaries, and the few moves that every operation is made of.

Invariant: ``pending`` and ``ordered`` hold exactly the pending rows of ``rows``. Rows and events are inserted by rising
position, so that walking a dictionary is walking the positions.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ackpost.core.ids import ENDPOINT, public_id
from ackpost.core.matching import matches
from ackpost.core.model import (
    FIRST,
    REPLAY,
    ApiKey,
    Attempt,
    Delivery,
    DeliveryRef,
    DeliveryStatus,
    Endpoint,
    EndpointVersion,
    EventPayload,
    Job,
    JobKind,
    Tenant,
    Trigger,
)
from ackpost.core.policy import Policy, effective_policy
from ackpost.ports.cluster import Role
from ackpost.ports.operations import JobSelector, Result

SALT: Final = 0x5EED_0FAC_C057_0001
_BOUND_STEP_MS: Final = 1000


class EventRow(msgspec.Struct, kw_only=True):
    """An event; ``data`` None when expired; ``accepted`` is the number of deliveries its first answer told."""

    position: int
    tenant: int
    type: str
    uid: str | None
    digest: bytes | None
    key: str | None
    sequence: int | None
    channels: tuple[str, ...]
    occurred_at_ms: int
    metadata: bytes | None
    data: bytes | None
    accepted: int

    @property
    def created_at_ms(self) -> int:
        """When it was accepted."""
        return self.position >> 20

    def payload(self) -> EventPayload | None:
        """What is sent of it; None when its data expired."""
        if self.data is None:
            return None
        return EventPayload(self.position, self.type, self.occurred_at_ms, self.data, self.key, self.sequence)


class Row(msgspec.Struct, kw_only=True):
    """A delivery in any state. ``ended_mark`` is the last position given when it ended: jobs made later are higher."""

    position: int
    tenant: int
    event: int
    endpoint: int
    type: str
    key: str | None
    rev: int
    pin: str
    due_ms: int
    age_start_ms: int
    klass: int = FIRST
    round: int = 1
    number: int = 0
    round_attempts: int = 0
    trigger: Trigger = "schedule"
    crashes: int = 0
    ordered: bool = False
    waiting: bool = False
    status: DeliveryStatus = "pending"
    reason: str | None = None
    ended_at_ms: int | None = None
    ended_mark: int = 0
    last_error: str | None = None
    last_status_code: int | None = None

    @property
    def created_at_ms(self) -> int:
        """When it was made."""
        return self.position >> 20

    def shown(self) -> Delivery:
        """The row as read back."""
        return Delivery(
            position=self.position, tenant=self.tenant, event=self.event, endpoint=self.endpoint, type=self.type,
            key=self.key, status=self.status, reason=self.reason, waiting=self.waiting, attempt_count=self.number,
            round=self.round, due_ms=self.due_ms if self.status == "pending" and not self.waiting else None,
            event_created_at_ms=self.event >> 20, created_at_ms=self.created_at_ms,
            ended_at_ms=self.ended_at_ms, last_error=self.last_error, last_status_code=self.last_status_code,
        )  # fmt: skip

    def ref(self, payload: EventPayload | None = None) -> DeliveryRef:
        """The row as its owner keeps it."""
        return DeliveryRef(
            position=self.position, event=self.event, tenant=self.tenant, endpoint=self.endpoint, rev=self.rev,
            klass=self.klass, due_ms=self.due_ms, age_start_ms=self.age_start_ms, pin=self.pin, round=self.round,
            number=self.number, round_attempts=self.round_attempts, trigger=self.trigger, crashes=self.crashes,
            ordered=self.ordered, payload=payload,
        )  # fmt: skip

    def note(self, code: str, status_code: int | None) -> None:
        """Remember how the last attempt went."""
        self.last_error = None if code == "delivered" else code
        self.last_status_code = status_code


class IdempotencyRow(msgspec.Struct):
    """A caller's key with what it was answered."""

    digest: bytes
    result: Result
    stored_ms: int


class KeyRow(msgspec.Struct):
    """The last sequence of a key of a tenant."""

    sequence: int
    used_ms: int


class NodeRow(msgspec.Struct, kw_only=True):
    """A node that shares the state with others; ``expires_ms``: the end of its lease by the database's clock."""

    role: Role
    home: str
    version: str
    incarnation: int
    since_ms: int
    expires_ms: int
    alive: bool = True
    leaving: bool = False


class Change:
    """What one operation did beyond its result: endpoints whose lanes must look again, rows that may be due."""

    __slots__ = ("announced", "due", "now_ms", "touched")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.touched: set[int] = set()
        self.due: set[int] = set()
        self.announced: set[int] = set()

    def refs(self, state: State) -> list[DeliveryRef]:
        """Rows now due-able, by position; announced ones with their payload."""
        rows = [state.rows[position] for position in sorted(self.due | self.announced)]
        return [
            row.ref(state.events[row.event].payload() if row.position in self.announced else None)
            for row in rows
            if row.status == "pending" and not row.waiting
        ]


class State:
    """Everything durable. A store that opens the same state again is the same store after a restart."""

    def __init__(self, salt: int = SALT) -> None:
        self.salt = salt
        self.last = 0
        self.bound = 0
        self.incarnation = 0
        self.committing = 0
        """The incarnation whose commit is being applied."""
        self.nodes: dict[str, NodeRow] = {}
        self.owners: dict[int, str] = {}
        """The node that owns a partition; one that is not here is free."""
        self.lease_node: str | None = None
        self.lease_until_ms = 0
        self.tenants: dict[int, Tenant] = {}
        self.routing_versions: dict[int, int] = {}
        self.api_keys: dict[int, ApiKey] = {}
        self.endpoints: dict[int, Endpoint] = {}
        self.versions: dict[tuple[int, int], EndpointVersion] = {}
        self.events: dict[int, EventRow] = {}
        self.uids: dict[tuple[int, str], int] = {}
        self.keys: dict[tuple[int, str], KeyRow] = {}
        self.rows: dict[int, Row] = {}
        self.rows_of_event: dict[int, list[int]] = {}
        self.pending: dict[int, dict[int, Row]] = {}
        self.ordered: dict[tuple[int, str], dict[int, Row]] = {}
        self.holds: dict[tuple[int, str], dict[int, int]] = {}
        self.attempts: dict[int, list[Attempt]] = {}
        self.jobs: dict[int, Job] = {}
        self.idempotency: dict[tuple[int, str], IdempotencyRow] = {}

    # ---- positions

    def allocate(self, count: int, now_ms: int | None) -> int:
        """Give the first of ``count`` new positions."""
        first = self.last + 1 if now_ms is None else max(self.last + 1, now_ms << 20)
        self.last = first + count - 1
        if self.last > self.bound:
            self.bound = ((self.last >> 20) // _BOUND_STEP_MS + 1) * _BOUND_STEP_MS << 20
        return first

    # ---- tenants and endpoints

    def live_tenant(self, position: int) -> Tenant | None:
        """A tenant that was not deleted."""
        tenant = self.tenants.get(position)
        return None if tenant is None or tenant.deleted else tenant

    def endpoint_of(self, tenant: int, position: int) -> Endpoint | None:
        """An endpoint of this tenant."""
        endpoint = self.endpoints.get(position)
        return endpoint if endpoint is not None and endpoint.tenant == tenant else None

    def policy(self, endpoint: int) -> Policy | None:
        """The effective policy of a live endpoint."""
        found = self.endpoints.get(endpoint)
        return None if found is None else effective_policy(found.policy)

    def raise_rev(self, endpoint: int) -> None:
        """Tell the endpoint's owner that somebody else changed something (rule E2)."""
        found = self.endpoints.get(endpoint)
        if found is not None:
            found.rev += 1

    # ---- rows

    def event_of(self, tenant: int, position: int) -> EventRow | None:
        """An event of this tenant."""
        event = self.events.get(position)
        return event if event is not None and event.tenant == tenant else None

    def row_of(self, tenant: int, position: int) -> Row | None:
        """A delivery of this tenant."""
        row = self.rows.get(position)
        return row if row is not None and row.tenant == tenant else None

    def row_for(self, event: int, endpoint: int) -> Row | None:
        """The delivery of an event to an endpoint."""
        rows = (self.rows[position] for position in self.rows_of_event.get(event, ()))
        return next((row for row in rows if row.endpoint == endpoint), None)

    def add(self, row: Row) -> None:
        """Take in a new pending row; it waits if it is ordered and blocked."""
        self.rows[row.position] = row
        self.rows_of_event.setdefault(row.event, []).append(row.position)
        self._enter(row)

    def add_missing(self, event: EventRow, endpoint: Endpoint, trigger: Trigger, change: Change) -> Row:
        """Make the delivery that an event never had to an endpoint."""
        policy = effective_policy(endpoint.policy)
        row = Row(
            position=self.allocate(1, change.now_ms), tenant=event.tenant, event=event.position,
            endpoint=endpoint.position, type=event.type, key=event.key, rev=endpoint.rev, pin=endpoint.pin,
            due_ms=change.now_ms, age_start_ms=endpoint.clock_ms(change.now_ms), klass=REPLAY, trigger=trigger,
            ordered=policy.ordering == "by-key" and event.key is not None,
        )  # fmt: skip
        self.add(row)
        change.due.add(row.position)
        return row

    def revive(self, row: Row, endpoint: Endpoint, trigger: Trigger, change: Change) -> None:
        """Begin a new round of an ended row."""
        row.status, row.reason, row.ended_at_ms, row.ended_mark = "pending", None, None, 0
        row.round, row.round_attempts, row.crashes, row.klass = row.round + 1, 0, 0, REPLAY
        row.due_ms, row.age_start_ms = change.now_ms, endpoint.clock_ms(change.now_ms)
        row.pin, row.rev, row.trigger = endpoint.pin, endpoint.rev, trigger
        policy = effective_policy(endpoint.policy)
        row.ordered = policy.ordering == "by-key" and policy.on_dead == "hold" and row.key is not None
        self._enter(row)
        change.due.add(row.position)

    def _enter(self, row: Row) -> None:
        self.pending.setdefault(row.endpoint, {})[row.position] = row
        if row.ordered and row.key is not None:
            self.ordered.setdefault((row.endpoint, row.key), {})[row.position] = row
            row.waiting = self.is_blocked(row)

    def end(
        self,
        row: Row,
        status: DeliveryStatus,
        reason: str | None,
        change: Change,
        *,
        hold: bool = False,
        at_ms: int = 0,
    ) -> None:
        """End a row, pending or dead, at ``at_ms`` (0: now); the next of its key may go."""
        was_ordered = row.ordered
        if row.status == "pending":
            self.pending[row.endpoint].pop(row.position)
            self.leave_order(row)
        row.status, row.reason, row.ended_at_ms, row.ended_mark = status, reason, at_ms or change.now_ms, self.last
        row.waiting = row.ordered = False
        if row.key is None:
            return
        if status == "dead" and hold and was_ordered:
            self.holds.setdefault((row.endpoint, row.key), {})[row.position] = row.event
        released = status != "dead" and self.release(row)
        if was_ordered or released:
            self.promote(row.endpoint, row.key, change)

    def end_dead(self, row: Row, reason: str, change: Change) -> None:
        """End a row as the store's own doing: it holds its key if the policy says so."""
        policy = self.policy(row.endpoint)
        hold = policy is not None and policy.ordering == "by-key" and policy.on_dead == "hold"
        self.end(row, "dead", reason, change, hold=hold)

    # ---- order by key (rule E4)

    def is_blocked(self, row: Row) -> bool:
        """Whether a pending or held one of its key comes before this row."""
        if row.key is None:
            return False
        key = (row.endpoint, row.key)
        before = any(other.event < row.event for other in self.ordered.get(key, {}).values())
        return before or any(event < row.event for event in self.holds.get(key, {}).values())

    def leave_order(self, row: Row) -> None:
        """Let nobody wait for this row any more."""
        if row.ordered and row.key is not None:
            group = self.ordered[row.endpoint, row.key]
            group.pop(row.position)
            if not group:
                del self.ordered[row.endpoint, row.key]

    def release(self, row: Row) -> bool:
        """Remove the hold that this row has on its key; say whether there was one."""
        held = {} if row.key is None else self.holds.get((row.endpoint, row.key), {})
        if row.key is None or held.pop(row.position, None) is None:
            return False
        if not held:
            del self.holds[row.endpoint, row.key]
        return True

    def promote(self, endpoint: int, key: str, change: Change) -> bool:
        """Let the first waiting row of a key go, unless it is blocked."""
        waiting = [row for row in self.ordered.get((endpoint, key), {}).values() if row.waiting]
        first = min(waiting, key=lambda row: row.event, default=None)
        if first is None or self.is_blocked(first):
            return False
        self.let_go(first, change)
        return True

    def let_go(self, row: Row, change: Change) -> None:
        """End a row's waiting: it is first due now."""
        endpoint = self.endpoints.get(row.endpoint)
        row.waiting, row.due_ms = False, change.now_ms
        row.age_start_ms = change.now_ms if endpoint is None else endpoint.clock_ms(change.now_ms)
        change.due.add(row.position)

    def drop_holds(self, endpoint: int, change: Change) -> int:
        """Remove all holds on an endpoint's keys; say how many keys."""
        keys = [key for key in self.holds if key[0] == endpoint]
        for key in keys:
            del self.holds[key]
            self.promote(endpoint, key[1], change)
        return len(keys)

    # ---- jobs and announcements

    def start_job(self, tenant: int, kind: JobKind, selector: JobSelector, now_ms: int) -> int:
        """Make one of the store's own jobs."""
        position = self.allocate(1, now_ms)
        self.jobs[position] = Job(
            position=position, tenant=tenant, kind=kind, params=msgspec.to_builtins(selector), created_at_ms=now_ms
        )
        return position

    def cancel_jobs(self, endpoint: int, kinds: tuple[JobKind, ...], now_ms: int) -> None:
        """Cancel an endpoint's open jobs of these kinds."""
        for job in self.jobs.values():
            if job.kind in kinds and job.state in {"queued", "running"} and job.params.get("endpoint") == endpoint:
                job.state, job.finished_at_ms = "cancelled", now_ms

    def announce(self, tenant: int, type: str, about: int, data: dict[str, object], change: Change) -> None:
        """Make an operational event with its deliveries, if anybody takes it."""
        targets = [
            endpoint
            for position, endpoint in sorted(self.endpoints.items())
            if endpoint.tenant == tenant and endpoint.state != "disabled" and position != about
            and matches(endpoint.event_types, endpoint.channels, type, ())
        ]  # fmt: skip
        if not targets:
            return
        now_ms = change.now_ms
        first = self.allocate(1 + len(targets), now_ms)
        self.events[first] = EventRow(
            position=first, tenant=tenant, type=type, uid=None, digest=None, key=None, sequence=None, channels=(),
            occurred_at_ms=first >> 20, metadata=None, data=msgspec.json.encode(data),
            accepted=len(targets),
        )  # fmt: skip
        for position, endpoint in enumerate(targets, first + 1):
            row = Row(
                position=position, tenant=tenant, event=first, endpoint=endpoint.position, type=type, key=None,
                rev=endpoint.rev, pin=endpoint.pin, due_ms=now_ms, age_start_ms=endpoint.clock_ms(now_ms),
            )  # fmt: skip
            self.add(row)
            change.announced.add(position)
            change.touched.add(endpoint.position)

    def announce_dead(self, tenant: int, endpoint: int, reason: str, count: int, change: Change) -> None:
        """Tell of what the store ended itself: one event with a count."""
        data = {"endpoint_id": public_id(ENDPOINT, endpoint, self.salt), "reason": reason, "count": count}
        self.announce(tenant, "ackpost.delivery.dead", endpoint, data, change)
