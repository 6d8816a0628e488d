"""The store port: what engine and services need of a database, in the words of the domain.

Writes go through ``commit`` only, called by one writer at a time (``engine.writer``). Reads see committed state and may
run at any time, concurrently. Every read of a tenant's things takes the tenant; ``None`` means an operator looking at
all tenants. All implementations pass ``ackpost.testing.store_contract``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from ackpost.core.model import (
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
from ackpost.errors import RequestError
from ackpost.ports.operations import JobSelector, Operation, Repeated, Result


class Routing(msgspec.Struct):
    """A tenant with all its endpoints, and the version that an accept must still find (rule E10)."""

    tenant: Tenant
    version: int
    endpoints: list[Endpoint]


class Work(msgspec.Struct):
    """An endpoint with pending deliveries of one class, and when its first one is due."""

    endpoint: int
    tenant: int
    klass: int
    due_ms: int


class Page(msgspec.Struct):
    """How to list: newest first unless ``ascending``; ``after`` is the position of the last row seen.

    ``since_ms`` inclusive, ``until_ms`` exclusive, of the time the row was made.
    """

    limit: int = 50
    after: int | None = None
    ascending: bool = False
    since_ms: int | None = None
    until_ms: int | None = None


class EventFilter(msgspec.Struct):
    """Any of the values of a list; None: no condition. ``types`` are patterns."""

    types: tuple[str, ...] | None = None
    key: str | None = None
    uid: str | None = None
    endpoint: int | None = None
    statuses: tuple[str, ...] | None = None
    channel: str | None = None


class DeliveryFilter(msgspec.Struct):
    """Any of the values of a list; None: no condition. ``errors`` compares the last attempt's outcome code."""

    endpoint: int | None = None
    event: int | None = None
    statuses: tuple[str, ...] | None = None
    reasons: tuple[str, ...] | None = None
    errors: tuple[str, ...] | None = None
    status_codes: tuple[int, ...] | None = None
    waiting: bool | None = None
    key: str | None = None
    types: tuple[str, ...] | None = None


class EndpointHealth(msgspec.Struct):
    """Figures of one endpoint. ``latencies_ms`` are the durations of its newest ≤ 1,000 attempts of the last hour."""

    pending: int
    oldest_due_ms: int | None
    good_1h: int
    bad_1h: int
    latencies_ms: list[float]
    last_success_ms: int | None
    last_failure: Attempt | None


StatsBy = Literal["endpoint", "type", "reason", "error"]


class Store(Protocol):
    """A durable store. Any call may raise ``StoreError``; after one from ``commit`` nothing of the group is stored."""

    salt: int

    async def open(self, *, node: str, now_ms: int, lease_ms: int) -> int:
        """Open or create, migrate, take ownership; give this node's incarnation.

        Raises: StoreLocked (another live server), StoreCorrupt, SchemaMismatch, StoreError.
        """

    async def close(self) -> None:
        """Release ownership and close; no commit may be under way."""

    async def commit(self, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        """Apply in order in one durable transaction; a refusal is that operation's result."""

    # ---- engine
    async def scan_work(self, *, after_endpoint: int, limit: int) -> list[Work]:
        """Loose scan of the hot index: endpoints > ``after_endpoint`` with due-able rows, by endpoint, class."""

    async def load_window(
        self, endpoint: int, klass: int, *, after: tuple[int, int] | None, limit: int
    ) -> list[DeliveryRef]:
        """Pending, not waiting rows by (due_ms, position) after that pair, without payload."""

    async def load_payloads(self, events: Sequence[int]) -> dict[int, EventPayload]:
        """Payloads by event; one whose data expired is absent."""

    async def load_endpoints(self, endpoints: Sequence[int]) -> dict[int, Endpoint]:
        """Endpoints by position, whatever their tenant; deleted ones absent."""

    async def endpoint_revs(self, endpoints: Sequence[int]) -> dict[int, int]:
        """Present revs (rule E2); deleted ones absent."""

    async def open_jobs(self, limit: int) -> list[Job]:
        """Jobs queued or running, oldest first."""

    async def newest_event_ms(self) -> int | None:
        """When the newest event was accepted (retention counts back from it, rule E16)."""

    async def pending_counts(self) -> dict[str, int]:
        """``due`` and ``waiting`` rows in all, for metrics (may be estimated above 100,000 each)."""

    async def oldest_due_ms(self) -> int | None:
        """Due time of the row that is due the longest."""

    # ---- services
    async def routing(self, tenant: int) -> Routing | None:
        """A live tenant with its endpoints."""

    async def tenant_by_uid(self, uid: str) -> Tenant | None:
        """A live tenant by its uid."""

    async def tenant(self, position: int) -> Tenant | None:
        """A live tenant."""

    async def tenants(self, page: Page) -> list[Tenant]:
        """Live tenants."""

    async def api_key_by_digest(self, digest: bytes) -> ApiKey | None:
        """A key that was not revoked, by the SHA-256 of its text."""

    async def api_keys(self, tenant: int | None, page: Page) -> list[ApiKey]:
        """Keys of a tenant (None: all)."""

    async def endpoint(self, tenant: int | None, position: int) -> Endpoint | None:
        """One endpoint."""

    async def endpoint_by_uid(self, tenant: int, uid: str) -> Endpoint | None:
        """One endpoint by the caller's own uid."""

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

    async def endpoint_version(self, endpoint: int, version: int) -> EndpointVersion | None:
        """How an endpoint's requests looked at a version."""

    async def endpoint_health(self, endpoint: int, now_ms: int) -> EndpointHealth:
        """Figures of one endpoint."""

    async def event(self, tenant: int | None, position: int) -> Event | None:
        """One event with data and delivery counts."""

    async def event_by_uid(self, tenant: int, uid: str) -> int | None:
        """Position of the event with this uid."""

    async def latest_event(self, tenant: int, key: str, types: tuple[str, ...] | None) -> Event | None:
        """The newest event of a key, with data."""

    async def events(
        self, tenant: int | None, filter: EventFilter, page: Page
    ) -> tuple[list[Event], int | None]:
        """Events without data, and the position scanned up to when the scan bound (10,000 rows) cut the page short."""

    async def delivery(self, tenant: int | None, position: int) -> Delivery | None:
        """One delivery."""

    async def deliveries(
        self, tenant: int | None, filter: DeliveryFilter, page: Page
    ) -> tuple[list[Delivery], int | None]:
        """Deliveries of all states, merged by position; second value as for ``events``."""

    async def count_dead(self, tenant: int, selector: JobSelector, limit: int) -> int:
        """Dead letters a job with this selector would take."""

    async def count_recoverable(self, tenant: int, selector: JobSelector, now_ms: int) -> int:
        """Deliveries a recover job with this selector would make due."""

    async def attempts(
        self, tenant: int | None, *, delivery: int | None, endpoint: int | None, page: Page
    ) -> list[Attempt]:
        """Attempts of a delivery or an endpoint, newest first, by position."""

    async def attempt(self, tenant: int | None, delivery: int, position: int) -> Attempt | None:
        """One attempt."""

    async def job(self, tenant: int | None, position: int) -> Job | None:
        """One job."""

    async def jobs(self, tenant: int | None, page: Page) -> list[Job]:
        """Jobs."""

    async def stats(self, tenant: int | None, by: StatsBy, since_ms: int | None) -> list[tuple[str, dict[str, int]]]:
        """Deliveries counted by status for each value of ``by`` (endpoints as decimal positions)."""
