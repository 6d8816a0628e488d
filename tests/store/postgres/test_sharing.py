"""Nodes at one database, one held in the middle of a commit: nothing of it is missed (rules E10, E13, E15)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ackpost.core.ids import partition_of
from ackpost.ports.operations import CreateTenant, NewEvent, Stale, TenantSaved
from ackpost.ports.store import EventFilter, Page, Store
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.connection import Place, connect
from ackpost.store.postgres.sharing import Sharing
from ackpost.testing.reference.state import SALT
from ackpost.testing.store_contract.world import LEASE_MS, World
from tests.store.harnesses import PostgresHarness
from tests.store.postgres.server import shared
from tests.store.postgres.test_interleaving import until_blocked

SHARING = Sharing("all", "here", "1", LEASE_MS)


class SharedHarness(PostgresHarness):
    """Stores that share their database."""

    def make(self, *, scan_rows_max: int = 10_000) -> Store:
        """A store in a new schema."""
        self._count += 1
        schema = f"shared_{os.getpid()}_{id(self):x}_{self._count}"
        self._users[schema] = 1
        return PostgresStore(shared(), schema=schema, salt=SALT, scan_rows_max=scan_rows_max, sharing=SHARING)

    def reopen(self, store: Store) -> PostgresStore:
        """Another node's store."""
        assert isinstance(store, PostgresStore)
        self._users[store.schema] += 1
        return PostgresStore(store.dsn, schema=store.schema, sharing=SHARING)


class Nodes:
    """A world on node ``a``; node ``b``; and a session in which ``b`` stands in the middle of a commit."""

    def __init__(self, world: World, b: PostgresStore, session: Any) -> None:
        self.world, self.b, self.session = world, b, session

    async def begin_commit_of_b(self) -> None:
        """Get the fence, as each commit does first."""
        await self.session.execute("BEGIN")
        await self.session.execute("SELECT 1 FROM node WHERE id = 'b' FOR NO KEY UPDATE")

    async def insert_event(self, position: int, endpoint: int | None = None) -> None:
        """Write an event and perhaps a delivery at a position of the caller's choice."""
        await self.session.execute(
            "INSERT INTO event (position, day, tenant, type, fanout, data) VALUES ($1, -1, $2, 'order.made', $3, '1')",
            position, self.world.tenant, 0 if endpoint is None else 1,
        )  # fmt: skip
        if endpoint is not None:
            await self.session.execute(
                "INSERT INTO delivery (position, event_offset, tenant, endpoint, rev, due_ms, age_start_ms, partition,"
                " trigger, waiting, pin) SELECT $1, 1, tenant, position, 1, 0, 0, $3, 0, 0, 'standard'"
                " FROM endpoint WHERE position = $2",
                position + 1, endpoint, partition_of(endpoint),
            )  # fmt: skip
        await self.session.execute(
            "UPDATE position_slot SET position_bound = $1 WHERE slot = (SELECT slot FROM node WHERE id = 'b')",
            position + 9,
        )  # fmt: skip


def play(scenario: Callable[[Nodes], Awaitable[None]]) -> None:
    """Run a scenario with two nodes that live at the true time."""

    async def run() -> None:
        harness = SharedHarness()
        world = World(harness, harness.make())
        world.now_ms = int(time.time() * 1000)
        world.incarnation = await world.store.open(node="a", now_ms=world.now_ms, lease_ms=LEASE_MS)
        default = await world.store.tenant_by_uid("default")
        assert default is not None
        world.tenant = default.position
        b = harness.reopen(world.store)
        await b.open(node="b", now_ms=world.now_ms, lease_ms=LEASE_MS)
        session = await connect(Place(b.dsn, b.schema))
        try:
            await scenario(Nodes(world, b, session))
        finally:
            await session.close()
            await harness.dispose(b)
            await harness.dispose(world.store)

    asyncio.run(run())


async def ascending(store: Store, after: int | None) -> list[int]:
    """The next page of events, oldest first."""
    events, _ = await store.events(None, EventFilter(), Page(limit=100, after=after, ascending=True))
    return [event.position for event in events]


def test_an_ascending_page_skips_nothing_that_commits_late() -> None:
    """A page waits for the commits under way, which may hold rows below those it shows."""

    async def scenario(nodes: Nodes) -> None:
        world = nodes.world
        await nodes.begin_commit_of_b()
        early = ((world.now_ms - 5) << 20) + 77
        await nodes.insert_event(early)
        late = (await world.one()).position
        assert late > early
        listing = asyncio.ensure_future(ascending(world.store, None))
        await until_blocked(nodes.session, listing)
        await nodes.session.execute("COMMIT")
        seen = await listing
        while len(seen) < 2:
            seen += await ascending(world.store, seen[-1])
        assert seen == [early, late]

    play(scenario)


def test_pages_in_the_order_of_positions_give_every_row_once() -> None:
    """While both nodes accept, one reader follows with its cursor: it sees each event once, none is skipped."""

    async def scenario(nodes: Nodes) -> None:
        world = nodes.world

        async def write(store: PostgresStore) -> list[int]:
            given: list[int] = []
            for _ in range(60):
                (accepted,) = await store.commit([await world.accept_of(NewEvent("order.made", b"1"))])
                given += [event.position for event in accepted.events]  # type: ignore[union-attr] # it is accepted
            return given

        assert isinstance(world.store, PostgresStore)
        writing = asyncio.gather(write(world.store), write(nodes.b))
        seen: list[int] = []
        while not writing.done():
            seen += await ascending(nodes.b, seen[-1] if seen else None)
        given = sorted(position for some in await writing for position in some)
        # The last rows are final when the database's clock has passed them.
        while not seen or seen[-1] < given[-1]:
            seen += await ascending(nodes.b, seen[-1] if seen else None)
        assert seen == given

    play(scenario)


def test_a_job_ends_what_another_node_had_not_committed_when_the_endpoint_was_disabled() -> None:
    """The first step waits for commits under way: what was routed before the flip ends with the rest (E13)."""

    async def scenario(nodes: Nodes) -> None:
        world = nodes.world
        endpoint = await world.endpoint()
        await world.one()
        await nodes.begin_commit_of_b()
        # Node b's clock is ahead: its row lies above the job.
        position = ((world.now_ms + 700) << 20) + 77
        await nodes.insert_event(position, endpoint.position)
        job = (await world.set_state(endpoint, "disable")).job
        ending = asyncio.ensure_future(world.run_job(job))
        await until_blocked(nodes.session, ending)
        await nodes.session.execute("COMMIT")
        assert (await ending).done == 2
        assert (await world.delivery(position + 1)).status == "dead"
        assert await world.due(endpoint) == []

    play(scenario)


def test_a_replay_takes_what_died_on_a_node_whose_clock_is_ahead() -> None:
    """A dead letter that can be listed is one that a replay made afterwards takes."""

    async def scenario(nodes: Nodes) -> None:
        world = nodes.world
        endpoint = await world.endpoint()
        await world.one()
        ref = await world.first_due(endpoint)
        a, world.now_ms = world.store, world.now_ms + 500
        world.store, incarnation = nodes.b, world.incarnation
        assert nodes.b._ledger is not None
        world.incarnation = nodes.b._ledger.incarnation
        await world.do(CreateTenant(await _another(world)), TenantSaved)
        await world.record(world.result(ref, "dead", reason="permanent_failure"))
        world.store, world.incarnation, world.now_ms = a, incarnation, world.now_ms - 500
        job = await world.job("replay", all=True)
        assert (await world.run_job(job.position)).done == 1

    play(scenario)


async def _another(world: World) -> Any:
    tenant = await world.store.tenant(world.tenant)
    assert tenant is not None
    tenant.uid = "other"
    return tenant


def test_an_accept_that_waited_for_its_fence_routes_by_what_happened_meanwhile() -> None:
    """Its first statement saw the versions of before; the one that inserts sees what was committed since (E10)."""

    async def scenario(nodes: Nodes) -> None:
        world = nodes.world
        endpoint = await world.endpoint()
        accept = await world.accept_of(NewEvent("order.made", b"1"))
        await nodes.session.execute("BEGIN")
        await nodes.session.execute("SELECT 1 FROM node WHERE id = 'a' FOR SHARE")
        accepting = asyncio.ensure_future(world.store.commit([accept]))
        await until_blocked(nodes.session, accepting)
        a, world.store = world.store, nodes.b
        await world.set_state(endpoint, "disable")
        world.store = a
        await nodes.session.execute("COMMIT")
        assert await accepting == [Stale()]
        assert await ascending(nodes.b, None) == []

    play(scenario)
