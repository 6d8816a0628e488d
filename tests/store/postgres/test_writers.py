"""Several nodes that write at once: each commit whole, keys numbered without gap or repetition, no deadlock (R15)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from ackpost.ports.operations import Accept, Accepted, Cancel, Idempotency, NewEvent, Record, Repeated
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.connection import Place, connect
from ackpost.store.postgres.ledger import DAY_MS, Ledger
from ackpost.testing.store_contract.world import BY_KEY, World, target_of
from tests.store.harnesses import PostgresHarness

WRITERS = 6
COMMITS = 40
KEYS = ("a", "b", "c", "d", "e")
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


async def _node(world: World, session: Any, number: int) -> PostgresStore:
    """A store that writes as another living node: its row, its slot, its connection."""
    first = world.store
    assert isinstance(first, PostgresStore)
    node, incarnation = f"n{number}", 1000 + number
    row = "INSERT INTO node VALUES ($1, $2, true, $3, 0, 'sole', false, '', '')"
    await session.execute(row, node, incarnation, number)
    await session.execute("INSERT INTO position_slot VALUES ($1, 0)", number)
    store = PostgresStore(first.dsn, schema=first.schema)
    store._writer = await connect(Place(store.dsn, store.schema))
    ledger = store._ledger = Ledger(store._writer)
    ledger.adopt(node=node, incarnation=incarnation, slot=number, position_bound=0)
    ledger.newest_day = world.now_ms // DAY_MS
    return store


class _Work:
    """What one node writes: overlapping keys, uids and Idempotency-Keys, results, cancels."""

    def __init__(self, world: World, store: PostgresStore, number: int, routing: Any) -> None:
        self.world, self.store, self.random, self.routing = world, store, Random(number), routing
        self.accepted: list[Any] = []
        self.due: list[Any] = []

    async def run(self) -> None:
        for _ in range(COMMITS):
            accepts = [self._accept() for _ in range(self.random.randrange(1, 8))]
            operations: list[Any] = list(accepts)
            if self.due and self.random.random() < 0.5:
                ref = self.due.pop(self.random.randrange(len(self.due)))
                operations.append(Cancel(self.world.tenant, self.world.now_ms, delivery=ref.position))
                operations.append(self._accept())
            done, self.due = self.due[:6], self.due[6:]
            incarnation = self.store._ledger.incarnation if self.store._ledger else 0
            results = [self.world.result(ref, "delivered") for ref in done]
            operations.append(Record(results, incarnation, self.world.now_ms, "n"))
            for reply in await self.store.commit(operations):
                answer = reply.result if isinstance(reply, Repeated) else reply
                if isinstance(answer, Accepted):
                    self.accepted += answer.events
                    self.due += answer.refs

    def _accept(self) -> Accept:
        random, tenant = self.random, self.world.tenant
        targets = tuple(target_of(endpoint) for endpoint in self.routing.endpoints)
        keys = random.sample(KEYS, random.randrange(1, 4))
        events = [
            NewEvent(
                "order.made", b"1", key=key, targets=targets, digest=b"d",
                uid=f"u{random.randrange(400)}" if random.random() < 0.5 else None,
            )
            for key in keys
        ]  # fmt: skip
        asked = Idempotency(tenant, f"i{random.randrange(200)}", b"d", self.world.now_ms)
        return Accept(tenant, self.routing.version, events, self.world.now_ms, True, asked)


@pytest.mark.timeout(120)
def test_writers_do_not_lock_each_other_out() -> None:
    """Six nodes commit overlapping groups at once: all succeed, nothing is there twice, nobody waits in vain."""

    async def run() -> None:
        harness = PostgresHarness()
        world = await World.begin(harness)
        await world.endpoint(policy=BY_KEY)
        await world.endpoint()
        # Known keys are locked in order; two that make the same new one at once repeat the later commit.
        first = {(await world.one(key=key)).position for key in KEYS}
        routing = await world.store.routing(world.tenant)
        assert isinstance(world.store, PostgresStore)
        session = await connect(Place(world.store.dsn, world.store.schema))
        before = await session.fetchval(DEADLOCKS)
        works = [_Work(world, await _node(world, session, number), number, routing) for number in range(1, WRITERS + 1)]
        await asyncio.gather(*(work.run() for work in works))
        for work in works:
            assert work.store._writer is not None
            await work.store._writer.close()
        assert await session.fetchval(DEADLOCKS) == before
        await session.close()
        await _check(world, works, first)
        await harness.dispose(world.store)

    asyncio.run(run())


async def _check(world: World, works: list[_Work], first: set[int]) -> None:
    events = await world.all_events()
    for key in KEYS:
        numbers = [event.sequence for event in events if event.key == key]
        assert sorted(numbers, key=lambda number: number or 0) == list(range(1, len(numbers) + 1))
    uids = [event.uid for event in events if event.uid is not None]
    assert len(set(uids)) == len(uids)
    told = {one.position for work in works for one in work.accepted}
    assert told | first == {event.position for event in events}
    await world.look()
