"""The stage of a check: a store with a clock that only the check moves, and verbs that keep checks short."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

from ackpost.core.decision import Announcement, Decision, EndpointChange, Verdict
from ackpost.core.matching import matches
from ackpost.core.model import CLASSES, Attempt, Delivery, DeliveryRef, Endpoint, EndpointSecret, Event, Job, Tenant
from ackpost.core.outcome import Outcome
from ackpost.core.policy import effective_policy
from ackpost.errors import RequestError
from ackpost.ports.operations import (
    Accept,
    Accepted,
    AcceptedEvent,
    CreateEndpoint,
    CreateJob,
    CreateTenant,
    EndpointSaved,
    JobSaved,
    JobSelector,
    Mark,
    NewEvent,
    Operation,
    Promote,
    Promoted,
    Record,
    Recorded,
    Repeated,
    Result,
    SetEndpointState,
    StepJob,
    Target,
    TenantSaved,
)
from ackpost.ports.store import DeliveryFilter, EventFilter, Page, Store

R = TypeVar("R", bound=Result)

START_MS = 1_700_000_000_000
LEASE_MS = 20_000
BY_KEY = {"ordering": "by-key"}
HOLD = {"ordering": "by-key", "on_dead": "hold"}


def mark_of(ref: DeliveryRef) -> Mark:
    """What stands in the file of marks while ``ref`` is being sent."""
    return Mark(ref.position, ref.round, ref.number)


class StoreHarness(Protocol):
    """How to get a store of one kind."""

    name: str

    def make(self, *, scan_rows_max: int = 10_000) -> Store:
        """Give a new, empty, unopened store."""

    def reopen(self, store: Store) -> Store:
        """Give another unopened store over the same durable data, as a second process would have it."""

    async def dispose(self, store: Store) -> None:
        """End with a store that may be open, closed or have lost its ownership."""


class World:
    """A store with its default tenant, and the time."""

    def __init__(self, harness: StoreHarness, store: Store) -> None:
        self.harness = harness
        self.store = store
        self.now_ms = START_MS
        self.incarnation = 0
        self.tenant = 0
        self.is_over = False
        self.stores = [store]

    @classmethod
    async def begin(cls, harness: StoreHarness, *, scan_rows_max: int = 10_000) -> World:
        """Open a new store."""
        world = cls(harness, harness.make(scan_rows_max=scan_rows_max))
        world.incarnation = await world.store.open(node="a", now_ms=world.now_ms, lease_ms=LEASE_MS)
        default = await world.store.tenant_by_uid("default")
        assert default is not None, "the first open makes tenant default"
        world.tenant = default.position
        return world

    async def restart(self) -> None:
        """Die without a word and start again."""
        self.store = self.harness.reopen(self.store)
        self.stores.append(self.store)
        self.incarnation = await self.store.open(node="a", now_ms=self.now_ms, lease_ms=LEASE_MS)

    def later(self, ms: int) -> int:
        """Let time pass."""
        self.now_ms += ms
        return self.now_ms

    # ---- writing

    async def answer(self, operation: Operation) -> Result | Repeated | RequestError:
        """Commit one operation and give whatever comes back."""
        (answer,) = await self.store.commit([operation])
        return answer

    async def do(self, operation: Operation, kind: type[R]) -> R:
        """Commit one operation that must succeed."""
        answer = await self.answer(operation)
        assert isinstance(answer, kind), answer
        return answer

    async def refused(self, operation: Operation, status: int, code: str) -> RequestError:
        """Commit one operation that must be refused like this."""
        answer = await self.answer(operation)
        assert isinstance(answer, RequestError), answer
        assert (answer.status, answer.code) == (status, code)
        return answer

    async def new_tenant(self, uid: str) -> Tenant:
        """Make a tenant."""
        made = await self.do(CreateTenant(Tenant(position=0, uid=uid, created_at_ms=self.now_ms)), TenantSaved)
        return made.tenant

    def draft(self, tenant: int | None = None, **fields: Any) -> Endpoint:
        """An endpoint's document before it is stored."""
        fields.setdefault("url", "https://example.com/hook")
        fields.setdefault("secrets", (EndpointSecret("v0:first", self.now_ms),))
        return Endpoint(
            position=0, tenant=self.tenant if tenant is None else tenant, created_at_ms=self.now_ms,
            updated_at_ms=self.now_ms, **fields,
        )  # fmt: skip

    async def endpoint(self, tenant: int | None = None, **fields: Any) -> Endpoint:
        """Make an endpoint."""
        return (await self.do(CreateEndpoint(self.draft(tenant, **fields), 1000), EndpointSaved)).endpoint

    async def set_state(self, endpoint: Endpoint, verb: Any) -> EndpointSaved:
        """Pause, resume, enable, disable."""
        operation = SetEndpointState(endpoint.tenant, endpoint.position, verb, self.now_ms)
        return await self.do(operation, EndpointSaved)

    async def accept_of(self, *events: NewEvent, tenant: int | None = None, batch: bool = False) -> Accept:
        """Route events as a publisher's node does."""
        owner = self.tenant if tenant is None else tenant
        routing = await self.store.routing(owner)
        assert routing is not None
        routed = [
            event if event.targets else msgspec.structs.replace(event, targets=_targets(routing.endpoints, event))
            for event in events
        ]
        return Accept(owner, routing.version, routed, self.now_ms, batch=batch)

    async def publish(self, *events: NewEvent, tenant: int | None = None) -> Accepted:
        """Accept events."""
        return await self.do(await self.accept_of(*events, tenant=tenant, batch=len(events) > 1), Accepted)

    async def one(self, type: str = "order.made", tenant: int | None = None, **fields: Any) -> AcceptedEvent:
        """Accept one event."""
        return (await self.publish(NewEvent(type, b'{"n":1}', **fields), tenant=tenant)).events[0]

    async def record(self, *decisions: Decision) -> Recorded:
        """Store results."""
        return await self.do(Record(list(decisions), self.incarnation, self.now_ms, "a"), Recorded)

    async def deliver(self, ref: DeliveryRef) -> Recorded:
        """Store a success."""
        return await self.record(self.result(ref, "delivered"))

    async def die(self, ref: DeliveryRef, *, hold: bool = False) -> Recorded:
        """Store a last failure."""
        return await self.record(self.result(ref, "dead", reason="permanent_failure", hold=hold))

    def result(self, ref: DeliveryRef, verdict: Verdict, **fields: Any) -> Decision:
        """What an attempt of a row came to: 200 if delivered, else 500."""
        good = verdict == "delivered"
        used = verdict != "again"
        fields.setdefault("outcome", Outcome("delivered", 200) if good else Outcome("status", 500))
        return Decision(
            delivery=ref.position, event=ref.event, tenant=ref.tenant, endpoint=ref.endpoint, round=ref.round,
            number=ref.number + used, verdict=verdict, trigger=ref.trigger, started_at_ms=self.now_ms,
            ended_at_ms=self.now_ms, ordered=ref.ordered, **fields,
        )  # fmt: skip

    def ending(self, ref: DeliveryRef, reason: str, **fields: Any) -> Decision:
        """End a row without an attempt."""
        return Decision(
            delivery=ref.position, event=ref.event, tenant=ref.tenant, endpoint=ref.endpoint, round=ref.round,
            number=ref.number, verdict="dead", reason=reason, ordered=ref.ordered, **fields,
        )  # fmt: skip

    def about(self, ref: DeliveryRef, type: str = "ackpost.delivery.dead") -> Announcement:
        """An announcement about a row's endpoint."""
        return Announcement(type, ref.endpoint, {"n": ref.position})

    def disabling(self, reason: Any) -> EndpointChange:
        """The change that disables an endpoint."""
        return EndpointChange(disable_reason=reason)

    async def job(self, kind: Any, tenant: int | None = None, **selector: Any) -> Job:
        """Make a job."""
        owner = self.tenant if tenant is None else tenant
        params = msgspec.to_builtins(JobSelector(**selector))
        draft = Job(position=0, tenant=owner, kind=kind, params=params, created_at_ms=self.now_ms)
        return (await self.do(CreateJob(draft), JobSaved)).job

    async def run_job(self, job: int | None, rows_max: int = 2) -> Job:
        """Step a job to its end, and see that no step does more than it may."""
        assert job is not None
        for _ in range(1000):
            before = await self.store.job(None, job)
            assert before is not None
            after = (await self.do(StepJob(job, rows_max, self.now_ms), JobSaved)).job
            assert after.done + after.failed - before.done - before.failed <= rows_max
            if after.state not in {"queued", "running"}:
                return after
        raise AssertionError("the job does not end")

    # ---- reading

    async def due(self, endpoint: Endpoint | int) -> list[DeliveryRef]:
        """Everything due-able of an endpoint, by class and due time."""
        position = endpoint if isinstance(endpoint, int) else endpoint.position
        return [
            ref
            for klass in CLASSES
            for ref in await self.store.load_window(position, klass, after=None, limit=10_000)
        ]  # fmt: skip

    async def first_due(self, endpoint: Endpoint | int) -> DeliveryRef:
        """The row to send next."""
        return (await self.due(endpoint))[0]

    async def delivery(self, position: int) -> Delivery:
        """One delivery that must be there."""
        found = await self.store.delivery(self.tenant, position)
        assert found is not None
        return found

    async def event(self, position: int) -> Event:
        """One event that must be there."""
        found = await self.store.event(self.tenant, position)
        assert found is not None
        return found

    async def endpoint_now(self, endpoint: Endpoint | int) -> Endpoint:
        """An endpoint as it is stored now."""
        position = endpoint if isinstance(endpoint, int) else endpoint.position
        found = await self.store.endpoint(None, position)
        assert found is not None
        return found

    async def attempts(self, delivery: int) -> list[Attempt]:
        """Attempts of a delivery, oldest first."""
        page = Page(limit=1000, ascending=True)
        return await self.store.attempts(None, delivery=delivery, endpoint=None, page=page)

    async def all_deliveries(self, tenant: int | None = None, **conditions: Any) -> list[Delivery]:
        """Deliveries of every state, oldest first."""
        page = Page(limit=100_000, ascending=True)
        return (await self.store.deliveries(tenant, DeliveryFilter(**conditions), page))[0]

    async def all_events(self, tenant: int | None = None, **conditions: Any) -> list[Event]:
        """Events, oldest first."""
        return (await self.store.events(tenant, EventFilter(**conditions), Page(limit=100_000, ascending=True)))[0]

    async def routing_version(self, tenant: int | None = None) -> int:
        """A tenant's routing version."""
        routing = await self.store.routing(self.tenant if tenant is None else tenant)
        assert routing is not None
        return routing.version

    async def look(self) -> None:
        """Check what always holds: nobody waits for nothing, counters equal rows."""
        stuck = await self.do(Promote(1000, self.now_ms), Promoted)
        assert not stuck.refs, "rows were waiting that nobody would have woken"
        counted: dict[int, dict[str, int]] = {}
        rows = await self.all_deliveries()
        for row in rows:
            counts = counted.setdefault(row.event, {})
            counts[row.status] = counts.get(row.status, 0) + 1
            assert row.attempt_count == len(await self.attempts(row.position)), row
        for event in await self.all_events():
            assert event.delivery_counts == counted.get(event.position, {}), event
        pending = [row for row in rows if row.status == "pending"]
        waiting = sum(row.waiting for row in pending)
        assert await self.store.pending_counts() == {"due": len(pending) - waiting, "waiting": waiting}


def _targets(endpoints: list[Endpoint], event: NewEvent) -> tuple[Target, ...]:
    return tuple(
        target_of(endpoint)
        for endpoint in endpoints
        if endpoint.state != "disabled"
        and matches(endpoint.event_types, endpoint.channels, event.type, event.channels)
    )  # fmt: skip


def target_of(endpoint: Endpoint) -> Target:
    """An endpoint as an accept names it."""
    return Target(
        endpoint.position, endpoint.rev, endpoint.pin,
        by_key=effective_policy(endpoint.policy).ordering == "by-key",
        paused_since_ms=endpoint.paused_since_ms, paused_total_ms=endpoint.paused_total_ms,
    )  # fmt: skip
