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
from ackpost.store.postgres.endpoint_states import start_job, store_job
from ackpost.store.postgres.ledger import Ledger
from ackpost.store.postgres.ordering import drop_holds, promote_next
from ackpost.store.values import document_of, from_document

_replace = msgspec.structs.replace


async def create_tenant(ledger: Ledger, op: CreateTenant) -> TenantSaved:
    """Make a tenant."""
    await _check_uid(ledger, op.tenant.uid, 0)
    tenant = _replace(op.tenant, position=ledger.allocate(1, None), deleted=False)
    await insert_tenant(ledger, tenant)
    return TenantSaved(tenant)


async def insert_tenant(ledger: Ledger, tenant: Tenant) -> None:
    """Write a new tenant."""
    await ledger.execute(
        "INSERT INTO tenant (position, uid, deleted, routing_version, created_ms, document)"
        " VALUES ($1, $2, false, 1, $3, $4)",
        tenant.position, tenant.uid, tenant.created_at_ms, document_of(tenant),
    )  # fmt: skip


async def replace_tenant(ledger: Ledger, op: ReplaceTenant) -> TenantSaved:
    """Store a changed tenant."""
    old = await lock_tenant(ledger, op.tenant.position)
    await _check_uid(ledger, op.tenant.uid, old.position)
    tenant = _replace(op.tenant, created_at_ms=old.created_at_ms, deleted=False)
    sql = "UPDATE tenant SET uid = $1, document = $2 WHERE position = $3"
    await ledger.execute(sql, tenant.uid, document_of(tenant), tenant.position)
    await ledger.raise_routing_version(tenant.position)
    return TenantSaved(tenant)


async def lock_tenant(ledger: Ledger, position: int) -> Tenant:
    """Give a tenant that was not deleted; changes of it and of its endpoints come one after another.

    Raises: NotFound (unknown_tenant).
    """
    sql = "SELECT document FROM tenant WHERE position = $1 AND NOT deleted FOR NO KEY UPDATE"
    row = await ledger.one(sql, position)
    if row is None:
        raise NotFound("The tenant does not exist.", code="unknown_tenant")
    return from_document(Tenant, row[0])


async def _check_uid(ledger: Ledger, uid: str, own: int) -> None:
    sql = "SELECT 1 FROM tenant WHERE uid = $1 AND NOT deleted AND position <> $2"
    if await ledger.one(sql, uid, own) is not None:
        errors = [FieldError(("body", "uid"), "belongs to another tenant")]
        raise Conflict("A tenant with this uid exists.", code="already_exists", errors=errors)


async def delete_tenant(ledger: Ledger, op: DeleteTenant) -> Done:
    """Make a tenant unknown; a job ends its deliveries."""
    tenant = await lock_tenant(ledger, op.tenant)
    tenant.deleted = True
    await ledger.raise_routing_version(op.tenant)
    sql = "UPDATE tenant SET deleted = true, document = $1 WHERE position = $2"
    await ledger.execute(sql, document_of(tenant), op.tenant)
    await ledger.execute("DELETE FROM api_key WHERE tenant = $1", op.tenant)
    sql = "SELECT document FROM job WHERE open AND tenant = $1 ORDER BY position FOR UPDATE"
    for (text,) in await ledger.all(sql, op.tenant):
        job = from_document(Job, text)
        job.state, job.finished_at_ms = "cancelled", op.now_ms
        await store_job(ledger, job)
    endpoints = await ledger.all("DELETE FROM endpoint WHERE tenant = $1 RETURNING position", op.tenant)
    touched = sorted(row[0] for row in endpoints)
    for position in touched:
        await promote_next(ledger, await drop_holds(ledger, position), op.now_ms)
    selector = JobSelector(reason="tenant_deleted")
    return Done(await start_job(ledger, op.tenant, "delete_tenant", selector, op.now_ms), touched)


async def create_api_key(ledger: Ledger, op: CreateApiKey) -> KeySaved:
    """Make a key."""
    if op.key.tenant is not None:
        await lock_tenant(ledger, op.key.tenant)
    key = _replace(op.key, position=ledger.allocate(1, None))
    await ledger.execute(
        "INSERT INTO api_key (position, tenant, digest, created_ms, last_used_ms, document)"
        " VALUES ($1, $2, $3, $4, $5, $6)",
        key.position, key.tenant, key.digest, key.created_at_ms, key.last_used_at_ms, document_of(key),
    )  # fmt: skip
    return KeySaved(key)


async def delete_api_key(ledger: Ledger, op: DeleteApiKey) -> Done:
    """Revoke a key."""
    row = await ledger.one("SELECT tenant FROM api_key WHERE position = $1 FOR UPDATE", op.position)
    if row is None or op.tenant not in {None, row[0]}:
        raise NotFound("The API key does not exist.")
    await ledger.execute("DELETE FROM api_key WHERE position = $1", op.position)
    return Done(op.position)


async def touch_api_keys(ledger: Ledger, op: TouchApiKeys) -> Done:
    """Note the last use of keys; revoked ones are left out."""
    for position, used_ms in sorted(op.last_used_ms.items()):
        sql = "UPDATE api_key SET last_used_ms = greatest(last_used_ms, $1) WHERE position = $2"
        await ledger.execute(sql, used_ms, position)
    return Done()
