"""Writing endpoints."""

from __future__ import annotations

from typing import Final

import msgspec

from ackpost.core.model import Endpoint, EndpointVersion
from ackpost.core.policy import stored_policy
from ackpost.errors import Conflict, FieldError, InvalidInput, NotFound
from ackpost.ports.operations import (
    CreateEndpoint,
    DeleteEndpoint,
    Done,
    EndpointSaved,
    JobSelector,
    ReplaceEndpoint,
    RotateSecret,
    SetEndpointState,
    Stale,
)
from ackpost.store.postgres.endpoint_states import cancel_jobs, close_pause, disable, note_state, start_job
from ackpost.store.postgres.ledger import Ledger
from ackpost.store.postgres.ordering import drop_holds, promote_next
from ackpost.store.postgres.rows import load_endpoint, store_endpoints
from ackpost.store.postgres.tenants import lock_tenant
from ackpost.store.values import document_of

_SECRETS_MAX: Final = 5
_RUNTIME_FIELDS: Final = (
    "position", "tenant", "secrets", "state", "state_reason", "created_at_ms", "circuit", "retry_after_until_ms",
    "first_failure_ms", "last_failure_ms", "failing_announced", "paused_since_ms", "paused_total_ms",
)  # fmt: skip
_ROUTING_FIELDS: Final = ("event_types", "channels", "format", "key_field")
_VERSION_FIELDS: Final = ("url", "headers", "secret_headers", "signature", "signature_header")

_replace = msgspec.structs.replace


async def endpoint_of(ledger: Ledger, tenant: int, position: int) -> Endpoint:
    """Give an endpoint of a tenant.

    Raises: NotFound.
    """
    endpoint = await load_endpoint(ledger, position)
    if endpoint is None or endpoint.tenant != tenant:
        raise NotFound("The endpoint does not exist.")
    return endpoint


async def create_endpoint(ledger: Ledger, op: CreateEndpoint) -> EndpointSaved:
    """Make an endpoint."""
    tenant = op.endpoint.tenant
    await lock_tenant(ledger, tenant)
    await _check_uid(ledger, op.endpoint, 0)
    count = await ledger.one("SELECT count(*) FROM endpoint WHERE tenant = $1", tenant)
    if count is not None and count[0] >= op.endpoints_max:
        raise InvalidInput(f"The tenant has {op.endpoints_max} endpoints, the most allowed; delete one first.")
    endpoint = _replace(op.endpoint, position=ledger.allocate(1, None), rev=1, version=1)
    await store_endpoints(ledger, [endpoint])
    await _store_version(ledger, endpoint)
    await ledger.raise_routing_version(tenant)
    return await _saved(ledger, endpoint)


async def replace_endpoint(ledger: Ledger, op: ReplaceEndpoint) -> EndpointSaved | Stale:
    """Store changed configuration."""
    old = await endpoint_of(ledger, op.endpoint.tenant, op.endpoint.position)
    if old.rev != op.expected_rev:
        return Stale()
    await _check_uid(ledger, op.endpoint, old.position)
    kept = {name: getattr(old, name) for name in _RUNTIME_FIELDS}
    new: Endpoint = _replace(op.endpoint, rev=old.rev + 1, version=old.version, updated_at_ms=op.now_ms, **kept)
    if _differ(old, new, _VERSION_FIELDS):
        new.version = old.version + 1
        await _store_version(ledger, new)
    await store_endpoints(ledger, [new])
    before, after = stored_policy(old.policy), stored_policy(new.policy)
    if _differ(old, new, _ROUTING_FIELDS) or before.ordering != after.ordering:
        await ledger.raise_routing_version(new.tenant)
    saved = await _saved(ledger, new)
    if (before.ordering, before.on_dead) != (after.ordering, after.on_dead):
        await cancel_jobs(ledger, new.position, ("switch_ordering",), op.now_ms)
        saved.job = await start_job(
            ledger, new.tenant, "switch_ordering", JobSelector(endpoint=new.position), op.now_ms
        )
    return saved


def _differ(old: Endpoint, new: Endpoint, names: tuple[str, ...]) -> bool:
    return any(getattr(old, name) != getattr(new, name) for name in names)


async def _check_uid(ledger: Ledger, endpoint: Endpoint, own: int) -> None:
    if endpoint.uid is None:
        return
    sql = "SELECT 1 FROM endpoint WHERE tenant = $1 AND uid = $2 AND position <> $3"
    if await ledger.one(sql, endpoint.tenant, endpoint.uid, own) is not None:
        errors = [FieldError(("body", "uid"), "belongs to another endpoint")]
        raise Conflict("An endpoint with this uid exists.", code="already_exists", errors=errors)


async def _store_version(ledger: Ledger, endpoint: Endpoint) -> None:
    version = EndpointVersion(
        endpoint.position, endpoint.version, endpoint.url, endpoint.signature, endpoint.signature_header,
        dict(endpoint.headers), tuple(sorted(endpoint.secret_headers)),
    )  # fmt: skip
    await ledger.execute(
        "INSERT INTO endpoint_version (endpoint, version, tenant, document) VALUES ($1, $2, $3, $4)",
        endpoint.position, endpoint.version, endpoint.tenant, document_of(version),
    )  # fmt: skip


async def _saved(ledger: Ledger, endpoint: Endpoint) -> EndpointSaved:
    sql = "SELECT 1 FROM endpoint WHERE tenant = $1 AND md5(url) = md5($2) AND url = $2 AND position <> $3 LIMIT 1"
    twin = await ledger.one(sql, endpoint.tenant, endpoint.url, endpoint.position)
    return EndpointSaved(endpoint, duplicate_url=twin is not None)


async def delete_endpoint(ledger: Ledger, op: DeleteEndpoint) -> Done:
    """Remove an endpoint; a job ends its deliveries."""
    await endpoint_of(ledger, op.tenant, op.endpoint)
    await ledger.execute("DELETE FROM endpoint WHERE position = $1", op.endpoint)
    await promote_next(ledger, await drop_holds(ledger, op.endpoint), op.now_ms)
    await ledger.raise_routing_version(op.tenant)
    await cancel_jobs(ledger, op.endpoint, ("end_endpoint", "switch_ordering"), op.now_ms)
    selector = JobSelector(endpoint=op.endpoint, reason="endpoint_deleted")
    return Done(await start_job(ledger, op.tenant, "delete_endpoint", selector, op.now_ms), [op.endpoint])


async def set_endpoint_state(ledger: Ledger, op: SetEndpointState) -> EndpointSaved:
    """Pause, resume, enable or disable."""
    endpoint = await endpoint_of(ledger, op.tenant, op.endpoint)
    if endpoint.state == "disabled" and op.verb in {"pause", "resume"}:
        raise Conflict(f"A disabled endpoint cannot be {op.verb}d; enable it first.", code="invalid_state")
    job = None
    if op.verb == "disable":
        if endpoint.state != "disabled":
            job = await disable(ledger, endpoint, op.reason, "endpoint_disabled", op.now_ms)
    elif op.verb == "pause":
        if endpoint.state != "paused":
            endpoint.state, endpoint.state_reason, endpoint.paused_since_ms = "paused", op.reason, op.now_ms
            await note_state(ledger, endpoint, op.now_ms)
    else:
        await _start(ledger, endpoint, op)
    await store_endpoints(ledger, [endpoint])
    return EndpointSaved(endpoint, job=job)


async def _start(ledger: Ledger, endpoint: Endpoint, op: SetEndpointState) -> None:
    """Resume or enable: the next request goes at once, as a probe."""
    before = msgspec.structs.replace(endpoint)
    endpoint.retry_after_until_ms = 0
    if endpoint.circuit.state == "open":
        endpoint.circuit = _replace(endpoint.circuit, state="half-open", successes=0)
    if op.verb == "enable":
        endpoint.first_failure_ms = endpoint.last_failure_ms = None
        endpoint.failing_announced = False
        await cancel_jobs(ledger, endpoint.position, ("end_endpoint",), op.now_ms)
    close_pause(endpoint, op.now_ms)
    endpoint.state, endpoint.state_reason = "enabled", None
    if before.state != "enabled":
        await note_state(ledger, endpoint, op.now_ms)
    elif endpoint != before:
        endpoint.rev += 1


async def rotate_secret(ledger: Ledger, op: RotateSecret) -> EndpointSaved:
    """Put a new secret before the others, which expire after the overlap."""
    endpoint = await endpoint_of(ledger, op.tenant, op.endpoint)
    end_ms = op.now_ms + op.overlap_ms
    previous = [
        _replace(old, expires_at_ms=end_ms if old.expires_at_ms is None else min(old.expires_at_ms, end_ms))
        for old in endpoint.secrets
    ]
    live = [old for old in previous if old.expires_at_ms is not None and old.expires_at_ms > op.now_ms]
    endpoint.secrets = (op.secret, *live)[:_SECRETS_MAX]
    endpoint.rev += 1
    endpoint.updated_at_ms = op.now_ms
    await store_endpoints(ledger, [endpoint])
    return EndpointSaved(endpoint)
