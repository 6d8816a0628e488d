"""What callers are shown of endpoints (contract §3). Secrets are in no view but those that say so."""

from __future__ import annotations

from typing import Any

import msgspec

from ackpost.api.delivery_views import AttemptBrief, AttemptView, attempt_brief
from ackpost.api.views import time_text
from ackpost.core import ids
from ackpost.core.headers import masked
from ackpost.core.model import CircuitName, Endpoint, EndpointState
from ackpost.core.policy import Policy, stored_policy
from ackpost.core.times import rfc3339_ms
from ackpost.core.view_state import circuit_view, disable_at_ms, failing_since_ms
from ackpost.service.auth import Principal
from ackpost.service.endpoint_health import Health
from ackpost.service.endpoint_secrets import ShownSecret, public_key


class CircuitShown(msgspec.Struct):
    """An endpoint's circuit: `opened_at` unless closed, `retry_at` while open."""

    state: CircuitName
    failures: int
    opened_at: str | None
    retry_at: str | None


class EndpointView(msgspec.Struct, kw_only=True):
    """A URL with filters, policy and health. `policy` as set, `policy_effective` with every field."""

    id: str
    uid: str | None
    tenant: str
    url: str
    description: str
    event_types: list[str]
    channels: list[str]
    format: str
    key_field: str | None
    signature: str
    signature_header: str | None
    public_key: str | None
    headers: dict[str, str]
    secret_headers: list[str]
    policy: dict[str, Any]
    policy_effective: Policy
    metadata: dict[str, Any]
    state: EndpointState
    state_reason: str | None
    failing_since: str | None
    disable_at: str | None
    circuit: CircuitShown
    created_at: str
    updated_at: str


class TestSentView(msgspec.Struct):
    """A test event that is on its way; `attempt` when it was waited for and came in time."""

    __test__ = False  # it is no test case of pytest

    event_id: str
    delivery_id: str
    attempt: AttemptView | msgspec.UnsetType = msgspec.UNSET


class ChangedEndpointView(EndpointView, kw_only=True):
    """An endpoint after a call: its secret when it was just made, and what the call set going."""

    secret: str | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    job_id: str | msgspec.UnsetType = msgspec.UNSET
    test: TestSentView | msgspec.UnsetType = msgspec.UNSET
    recover_job_id: str | msgspec.UnsetType = msgspec.UNSET

    def __repr__(self) -> str:
        return f"ChangedEndpointView(id={self.id!r})"


class PreviousSecretView(msgspec.Struct):
    """A secret that was replaced and still signs."""

    expires_at: str


class SecretView(msgspec.Struct, kw_only=True):
    """The current secret (for ed25519 the public key), and until when the previous ones sign too."""

    secret: str | msgspec.UnsetType = msgspec.UNSET
    public_key: str | msgspec.UnsetType = msgspec.UNSET
    created_at: str
    previous: list[PreviousSecretView]

    def __repr__(self) -> str:
        return f"SecretView(created_at={self.created_at!r})"


class MatchView(msgspec.Struct):
    """Whether an endpoint would get such an event; `reason` is `matches` or why not."""

    matches: bool
    reason: str


class LatencyView(msgspec.Struct):
    """Percentiles of the attempts of the last hour, in milliseconds."""

    p50: float | None
    p99: float | None


class HealthView(msgspec.Struct):
    """How an endpoint does. `backlog`: its pending deliveries; rates and percentiles of the last hour."""

    circuit: CircuitShown
    in_flight: int
    backlog: int
    oldest_due_at: str | None
    success_rate_1h: float | None
    latency_ms: LatencyView
    last_success_at: str | None
    last_failure: AttemptBrief | None


def endpoint_view(
    endpoint: Endpoint, tenant_uid: str, salt: int, now_ms: int, *, with_credentials: bool
) -> EndpointView:
    """Show an endpoint; without ``with_credentials`` open headers that usually carry credentials are masked too."""
    return EndpointView(**_fields(endpoint, tenant_uid, salt, now_ms, with_credentials=with_credentials))


def changed_endpoint_view(endpoint: Endpoint, tenant_uid: str, salt: int, now_ms: int) -> ChangedEndpointView:
    """Show an endpoint to someone who may change it."""
    return ChangedEndpointView(**_fields(endpoint, tenant_uid, salt, now_ms, with_credentials=True))


def _fields(endpoint: Endpoint, tenant_uid: str, salt: int, now_ms: int, *, with_credentials: bool) -> dict[str, Any]:
    policy = stored_policy(endpoint.policy)
    headers = endpoint.headers
    if not with_credentials:
        headers = {name: masked(name, value) for name, value in headers.items()}
    return {
        "id": ids.public_id(ids.ENDPOINT, endpoint.position, salt),
        "uid": endpoint.uid,
        "tenant": tenant_uid,
        "url": endpoint.url,
        "description": endpoint.description,
        "event_types": list(endpoint.event_types),
        "channels": list(endpoint.channels),
        "format": endpoint.format,
        "key_field": endpoint.key_field,
        "signature": endpoint.signature,
        "signature_header": endpoint.signature_header,
        "public_key": public_key(endpoint),
        "headers": headers,
        "secret_headers": list(endpoint.secret_headers),
        "policy": endpoint.policy,
        "policy_effective": policy,
        "metadata": endpoint.metadata,
        "state": endpoint.state,
        "state_reason": endpoint.state_reason,
        "failing_since": time_text(failing_since_ms(endpoint, now_ms)),
        "disable_at": time_text(disable_at_ms(endpoint, policy.disable_after_s, now_ms)),
        "circuit": circuit_shown(endpoint),
        "created_at": rfc3339_ms(endpoint.created_at_ms),
        "updated_at": rfc3339_ms(endpoint.updated_at_ms),
    }


def circuit_shown(endpoint: Endpoint) -> CircuitShown:
    """Show an endpoint's circuit."""
    circuit = circuit_view(endpoint)
    return CircuitShown(
        circuit.state, circuit.failures, time_text(circuit.opened_at_ms), time_text(circuit.retry_at_ms)
    )


def secret_view(shown: ShownSecret) -> SecretView:
    """Show a secret to someone who may see it."""
    view = SecretView(
        created_at=rfc3339_ms(shown.created_at_ms),
        previous=[PreviousSecretView(rfc3339_ms(expires_at_ms)) for expires_at_ms in shown.previous_expire_ms],
    )
    if shown.secret is not None:
        view.secret = shown.secret
    if shown.public_key is not None:
        view.public_key = shown.public_key
    return view


def health_view(endpoint: Endpoint, health: Health, salt: int, viewer: Principal) -> HealthView:
    """Show an endpoint's figures."""
    return HealthView(
        circuit=circuit_shown(endpoint),
        in_flight=health.in_flight,
        backlog=health.backlog,
        oldest_due_at=time_text(health.oldest_due_ms),
        success_rate_1h=health.success_rate_1h,
        latency_ms=LatencyView(health.p50_ms, health.p99_ms),
        last_success_at=time_text(health.last_success_ms),
        last_failure=None if health.last_failure is None else attempt_brief(health.last_failure, salt, viewer),
    )
