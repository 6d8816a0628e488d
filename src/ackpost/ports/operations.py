"""The write verbs of a store, as data. ``Store.commit`` takes many and makes one durable commit of them (rule E6).

Each operation succeeds or is refused as a whole; a refusal (``RequestError``) is its result and does not disturb the
others of the group. Operations marked POST may carry an ``Idempotency``: the store then answers a repeated key with
the stored result, wrapped by ``Repeated``.
All results are msgspec Structs with a tag, so that idempotency records can hold them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ackpost.core.decision import Decision
from ackpost.core.model import ApiKey, DeliveryRef, Endpoint, EndpointSecret, Job, JobKind, Tenant, Trigger


class Idempotency(msgspec.Struct):
    """A caller's ``Idempotency-Key``; ``digest`` fingerprints method, path and body. Kept 24 h per tenant."""

    tenant: int
    key: str
    digest: bytes
    now_ms: int


# ---------------------------------------------------------------- accept


class Target(msgspec.Struct, frozen=True):
    """An endpoint that an event goes to, as routing knows it (shared by all events of a routing version).

    ``paused_since_ms``/``paused_total_ms`` give the reading of its running clock; ``pin`` the format of round 1.
    """

    endpoint: int
    rev: int
    pin: str
    by_key: bool = False
    paused_since_ms: int | None = None
    paused_total_ms: int = 0


class NewEvent(msgspec.Struct):
    """One validated event to accept. ``digest`` fingerprints what was published; set when ``uid`` is."""

    type: str
    data: bytes
    occurred_at_ms: int | None = None
    uid: str | None = None
    digest: bytes | None = None
    key: str | None = None
    sequence: int | None = None
    channels: tuple[str, ...] = ()
    metadata: bytes | None = None
    targets: tuple[Target, ...] = ()
    trigger: Trigger = "schedule"


class Accept(msgspec.Struct):
    """POST. Store events with their deliveries: all or none.

    ``routing_version`` is the tenant's version the targets were found with; another one in the store gives ``Stale``
    and the caller routes again (rule E10). Order inside: uid check before sequence check (rule E4).
    Refusals: 409 uid_conflict, 409 sequence_not_rising (``errors`` loc ("body","events",i,…) when ``batch``), 404
    unknown_tenant when the tenant is gone. ``outbox``: rows, by number, of an outbox in the store's own database that
    these events were read from; they are deleted in the same commit.
    """

    tenant: int
    routing_version: int
    events: list[NewEvent]
    now_ms: int
    batch: bool = False
    idempotency: Idempotency | None = None
    outbox: tuple[int, ...] = ()


class AcceptedEvent(msgspec.Struct):
    """The answer for one event; for a duplicate the first one's."""

    position: int
    deliveries: int
    sequence: int | None = None
    duplicate: bool = False


class Accepted(msgspec.Struct, tag=True):
    """Accepted and durable. ``refs`` (not part of a repeated answer) are the due deliveries with their payloads."""

    events: list[AcceptedEvent]
    refs: list[DeliveryRef] = []


class Stale(msgspec.Struct, tag=True):
    """Nothing was stored: routing has changed; route again."""


# ---------------------------------------------------------------- results


class Record(msgspec.Struct):
    """Results of attempts and endings, set-wise. ``incarnation`` fences: a stale owner changes no row (rule E3).

    For each decision: attempt row (insert or do nothing on conflict, even if the hot row is gone); if the hot row is
    still in that round with ``number - 1`` attempts: delivered → history, dead → dead letters (``hold`` adds a key
    hold), retry/again → new due time and class; then, for ``ordered`` rows that ended and are not held, the next
    waiting row of the key is promoted; endpoint changes and announcements (with their deliveries) in the same commit.
    A cancel that came during the attempt: the attempt is stored; a 2xx turns cancelled into delivered.
    """

    decisions: list[Decision]
    incarnation: int
    now_ms: int
    node: str = ""


class Recorded(msgspec.Struct, tag=True):
    """``applied`` per decision; ``refs``: promoted and announced rows now due; ``touched``: endpoints to reload."""

    applied: list[bool]
    refs: list[DeliveryRef] = []
    touched: list[int] = []


# ---------------------------------------------------------------- tenants and keys


class CreateTenant(msgspec.Struct):
    """POST. Refusal: 409 already_exists."""

    tenant: Tenant
    idempotency: Idempotency | None = None


class ReplaceTenant(msgspec.Struct):
    """Store a changed tenant (same position)."""

    tenant: Tenant


class DeleteTenant(msgspec.Struct):
    """Mark the tenant deleted (unknown from now on), end its endpoints' work by a job, revoke its keys."""

    tenant: int
    now_ms: int


class CreateApiKey(msgspec.Struct):
    """POST."""

    key: ApiKey
    idempotency: Idempotency | None = None


class DeleteApiKey(msgspec.Struct):
    """Revoke. ``tenant`` None: an operator may revoke any."""

    position: int
    tenant: int | None


class TouchApiKeys(msgspec.Struct):
    """Note when keys were last used (batched, at most once a minute a key)."""

    last_used_ms: dict[int, int]


# ---------------------------------------------------------------- endpoints


class CreateEndpoint(msgspec.Struct):
    """POST. Position is given by the store. Refusals: 409 already_exists (uid), 422 invalid (too many endpoints)."""

    endpoint: Endpoint
    endpoints_max: int
    idempotency: Idempotency | None = None


class ReplaceEndpoint(msgspec.Struct):
    """Store changed configuration of an endpoint if its ``rev`` is still ``expected_rev``, else ``Stale``.

    Raises rev; raises version when url, headers or signature differ; raises the tenant's routing version when filters,
    channels, pin-relevant fields or ordering differ. Runtime fields (state, circuit, secrets, failing) are kept.
    A changed ordering makes a ``switch_ordering`` job in the same commit.
    """

    endpoint: Endpoint
    expected_rev: int
    now_ms: int


class DeleteEndpoint(msgspec.Struct):
    """Remove the endpoint at once; its pending deliveries end as ``cancelled`` (``endpoint_deleted``) by a job."""

    tenant: int
    endpoint: int
    now_ms: int


class SetEndpointState(msgspec.Struct):
    """POST pause, resume, enable, disable. Disable: pending deliveries become dead by a job cut off at this commit.

    Enable and resume reset retry_after, set ``circuit`` to half-open when it was open (the next request is a probe),
    and enable clears failing marks. Refusal: 409 invalid_state (pause of a disabled one, enable of an enabled one is
    fine and changes nothing).
    """

    tenant: int
    endpoint: int
    verb: Literal["pause", "resume", "enable", "disable"]
    now_ms: int
    reason: str | None = None
    idempotency: Idempotency | None = None


class RotateSecret(msgspec.Struct):
    """POST. New secret first; the previous ones expire at now + overlap (0: at once); at most five live."""

    tenant: int
    endpoint: int
    secret: EndpointSecret
    overlap_ms: int
    now_ms: int
    idempotency: Idempotency | None = None


class EndpointSaved(msgspec.Struct, tag=True):
    """``duplicate_url``: another endpoint of the tenant has the same URL. ``job``: one that was started."""

    endpoint: Endpoint
    duplicate_url: bool = False
    job: int | None = None


# ---------------------------------------------------------------- deliveries


class Redeliver(msgspec.Struct):
    """POST. New round, due now, of one delivery (``delivery``) or of an event's deliveries (``event``).

    With ``endpoint`` also for one that never had a delivery of the event. Pending ones become due now (same round).
    Refusals: 404 not_found, 410 data_expired, 409 invalid_state (endpoint disabled or gone).
    """

    tenant: int
    now_ms: int
    event: int | None = None
    delivery: int | None = None
    endpoint: int | None = None
    trigger: Trigger = "redeliver"
    idempotency: Idempotency | None = None


class Cancel(msgspec.Struct):
    """POST. End pending deliveries of an event, or one delivery, as ``cancelled``; ended one: 409 invalid_state."""

    tenant: int
    now_ms: int
    event: int | None = None
    delivery: int | None = None
    idempotency: Idempotency | None = None


class DeliveriesChanged(msgspec.Struct, tag=True):
    """Which deliveries; ``touched``: endpoints whose lanes reload; ``refs``: rows now due."""

    deliveries: list[int]
    touched: list[int] = []
    refs: list[DeliveryRef] = []


class ExpireData(msgspec.Struct):
    """Remove an event's data early; its pending deliveries end dead (``data_expired``)."""

    tenant: int
    event: int
    now_ms: int


class CreateJob(msgspec.Struct):
    """POST. ``job.position`` is given by the store; takes only rows that ended before this commit, each once."""

    job: Job
    idempotency: Idempotency | None = None


class CancelJob(msgspec.Struct):
    """POST. Refusal: 409 invalid_state when it has ended."""

    tenant: int
    job: int
    now_ms: int
    idempotency: Idempotency | None = None


class StepJob(msgspec.Struct):
    """Do at most ``rows_max`` rows of a job; cursor and changes commit together; changes are conditional on state."""

    job: int
    rows_max: int
    now_ms: int


class JobSaved(msgspec.Struct, tag=True):
    """The job after the operation, endpoints touched, rows made due."""

    job: Job
    touched: list[int] = []
    refs: list[DeliveryRef] = []


class Mark(msgspec.Struct, frozen=True):
    """A delivery that was being sent: ``number`` attempts had been made before, in all."""

    delivery: int
    round: int
    number: int


class Interrupt(msgspec.Struct):
    """At start: these were in flight when the process died (rule E5).

    Each that is still pending in that round with that number gets an attempt ``interrupted`` and one crash more; with
    ``crashes_max`` crashes it is dead (``poison``). So a result that became durable, and an Interrupt that did, are not
    counted again when the process dies before it takes the mark away.
    """

    marks: list[Mark]
    crashes_max: int
    now_ms: int
    node: str = ""


# ---------------------------------------------------------------- housekeeping


class Promote(msgspec.Struct):
    """Sweep (rule E4): promote at most ``rows_max`` waiting rows that have no predecessor and no hold."""

    rows_max: int
    now_ms: int


class Retain(msgspec.Struct):
    """One small step of retention: at most ``rows_max`` objects, never a pending one. ``*_before_ms`` are cut-offs."""

    events_before_ms: int
    dead_before_ms: int
    keys_before_ms: int
    idempotency_before_ms: int
    rows_max: int
    now_ms: int


class Retained(msgspec.Struct, tag=True):
    """Rows removed by table; ``more`` when another step is needed; dead letters that left by age are counted apart."""

    removed: dict[str, int]
    dead_letters: int
    more: bool


class RenewLease(msgspec.Struct):
    """Keep ownership of this database or these partitions; refusal by ``StoreLocked`` ends the node."""

    node: str
    incarnation: int
    now_ms: int
    lease_ms: int


class Done(msgspec.Struct, tag=True):
    """Nothing more to say. ``position`` of what was made, ``touched`` endpoints."""

    position: int = 0
    touched: list[int] = []


class TenantSaved(msgspec.Struct, tag=True):
    """The tenant as stored."""

    tenant: Tenant


class KeySaved(msgspec.Struct, tag=True):
    """The key as stored."""

    key: ApiKey


class Promoted(msgspec.Struct, tag=True):
    """Rows that were stuck waiting (must stay zero) and are due now."""

    refs: list[DeliveryRef] = []


class Interrupted(msgspec.Struct, tag=True):
    """How many of the deliveries were pending, and how many of those died as poison."""

    pending: int
    dead: int
    deliveries: list[int] = []


Result = (
    Accepted | Stale | Recorded | EndpointSaved | DeliveriesChanged | JobSaved | Retained | Done | TenantSaved
    | KeySaved | Promoted | Interrupted
)  # fmt: skip


class Repeated(msgspec.Struct):
    """A repeated ``Idempotency-Key``: the first call's result, nothing done now."""

    result: Result


Operation = (
    Accept | Record | CreateTenant | ReplaceTenant | DeleteTenant | CreateApiKey | DeleteApiKey | TouchApiKeys
    | CreateEndpoint | ReplaceEndpoint | DeleteEndpoint | SetEndpointState | RotateSecret | Redeliver | Cancel
    | ExpireData | CreateJob | CancelJob | StepJob | Interrupt | Promote | Retain | RenewLease
)  # fmt: skip

JOB_KINDS_BY_USERS: tuple[JobKind, ...] = ("replay", "discard", "recover")


class JobSelector(msgspec.Struct):
    """What a job's ``params`` hold (``msgspec.to_builtins``): which dead letters, or which span of events.

    ``ids`` are delivery positions. ``until_position`` cuts off what ended or was accepted after the job was made.
    """

    ids: tuple[int, ...] | None = None
    endpoint: int | None = None
    type: str | None = None
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    event_types: tuple[str, ...] | None = None
    all: bool = False
