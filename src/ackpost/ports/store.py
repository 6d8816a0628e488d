"""The store port: what engine and services need of a database, in the words of the domain.

Writes go through ``commit`` only, called by one writer at a time (``engine.writer``). Reads see committed state and may
run at any time, concurrently. Every read of a tenant's things takes the tenant; ``None`` means an operator looking at
all tenants. All implementations pass ``ackpost.testing.store_contract``.

Semantics all stores share
==========================

Positions. ``next = max(last + 1, now_ms << 20)`` with the operation's ``now_ms`` (CreateJob: its ``created_at_ms``);
``last + 1`` where it has none. An accepted event with n deliveries takes p, its deliveries p+1 … p+n in the order of
its targets; a duplicate takes none. All else takes one each. What an event or a delivery tells as ``created_at_ms`` is
its ``position >> 20`` (after a crash up to a second ahead of the clock), and so is a key's last use. A refused
operation takes none. Opening continues at a bound: whenever ``last`` passes it, the bound becomes ``((last >> 20) //
1000 + 1) * 1000 << 20``, and ``close`` sets it to ``last``; the next ``open`` sets ``last`` to the bound. The first
open makes tenant ``default`` (position by its ``now_ms``, routing version 1).

Ownership. ``open`` gives incarnation + 1 (first: 1) and a lease to ``now_ms + lease_ms``; StoreLocked while another
node's lease is live (the same node may take over at once: it restarted). ``close`` gives the lease up. ``commit`` of a
store whose incarnation is not the newest raises StoreLocked, as does RenewLease; the whole group is then not stored. A
Record of an old incarnation changes nothing and answers ``applied`` all False.

Idempotency is looked at first. Kept while ``now_ms < stored + 24 h``, per tenant and key; other digest: 409
idempotency_conflict. Only successes (not Stale) are stored, without ``refs`` and ``touched``.

``touched`` rises, without repeats; ``refs`` rise by position, show rows as they are at the operation's end, and only
those that are due-able (pending, not waiting). Payloads come with refs of Accept and of announced deliveries only.

Rev of an endpoint rises by 1 per operation that changes it or its deliveries, but not by Accept, Record, Interrupt,
Promote, Retain, or an announced delivery. A row's ``rev`` is the target's, or the endpoint's after the rise.
Routing version rises by 1 with: CreateEndpoint, DeleteEndpoint, a changed state, ReplaceTenant, and ReplaceEndpoint
that changes event_types, channels, format, key_field or the effective ordering. ``version`` of an endpoint rises when
url, headers, secret_headers, signature or signature_header differ. ``updated_at_ms`` changes with configuration,
state, secrets.

Accept. Order of checks: tenant (404 unknown_tenant), routing version (Stale), all uids, then the sequences of those
that are no duplicates; the first problem refuses. ``errors`` has one loc: ("body"[, "events", i], "uid" | "sequence").
The same uid twice in a batch: with equal digests the second is a duplicate. A duplicate answers the first's position,
sequence and number of deliveries. Key rows: (tenant, key) → last sequence, last use. ``occurred_at_ms`` None:
created_at_ms.

Order by key. ``ordered`` = endpoint by-key, event has a key, trigger not test, and (round 1, or on_dead hold). A row is
blocked while an ordered pending row of its (endpoint, key) with a lower *event* is there, or a key hold by a lower
event. An ordered row that becomes pending and is blocked is ``waiting``. Whenever a row with a key ends, or a hold
goes, the waiting row of that (endpoint, key) with the lowest event is promoted if it is not blocked: due now,
``age_start`` the endpoint's clock. Holds are (endpoint, key, delivery): made when an ordered row ends dead with
``Decision.hold``, or by the store itself (jobs, ExpireData, poison) while on_dead is hold; released when that delivery
is delivered, cancelled, discarded or removed, with its endpoint, or by the job that follows a change of ordering or
on_dead.

Rows. Accepted: klass FIRST, due now, age_start from the target's clock. ``retry``: FIRST becomes RETRY, else the class
stays; ``again``: due_ms, crashes, nothing else. New round: round + 1, round_attempts 0, crashes 0, klass REPLAY, due
now, age_start the endpoint's clock now, pin and rev the endpoint's of now, trigger the operation's; attempts,
created_at_ms and number stay. A missing delivery that is made later is round 1, klass REPLAY, position new.
``Delivery.last_error``/``last_status_code`` are of the last stored attempt (last_error None if it was delivered);
``due_ms`` None when waiting or ended; ``reason`` of a cancel by a person None, of a discarded dead one why it died;
``ended_at_ms`` = Decision.ended_at_ms or now_ms. Event counts hold every delivery by status; no zeros.

Record, as if decision by decision; positions: first one for each decision that has an attempt (outcome set, verdict not
``again``), inserted or not; then jobs; then announced events. An attempt is unique by (delivery, round, number).
``number - 1`` is compared for attempts, ``number`` for again and endings without attempt. A late result of an ended row
in that round with ``number - 1``: the row takes number, last_error, last_status_code; ``delivered`` turns cancelled or
dead into delivered (applied). ``endpoint_change`` holds if applied or the attempt was new; so do announcements, but
``ackpost.delivery.dead`` only if applied. Disabling makes a job as SetEndpointState does (reason ``gone``, else
``endpoint_disabled``), raises rev, routing version and updated_at. ``touched``: endpoints of changes, and of announced
rows. Bodies: 1 KiB of a success; of failures the first and the newest three keep theirs, the others have none
(``truncated`` where something was cut).

Announcements go to endpoints of the tenant, by position, that are not disabled, not ``about``, and match type and no
channels; an event that nobody takes is not stored. ``data`` is ``msgspec.json.encode``; occurred_at = created_at, no
key, pin, rev and clock of the endpoint. What the store itself ends as dead makes one ``ackpost.delivery.dead`` per
endpoint and operation (an end_endpoint job: one when done, if any died) with data {endpoint_id (public), reason,
count}.

Endpoint verbs. pause: a disabled one 409; resume: a disabled one 409; both do nothing when already there (resume still
resets). resume and enable set retry_after 0 and an open circuit to half-open with successes 0; enable also clears
failing marks, and cancels open end_endpoint jobs. Disable and enable close a pause (its span is added to the total).
Nothing changed: no rev. ``state_reason`` is the operation's reason, None when enabled. Secrets: expired ones leave,
earlier ones expire at min(theirs, now + overlap), at most the 5 newest stay. DeleteEndpoint also cancels its open
end_endpoint and switch_ordering jobs, removes its holds; versions stay. DeleteTenant does that to all its endpoints,
cancels its open jobs, revokes its keys; its job ends rows as ``tenant_deleted``. ``Done.position`` is the job's.

Redeliver. Checks: 404, 410, 409. By event: deliveries whose endpoint is disabled or gone are left out (all: 409). A
pending one becomes due now; a waiting one stays as it is; both are listed. Cancel by event without pending: empty list.
ExpireData of expired data does nothing. Interrupt: attempt ``interrupted``, started now, position one each, in the
order of the marks; number, round_attempts and crashes + 1, class as retry, due now; ``deliveries``: those still
pending, rising.

Jobs. Rows go by position (events for recover), ``cursor`` = last one looked at; done when fewer than ``rows_max`` were
found. A row qualifies if its last end lay before the job's commit (end_endpoint, delete_*, switch_ordering: pending and
position < the job's). total: replay/discard at creation the number of dead ones that match (ids: distinct ids), skipped
at completion what is left of it; the others: None, at completion done + skipped + failed. replay: data expired, or
endpoint disabled or gone: failed. recover: events of the tenant not ``ackpost.*``, position < the job's, created in
[since, until), at most rows_max a step; those that filter and ``event_types`` take: missing, dead, cancelled: made due,
with expired data failed; pending, delivered, discarded: skipped; endpoint disabled or gone: job failed. CreateJob
of recover: endpoint unknown 404, disabled 409. queued becomes running at the first step. switch_ordering (ordering or
on_dead changed; cancels an earlier open one): each pending row of the endpoint gets ``ordered`` anew; not ordered: it
stops waiting (due now); ordered: it waits if blocked, else is promoted and later non-waiting ones of its key wait; at
completion, unless by-key with hold, the endpoint's holds go. Params are ``to_builtins(JobSelector)`` (internal ones:
endpoint, reason). type and event_types are patterns; since/until of dead letters: when they died.

Retention. Each object costs one of ``rows_max``, in this order: ``idempotency`` (stored), ``keys`` (last use), dead
letters (ended; counted apart), finished ``jobs`` (finished), ``events`` without pending or dead deliveries (created),
with their deliveries (``deliveries``), attempts and uids; each before its cut-off, by position or age. ``more``: the
budget was used up. A row promoted because a hold went is due at ``now_ms``.

Reads. Pages go by position; since/until: created_at_ms (attempts: started_at_ms). Type filters are patterns. A page
looks at ≤ ``scan_rows_max`` (constructor, 10,000) rows; when that ends it early, the second value is the last position
looked at. Engine reads (scan_work, windows, counts) include rows of paused, disabled and deleted endpoints; limit of
scan_work counts endpoints. Health and stats leave test deliveries out; health: failures are attempts not delivered,
by ``started_at_ms``; stats by created_at_ms, sorted by value, rows without a value left out.
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

    ``since_ms`` inclusive, ``until_ms`` exclusive, of the time the row was made. ``final_ms`` is the store's own: where
    several nodes write, an ascending page ends before the time up to which all rows that will ever be are there.
    """

    limit: int = 50
    after: int | None = None
    ascending: bool = False
    since_ms: int | None = None
    until_ms: int | None = None
    final_ms: int | None = None


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
    round_trips: int
    """Exchanges with the database since this was made: what costs a round trip where it is a server, a commit or a read
    where it is a file."""

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

    async def due_counts(self, endpoints: Sequence[int], *, rows_max: int) -> dict[int, int]:
        """``due`` rows of each of these endpoints, each counted up to ``rows_max``; for metrics."""

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

    async def events(self, tenant: int | None, filter: EventFilter, page: Page) -> tuple[list[Event], int | None]:
        """Events without data, and the position scanned up to when the scan bound (10,000 rows) cut the page short."""

    async def delivery(self, tenant: int | None, position: int) -> Delivery | None:
        """One delivery."""

    async def deliveries(
        self, tenant: int | None, filter: DeliveryFilter, page: Page
    ) -> tuple[list[Delivery], int | None]:
        """Deliveries of all states, merged by position; second value as for ``events``."""

    async def deliveries_of_events(self, events: Sequence[int], *, each_max: int) -> dict[int, list[Delivery]]:
        """The newest deliveries of each of these events, newest first, at most ``each_max``; none: absent."""

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
