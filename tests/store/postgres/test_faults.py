"""A PostgreSQL that restarts, crashes, or whose connections are cut: nothing lost, nothing twice, back by itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress

import asyncpg
import pytest

from ackpost.errors import StoreBusy, StoreError, StoreOutcomeUnknown
from ackpost.ports.operations import Accept, Accepted, NewEvent
from ackpost.ports.store import EventFilter, Page
from ackpost.store.postgres import PostgresStore
from tests.store.postgres.proxy import Proxy
from tests.store.postgres.server import Server

NOW_MS = 1_700_000_000_000
LEASE_MS = 20_000


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[Server]:
    """A server of its own, which these tests may kill; durable as in earnest."""
    server = Server(fsync=True)
    yield server
    server.stop()


class Publisher:
    """Publishes events with uids, and repeats what it got no answer to, as the API's clients do."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.acknowledged: list[int] = []
        self.count = 0
        self._waited_for = 0
        self._reached = asyncio.Event()

    async def open(self) -> None:
        """Become owner."""
        await self.store.open(node="a", now_ms=NOW_MS, lease_ms=LEASE_MS)
        tenant = await self.store.tenant_by_uid("default")
        assert tenant is not None
        self.tenant = tenant.position

    def accept(self, number: int) -> Accept:
        """The event of a number, the same at every call."""
        event = NewEvent("order.made", b"%d" % number, uid=f"u{number}", digest=b"d", key="k")
        return Accept(self.tenant, 1, [event], NOW_MS)

    async def publish(self) -> None:
        """Publish one, once: a StoreError goes to the caller."""
        (answer,) = await self.store.commit([self.accept(self.count)])
        assert isinstance(answer, Accepted)
        self.acknowledged.append(answer.events[0].position)
        self.count += 1
        if self.count == self._waited_for:
            self._reached.set()

    async def reached(self, count: int) -> None:
        """Wait until so many are acknowledged."""
        self._waited_for = count
        self._reached.clear()
        await self._reached.wait()

    async def publish_in_the_end(self) -> None:
        """Repeat until it is acknowledged."""
        before = self.count
        while self.count == before:
            with suppress(StoreError):
                await self.publish()
            await asyncio.sleep(0)

    async def check(self) -> None:
        """All acknowledged events are there, in order, each uid and each sequence once."""
        page = Page(limit=10_000, ascending=True)
        events = (await self.store.events(self.tenant, EventFilter(), page))[0]
        assert [event.position for event in events] == self.acknowledged
        assert [event.uid for event in events] == [f"u{number}" for number in range(self.count)]
        assert [event.sequence for event in events] == list(range(1, self.count + 1))


async def _fresh(dsn: str, schema: str) -> Publisher:
    publisher = Publisher(PostgresStore(dsn, schema=schema))
    await publisher.open()
    return publisher


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL], ids=["fast", "immediate", "killed"])
def test_a_restart_between_commits_loses_nothing(server: Server, how: signal.Signals) -> None:
    """While the server is away commits fail as busy; after it is back the same store goes on without being reopened."""

    async def scenario() -> None:
        publisher = await _fresh(server.dsn, f"between_{how.name.lower()}")
        for _ in range(20):
            await publisher.publish()
        await asyncio.to_thread(server.stop, how)
        with pytest.raises(StoreBusy):
            await publisher.publish()
        with pytest.raises(StoreBusy):
            await publisher.store.newest_event_ms()
        await asyncio.to_thread(server.start)
        for _ in range(20):
            await publisher.publish_in_the_end()
        await publisher.check()
        await publisher.store.close()

    asyncio.run(scenario())


@pytest.mark.timeout(180)
def test_crashes_during_commits_lose_nothing(server: Server) -> None:
    """The server is killed while commits run, again and again: what was acknowledged is there, each event once."""

    async def scenario() -> None:
        publisher = await _fresh(server.dsn, "during")
        for how in (signal.SIGKILL, signal.SIGQUIT, signal.SIGKILL):
            before = publisher.count
            publishing = asyncio.create_task(_publish_many(publisher, before + 150))
            await publisher.reached(before + 50)
            await asyncio.to_thread(server.stop, how)
            await asyncio.to_thread(server.start)
            await publishing
        await publisher.check()
        await publisher.store.close()

    asyncio.run(scenario())


async def _publish_many(publisher: Publisher, count: int) -> None:
    while publisher.count < count:
        await publisher.publish_in_the_end()


def test_a_connection_lost_at_commit_is_an_unknown_outcome(server: Server) -> None:
    """The answer to COMMIT never comes: the outcome is unknown, and repeating gives the stored event as a duplicate."""

    async def scenario() -> None:
        async with Proxy(server.folder) as proxy:
            publisher = await _fresh(proxy.dsn, "unknown")
            await publisher.publish()
            proxy.cut_answer_to = b"COMMIT"
            with pytest.raises(StoreOutcomeUnknown):
                await publisher.publish()
            (answer,) = await publisher.store.commit([publisher.accept(1)])
            assert isinstance(answer, Accepted)
            assert answer.events[0].duplicate
            publisher.acknowledged.append(answer.events[0].position)
            publisher.count += 1
            await publisher.publish()
            await publisher.check()
            await publisher.store.close()

    asyncio.run(scenario())


def test_a_connection_cut_before_the_commit_stores_nothing(server: Server) -> None:
    """A connection that is cut in the middle of the work leaves nothing, and the next commit has a new one."""

    async def scenario() -> None:
        async with Proxy(server.folder) as proxy:
            publisher = await _fresh(proxy.dsn, "cut")
            await publisher.publish()
            proxy.cut_answer_to = b"u1"
            with pytest.raises(StoreBusy):
                await publisher.publish()
            await publisher.check()
            await publisher.publish()
            await publisher.check()
            await publisher.store.close()

    asyncio.run(scenario())


def test_a_connection_that_was_lost_while_idle_is_replaced(server: Server) -> None:
    """A commit that finds its connection gone before it began has another one, and nobody notices."""

    async def scenario() -> None:
        async with Proxy(server.folder) as proxy:
            publisher = await _fresh(proxy.dsn, "idle")
            await publisher.publish()
            proxy.cut_answer_to = b"BEGIN"
            await publisher.publish()
            await publisher.check()
            await publisher.store.close()

    asyncio.run(scenario())


def test_a_value_that_cannot_be_sent_is_not_the_connections_fault(server: Server) -> None:
    """A group with a number too large for its column fails as broken, not as busy: its others are tried alone."""

    async def scenario() -> None:
        publisher = await _fresh(server.dsn, "value")
        accept = publisher.accept(0)
        accept.events[0].occurred_at_ms = 1 << 70
        with pytest.raises(StoreError) as caught:
            await publisher.store.commit([accept])
        assert type(caught.value) is StoreError
        await publisher.publish()
        await publisher.check()
        await publisher.store.close()

    asyncio.run(scenario())


def test_terminated_sessions_come_back(server: Server) -> None:
    """Sessions that an administrator ends, writing and reading ones, are replaced at the next use."""

    async def scenario() -> None:
        publisher = await _fresh(server.dsn, "terminated")
        await publisher.publish()
        assert await publisher.store.newest_event_ms() == NOW_MS
        admin = await asyncpg.connect(server.dsn)
        await admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'ackpost'"
        )
        await admin.close()
        assert await publisher.store.newest_event_ms() == NOW_MS
        await publisher.publish_in_the_end()
        await publisher.check()
        await publisher.store.close()

    asyncio.run(scenario())


def test_a_lock_that_is_not_given_makes_a_busy_store(server: Server) -> None:
    """A transaction that holds a key for longer than the lock timeout makes commits of that key busy, not hanging."""

    async def scenario() -> None:
        publisher = await _fresh(server.dsn, "locked")
        await publisher.publish()
        other = await asyncpg.connect(server.dsn, server_settings={"search_path": "locked"})
        await other.execute("BEGIN")
        await other.execute("SELECT 1 FROM key_state FOR UPDATE")
        with pytest.raises(StoreBusy):
            await publisher.publish()
        await other.execute("ROLLBACK")
        await other.close()
        await publisher.publish()
        await publisher.check()
        await publisher.store.close()

    asyncio.run(scenario())
