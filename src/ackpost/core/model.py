"""The nouns: what is stored and passed between the layers. All times are milliseconds since the epoch, UTC.

Positions are rising 63-bit integers given by the store; public ids are made from them (``core.ids``).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

EndpointState = Literal["enabled", "paused", "disabled"]
DeliveryStatus = Literal["pending", "delivered", "dead", "cancelled", "discarded"]
Trigger = Literal["schedule", "redeliver", "replay", "recover", "test"]
Role = Literal["operator", "admin", "publisher", "reader"]
CircuitName = Literal["closed", "open", "half-open", "ramping"]
HeldBy = Literal["circuit", "paused", "order", "rate", "retry_after", "busy"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
JobKind = Literal["replay", "discard", "recover", "end_endpoint", "delete_endpoint", "delete_tenant", "switch_ordering"]

FIRST: Final = 0
"""Delivery class: never attempted in this round, first round."""
RETRY: Final = 1
"""Delivery class: at least one attempt failed in this round."""
REPLAY: Final = 2
"""Delivery class: a later round (redelivered, replayed, recovered); the low-priority lane."""
CLASSES: Final = (FIRST, RETRY, REPLAY)

DEAD_REASONS: Final = (
    "attempts_exhausted", "age_exceeded", "permanent_failure", "gone", "endpoint_disabled", "circuit_open",
    "format_conflict", "data_expired", "poison",
)  # fmt: skip


class Circuit(msgspec.Struct, frozen=True, gc=False):
    """An endpoint's circuit as a value; ``core.circuit`` makes the next one. Only transitions are stored.

    ``failures`` counts in a row since ``row_started_ms``; ``openings`` in a row doubles the open time; ``window`` holds
    (bucket start, good, bad) counts, oldest first; ``ramp_*`` count the present 5 s step.
    """

    state: CircuitName = "closed"
    failures: int = 0
    row_started_ms: int = 0
    opened_at_ms: int = 0
    retry_at_ms: int = 0
    openings: int = 0
    successes: int = 0
    ramp_limit: int = 0
    ramp_step_ms: int = 0
    ramp_good: int = 0
    ramp_bad: int = 0
    window: tuple[tuple[int, int, int], ...] = ()


CLOSED: Final = Circuit()


class EndpointSecret(msgspec.Struct):
    """One signing secret in its storage envelope (``v0:…``); ``expires_at_ms`` None for the current one."""

    sealed: str
    created_at_ms: int
    expires_at_ms: int | None = None

    def __repr__(self) -> str:
        return f"EndpointSecret(created_at_ms={self.created_at_ms}, expires_at_ms={self.expires_at_ms})"


class Endpoint(msgspec.Struct, kw_only=True):
    """A URL with filters, secrets, policy and health, as stored (one document a row).

    ``policy`` and ``metadata`` are kept as set by the caller; ``secret_headers`` values are sealed.
    ``rev`` rises with every change by anyone but the owner's results; ``version`` with url, headers or signature
    (an attempt names the version it used). ``secrets`` is newest first.
    The running clock that ages deliveries reads ``(paused_since_ms or now) - paused_total_ms``.
    """

    position: int
    tenant: int
    uid: str | None = None
    url: str
    description: str = ""
    event_types: tuple[str, ...] = ("*",)
    channels: tuple[str, ...] = ()
    format: str = "standard"
    key_field: str | None = None
    signature: str = "standard"
    signature_header: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    secret_headers: dict[str, str] = msgspec.field(default_factory=dict)
    policy: dict[str, Any] = msgspec.field(default_factory=dict)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    secrets: tuple[EndpointSecret, ...] = ()
    state: EndpointState = "enabled"
    state_reason: str | None = None
    rev: int = 1
    version: int = 1
    created_at_ms: int = 0
    updated_at_ms: int = 0
    circuit: Circuit = CLOSED
    retry_after_until_ms: int = 0
    first_failure_ms: int | None = None
    last_failure_ms: int | None = None
    failing_announced: bool = False
    paused_since_ms: int | None = None
    paused_total_ms: int = 0

    @property
    def pin(self) -> str:
        """The format as a delivery keeps it for a round (``"flat:<key_field>"`` for flat with a key field)."""
        return f"flat:{self.key_field}" if self.format == "flat" and self.key_field is not None else self.format

    def clock_ms(self, now_ms: int) -> int:
        """Read the running clock: it stands still while the endpoint is paused."""
        return (now_ms if self.paused_since_ms is None else self.paused_since_ms) - self.paused_total_ms


class Tenant(msgspec.Struct, kw_only=True):
    """Whose endpoints get events. ``uid`` is the name used in ``Ackpost-Tenant``."""

    position: int
    uid: str
    name: str = ""
    rate_per_s: float | None = None
    default_format: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    created_at_ms: int = 0
    deleted: bool = False


class ApiKey(msgspec.Struct, kw_only=True):
    """An API key; only the SHA-256 of its text is kept. ``tenant`` None: operator."""

    position: int
    name: str
    prefix: str
    digest: bytes
    role: Role
    tenant: int | None
    created_at_ms: int
    expires_at_ms: int | None = None
    last_used_at_ms: int | None = None


class Job(msgspec.Struct, kw_only=True):
    """A mass change, done in steps. ``params`` are the selector; ``cursor`` and ``before`` are the store's own.

    Rows from position ``before`` on came after the job was made, where that is not told by the job's own position (0).
    """

    position: int
    tenant: int
    kind: JobKind
    params: dict[str, Any]
    state: JobState = "queued"
    total: int | None = None
    done: int = 0
    skipped: int = 0
    failed: int = 0
    error: str | None = None
    created_at_ms: int = 0
    finished_at_ms: int | None = None
    cursor: int = 0
    before: int = 0


class EventPayload(msgspec.Struct, gc=False):
    """What of an event is sent: enough to build the body. ``data`` are the published bytes."""

    position: int
    type: str
    occurred_at_ms: int
    data: bytes
    key: str | None = None
    sequence: int | None = None


class Event(msgspec.Struct, kw_only=True):
    """A published fact as read back. ``data`` None when expired or not asked for (``data_expired`` tells which)."""

    position: int
    tenant: int
    type: str
    uid: str | None = None
    key: str | None = None
    sequence: int | None = None
    channels: tuple[str, ...] = ()
    occurred_at_ms: int = 0
    created_at_ms: int = 0
    metadata: bytes | None = None
    data: bytes | None = None
    data_expired: bool = False
    delivery_counts: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def status(self) -> str:
        """pending while any delivery is, then dead if any is dead, unmatched without deliveries, else delivered."""
        if not self.delivery_counts:
            return "unmatched"
        for name in ("pending", "dead"):
            if self.delivery_counts.get(name):
                return name
        return "delivered"


class DeliveryRef(msgspec.Struct):
    """A pending delivery in its owner's memory (window): a reference, the counters deciding needs, perhaps the payload.

    ``number`` counts all attempts made so far, ``round_attempts`` those of this round; ``age_start_ms`` is the
    endpoint's running clock when it was first due in this round; ``pin`` is the format of this round
    (``"flat:<key_field>"`` for flat with a key field); ``ordered`` marks rows that others of their key wait for.
    """

    position: int
    event: int
    tenant: int
    endpoint: int
    rev: int
    klass: int
    due_ms: int
    age_start_ms: int
    pin: str
    round: int = 1
    number: int = 0
    round_attempts: int = 0
    trigger: Trigger = "schedule"
    crashes: int = 0
    ordered: bool = False
    payload: EventPayload | None = None


class Delivery(msgspec.Struct, kw_only=True):
    """event × endpoint as read back, whichever table it lies in. ``waiting``: behind another of its key."""

    position: int
    tenant: int
    event: int
    endpoint: int
    type: str
    key: str | None
    status: DeliveryStatus
    reason: str | None = None
    waiting: bool = False
    attempt_count: int = 0
    round: int = 1
    due_ms: int | None = None
    event_created_at_ms: int = 0
    created_at_ms: int = 0
    ended_at_ms: int | None = None
    last_error: str | None = None
    last_status_code: int | None = None


class Attempt(msgspec.Struct, kw_only=True):
    """One HTTP request and its result as stored. ``version`` names the endpoint's url and headers of then."""

    position: int
    delivery: int
    event: int
    endpoint: int
    tenant: int
    number: int
    round: int
    trigger: Trigger
    started_at_ms: int
    duration_ms: float
    code: str
    status_code: int | None = None
    phase: str | None = None
    detail: str = ""
    phases_ms: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)
    remote_ip: str | None = None
    version: int = 1
    response_headers: tuple[tuple[str, str], ...] = ()
    response_body: bytes = b""
    truncated: bool = False
    next_due_ms: int | None = None
    node: str = ""


class EndpointVersion(msgspec.Struct):
    """What an endpoint's requests looked like at ``version``, to show old attempts (secret header values sealed)."""

    endpoint: int
    version: int
    url: str
    signature: str
    signature_header: str | None
    headers: dict[str, str]
    secret_header_names: tuple[str, ...]
