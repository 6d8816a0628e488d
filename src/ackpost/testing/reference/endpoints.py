"""Tenants, API keys and endpoints."""

from __future__ import annotations

import copy

import msgspec

from ackpost.core.model import Endpoint, EndpointVersion
from ackpost.core.policy import effective_policy
from ackpost.errors import Conflict, FieldError, InvalidInput, NotFound
from ackpost.ports.operations import (
    CreateApiKey,
    CreateEndpoint,
    CreateTenant,
    DeleteApiKey,
    DeleteEndpoint,
    DeleteTenant,
    Done,
    EndpointSaved,
    JobSelector,
    KeySaved,
    ReplaceEndpoint,
    ReplaceTenant,
    RotateSecret,
    SetEndpointState,
    Stale,
    TenantSaved,
    TouchApiKeys,
)
from ackpost.testing.reference.state import Change, State

_SECRETS_MAX = 5
_RUNTIME_FIELDS = (
    "position", "tenant", "secrets", "state", "state_reason", "created_at_ms", "circuit", "retry_after_until_ms",
    "first_failure_ms", "last_failure_ms", "failing_announced", "paused_since_ms", "paused_total_ms",
)  # fmt: skip
_ROUTING_FIELDS = ("event_types", "channels", "format", "key_field")
_VERSION_FIELDS = ("url", "headers", "secret_headers", "signature", "signature_header")


# ---------------------------------------------------------------- tenants and keys


def create_tenant(state: State, op: CreateTenant) -> TenantSaved:
    """Make a tenant."""
    _check_tenant_uid(state, op.tenant.uid, None)
    tenant = msgspec.structs.replace(copy.deepcopy(op.tenant), position=state.allocate(1, None), deleted=False)
    state.tenants[tenant.position] = tenant
    state.routing_versions[tenant.position] = 1
    return TenantSaved(copy.deepcopy(tenant))


def replace_tenant(state: State, op: ReplaceTenant) -> TenantSaved:
    """Store a changed tenant."""
    old = state.live_tenant(op.tenant.position)
    if old is None:
        raise NotFound("The tenant does not exist.", code="unknown_tenant")
    _check_tenant_uid(state, op.tenant.uid, old.position)
    tenant = msgspec.structs.replace(copy.deepcopy(op.tenant), created_at_ms=old.created_at_ms, deleted=False)
    state.tenants[tenant.position] = tenant
    state.routing_versions[tenant.position] += 1
    return TenantSaved(copy.deepcopy(tenant))


def _check_tenant_uid(state: State, uid: str, own: int | None) -> None:
    if any(tenant.uid == uid and tenant.position != own and not tenant.deleted for tenant in state.tenants.values()):
        errors = [FieldError(("body", "uid"), "belongs to another tenant")]
        raise Conflict("A tenant with this uid exists.", code="already_exists", errors=errors)


def delete_tenant(state: State, op: DeleteTenant) -> Done:
    """Make a tenant unknown; a job ends its deliveries."""
    tenant = state.live_tenant(op.tenant)
    if tenant is None:
        raise NotFound("The tenant does not exist.", code="unknown_tenant")
    change = Change(op.now_ms)
    tenant.deleted = True
    state.routing_versions[op.tenant] += 1
    for key in [key for key in state.api_keys.values() if key.tenant == op.tenant]:
        del state.api_keys[key.position]
    for job in state.jobs.values():
        if job.tenant == op.tenant and job.state in {"queued", "running"}:
            job.state, job.finished_at_ms = "cancelled", op.now_ms
    for endpoint in [endpoint for endpoint in state.endpoints.values() if endpoint.tenant == op.tenant]:
        change.touched.add(endpoint.position)
        del state.endpoints[endpoint.position]
        state.drop_holds(endpoint.position, change)
    job_position = state.start_job(op.tenant, "delete_tenant", JobSelector(reason="tenant_deleted"), op.now_ms)
    return Done(job_position, sorted(change.touched))


def create_api_key(state: State, op: CreateApiKey) -> KeySaved:
    """Make a key."""
    if op.key.tenant is not None and state.live_tenant(op.key.tenant) is None:
        raise NotFound("The tenant does not exist.", code="unknown_tenant")
    key = msgspec.structs.replace(op.key, position=state.allocate(1, None))
    state.api_keys[key.position] = key
    return KeySaved(copy.copy(key))


def delete_api_key(state: State, op: DeleteApiKey) -> Done:
    """Revoke a key."""
    key = state.api_keys.get(op.position)
    if key is None or op.tenant not in {None, key.tenant}:
        raise NotFound("The API key does not exist.")
    del state.api_keys[op.position]
    return Done(op.position)


def touch_api_keys(state: State, op: TouchApiKeys) -> Done:
    """Note the last use of keys; revoked ones are left out."""
    for position, used_ms in op.last_used_ms.items():
        key = state.api_keys.get(position)
        if key is not None:
            key.last_used_at_ms = max(used_ms, key.last_used_at_ms or 0)
    return Done()


# ---------------------------------------------------------------- endpoints


def create_endpoint(state: State, op: CreateEndpoint) -> EndpointSaved:
    """Make an endpoint."""
    tenant = op.endpoint.tenant
    if state.live_tenant(tenant) is None:
        raise NotFound("The tenant does not exist.", code="unknown_tenant")
    _check_endpoint_uid(state, op.endpoint, None)
    if sum(endpoint.tenant == tenant for endpoint in state.endpoints.values()) >= op.endpoints_max:
        raise InvalidInput(f"The tenant has {op.endpoints_max} endpoints, the most allowed; delete one first.")
    position = state.allocate(1, None)
    endpoint = msgspec.structs.replace(copy.deepcopy(op.endpoint), position=position, rev=1, version=1)
    state.endpoints[position] = endpoint
    state.versions[position, 1] = _version_of(endpoint)
    state.routing_versions[tenant] += 1
    return _saved(state, endpoint)


def replace_endpoint(state: State, op: ReplaceEndpoint) -> EndpointSaved | Stale:
    """Store changed configuration."""
    old = state.endpoint_of(op.endpoint.tenant, op.endpoint.position)
    if old is None:
        raise NotFound("The endpoint does not exist.")
    if old.rev != op.expected_rev:
        return Stale()
    _check_endpoint_uid(state, op.endpoint, old.position)
    new = copy.deepcopy(op.endpoint)
    for name in _RUNTIME_FIELDS:
        setattr(new, name, getattr(old, name))
    before, after = effective_policy(old.policy), effective_policy(new.policy)
    new.rev, new.version, new.updated_at_ms = old.rev + 1, old.version, op.now_ms
    state.endpoints[new.position] = new
    if _differ(old, new, _VERSION_FIELDS):
        new.version = old.version + 1
        state.versions[new.position, new.version] = _version_of(new)
    if _differ(old, new, _ROUTING_FIELDS) or before.ordering != after.ordering:
        state.routing_versions[new.tenant] += 1
    job = None
    if (before.ordering, before.on_dead) != (after.ordering, after.on_dead):
        state.cancel_jobs(new.position, ("switch_ordering",), op.now_ms)
        job = state.start_job(new.tenant, "switch_ordering", JobSelector(endpoint=new.position), op.now_ms)
    saved = _saved(state, new)
    saved.job = job
    return saved


def _differ(old: Endpoint, new: Endpoint, names: tuple[str, ...]) -> bool:
    return any(getattr(old, name) != getattr(new, name) for name in names)


def _check_endpoint_uid(state: State, endpoint: Endpoint, own: int | None) -> None:
    others = (other for other in state.endpoints.values() if other.tenant == endpoint.tenant and other.position != own)
    if endpoint.uid is not None and any(other.uid == endpoint.uid for other in others):
        errors = [FieldError(("body", "uid"), "belongs to another endpoint")]
        raise Conflict("An endpoint with this uid exists.", code="already_exists", errors=errors)


def _version_of(endpoint: Endpoint) -> EndpointVersion:
    return EndpointVersion(
        endpoint.position, endpoint.version, endpoint.url, endpoint.signature, endpoint.signature_header,
        dict(endpoint.headers), tuple(sorted(endpoint.secret_headers)),
    )  # fmt: skip


def _saved(state: State, endpoint: Endpoint) -> EndpointSaved:
    others = (other for other in state.endpoints.values() if other.position != endpoint.position)
    duplicate = any(other.tenant == endpoint.tenant and other.url == endpoint.url for other in others)
    return EndpointSaved(copy.deepcopy(endpoint), duplicate)


def delete_endpoint(state: State, op: DeleteEndpoint) -> Done:
    """Remove an endpoint; a job ends its deliveries."""
    if state.endpoint_of(op.tenant, op.endpoint) is None:
        raise NotFound("The endpoint does not exist.")
    del state.endpoints[op.endpoint]
    state.drop_holds(op.endpoint, Change(op.now_ms))
    state.routing_versions[op.tenant] += 1
    state.cancel_jobs(op.endpoint, ("end_endpoint", "switch_ordering"), op.now_ms)
    selector = JobSelector(endpoint=op.endpoint, reason="endpoint_deleted")
    return Done(state.start_job(op.tenant, "delete_endpoint", selector, op.now_ms), [op.endpoint])


def set_endpoint_state(state: State, op: SetEndpointState) -> EndpointSaved:
    """Pause, resume, enable or disable."""
    endpoint = state.endpoint_of(op.tenant, op.endpoint)
    if endpoint is None:
        raise NotFound("The endpoint does not exist.")
    if endpoint.state == "disabled" and op.verb in {"pause", "resume"}:
        raise Conflict(f"A disabled endpoint cannot be {op.verb}d; enable it first.", code="invalid_state")
    job = None
    if op.verb == "disable":
        if endpoint.state != "disabled":
            job = disable(state, endpoint, op.reason, "endpoint_disabled", op.now_ms)
    elif op.verb == "pause":
        if endpoint.state != "paused":
            endpoint.state, endpoint.state_reason, endpoint.paused_since_ms = "paused", op.reason, op.now_ms
            _changed_state(state, endpoint, op.now_ms)
    else:
        _start(state, endpoint, op)
    saved = EndpointSaved(copy.deepcopy(endpoint))
    saved.job = job
    return saved


def _start(state: State, endpoint: Endpoint, op: SetEndpointState) -> None:
    """Resume or enable: send the next request at once as a probe."""
    before = copy.deepcopy(endpoint)
    endpoint.retry_after_until_ms = 0
    if endpoint.circuit.state == "open":
        endpoint.circuit = msgspec.structs.replace(endpoint.circuit, state="half-open", successes=0)
    if op.verb == "enable":
        endpoint.first_failure_ms = endpoint.last_failure_ms = None
        endpoint.failing_announced = False
        state.cancel_jobs(endpoint.position, ("end_endpoint",), op.now_ms)
    _close_pause(endpoint, op.now_ms)
    endpoint.state, endpoint.state_reason = "enabled", None
    if endpoint.state != before.state:
        _changed_state(state, endpoint, op.now_ms)
    elif endpoint != before:
        endpoint.rev += 1


def disable(state: State, endpoint: Endpoint, state_reason: str | None, reason: str, now_ms: int) -> int:
    """Disable at once; the job that is given ends the deliveries as dead for ``reason``."""
    _close_pause(endpoint, now_ms)
    endpoint.state, endpoint.state_reason = "disabled", state_reason
    _changed_state(state, endpoint, now_ms)
    selector = JobSelector(endpoint=endpoint.position, reason=reason)
    return state.start_job(endpoint.tenant, "end_endpoint", selector, now_ms)


def _close_pause(endpoint: Endpoint, now_ms: int) -> None:
    if endpoint.paused_since_ms is not None:
        endpoint.paused_total_ms += now_ms - endpoint.paused_since_ms
        endpoint.paused_since_ms = None


def _changed_state(state: State, endpoint: Endpoint, now_ms: int) -> None:
    endpoint.rev += 1
    endpoint.updated_at_ms = now_ms
    state.routing_versions[endpoint.tenant] += 1


def rotate_secret(state: State, op: RotateSecret) -> EndpointSaved:
    """Put a new secret before the others, which expire after the overlap."""
    endpoint = state.endpoint_of(op.tenant, op.endpoint)
    if endpoint is None:
        raise NotFound("The endpoint does not exist.")
    end_ms = op.now_ms + op.overlap_ms
    previous = [
        msgspec.structs.replace(
            old, expires_at_ms=end_ms if old.expires_at_ms is None else min(old.expires_at_ms, end_ms)
        )
        for old in endpoint.secrets
    ]
    live = [old for old in previous if old.expires_at_ms is not None and old.expires_at_ms > op.now_ms]
    endpoint.secrets = (copy.copy(op.secret), *live)[:_SECRETS_MAX]
    endpoint.rev += 1
    endpoint.updated_at_ms = op.now_ms
    return EndpointSaved(copy.deepcopy(endpoint))
