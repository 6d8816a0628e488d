"""The port's reads, each on a reading connection of its own: what they ask is in the modules ``reads_…``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import apsw

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
from ackpost.ports.operations import JobSelector
from ackpost.ports.store import DeliveryFilter, EndpointHealth, EventFilter, Page, Routing, StatsBy, Work
from ackpost.store.sqlite import (
    reads_admin,
    reads_attempts,
    reads_deliveries,
    reads_engine,
    reads_events,
    selecting,
)

Given = TypeVar("Given")


class Reads(ABC):
    """Reads of committed state; ``scan_rows_max`` bounds what one page of a filtered list looks at."""

    _scan_rows_max: int

    @abstractmethod
    async def _read(self, work: Callable[[apsw.Connection], Given]) -> Given:
        """Call ``work`` with a reading connection."""

    @abstractmethod
    async def _read_hot(self, work: Callable[[apsw.Connection], Given]) -> Given:
        """Call ``work`` where no long list is in the way: the engine and routing wait for it."""

    # ---- engine

    async def scan_work(self, *, after_endpoint: int, limit: int) -> list[Work]:
        """Loose scan of the hot index: at most ``limit`` endpoints after ``after_endpoint``, whole."""
        return await self._read_hot(lambda c: reads_engine.scan_work(c, after_endpoint, limit))

    async def load_window(
        self, endpoint: int, klass: int, *, after: tuple[int, int] | None, limit: int
    ) -> list[DeliveryRef]:
        """Pending, not waiting rows by (due_ms, position) after that pair, without payload."""
        return await self._read_hot(lambda c: reads_engine.load_window(c, endpoint, klass, after, limit))

    async def load_payloads(self, events: Sequence[int]) -> dict[int, EventPayload]:
        """Payloads by event; one whose data expired is absent."""
        return await self._read_hot(lambda c: reads_engine.load_payloads(c, events))

    async def load_endpoints(self, endpoints: Sequence[int]) -> dict[int, Endpoint]:
        """Endpoints by position, whatever their tenant; deleted ones absent."""
        return await self._read_hot(lambda c: reads_engine.load_endpoints(c, endpoints))

    async def endpoint_revs(self, endpoints: Sequence[int]) -> dict[int, int]:
        """Present revs; deleted ones absent."""
        return await self._read_hot(lambda c: reads_engine.endpoint_revs(c, endpoints))

    async def open_jobs(self, limit: int) -> list[Job]:
        """Jobs queued or running, oldest first."""
        return await self._read_hot(lambda c: reads_engine.open_jobs(c, limit))

    async def newest_event_ms(self) -> int | None:
        """When the newest event was accepted."""
        return await self._read_hot(reads_engine.newest_event_ms)

    async def pending_counts(self) -> dict[str, int]:
        """``due`` and ``waiting`` rows, each counted up to 100,000."""
        return await self._read_hot(reads_engine.pending_counts)

    async def due_counts(self, endpoints: Sequence[int], *, rows_max: int) -> dict[int, int]:
        """``due`` rows of each of these endpoints, each counted up to ``rows_max``."""
        return await self._read(lambda c: reads_engine.due_counts(c, endpoints, rows_max))

    async def oldest_due_ms(self) -> int | None:
        """Due time of the row that is due the longest."""
        return await self._read_hot(reads_engine.oldest_due_ms)

    # ---- tenants, keys, endpoints, jobs

    async def routing(self, tenant: int) -> Routing | None:
        """A live tenant with its endpoints."""
        return await self._read_hot(lambda c: reads_admin.routing(c, tenant))

    async def tenant_by_uid(self, uid: str) -> Tenant | None:
        """A live tenant by its uid."""
        return await self._read(lambda c: reads_admin.tenant_by_uid(c, uid))

    async def tenant(self, position: int) -> Tenant | None:
        """A live tenant."""
        return await self._read(lambda c: reads_admin.tenant(c, position))

    async def tenants(self, page: Page) -> list[Tenant]:
        """Live tenants."""
        return await self._read(lambda c: reads_admin.tenants(c, page))

    async def api_key_by_digest(self, digest: bytes) -> ApiKey | None:
        """A key that was not revoked, by the SHA-256 of its text."""
        return await self._read(lambda c: reads_admin.api_key_by_digest(c, digest))

    async def api_keys(self, tenant: int | None, page: Page) -> list[ApiKey]:
        """Keys of a tenant (None: all)."""
        return await self._read(lambda c: reads_admin.api_keys(c, tenant, page))

    async def endpoint(self, tenant: int | None, position: int) -> Endpoint | None:
        """One endpoint."""
        return await self._read(lambda c: reads_admin.endpoint(c, tenant, position))

    async def endpoint_by_uid(self, tenant: int, uid: str) -> Endpoint | None:
        """One endpoint by the caller's own uid."""
        return await self._read(lambda c: reads_admin.endpoint_by_uid(c, tenant, uid))

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
        return await self._read(lambda c: reads_admin.endpoints(c, tenant, page, states, circuits, url))

    async def endpoint_version(self, endpoint: int, version: int) -> EndpointVersion | None:
        """How an endpoint's requests looked at a version."""
        return await self._read(lambda c: reads_admin.endpoint_version(c, endpoint, version))

    async def job(self, tenant: int | None, position: int) -> Job | None:
        """One job."""
        return await self._read(lambda c: reads_admin.job(c, tenant, position))

    async def jobs(self, tenant: int | None, page: Page) -> list[Job]:
        """Jobs."""
        return await self._read(lambda c: reads_admin.jobs(c, tenant, page))

    # ---- events

    async def event(self, tenant: int | None, position: int) -> Event | None:
        """One event with data and delivery counts."""
        return await self._read(lambda c: reads_events.event(c, tenant, position))

    async def event_by_uid(self, tenant: int, uid: str) -> int | None:
        """Position of the event with this uid."""
        return await self._read(lambda c: reads_events.event_by_uid(c, tenant, uid))

    async def latest_event(self, tenant: int, key: str, types: tuple[str, ...] | None) -> Event | None:
        """The newest event of a key, with data."""
        return await self._read(lambda c: reads_events.latest_event(c, tenant, key, types))

    async def events(self, tenant: int | None, filter: EventFilter, page: Page) -> tuple[list[Event], int | None]:
        """Events without data, and the position scanned up to when the scan bound cut the page short."""
        return await self._read(lambda c: reads_events.events(c, tenant, filter, page, self._scan_rows_max))

    # ---- deliveries and attempts

    async def delivery(self, tenant: int | None, position: int) -> Delivery | None:
        """One delivery."""
        return await self._read(lambda c: reads_deliveries.delivery(c, tenant, position))

    async def deliveries(
        self, tenant: int | None, filter: DeliveryFilter, page: Page
    ) -> tuple[list[Delivery], int | None]:
        """Deliveries of all states, merged by position; second value as for ``events``."""
        return await self._read(lambda c: reads_deliveries.deliveries(c, tenant, filter, page, self._scan_rows_max))

    async def deliveries_of_events(self, events: Sequence[int], *, each_max: int) -> dict[int, list[Delivery]]:
        """The newest deliveries of each of these events, newest first, at most ``each_max``; none: absent."""
        return await self._read(lambda c: reads_deliveries.of_events(c, events, each_max, self._scan_rows_max))

    async def count_dead(self, tenant: int, selector: JobSelector, limit: int) -> int:
        """Dead letters a job with this selector would take, at most ``limit``."""
        return await self._read(lambda c: selecting.count_dead(c, tenant, selector, limit))

    async def count_recoverable(self, tenant: int, selector: JobSelector, now_ms: int) -> int:  # noqa: ARG002 - the port's
        """Deliveries a recover job with this selector would make due."""

        def count(connection: apsw.Connection) -> int:
            endpoint = reads_admin.endpoint(connection, tenant, selector.endpoint or 0)
            return selecting.count_recoverable(connection, endpoint, selector)

        return await self._read(count)

    async def attempts(
        self, tenant: int | None, *, delivery: int | None, endpoint: int | None, page: Page
    ) -> list[Attempt]:
        """Attempts of a delivery or an endpoint, newest first, by position."""
        return await self._read(lambda c: reads_attempts.attempts(c, tenant, delivery, endpoint, page))

    async def attempt(self, tenant: int | None, delivery: int, position: int) -> Attempt | None:
        """One attempt."""
        return await self._read(lambda c: reads_attempts.attempt(c, tenant, delivery, position))

    async def endpoint_health(self, endpoint: int, now_ms: int) -> EndpointHealth:
        """Figures of one endpoint."""
        return await self._read(lambda c: reads_attempts.endpoint_health(c, endpoint, now_ms))

    async def stats(self, tenant: int | None, by: StatsBy, since_ms: int | None) -> list[tuple[str, dict[str, int]]]:
        """Deliveries counted by status for each value of ``by`` (endpoints as decimal positions)."""
        return await self._read(lambda c: reads_deliveries.stats(c, tenant, by, since_ms))
