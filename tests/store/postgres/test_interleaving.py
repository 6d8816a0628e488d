"""Two transactions at once, one of them held in the middle (rule E20): what needs two snapshots to go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from ackpost.errors import StoreLocked
from ackpost.ports.operations import Accepted, CreateTenant, Idempotency, NewEvent, Repeated, TenantSaved, TouchApiKeys
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.connection import Place, connect
from ackpost.testing.store_contract.world import BY_KEY, LEASE_MS, World
from tests.store.harnesses import PostgresHarness

Scenario = Callable[[World, Any], Awaitable[None]]


def play(scenario: Scenario) -> None:
    """Run a scenario with a world, and a session that stands for another node."""

    async def run() -> None:
        harness = PostgresHarness()
        world = await World.begin(harness)
        store = world.store
        assert isinstance(store, PostgresStore)
        session = await connect(Place(store.dsn, store.schema))
        try:
            await scenario(world, session)
        finally:
            await session.close()
            for one in world.stores:
                await harness.dispose(one)

    asyncio.run(run())


async def until_blocked(session: Any, waiting: asyncio.Future[Any] | None = None) -> None:
    """Wait until somebody waits for the session's transaction; ``waiting`` is who should, and has not ended yet."""
    watcher = await asyncpg.connect(**_where(session))
    sql = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
    try:
        while not await watcher.fetchval(sql, session.get_server_pid()):
            assert waiting is None or not waiting.done(), "it did not wait"
    finally:
        await watcher.close()


def _where(session: Any) -> dict[str, Any]:
    address, parameters = session._addr, session._params
    return {
        "host": address if isinstance(address, str) else address[0],
        "user": parameters.user,
        "database": "postgres",
    }


def test_a_takeover_waits_for_a_commit_under_way() -> None:
    """The next owner opens only when the last one's commit has ended; that one's later commits are refused (E3)."""

    async def scenario(world: World, session: Any) -> None:
        await session.execute("BEGIN")
        await session.execute("SELECT 1 FROM node WHERE id = 'a' FOR NO KEY UPDATE")
        other = world.harness.reopen(world.store)
        world.stores.append(other)
        opening = asyncio.ensure_future(other.open(node="b", now_ms=world.now_ms + LEASE_MS, lease_ms=LEASE_MS))
        await until_blocked(session)
        assert not opening.done()
        await session.execute("COMMIT")
        assert await opening == world.incarnation + 1
        with pytest.raises(StoreLocked):
            await world.store.commit([TouchApiKeys({})])

    play(scenario)


def test_a_commit_that_waited_for_a_takeover_stores_nothing() -> None:
    """A commit that begins while a takeover is under way finds itself fenced when that is done."""

    async def scenario(world: World, session: Any) -> None:
        accept = await world.accept_of(NewEvent("order.made", b"1", uid="u"))
        await session.execute("BEGIN")
        await session.execute("UPDATE node SET alive = false WHERE id = 'a'")
        committing = asyncio.ensure_future(world.store.commit([accept]))
        await until_blocked(session)
        await session.execute("COMMIT")
        with pytest.raises(StoreLocked):
            await committing
        assert await world.store.event_by_uid(world.tenant, "u") is None

    play(scenario)


def test_nodes_that_start_together_make_one_schema_and_one_owner() -> None:
    """Several nodes open a new database at once: one owns it, the others are told so, none fails otherwise."""

    async def run() -> None:
        harness = PostgresHarness()
        first = harness.make()
        stores = [first, *(harness.reopen(first) for _ in range(3))]
        opened = await asyncio.gather(
            *(store.open(node=f"n{number}", now_ms=1, lease_ms=LEASE_MS) for number, store in enumerate(stores)),
            return_exceptions=True,
        )
        for store in stores:
            await harness.dispose(store)
        assert sorted(type(answer).__name__ for answer in opened) == ["StoreLocked"] * 3 + ["int"]

    asyncio.run(run())


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_two_publishes_of_one_uid_make_one_event(ending: str) -> None:
    """The second waits for the first: it is its duplicate if that one commits, and the event if it does not."""

    async def scenario(world: World, session: Any) -> None:
        earlier = 5 << 20
        await session.execute("BEGIN")
        await session.execute(
            "INSERT INTO event (position, day, tenant, type, fanout) VALUES ($1, -1, $2, 'order.made', 0)",
            earlier, world.tenant,
        )  # fmt: skip
        await session.execute("INSERT INTO event_uid VALUES ($1, 'u', $2, 'd')", world.tenant, earlier)
        publishing = asyncio.ensure_future(world.publish(NewEvent("order.made", b"1", uid="u", digest=b"d")))
        await until_blocked(session)
        await session.execute(ending)
        (event,) = (await publishing).events
        assert event.duplicate is (ending == "COMMIT")
        assert (event.position == earlier) is event.duplicate

    play(scenario)


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_two_requests_with_one_idempotency_key_have_one_effect(ending: str) -> None:
    """The second waits for the first: it gets that one's answer, or does the work if that one did not (E6)."""

    async def scenario(world: World, session: Any) -> None:
        (tenant,) = await world.store.commit([CreateTenant(await _draft(world, "first"))])
        assert isinstance(tenant, TenantSaved)
        answer = b'{"type":"Accepted","events":[{"position":7,"deliveries":3}]}'
        await session.execute("BEGIN")
        await session.execute(
            "INSERT INTO idempotency VALUES ($1, 'key', $2, 'd', $3)", world.tenant, world.now_ms, answer
        )
        accept = await world.accept_of(NewEvent("order.made", b"1"))
        accept.idempotency = Idempotency(world.tenant, "key", b"d", world.now_ms)
        committing = asyncio.ensure_future(world.store.commit([accept]))
        await until_blocked(session)
        await session.execute(ending)
        (reply,) = await committing
        events = await world.all_events()
        if ending == "COMMIT":
            assert isinstance(reply, Repeated)
            assert isinstance(reply.result, Accepted)
            assert reply.result.events[0].position == 7
            assert events == []
        else:
            assert isinstance(reply, Accepted)
            assert [event.position for event in events] == [reply.events[0].position]

    play(scenario)


async def _draft(world: World, uid: str) -> Any:
    tenant = await world.store.tenant(world.tenant)
    assert tenant is not None
    tenant.uid = uid
    return tenant


def test_a_row_that_begins_to_wait_while_its_predecessor_ends_is_woken() -> None:
    """An accept puts a row behind a pending one whose result is being stored: the result lets it go (E4)."""

    async def scenario(world: World, session: Any) -> None:
        endpoint = await world.endpoint(policy=BY_KEY)
        await world.one(key="k")
        ref = await world.first_due(endpoint)
        behind = ref.event + 1000
        await session.execute("BEGIN")
        await session.execute("SELECT 1 FROM key_state ORDER BY id FOR NO KEY UPDATE")
        await session.execute(
            "INSERT INTO event (position, day, tenant, type, fanout, key_id)"
            " SELECT $1, day, tenant, type, 1, key_id FROM event WHERE position = $2",
            behind, ref.event,
        )  # fmt: skip
        await session.execute(
            "INSERT INTO delivery (position, event_offset, tenant, endpoint, rev, due_ms, age_start_ms, key_id,"
            " partition, trigger, waiting, pin) SELECT $1, 1, tenant, endpoint, rev, 0, 0, key_id, partition, 0, 1, pin"
            " FROM delivery WHERE position = $2",
            behind + 1, ref.position,
        )  # fmt: skip
        recording = asyncio.ensure_future(world.deliver(ref))
        await until_blocked(session)
        await session.execute("COMMIT")
        assert [one.position for one in (await recording).refs] == [behind + 1]

    play(scenario)


def test_a_new_key_numbered_by_two_goes_on_behind_the_first() -> None:
    """Two first events of a key at once: the second gets the next sequence, and the same key."""

    async def scenario(world: World, session: Any) -> None:
        await session.execute("BEGIN")
        await session.execute("INSERT INTO key_state VALUES (7, $1, 'k', 5, 7)", world.tenant)
        publishing = asyncio.ensure_future(world.one(key="k"))
        await until_blocked(session)
        await session.execute("COMMIT")
        assert (await publishing).sequence == 6
        assert await session.fetchval("SELECT count(*) FROM key_state") == 1

    play(scenario)
