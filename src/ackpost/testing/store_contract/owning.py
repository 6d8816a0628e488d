"""Opening, leases, fences, and what survives a crash."""

from __future__ import annotations

from ackpost.errors import StoreError, StoreLocked
from ackpost.ports.operations import (
    AcceptedEvent,
    Done,
    NewEvent,
    Record,
    Recorded,
    RenewLease,
    TouchApiKeys,
)
from ackpost.ports.store import Page, Store
from ackpost.testing.store_contract.world import LEASE_MS, World


async def _is_locked(store: Store, node: str, now_ms: int) -> bool:
    try:
        await store.open(node=node, now_ms=now_ms, lease_ms=LEASE_MS)
    except StoreLocked:
        return True
    return False


async def check_first_open_makes_the_default_tenant(world: World) -> None:
    """A new store has one tenant, ``default``, and gives incarnation 1."""
    tenants = await world.store.tenants(Page())
    assert [tenant.uid for tenant in tenants] == ["default"]
    assert tenants[0].created_at_ms == world.now_ms
    assert world.incarnation == 1


async def check_reopening_keeps_everything(world: World) -> None:
    """Tenants, salt, events, positions and sequences survive a crash; the incarnation rises."""
    endpoint = await world.endpoint()
    event = await world.one(uid="u", key="k")
    salt = world.store.salt
    await world.restart()
    assert world.incarnation == 2
    assert world.store.salt == salt
    assert [tenant.uid for tenant in await world.store.tenants(Page())] == ["default"]
    assert await world.endpoint_now(endpoint) == endpoint
    assert (await world.event(event.position)).data == b'{"n":1}'
    assert [ref.event for ref in await world.due(endpoint)] == [event.position]
    again = await world.one(key="k")
    assert again.position > event.position
    assert again.sequence == 2


async def check_lease_keeps_another_node_out(world: World) -> None:
    """Another node cannot open a store whose lease is live; the same node can: it has restarted."""
    other = world.harness.reopen(world.store)
    world.stores.append(other)
    assert await _is_locked(other, "b", world.now_ms + LEASE_MS - 1)
    await world.restart()
    assert world.incarnation == 2


async def check_expired_lease_can_be_taken(world: World) -> None:
    """After the lease's end another node owns the store, and the old one is fenced out."""
    other = world.harness.reopen(world.store)
    world.stores.append(other)
    incarnation = await other.open(node="b", now_ms=world.now_ms + LEASE_MS, lease_ms=LEASE_MS)
    assert incarnation == world.incarnation + 1
    world.is_over = True
    try:
        await world.store.commit([TouchApiKeys({})])
    except StoreLocked:
        return
    raise AssertionError("a store that lost its ownership committed")


async def check_renewed_lease_lasts(world: World) -> None:
    """Renewing moves the lease's end."""
    world.later(LEASE_MS - 1)
    await world.do(RenewLease("a", world.incarnation, world.now_ms, LEASE_MS), Done)
    other = world.harness.reopen(world.store)
    world.stores.append(other)
    assert await _is_locked(other, "b", world.now_ms + LEASE_MS - 1)


async def check_renewal_of_an_old_incarnation_fails_the_group(world: World) -> None:
    """A renewal by a stale owner raises StoreLocked and nothing of its group is stored."""
    accept = await world.accept_of(NewEvent("a", b"1", uid="u"))
    try:
        await world.store.commit([accept, RenewLease("a", world.incarnation + 1, world.now_ms, LEASE_MS)])
    except StoreLocked:
        pass
    else:
        raise AssertionError("a stale owner renewed its lease")
    assert await world.store.event_by_uid(world.tenant, "u") is None
    assert await world.all_events() == []


async def check_closing_gives_the_lease_up(world: World) -> None:
    """After ``close`` another node may open at once."""
    other = world.harness.reopen(world.store)
    world.stores.append(other)
    await world.store.close()
    world.incarnation = await other.open(node="b", now_ms=world.now_ms, lease_ms=LEASE_MS)
    world.store = other
    assert world.incarnation == 2


async def check_closed_store_does_nothing(world: World) -> None:
    """A store that is not open raises StoreError for commits."""
    await world.store.close()
    world.is_over = True
    try:
        await world.store.commit([TouchApiKeys({})])
    except StoreError:
        return
    raise AssertionError("a closed store committed")


async def check_record_of_an_old_incarnation_changes_nothing(world: World) -> None:
    """Results of a stale owner change no row, no endpoint and store no attempt (rule E3)."""
    endpoint = await world.endpoint()
    await world.one()
    ref = await world.first_due(endpoint)
    decision = world.result(
        ref, "delivered", endpoint_change=world.disabling("gone"), announcements=(world.about(ref),)
    )
    answer = await world.do(Record([decision], world.incarnation - 1, world.now_ms), Recorded)
    assert answer == Recorded([False])
    assert (await world.delivery(ref.position)).status == "pending"
    assert await world.attempts(ref.position) == []
    assert await world.endpoint_now(endpoint) == endpoint


async def check_positions_rise_with_time(world: World) -> None:
    """An event with n deliveries takes n + 1 positions; the clock leads, and stepping back repeats nothing."""
    endpoint, other = await world.endpoint(), await world.endpoint(url="https://example.org/")
    world.later(1000)
    first = await world.one()
    assert first.position == world.now_ms << 20
    second = await world.one()
    assert second.position == first.position + 3
    rows = [row.position for row in await world.all_deliveries(event=second.position)]
    assert rows == [second.position + 1, second.position + 2]
    world.later(-5000)
    third = await world.one()
    assert third == AcceptedEvent(second.position + 3, 2)
    by_endpoint = [row.endpoint for row in await world.all_deliveries(event=third.position)]
    assert by_endpoint == [endpoint.position, other.position]
    world.later(10_000)


async def check_positions_are_not_repeated_after_a_crash(world: World) -> None:
    """Opening continues above every position given before, whatever the clock says."""
    world.later(5000)
    first = await world.one()
    world.later(-5000)
    await world.restart()
    assert (await world.one()).position > first.position
