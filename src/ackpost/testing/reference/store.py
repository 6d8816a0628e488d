"""The store itself: ownership, the commit, and the port's reads over ``State``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ackpost.core.model import (
    CLASSES,
    ApiKey,
    Attempt,
    Delivery,
    DeliveryRef,
    Endpoint,
    EndpointVersion,
    Event,
    EventPayload,
    Job,
    Tenant,
)
from ackpost.errors import RequestError, StoreError, StoreLocked
from ackpost.ports import operations as ops
from ackpost.ports.operations import Idempotency, JobSelector, Operation, Repeated, Result
from ackpost.ports.store import DeliveryFilter, EndpointHealth, EventFilter, Page, Routing, StatsBy, Work
from ackpost.testing.reference import accept, deliveries, endpoints, jobs, reads, record, retention
from ackpost.testing.reference.state import EventRow, Row, State

Owned = TypeVar("Owned", Endpoint, EventRow, Row, Attempt, Job)
Listed = TypeVar("Listed", Tenant, ApiKey, Endpoint, Job)

_APPLY: Final[dict[type[Operation], Callable[[State, Any], Result]]] = {
    ops.Accept: accept.accept,
    ops.Record: record.record,
    ops.Interrupt: record.interrupt,
    ops.CreateTenant: endpoints.create_tenant,
    ops.ReplaceTenant: endpoints.replace_tenant,
    ops.DeleteTenant: endpoints.delete_tenant,
    ops.CreateApiKey: endpoints.create_api_key,
    ops.DeleteApiKey: endpoints.delete_api_key,
    ops.TouchApiKeys: endpoints.touch_api_keys,
    ops.CreateEndpoint: endpoints.create_endpoint,
    ops.ReplaceEndpoint: endpoints.replace_endpoint,
    ops.DeleteEndpoint: endpoints.delete_endpoint,
    ops.SetEndpointState: endpoints.set_endpoint_state,
    ops.RotateSecret: endpoints.rotate_secret,
    ops.Redeliver: deliveries.redeliver,
    ops.Cancel: deliveries.cancel,
    ops.ExpireData: deliveries.expire_data,
    ops.Promote: deliveries.promote,
    ops.CreateJob: jobs.create_job,
    ops.CancelJob: jobs.cancel_job,
    ops.StepJob: jobs.step_job,
    ops.Retain: retention.retain,
}


class ReferenceStore:
    """A complete store over a ``State`` in memory.

    ``durable`` is what survives: open another store over it and the first one has crashed or lost its lease. Nothing
    given or taken is shared with a caller. Implements ``ackpost.ports.store.Store``.
    """

    def __init__(self, durable: State | None = None, *, scan_rows_max: int = 10_000) -> None:
        self.durable = State() if durable is None else durable
        self.salt = self.durable.salt
        self.round_trips = 0
        self._scan_rows_max = scan_rows_max
        self._incarnation: int | None = None

    @property
    def _state(self) -> State:
        if self._incarnation is None:
            raise StoreError("The store is not open.")
        return self.durable

    # ---- ownership

    async def open(self, *, node: str, now_ms: int, lease_ms: int) -> int:
        """Take ownership."""
        state = self.durable
        if state.lease_node not in {None, node} and state.lease_until_ms > now_ms:
            raise StoreLocked(f"The store is owned by node {state.lease_node}.")
        is_first = state.incarnation == 0
        state.lease_node, state.lease_until_ms = node, now_ms + lease_ms
        state.incarnation += 1
        state.last = state.bound
        self._incarnation = state.incarnation
        if is_first:
            position = state.allocate(1, now_ms)
            state.tenants[position] = Tenant(position=position, uid="default", created_at_ms=now_ms)
            state.routing_versions[position] = 1
        return state.incarnation

    async def close(self) -> None:
        """Give ownership up."""
        if self._incarnation == self.durable.incarnation:
            self.durable.lease_node = None
            self.durable.bound = self.durable.last
        self._incarnation = None

    # ---- commit

    async def commit(self, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        """Apply in order. Every operation checks all before it changes anything."""
        self.round_trips += 1
        state = self._state
        owned = self._incarnation == state.incarnation
        renewals = [op for op in operations if isinstance(op, ops.RenewLease)]
        if not owned or any(op.incarnation != state.incarnation or op.node != state.lease_node for op in renewals):
            raise StoreLocked("Another node owns the store now.")
        state.committing = state.incarnation
        return self._apply_all(state, operations)

    def _apply_all(
        self, state: State, operations: Sequence[Operation]
    ) -> list[Result | Repeated | RequestError]:
        return [self._apply(state, op) for op in operations]

    def _apply(self, state: State, op: Operation) -> Result | Repeated | RequestError:
        asked: Idempotency | None = getattr(op, "idempotency", None)
        try:
            if asked is not None:
                repeated = accept.recall(state, asked)
                if repeated is not None:
                    return repeated
            result = self._renew(state, op) if isinstance(op, ops.RenewLease) else _APPLY[type(op)](state, op)
        except RequestError as refusal:
            return refusal
        if asked is not None:
            accept.remember(state, asked, result)
        return result

    def _renew(self, state: State, op: ops.RenewLease) -> ops.Done:
        state.lease_until_ms = op.now_ms + op.lease_ms
        return ops.Done()

    # ---- engine

    async def scan_work(self, *, after_endpoint: int, limit: int) -> list[Work]:
        """Endpoints with due-able rows."""
        found: list[Work] = []
        endpoints_found = 0
        for endpoint, rows in sorted(self._state.pending.items()):
            dueable = [row for row in rows.values() if not row.waiting]
            if endpoint <= after_endpoint or not dueable or endpoints_found == limit:
                continue
            endpoints_found += 1
            for klass in CLASSES:
                dues = [row.due_ms for row in dueable if row.klass == klass]
                if dues:
                    found.append(Work(endpoint, dueable[0].tenant, klass, min(dues)))
        return found

    async def load_window(
        self, endpoint: int, klass: int, *, after: tuple[int, int] | None, limit: int
    ) -> list[DeliveryRef]:
        """Rows by (due, position)."""
        rows = self._state.pending.get(endpoint, {}).values()
        due = [row for row in rows if row.klass == klass and not row.waiting]
        due = [row for row in due if after is None or (row.due_ms, row.position) > after]
        return [row.ref() for row in sorted(due, key=lambda row: (row.due_ms, row.position))[:limit]]

    async def load_payloads(self, events: Sequence[int]) -> dict[int, EventPayload]:
        """Payloads of events that still have their data."""
        found = {position: self._state.events[position] for position in events if position in self._state.events}
        payloads = {position: event.payload() for position, event in found.items()}
        return {position: payload for position, payload in payloads.items() if payload is not None}

    async def load_endpoints(self, endpoints: Sequence[int]) -> dict[int, Endpoint]:
        """Live endpoints."""
        known = self._state.endpoints
        return {position: copy.deepcopy(known[position]) for position in endpoints if position in known}

    async def endpoint_revs(self, endpoints: Sequence[int]) -> dict[int, int]:
        """Revs of live endpoints."""
        known = self._state.endpoints
        return {position: known[position].rev for position in endpoints if position in known}

    async def open_jobs(self, limit: int) -> list[Job]:
        """Jobs to step."""
        jobs_open = [job for _, job in sorted(self._state.jobs.items()) if job.state in {"queued", "running"}]
        return copy.deepcopy(jobs_open[:limit])

    async def newest_event_ms(self) -> int | None:
        """The newest accept."""
        return max((event.created_at_ms for event in self._state.events.values()), default=None)

    async def pending_counts(self) -> dict[str, int]:
        """Pending rows in all."""
        rows = [row for group in self._state.pending.values() for row in group.values()]
        waiting = sum(row.waiting for row in rows)
        return {"due": len(rows) - waiting, "waiting": waiting}

    async def due_counts(self, endpoints: Sequence[int], *, rows_max: int) -> dict[int, int]:
        """Pending rows that do not wait, by endpoint."""
        pending = self._state.pending
        counts = {one: sum(not row.waiting for row in pending.get(one, {}).values()) for one in endpoints}
        return {endpoint: min(rows_max, count) for endpoint, count in counts.items()}

    async def oldest_due_ms(self) -> int | None:
        """The earliest due time."""
        rows = [row for group in self._state.pending.values() for row in group.values()]
        return min((row.due_ms for row in rows if not row.waiting), default=None)

    # ---- tenants and keys

    async def routing(self, tenant: int) -> Routing | None:
        """A tenant with its endpoints."""
        found = self._state.live_tenant(tenant)
        if found is None:
            return None
        owned = [endpoint for _, endpoint in sorted(self._state.endpoints.items()) if endpoint.tenant == tenant]
        return Routing(copy.deepcopy(found), self._state.routing_versions[tenant], copy.deepcopy(owned))

    async def tenant_by_uid(self, uid: str) -> Tenant | None:
        """A live tenant by uid."""
        found = (tenant for tenant in self._state.tenants.values() if tenant.uid == uid and not tenant.deleted)
        return copy.deepcopy(next(found, None))

    async def tenant(self, position: int) -> Tenant | None:
        """A live tenant."""
        return copy.deepcopy(self._state.live_tenant(position))

    async def tenants(self, page: Page) -> list[Tenant]:
        """Live tenants."""
        live = [tenant for tenant in self._state.tenants.values() if not tenant.deleted]
        return copy.deepcopy(_listed(live, page))

    async def api_key_by_digest(self, digest: bytes) -> ApiKey | None:
        """A key that was not revoked."""
        return copy.copy(next((key for key in self._state.api_keys.values() if key.digest == digest), None))

    async def api_keys(self, tenant: int | None, page: Page) -> list[ApiKey]:
        """Keys of a tenant."""
        keys = [key for key in self._state.api_keys.values() if reads.of_tenant(tenant, key.tenant)]
        return copy.deepcopy(_listed(keys, page))

    # ---- endpoints

    async def endpoint(self, tenant: int | None, position: int) -> Endpoint | None:
        """One endpoint."""
        return copy.deepcopy(_seen(self._state.endpoints.get(position), tenant))

    async def endpoint_by_uid(self, tenant: int, uid: str) -> Endpoint | None:
        """One endpoint by uid."""
        owned = [endpoint for endpoint in self._state.endpoints.values() if endpoint.tenant == tenant]
        return copy.deepcopy(next((endpoint for endpoint in owned if endpoint.uid == uid), None))

    async def endpoints(
        self,
        tenant: int | None,
        page: Page,
        *,
        states: tuple[str, ...] | None = None,
        circuits: tuple[str, ...] | None = None,
        url: str | None = None,
    ) -> list[Endpoint]:
        """Endpoints, filtered."""
        found = [
            endpoint
            for endpoint in self._state.endpoints.values()
            if reads.of_tenant(tenant, endpoint.tenant)
            and (states is None or endpoint.state in states)
            and (circuits is None or endpoint.circuit.state in circuits)
            and url in {None, endpoint.url}
        ]
        return copy.deepcopy(_listed(found, page))

    async def endpoint_version(self, endpoint: int, version: int) -> EndpointVersion | None:
        """How an endpoint's requests looked."""
        return copy.deepcopy(self._state.versions.get((endpoint, version)))

    async def endpoint_health(self, endpoint: int, now_ms: int) -> EndpointHealth:
        """Figures of one endpoint."""
        return reads.health(self._state, endpoint, now_ms)

    # ---- events

    async def event(self, tenant: int | None, position: int) -> Event | None:
        """One event with data."""
        found = _seen(self._state.events.get(position), tenant)
        return None if found is None else reads.show_event(self._state, found, with_data=True)

    async def event_by_uid(self, tenant: int, uid: str) -> int | None:
        """Position of the event with this uid."""
        return self._state.uids.get((tenant, uid))

    async def latest_event(self, tenant: int, key: str, types: tuple[str, ...] | None) -> Event | None:
        """The newest event of a key."""
        for event in reversed(self._state.events.values()):
            if event.tenant == tenant and event.key == key and reads.takes_type(types, event.type):
                return reads.show_event(self._state, event, with_data=True)
        return None

    async def events(self, tenant: int | None, filter: EventFilter, page: Page) -> tuple[list[Event], int | None]:
        """Events without data."""
        state = self._state
        rows, cut = reads.page_of(
            [event for event in state.events.values() if reads.of_tenant(tenant, event.tenant)],
            page,
            position=lambda event: event.position,
            made_ms=lambda event: event.created_at_ms,
            keep=lambda event: reads.event_passes(state, event, filter),
            scan_rows_max=self._scan_rows_max,
        )
        return [reads.show_event(state, event, with_data=False) for event in rows], cut

    # ---- deliveries and attempts

    async def delivery(self, tenant: int | None, position: int) -> Delivery | None:
        """One delivery."""
        row = _seen(self._state.rows.get(position), tenant)
        return None if row is None else row.shown()

    async def deliveries(
        self, tenant: int | None, filter: DeliveryFilter, page: Page
    ) -> tuple[list[Delivery], int | None]:
        """Deliveries of all states."""
        rows, cut = reads.page_of(
            [row for row in self._state.rows.values() if reads.of_tenant(tenant, row.tenant)],
            page,
            position=lambda row: row.position,
            made_ms=lambda row: row.created_at_ms,
            keep=lambda row: reads.delivery_passes(row, filter),
            scan_rows_max=self._scan_rows_max,
        )
        return [row.shown() for row in rows], cut

    async def deliveries_of_events(self, events: Sequence[int], *, each_max: int) -> dict[int, list[Delivery]]:
        """The newest deliveries of each event."""
        found: dict[int, list[Delivery]] = {}
        for row in sorted(self._state.rows.values(), key=lambda row: -row.position):
            if row.event in events and len(found.setdefault(row.event, [])) < each_max:
                found[row.event].append(row.shown())
        return found

    async def count_dead(self, tenant: int, selector: JobSelector, limit: int) -> int:
        """Dead letters of a selector, at most ``limit``."""
        return min(limit, len(jobs.dead_letters(self._state, tenant, selector)))

    async def count_recoverable(self, tenant: int, selector: JobSelector, now_ms: int) -> int:  # noqa: ARG002 - the port's
        """What a recover job would make due."""
        return jobs.recoverable(self._state, tenant, selector)

    async def attempts(
        self, tenant: int | None, *, delivery: int | None, endpoint: int | None, page: Page
    ) -> list[Attempt]:
        """Attempts of a delivery or an endpoint."""
        found = [
            attempt
            for known in self._state.attempts.values()
            for attempt in known
            if reads.of_tenant(tenant, attempt.tenant)
            and delivery in {None, attempt.delivery}
            and endpoint in {None, attempt.endpoint}
        ]
        rows, _ = reads.page_of(
            found,
            page,
            position=lambda attempt: attempt.position,
            made_ms=lambda attempt: attempt.started_at_ms,
            keep=lambda _: True,
            scan_rows_max=len(found) + 1,
        )
        return [copy.copy(attempt) for attempt in rows]

    async def attempt(self, tenant: int | None, delivery: int, position: int) -> Attempt | None:
        """One attempt."""
        known = self._state.attempts.get(delivery, ())
        return copy.copy(_seen(next((attempt for attempt in known if attempt.position == position), None), tenant))

    # ---- jobs and figures

    async def job(self, tenant: int | None, position: int) -> Job | None:
        """One job."""
        return copy.deepcopy(_seen(self._state.jobs.get(position), tenant))

    async def jobs(self, tenant: int | None, page: Page) -> list[Job]:
        """Jobs."""
        found = [job for job in self._state.jobs.values() if reads.of_tenant(tenant, job.tenant)]
        return copy.deepcopy(_listed(found, page))

    async def stats(self, tenant: int | None, by: StatsBy, since_ms: int | None) -> list[tuple[str, dict[str, int]]]:
        """Counts by status."""
        return reads.stats(self._state, tenant, by, since_ms)


def _seen(found: Owned | None, tenant: int | None) -> Owned | None:
    return found if found is not None and reads.of_tenant(tenant, found.tenant) else None


def _listed(rows: Sequence[Listed], page: Page) -> list[Listed]:
    """A page of rows that no filter thins out."""
    listed, _ = reads.page_of(
        rows,
        page,
        position=lambda row: row.position,
        made_ms=lambda row: row.created_at_ms,
        keep=lambda _: True,
        scan_rows_max=len(rows) + 1,
    )
    return listed
