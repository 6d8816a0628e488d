"""Several engines as nodes of one store in memory, in virtual time: each in a process that can be held or killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from ackpost.core.ids import partition_of
from ackpost.core.model import Endpoint
from ackpost.engine.engine import Engine, EngineLimits
from ackpost.engine.housekeeping import Housekeeping, Retention
from ackpost.engine.ownership import SharedOwner
from ackpost.engine.partitions import Cluster
from ackpost.engine.writer import Writer
from ackpost.errors import StoreBusy, StoreOutcomeUnknown
from ackpost.ports.cluster import Role, SharedStore
from ackpost.store.postgres.lease import LeaseKeeper
from ackpost.store.postgres.wakeup import NotifyWakeup
from ackpost.testing.reference import SharedReferenceStore, State
from ackpost.wiring.system import SystemClock
from tests.engine.rig import START_MS, Request, Rig
from tests.simulation.loop import Process, VirtualLoop, run
from tests.simulation.sessions import PLACE, Database

LEASE_MS = 20_000
LEASE_S = LEASE_MS / 1000
PATIENCE_S = 5.0
STEP_S = 0.005


class ReachedStore:
    """A store behind a network: each call goes there and back."""

    def __init__(self, inner: SharedReferenceStore, database: Database, process: Process) -> None:
        self._inner, self._database, self._process = inner, database, process
        self.salt = inner.salt

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*given: Any, **named: Any) -> Any:
            try:
                await self._database.reach(self._process, PATIENCE_S)
            except (OSError, TimeoutError):
                raise StoreBusy("simulated") from None
            found = await getattr(self._inner, name)(*given, **named)
            try:
                await self._database.reach(self._process, PATIENCE_S)
            except (OSError, TimeoutError):
                raise (StoreOutcomeUnknown if name == "commit" else StoreBusy)("simulated") from None
            return found

        return call


class Node(Rig):
    """One node: real engine, writer, housekeeping, owner, lease and hints."""

    def __init__(self, nodes: Nodes, name: str, role: Role, home: str) -> None:
        self.nodes, self.name, self.role = nodes, name, role
        self.process, self.lease_process = Process(name), Process(name)
        self.inner = SharedReferenceStore(nodes.state, nodes.now_ms, role=role, home=home)
        store = ReachedStore(self.inner, nodes.database, self.process)
        super().__init__(nodes.loop, store=cast("SharedStore", store))
        self.clock = SystemClock(lambda: nodes.now_ms() / 1000, nodes.loop.time)
        self.lease: LeaseKeeper
        self.owner: SharedOwner

    def now_ms(self) -> int:
        """Process time."""
        return self.clock.now_ms()

    def follow(self, offset_ms: int) -> None:
        """Go by the database's clock."""
        self.clock.follow(offset_ms)

    async def start(self) -> int:
        """Join and begin, in the node's process."""
        return await self.nodes.loop.create_task(self._begin(), context=self.process.context)

    async def _begin(self) -> int:
        nodes, loop, name = self.nodes, self.nodes.loop, self.name
        self.lease = LeaseKeeper(
            PLACE, node=name, lease_ms=LEASE_MS, boot_s=loop.time, monotonic_s=loop.time,
            connect=nodes.database.connect,
        )  # fmt: skip
        self.wakeup = NotifyWakeup(PLACE, sender=name, connect=nodes.database.connect)
        asked_at_s = self.lease.now_s()
        incarnation: int = await self.store.open(node=name, now_ms=self.now_ms(), lease_ms=LEASE_MS)
        self.clock.begin_at(await self.store.clock_ms())
        self.lease.adopt(incarnation, asked_at_s)
        self._renewing = loop.create_task(self.lease.run(), context=self.lease_process.context)
        self.writer = Writer(self.store, self, self.told, incarnation=incarnation, node=name)
        cluster = Cluster(self.lease, self.wakeup, on_fenced=lambda: None)
        self.engine = Engine(
            self.store, self.writer, self.wire, self, self, self.told, self.marks, make_builder=self.build,
            limits=EngineLimits(), on_fatal=self.fatal.append, cluster=cluster,
        )  # fmt: skip
        self.writer.start()
        self.owner = SharedOwner(
            self.store, self.writer, self.engine, cluster, self, self.told, node=name, incarnation=incarnation,
            delivers=self.role != "api",
        )  # fmt: skip
        self.wakeup.start(self.owner.heard())
        self.owner.start()
        self.housekeeping = Housekeeping(
            self.store, self.writer, self.engine, self, self.told, node=name, incarnation=incarnation,
            lease_ms=LEASE_MS, retention=Retention(), stored_ms=self.now_ms(), owner=self.owner,
        )  # fmt: skip
        self.housekeeping.start()
        return incarnation

    async def stop(self) -> None:
        """Stop in good order, as ``wiring`` does."""
        await self.nodes.loop.create_task(self._end(), context=self.process.context)

    async def _end(self) -> None:
        self.engine.stop_sending()
        self.owner.begin_leaving()
        await self.engine.drain(30)
        await self.owner.stop()
        await self.housekeeping.stop()
        await self.writer.stop()
        await self.store.close()
        self._renewing.cancel()
        self.wakeup.tell_members()
        await self.wakeup.stop()
        self.process.alive = self.lease_process.alive = False

    # ---- what tests do

    @property
    def owned(self) -> frozenset[int]:
        """What it delivers to, as it thinks itself."""
        return self.engine.parts.owned or frozenset()

    def kill(self) -> None:
        """``kill -9``: its connections end with it."""
        self.process.alive = self.lease_process.alive = False

    def hold(self, *, lease_too: bool = True) -> None:
        """SIGSTOP; or an event loop that hangs while the lease's thread goes on."""
        self.process.frozen = True
        self.lease_process.frozen = lease_too

    def go_on(self) -> None:
        """SIGCONT."""
        for process in (self.process, self.lease_process):
            self.nodes.loop.thaw(process)

    def notes(self, name: str) -> list[dict[str, object]]:
        """What was told under this name."""
        return [fields for note, fields in self.told.notes if note == name]


class Nodes:
    """All nodes of one store, which ``state`` shows as it is."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.state = State()
        self.database = Database(loop, self.state, self.now_ms)
        self.all: list[Node] = []

    def now_ms(self) -> int:
        """The database's time."""
        return START_MS + int(self.loop.time() * 1000)

    async def join(self, *names: str, role: Role = "all", home: str | None = None) -> list[Node]:
        """Start nodes, one after the other, and wait until all is spread evenly."""
        joined = [Node(self, name, role, home or f"home of {name}") for name in names]
        for node in joined:
            self.all.append(node)
            await node.start()
        await self.until(self.is_even)
        return joined

    def living(self) -> list[Node]:
        """Those that run."""
        return [node for node in self.all if node.process.alive]

    def is_even(self) -> bool:
        """Whether all partitions are owned, and those who deliver own equally many, as they and the store know."""
        shares = [node.owned for node in self.living() if node.role != "api"]
        stored = [len(self.partitions(node)) for node in self.living() if node.role != "api"]
        sizes = [len(share) for share in shares]
        return sum(sizes) == 256 and sizes == stored and max(sizes) - min(sizes) <= 1

    def partitions(self, node: Node) -> set[int]:
        """What the store says that a node owns."""
        return {partition for partition, owner in self.state.owners.items() if owner == node.name}

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> float:
        """Let time pass in small steps until something holds; give how long it took."""
        begun_s = self.loop.time()
        while not condition():
            if self.loop.time() - begun_s > within_s:
                raise AssertionError("it did not happen in time")
            await asyncio.sleep(STEP_S)
        return self.loop.time() - begun_s

    async def endpoint_of(self, node: Node, path: str = "/a", **policy: Any) -> Endpoint:
        """Make an endpoint that this node owns."""
        for number in range(100):
            endpoint = await self.living()[0].endpoint(f"{path}{number}" if number else path, **policy)
            if partition_of(endpoint.position) in self.partitions(node):
                return endpoint
        raise AssertionError("no endpoint fell to the node")

    def requests(self, endpoint: Endpoint) -> list[tuple[str, Request]]:
        """Who sent what to an endpoint, in the order of time."""
        path = "/" + endpoint.url.rpartition("/")[2]
        found = [(node.name, request) for node in self.all for request in node.wire.to(path)]
        return sorted(found, key=lambda one: one[1].at_ms)

    def senders(self, endpoint: Endpoint) -> list[str]:
        """Who sent to an endpoint."""
        return [name for name, _ in self.requests(endpoint)]


def play_nodes(story: Callable[[Nodes], Awaitable[None]], *, first: int = 1) -> None:
    """Run a story with so many nodes, ``a`` first; nothing may go wrong unseen."""
    loop = VirtualLoop(1)
    loop.shuffling = False

    async def main() -> None:
        nodes = Nodes(loop)
        await nodes.join(*"abcdefghijklmnop"[:first])
        await story(nodes)
        assert [node.fatal for node in nodes.living() if node.fatal] == []

    run(loop, main())
    assert loop.errors == []
