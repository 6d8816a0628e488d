"""Writing tenants and API keys."""

from __future__ import annotations

import msgspec

from ackpost.core.model import Job, Tenant
from ackpost.errors import Conflict, FieldError, NotFound
from ackpost.ports.operations import (
    CreateApiKey,
    CreateTenant,
    DeleteApiKey,
    DeleteTenant,
    Done,
    JobSelector,
    KeySaved,
    ReplaceTenant,
    TenantSaved,
    TouchApiKeys,
)
from ackpost.store.sqlite.endpoint_states import start_job, store_job
from ackpost.store.sqlite.ledger import Ledger
from ackpost.store.sqlite.ordering import drop_holds, promote_next
from ackpost.store.values import document_of, from_document

_replace = msgspec.structs.replace


def create_tenant(ledger: Ledger, op: CreateTenant) -> TenantSaved:
    """Make a tenant."""
    _check_uid(ledger, op.tenant.uid, 0)
    tenant = _replace(op.tenant, position=ledger.allocate(1, None), deleted=False)
    ledger.execute(
        "INSERT INTO tenant (position, uid, deleted, routing_version, document) VALUES (?, ?, 0, 1, ?)",
        (tenant.position, tenant.uid, document_of(tenant)),
    )
    return TenantSaved(tenant)


def replace_tenant(ledger: Ledger, op: ReplaceTenant) -> TenantSaved:
    """Store a changed tenant."""
    old = live_tenant(ledger, op.tenant.position)
    _check_uid(ledger, op.tenant.uid, old.position)
    tenant = _replace(op.tenant, created_at_ms=old.created_at_ms, deleted=False)
    ledger.execute(
        "UPDATE tenant SET uid = ?, document = ? WHERE position = ?", (tenant.uid, document_of(tenant), tenant.position)
    )
    ledger.raise_routing_version(tenant.position)
    return TenantSaved(tenant)


def live_tenant(ledger: Ledger, position: int) -> Tenant:
    """Give a tenant that was not deleted.

    Raises: NotFound (unknown_tenant).
    """
    row = ledger.one("SELECT document FROM tenant WHERE position = ? AND deleted = 0", (position,))
    if row is None:
        raise NotFound("The tenant does not exist.", code="unknown_tenant")
    return from_document(Tenant, row[0])


def _check_uid(ledger: Ledger, uid: str, own: int) -> None:
    if ledger.one("SELECT 1 FROM tenant WHERE uid = ? AND deleted = 0 AND position <> ?", (uid, own)) is not None:
        errors = [FieldError(("body", "uid"), "belongs to another tenant")]
        raise Conflict("A tenant with this uid exists.", code="already_exists", errors=errors)


def delete_tenant(ledger: Ledger, op: DeleteTenant) -> Done:
    """Make a tenant unknown; a job ends its deliveries."""
    tenant = live_tenant(ledger, op.tenant)
    tenant.deleted = True
    ledger.raise_routing_version(op.tenant)
    ledger.execute("UPDATE tenant SET deleted = 1, document = ? WHERE position = ?", (document_of(tenant), op.tenant))
    ledger.execute("DELETE FROM api_key WHERE tenant = ?", (op.tenant,))
    for (text,) in ledger.all("SELECT document FROM job WHERE open = 1 AND tenant = ?", (op.tenant,)):
        job = from_document(Job, text)
        job.state, job.finished_at_ms = "cancelled", op.now_ms
        store_job(ledger, job)
    endpoints = ledger.all("DELETE FROM endpoint WHERE tenant = ? RETURNING position", (op.tenant,))
    touched = sorted(position for (position,) in endpoints)
    for position in touched:
        promote_next(ledger, drop_holds(ledger, position), op.now_ms)
    job_position = start_job(ledger, op.tenant, "delete_tenant", JobSelector(reason="tenant_deleted"), op.now_ms)
    return Done(job_position, touched)


def create_api_key(ledger: Ledger, op: CreateApiKey) -> KeySaved:
    """Make a key."""
    if op.key.tenant is not None:
        live_tenant(ledger, op.key.tenant)
    key = _replace(op.key, position=ledger.allocate(1, None))
    ledger.execute(
        "INSERT INTO api_key (position, tenant, digest, last_used_ms, document) VALUES (?, ?, ?, ?, ?)",
        (key.position, key.tenant, key.digest, key.last_used_at_ms, document_of(key)),
    )
    return KeySaved(key)


def delete_api_key(ledger: Ledger, op: DeleteApiKey) -> Done:
    """Revoke a key."""
    row = ledger.one("SELECT tenant FROM api_key WHERE position = ?", (op.position,))
    if row is None or op.tenant not in {None, row[0]}:
        raise NotFound("The API key does not exist.")
    ledger.execute("DELETE FROM api_key WHERE position = ?", (op.position,))
    return Done(op.position)


def touch_api_keys(ledger: Ledger, op: TouchApiKeys) -> Done:
    """Note the last use of keys; revoked ones are left out."""
    for position, used_ms in op.last_used_ms.items():
        ledger.execute(
            "UPDATE api_key SET last_used_ms = max(ifnull(last_used_ms, 0), ?) WHERE position = ?", (used_ms, position)
        )
    return Done()
