"""What nodes that share a store may expect of it (rule E3): the same of PostgreSQL and of the reference store."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import asyncpg
import pytest

from ackpost.core.decision import Decision
from ackpost.core.ids import PARTITION_COUNT, partition_of
from ackpost.core.model import CLOSED, Endpoint
from ackpost.core.outcome import DELIVERED, Outcome
from ackpost.errors import StoreFenced, StoreLocked
from ackpost.ports import operations as ops
from ackpost.ports.cluster import Role
from ackpost.service.routing import target_of
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.sharing import Sharing
from ackpost.testing.reference import SharedReferenceStore, State
from tests.store.postgres.server import shared

LEASE_MS = 600_000
ALL = list(range(PARTITION_COUNT))


class Place(Protocol):
    """One shared database. ``expire`` lets the lease of a node run out."""

    def store(self, home: str, role: Role = "all") -> Any:
        """A way to it for a process of this home."""

    async def expire(self, node: str) -> None:
        """As if so much time had passed."""


class InMemory:
    """The reference store's state."""

    def __init__(self) -> None:
        self._state = State()

    def store(self, home: str, role: Role = "all") -> SharedReferenceStore:
        """Another one over the same state."""
        return SharedReferenceStore(self._state, lambda: int(time.time() * 1000), home=home, role=role, version="1")

    async def expire(self, node: str) -> None:
        """By hand."""
        self._state.nodes[node].expires_ms = 1

    async def drop(self) -> None:
        """Nothing is left."""


class OnPostgres:
    """A schema of its own."""

    _count = 0

    def __init__(self) -> None:
        OnPostgres._count += 1
        self._schema = f"sharing_{os.getpid()}_{self._count}"

    def store(self, home: str, role: Role = "all") -> PostgresStore:
        """Another process's."""
        return PostgresStore(shared(), schema=self._schema, sharing=Sharing(role, home, "1", LEASE_MS))

    async def expire(self, node: str) -> None:
        """By hand."""
        await self._execute(f"UPDATE \"{self._schema}\".node_lease SET expires_ms = 1 WHERE id = '{node}'")

    async def drop(self) -> None:
        """Take the schema away."""
        await self._execute(f'DROP SCHEMA IF EXISTS "{self._schema}" CASCADE')

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(shared())
        await connection.execute(sql)
        await connection.close()


class Nodes:
    """Stores that are open, each as a node."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.opened: list[Any] = []
        self.now_ms = int(time.time() * 1000)

    async def join(self, name: str, role: Role = "all", home: str | None = None) -> Any:
        """Open another one; as ``incarnation`` it has what its opening gave."""
        store = self.place.store(home or f"home of {name}", role)
        incarnation = await store.open(node=name, now_ms=self.now_ms, lease_ms=LEASE_MS)
        self.opened.append(store)
        return Node(name, store, incarnation)


class Node:
    """A node's store with its incarnation."""

    def __init__(self, name: str, store: Any, incarnation: int) -> None:
        self.name, self.store, self.incarnation = name, store, incarnation

    async def owners(self) -> dict[str, list[int]]:
        """Who owns what, as this node sees it; "" has what is free."""
        state = await self.store.cluster()
        return {"": state.free, **{node.id: node.partitions for node in state.nodes}}

    async def commit(self, *operations: Any) -> list[Any]:
        """Commit."""
        replies: list[Any] = await self.store.commit(operations)
        return replies

    async def delivery(self, now_ms: int) -> tuple[Endpoint, int]:
        """Make an endpoint and publish to it; give it with the delivery."""
        tenant = await self.store.tenant_by_uid("default")
        endpoint = Endpoint(position=0, tenant=tenant.position, url="https://a.example/", created_at_ms=now_ms)
        (saved,) = await self.commit(ops.CreateEndpoint(endpoint, 10))
        version = (await self.store.routing(tenant.position)).version
        event = ops.NewEvent("a", b"1", targets=(target_of(saved.endpoint),))
        (accepted,) = await self.commit(ops.Accept(tenant.position, version, [event], now_ms))
        return saved.endpoint, accepted.events[0].position + 1

    def delivered(self, endpoint: Endpoint, delivery: int, now_ms: int) -> ops.Record:
        """What this node records when the first attempt was answered well."""
        decision = Decision(
            delivery=delivery, event=delivery - 1, tenant=endpoint.tenant, endpoint=endpoint.position, round=1,
            number=1, trigger="schedule", ordered=False, verdict="delivered", started_at_ms=now_ms, ended_at_ms=now_ms,
            circuit=CLOSED, outcome=Outcome(DELIVERED, status_code=200),
        )  # fmt: skip
        return ops.Record([decision], self.incarnation, now_ms, self.name)


@pytest.fixture(params=[InMemory, OnPostgres])
def play(request: pytest.FixtureRequest) -> Callable[[Callable[[Nodes], Awaitable[None]]], None]:
    """Run a story on a new database."""

    def run(story: Callable[[Nodes], Awaitable[None]]) -> None:
        async def main() -> None:
            place = request.param()
            nodes = Nodes(place)
            try:
                await story(nodes)
            finally:
                for store in nodes.opened:
                    await store.close()
                await place.drop()

        asyncio.run(main())

    return run


Play = Callable[[Callable[[Nodes], Awaitable[None]]], None]


def test_who_joins_is_seen_with_a_lease_and_owns_nothing(play: Play) -> None:
    """All are listed by name with role, incarnation and what is left of their lease; everything is free."""

    async def story(nodes: Nodes) -> None:
        b, a = await nodes.join("b", "api"), await nodes.join("a", "engine")
        state = await b.store.cluster()
        shown = [(one.id, one.role, one.incarnation, one.version, one.leaving, one.partitions) for one in state.nodes]
        assert shown == [("a", "engine", a.incarnation, "1", False, []), ("b", "api", b.incarnation, "1", False, [])]
        assert all(LEASE_MS - 60_000 < one.lease_left_ms <= LEASE_MS for one in state.nodes)
        assert (a.incarnation, b.incarnation, state.free) == (2, 1, ALL)
        assert [one.delivers for one in state.nodes] == [True, False]

    play(story)


def test_a_partition_is_claimed_once(play: Play) -> None:
    """Of what two want, each gets only what was free; what is released is free again, and only its owner releases."""

    async def story(nodes: Nodes) -> None:
        a, b = await nodes.join("a"), await nodes.join("b")
        assert sorted(await a.store.claim([1, 2, 3])) == [1, 2, 3]
        assert sorted(await b.store.claim([2, 3, 4])) == [4]
        await b.store.release([1, 4])
        assert (await a.owners())["a"] == [1, 2, 3]
        await a.store.release([1])
        owners = await b.owners()
        assert (owners["a"], owners["b"]) == ([2, 3], [])
        assert owners[""] == [one for one in ALL if one not in (2, 3)]

    play(story)


def test_a_node_that_leaves_says_so_and_frees_all_when_it_closes(play: Play) -> None:
    """It delivers no more from then on, and is gone with its close."""

    async def story(nodes: Nodes) -> None:
        a, b = await nodes.join("a"), await nodes.join("b")
        await a.store.claim([5, 6])
        await a.store.leave()
        first = (await b.store.cluster()).nodes[0]
        assert (first.leaving, first.delivers, first.partitions) == (True, False, [5, 6])
        await a.store.close()
        assert await b.owners() == {"": ALL, "b": []}

    play(story)


def test_only_a_lease_that_has_run_out_is_taken_over(play: Play) -> None:
    """The dead one's partitions are free, its commits are fenced; who lives, and who asks, is not declared dead."""

    async def story(nodes: Nodes) -> None:
        a, b = await nodes.join("a"), await nodes.join("b")
        await a.store.claim([7])
        assert await b.store.take_over() == []
        await nodes.place.expire("a")
        assert await a.store.take_over() == []
        assert (await b.store.cluster()).nodes[0].lease_left_ms < 0
        assert await b.store.take_over() == ["a"]
        assert await b.store.take_over() == []
        assert await b.owners() == {"": ALL, "b": []}

    play(story)


def test_who_was_declared_dead_changes_nothing(play: Play) -> None:
    """No commit, no claim and no release of it does anything."""

    async def story(nodes: Nodes) -> None:
        a, b = await nodes.join("a"), await nodes.join("b")
        endpoint, delivery = await a.delivery(nodes.now_ms)
        place = partition_of(endpoint.position)
        await a.store.claim([place])
        await nodes.place.expire("a")
        await b.store.take_over()
        with pytest.raises(StoreFenced):
            await a.commit(a.delivered(endpoint, delivery, nodes.now_ms))
        assert await a.store.claim([1]) == []
        assert await b.store.claim([place]) == [place]
        await a.store.release([place])
        await a.store.leave()
        assert await b.owners() == {"": [one for one in ALL if one != place], "b": [place]}
        assert (await b.store.delivery(None, delivery)).status == "pending"

    play(story)


def test_who_comes_back_has_a_new_incarnation_and_owns_nothing(play: Play) -> None:
    """Its commits count again, but what the old incarnation recorded does not."""

    async def story(nodes: Nodes) -> None:
        a, b = await nodes.join("a"), await nodes.join("b")
        endpoint, delivery = await a.delivery(nodes.now_ms)
        await a.store.claim([8])
        await nodes.place.expire("a")
        await b.store.take_over()
        stale = a.delivered(endpoint, delivery, nodes.now_ms)
        a.incarnation = await a.store.rejoin()
        assert a.incarnation == 3
        assert await b.owners() == {"": ALL, "a": [], "b": []}
        (told,) = await a.commit(stale)
        assert told.applied == [False]
        (told,) = await a.commit(a.delivered(endpoint, delivery, nodes.now_ms))
        assert told.applied == [True]

    play(story)


def test_who_comes_back_though_nobody_took_over_gives_up_what_it_had(play: Play) -> None:
    """Coming back begins with nothing, whoever thinks so."""

    async def story(nodes: Nodes) -> None:
        a = await nodes.join("a")
        await a.store.claim([9])
        await a.store.rejoin()
        assert await a.owners() == {"": ALL, "a": []}

    play(story)


def test_a_process_of_the_same_home_was_restarted(play: Play) -> None:
    """It keeps its partitions under a new incarnation, and what the process before had under way is fenced."""

    async def story(nodes: Nodes) -> None:
        before = await nodes.join("a")
        await before.store.claim([10])
        after = await nodes.join("a")
        assert after.incarnation == before.incarnation + 1
        assert (await after.owners())["a"] == [10]
        with pytest.raises(StoreFenced):
            await before.commit(ops.Promote(1, nodes.now_ms))
        await after.commit(ops.Promote(1, nodes.now_ms))

    play(story)


def test_a_process_of_the_same_home_that_delivers_no_more_gives_up_its_partitions(play: Play) -> None:
    """A restart with another role."""

    async def story(nodes: Nodes) -> None:
        before = await nodes.join("a")
        await before.store.claim([11])
        after = await nodes.join("a", "api")
        assert await after.owners() == {"": ALL, "a": []}

    play(story)


def test_a_name_is_one_living_servers(play: Play) -> None:
    """Another home may have it only once its lease has run out, and then owns nothing; the other is locked out."""

    async def story(nodes: Nodes) -> None:
        a = await nodes.join("a")
        await a.store.claim([12])
        with pytest.raises(StoreLocked, match="alive"):
            await nodes.join("a", home="elsewhere")
        await nodes.place.expire("a")
        other = await nodes.join("a", home="elsewhere")
        assert await other.owners() == {"": ALL, "a": []}
        with pytest.raises(StoreFenced):
            await a.commit(ops.Promote(1, nodes.now_ms))
        with pytest.raises(StoreLocked, match="called a now"):
            await a.store.rejoin()

    play(story)


def test_a_look_finds_work_of_the_asked_partitions_only(play: Play) -> None:
    """And tells whether any job is open."""

    async def story(nodes: Nodes) -> None:
        a = await nodes.join("a")
        made = [await a.delivery(nodes.now_ms) for _ in range(3)]
        endpoints = [endpoint.position for endpoint, _ in made]
        places = sorted({partition_of(endpoint) for endpoint in endpoints})
        looked = await a.store.look(places, after_endpoint=0, limit=2)
        assert ([one.endpoint for one in looked.work], looked.has_jobs) == (endpoints[:2], False)
        looked = await a.store.look(places, after_endpoint=endpoints[1], limit=2)
        assert [one.endpoint for one in looked.work] == endpoints[2:]
        others = [one for one in ALL if one not in places]
        assert (await a.store.look(others, after_endpoint=0, limit=9)).work == []
        tenant = made[0][0].tenant
        await a.commit(ops.SetEndpointState(tenant, endpoints[0], "disable", nodes.now_ms))
        assert (await a.store.look(others, after_endpoint=0, limit=9)).has_jobs

    play(story)
