"""Tenants and API keys, and that nobody sees another tenant's things."""

from __future__ import annotations

import msgspec

from ackpost.core.model import ApiKey, Role, Tenant
from ackpost.ports.operations import (
    CreateApiKey,
    CreateTenant,
    DeleteApiKey,
    DeleteTenant,
    Done,
    Idempotency,
    JobSelector,
    KeySaved,
    NewEvent,
    Repeated,
    ReplaceTenant,
    TenantSaved,
    TouchApiKeys,
)
from ackpost.ports.store import DeliveryFilter, EventFilter, Page
from ackpost.testing.store_contract.world import World


async def check_tenant_is_stored_whole(world: World) -> None:
    """Everything set is read back, by position and uid, also after a crash."""
    draft = Tenant(
        position=0, uid="t", name="T", rate_per_s=2.5, default_format="bare", metadata={"a": 1}, created_at_ms=5
    )
    made = (await world.do(CreateTenant(draft), TenantSaved)).tenant
    assert made == msgspec.structs.replace(draft, position=made.position)
    await world.restart()
    assert await world.store.tenant(made.position) == made
    assert await world.store.tenant_by_uid("t") == made
    assert [tenant.uid for tenant in await world.store.tenants(Page())] == ["t", "default"]
    routing = await world.store.routing(made.position)
    assert routing is not None
    assert (routing.tenant, routing.version, routing.endpoints) == (made, 1, [])


async def check_tenant_uid_is_unique(world: World) -> None:
    """A uid belongs to one live tenant."""
    first, second = await world.new_tenant("a"), await world.new_tenant("b")
    await world.refused(CreateTenant(Tenant(position=0, uid="a")), 409, "already_exists")
    changed = msgspec.structs.replace(second, uid="a")
    await world.refused(ReplaceTenant(changed), 409, "already_exists")
    await world.do(DeleteTenant(first.position, world.now_ms), Done)
    assert (await world.do(ReplaceTenant(changed), TenantSaved)).tenant == changed


async def check_replacing_a_tenant(world: World) -> None:
    """A change is stored and makes publishers read it again; creation time is kept; unknown ones are 404."""
    made = await world.new_tenant("a")
    version = await world.routing_version(made.position)
    changed = msgspec.structs.replace(made, name="new", rate_per_s=1.0, created_at_ms=1)
    saved = (await world.do(ReplaceTenant(changed), TenantSaved)).tenant
    assert saved == msgspec.structs.replace(changed, created_at_ms=made.created_at_ms)
    assert await world.store.tenant(made.position) == saved
    assert await world.routing_version(made.position) == version + 1
    await world.refused(ReplaceTenant(Tenant(position=77, uid="x")), 404, "unknown_tenant")


async def check_creating_a_tenant_is_idempotent_by_key(world: World) -> None:
    """A repeated Idempotency-Key gives the same tenant."""
    operation = CreateTenant(Tenant(position=0, uid="t"), Idempotency(0, "k", b"d", world.now_ms))
    first = await world.do(operation, TenantSaved)
    assert await world.answer(operation) == Repeated(first)


async def check_deleting_a_tenant(world: World) -> None:
    """It is unknown at once, with its endpoints and keys; a job cancels its deliveries; others are untouched."""
    tenant = await world.new_tenant("t")
    endpoint, mine = await world.endpoint(tenant=tenant.position), await world.endpoint()
    await world.do(CreateApiKey(_key(world, b"1", tenant.position)), KeySaved)
    await world.do(CreateApiKey(_key(world, b"2", world.tenant)), KeySaved)
    await world.publish(*(NewEvent("a", b"1") for _ in range(3)), tenant=tenant.position)
    await world.one()
    disabling = (await world.set_state(endpoint, "disable")).job
    deleted = await world.do(DeleteTenant(tenant.position, world.now_ms), Done)
    assert deleted.touched == [endpoint.position]
    assert await world.store.tenant(tenant.position) is None
    assert await world.store.tenant_by_uid("t") is None
    assert await world.store.routing(tenant.position) is None
    assert await world.store.endpoint(None, endpoint.position) is None
    assert [found.uid for found in await world.store.tenants(Page())] == ["default"]
    assert await world.store.api_key_by_digest(b"1") is None
    assert await world.store.api_key_by_digest(b"2") is not None
    assert [job.position for job in await world.store.open_jobs(9)] == [deleted.position]
    assert disabling != deleted.position
    assert (await world.run_job(deleted.position)).done == 3
    rows = await world.all_deliveries(tenant.position)
    assert [(row.status, row.reason) for row in rows] == [("cancelled", "tenant_deleted")] * 3
    assert len(await world.due(mine)) == 1
    await world.refused(DeleteTenant(tenant.position, world.now_ms), 404, "unknown_tenant")
    assert (await world.new_tenant("t")).position != tenant.position


# ---------------------------------------------------------------- keys


def _key(world: World, digest: bytes, tenant: int | None, role: Role = "publisher") -> ApiKey:
    return ApiKey(
        position=0, name="n", prefix="ap_1", digest=digest, role=role, tenant=tenant, created_at_ms=world.now_ms,
        expires_at_ms=world.now_ms + 5,
    )  # fmt: skip


async def check_api_keys(world: World) -> None:
    """Keys are stored hashed, listed by tenant, found by digest, and gone when revoked."""
    other = await world.new_tenant("other")
    operator = (await world.do(CreateApiKey(_key(world, b"0", None, "operator")), KeySaved)).key
    mine = (await world.do(CreateApiKey(_key(world, b"1", world.tenant)), KeySaved)).key
    theirs = (await world.do(CreateApiKey(_key(world, b"2", other.position)), KeySaved)).key
    await world.restart()
    assert mine == msgspec.structs.replace(_key(world, b"1", world.tenant), position=mine.position)
    assert await world.store.api_key_by_digest(b"1") == mine
    assert await world.store.api_key_by_digest(b"9") is None
    assert await world.store.api_keys(None, Page()) == [theirs, mine, operator]
    assert await world.store.api_keys(world.tenant, Page()) == [mine]
    await world.refused(DeleteApiKey(theirs.position, world.tenant), 404, "not_found")
    await world.refused(DeleteApiKey(operator.position, world.tenant), 404, "not_found")
    await world.refused(DeleteApiKey(5, None), 404, "not_found")
    assert await world.do(DeleteApiKey(mine.position, world.tenant), Done) == Done(mine.position)
    await world.do(DeleteApiKey(theirs.position, None), Done)
    assert await world.store.api_key_by_digest(b"1") is None
    assert await world.store.api_keys(None, Page()) == [operator]
    await world.refused(CreateApiKey(_key(world, b"3", 99)), 404, "unknown_tenant")


async def check_last_use_of_keys(world: World) -> None:
    """Last use only moves forward; unknown keys are left out."""
    key = (await world.do(CreateApiKey(_key(world, b"0", None, "operator")), KeySaved)).key
    for used_ms, expected in ((50, 50), (40, 50), (60, 60)):
        await world.do(TouchApiKeys({key.position: used_ms, 7: 1}), Done)
        (read,) = await world.store.api_keys(None, Page())
        assert read.last_used_at_ms == expected


# ---------------------------------------------------------------- isolation


async def check_reads_of_another_tenant_find_nothing(world: World) -> None:
    """Every read of one tenant's things with another tenant gives nothing; an operator (None) sees all."""
    other = await world.new_tenant("other")
    endpoint = await world.endpoint(uid="e")
    event = await world.one(uid="u", key="k")
    await world.die(await world.first_due(endpoint))
    delivery = event.position + 1
    (attempt,) = await world.attempts(delivery)
    selector = JobSelector(endpoint=endpoint.position)
    job = await world.job("replay", all=True)
    store, page = world.store, Page()
    for tenant, seen in ((world.tenant, True), (None, True), (other.position, False)):
        found = [
            await store.endpoint(tenant, endpoint.position),
            await store.endpoints(tenant, page),
            await store.event(tenant, event.position),
            (await store.events(tenant, EventFilter(), page))[0],
            (await store.events(tenant, EventFilter(endpoint=endpoint.position), page))[0],
            (await store.events(tenant, EventFilter(uid="u"), page))[0],
            (await store.events(tenant, EventFilter(key="k"), page))[0],
            await store.delivery(tenant, delivery),
            (await store.deliveries(tenant, DeliveryFilter(), page))[0],
            (await store.deliveries(tenant, DeliveryFilter(endpoint=endpoint.position), page))[0],
            (await store.deliveries(tenant, DeliveryFilter(event=event.position), page))[0],
            (await store.deliveries(tenant, DeliveryFilter(statuses=("dead",)), page))[0],
            await store.attempts(tenant, delivery=delivery, endpoint=None, page=page),
            await store.attempts(tenant, delivery=None, endpoint=endpoint.position, page=page),
            await store.attempt(tenant, delivery, attempt.position),
            await store.job(tenant, job.position),
            await store.jobs(tenant, page),
            await store.stats(tenant, "type", None),
        ]
        assert [bool(thing) for thing in found] == [seen] * len(found), tenant
    for tenant, seen in ((world.tenant, True), (other.position, False)):
        more: list[object] = [
            await store.endpoint_by_uid(tenant, "e"),
            await store.event_by_uid(tenant, "u"),
            await store.latest_event(tenant, "k", None),
            await store.count_dead(tenant, JobSelector(all=True), 10),
            await store.count_recoverable(tenant, selector, world.now_ms),
            await store.count_dead(tenant, JobSelector(ids=(delivery,)), 10),
        ]
        assert [bool(thing) for thing in more] == [seen] * len(more), tenant
