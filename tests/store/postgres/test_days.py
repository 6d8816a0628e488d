"""Days as partitions: there before they are needed, dropped whole, and nothing lost with them (rule E14)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import pytest

from ackpost.errors import SchemaMismatch, StoreBusy
from ackpost.ports.operations import Accept, Accepted, DeliveriesChanged, NewEvent, Redeliver, Retain, Retained
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.closing import BIG_BYTES
from ackpost.store.postgres.connection import Place, connect
from ackpost.store.postgres.days import SELECT_DAYS, make_days
from ackpost.store.postgres.ledger import DAY_MS, Ledger
from ackpost.store.postgres.moves import DELETE_HISTORY, KEEP_INLINE
from ackpost.testing.store_contract.world import World, target_of
from tests.store.harnesses import PostgresHarness
from tests.store.postgres.test_interleaving import until_blocked

Scenario = Callable[[World, Any], Awaitable[None]]
MANY = 1500
# Nothing that PostgreSQL could compress.
BODY = b"".join(sha256(b"%d" % n).digest() for n in range(128))


def play(scenario: Scenario) -> None:
    """Run a scenario with a world and a session that looks behind the store."""

    async def run() -> None:
        harness = PostgresHarness()
        world = await World.begin(harness)
        assert isinstance(world.store, PostgresStore)
        session = await connect(Place(world.store.dsn, world.store.schema))
        try:
            await scenario(world, session)
            await world.look()
        finally:
            await session.close()
            for one in world.stores:
                await harness.dispose(one)

    asyncio.run(run())


async def fill_a_day(world: World) -> list[int]:
    """Deliver so many events that their day is worth dropping; give their positions."""
    endpoint = await world.endpoint()
    routing = await world.store.routing(world.tenant)
    assert routing is not None
    events = [
        NewEvent("order.made", BODY, uid=f"u{n}", digest=b"d", targets=(target_of(endpoint),)) for n in range(MANY)
    ]
    accepted = await world.do(Accept(world.tenant, routing.version, events, world.now_ms, batch=True), Accepted)
    await world.record(*(world.result(ref, "delivered") for ref in accepted.refs[:-3]))
    await world.record(world.result(accepted.refs[-3], "retry", due_ms=world.now_ms))
    await world.die(accepted.refs[-2])
    return [event.position for event in accepted.events]


async def retain(world: World, rows_max: int = 500) -> list[Retained]:
    """Do steps of retention until there is nothing more."""
    steps: list[Retained] = []
    while not steps or steps[-1].more:
        before_ms = world.now_ms - 2 * DAY_MS
        operation = Retain(before_ms, before_ms - 100 * DAY_MS, 0, 0, rows_max, world.now_ms)
        steps.append(await world.do(operation, Retained))
    return steps


async def days(session: Any) -> list[int]:
    """Which days have partitions."""
    return [row[0] for row in await session.fetch(SELECT_DAYS)]


def test_a_full_day_is_dropped_whole_and_keeps_what_is_needed() -> None:
    """Of 1,500 events of an old day the pending and dead ones remain, with attempts and data; the day is gone."""

    async def scenario(world: World, session: Any) -> None:
        events = await fill_a_day(world)
        day = world.now_ms // DAY_MS
        assert await session.fetchval(f"SELECT pg_total_relation_size('event_{day}')") >= BIG_BYTES
        world.later(2 * DAY_MS)
        await retain(world)
        assert day in await days(session), "the day has not ended before the cut-off: none of it may leave"
        world.later(DAY_MS)
        steps = await retain(world)
        assert day not in await days(session)
        assert len(steps) < 10
        kept = await world.all_events()
        assert [event.position for event in kept] == events[-3:]
        assert [event.status for event in kept] == ["pending", "dead", "pending"]
        assert {uid: await world.store.event_by_uid(world.tenant, uid) for uid in ("u0", f"u{MANY - 1}")} == {
            "u0": None,
            f"u{MANY - 1}": events[-1],
        }
        dead = (await world.all_deliveries(statuses=("dead",)))[0]
        assert len(await world.attempts(dead.position)) == 1
        for ref in await world.due(dead.endpoint):
            await world.deliver(ref)
        await world.do(Redeliver(world.tenant, world.now_ms, delivery=dead.position), DeliveriesChanged)
        (ref,) = await world.due(dead.endpoint)
        assert (await world.store.load_payloads([ref.event]))[ref.event].data == BODY
        await world.deliver(ref)
        await retain(world)
        assert await world.all_events() == []

    play(scenario)


def test_what_ends_while_its_day_is_closed_leaves_with_it() -> None:
    """An event whose last delivery ends between two steps of closing is dropped with its day, no row left behind."""

    async def scenario(world: World, session: Any) -> None:
        await fill_a_day(world)
        world.later(3 * DAY_MS)
        cut_ms = world.now_ms - 2 * DAY_MS
        step = Retain(cut_ms, cut_ms - 100 * DAY_MS, 0, 0, 1, world.now_ms)
        assert (await world.do(step, Retained)).more
        for delivery in await world.all_deliveries(statuses=("pending",)):
            (ref,) = [ref for ref in await world.due(delivery.endpoint) if ref.position == delivery.position]
            await world.deliver(ref)
        await retain(world)
        assert [event.status for event in await world.all_events()] == ["dead"]
        left = "SELECT (SELECT count(*) FROM history), (SELECT count(*) FROM attempt), (SELECT count(*) FROM event_uid)"
        assert tuple(await session.fetchrow(left)) == (0, 1, 1)

    play(scenario)


def test_a_day_that_somebody_reads_is_dropped_later() -> None:
    """A long read makes retention give up its lock at once and try again in the next round; nobody queues behind it."""

    async def scenario(world: World, session: Any) -> None:
        await fill_a_day(world)
        day = world.now_ms // DAY_MS
        world.later(3 * DAY_MS)
        reading = session.transaction()
        await reading.start()
        await session.fetchval("SELECT count(*) FROM event")
        steps = await retain(world)
        assert not steps[-1].more
        await world.one()
        await reading.rollback()
        assert day in await days(session)
        await retain(world)
        assert day not in await days(session)

    play(scenario)


def test_work_that_begins_while_a_day_is_dropped_keeps_its_event() -> None:
    """A delivery made due again by a transaction that retention waits for is seen once the day is locked."""

    async def scenario(world: World, session: Any) -> None:
        (first, *_) = await fill_a_day(world)
        world.later(3 * DAY_MS)
        cut_ms = world.now_ms - 2 * DAY_MS
        step = Retain(cut_ms, cut_ms - 100 * DAY_MS, 0, 0, 5000, world.now_ms)
        assert (await world.do(step, Retained)).more
        await session.execute("BEGIN")
        await session.execute(
            "INSERT INTO delivery (position, event_offset, tenant, endpoint, rev, due_ms, age_start_ms, round, klass,"
            " number, partition, trigger, waiting, pin) SELECT position, event_offset, tenant, endpoint, 1, 0, 0, 2, 2,"
            " 1, 0, 1, 0, 'standard' FROM history WHERE position = $1",
            first + 1,
        )  # fmt: skip
        await session.execute(KEEP_INLINE, [first + 1])
        await session.execute(DELETE_HISTORY, [first + 1])
        retaining = asyncio.ensure_future(world.do(step, Retained))
        await until_blocked(session)
        await session.execute("COMMIT")
        assert (await retaining).more
        await retain(world)
        assert (await world.event(first)).status == "pending"

    play(scenario)


def test_days_are_made_ahead_and_on_demand() -> None:
    """Opening and retention make days ahead; an event of a day that nobody made makes it."""

    async def scenario(world: World, session: Any) -> None:
        today = world.now_ms // DAY_MS
        assert await days(session) == [today, today + 1]
        world.later(DAY_MS)
        await world.do(Retain(0, 0, 0, 0, 1, world.now_ms), Retained)
        assert (await days(session))[-1] == today + 2
        world.later(30 * DAY_MS)
        event = await world.one()
        assert (await world.event(event.position)).data == b'{"n":1}'
        world.later(-DAY_MS)
        assert (await world.one()).position > event.position

    play(scenario)


def test_two_nodes_make_one_day() -> None:
    """An event of a new day waits for the node that is making that day, and finds it made."""

    async def scenario(world: World, session: Any) -> None:
        world.later(10 * DAY_MS)
        await session.execute("BEGIN")
        await make_days(Ledger(session), world.now_ms // DAY_MS)
        publishing = asyncio.ensure_future(world.one())
        await until_blocked(session)
        await session.execute("COMMIT")
        assert (await world.event((await publishing).position)).data == b'{"n":1}'

    play(scenario)


def test_a_newer_schema_is_refused() -> None:
    """A program older than the schema does not start; it changes nothing."""

    async def scenario(world: World, session: Any) -> None:
        await world.store.close()
        await session.execute("UPDATE schema_version SET version = version + 1")
        other = world.harness.reopen(world.store)
        world.stores.append(other)
        with pytest.raises(SchemaMismatch, match="older than the one"):
            await other.open(node="a", now_ms=world.now_ms, lease_ms=1000)
        await session.execute("UPDATE schema_version SET version = version - 1")
        await other.open(node="a", now_ms=world.now_ms, lease_ms=1000)
        world.store = other

    play(scenario)


def test_a_migration_does_not_wait_long() -> None:
    """A start that cannot get the lock to migrate fails within seconds, and can be tried again."""

    async def scenario(world: World, session: Any) -> None:
        fresh = PostgresHarness().make()
        assert isinstance(fresh, PostgresStore)
        await session.execute("SELECT pg_advisory_lock(hashtext($1), 41634)", fresh.schema)
        with pytest.raises(StoreBusy):
            await fresh.open(node="a", now_ms=world.now_ms, lease_ms=1000)
        await session.execute("SELECT pg_advisory_unlock_all()")
        await fresh.open(node="a", now_ms=world.now_ms, lease_ms=1000)
        await fresh.close()
        await session.execute(f'DROP SCHEMA "{fresh.schema}" CASCADE')

    play(scenario)
