"""One of several nodes of a world: what a node has more when it shares its store, all of it real, on fakes below."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

from ackpost.engine.engine import Engine, EngineLimits
from ackpost.engine.housekeeping import Housekeeping, Retention
from ackpost.engine.ownership import SharedOwner
from ackpost.engine.partitions import Cluster
from ackpost.engine.writer import Writer
from ackpost.errors import StoreBusy, StoreOutcomeUnknown
from ackpost.ports.cluster import Role, SharedStore
from ackpost.service.context import Options, Services
from ackpost.store.postgres.lease import LeaseKeeper
from ackpost.store.postgres.wakeup import NotifyWakeup
from ackpost.testing.reference import SharedReferenceStore
from ackpost.wiring.system import SystemClock
from tests.simulation.loop import Process
from tests.simulation.node import DAY_S, DRAIN_S, Node, NodeEntropy, NodeStore, NodeTelemetry
from tests.simulation.sessions import PLACE
from tests.simulation.transports import ModelTransport, WireTransport
from tests.simulation.troubles import LEASE_MS

if TYPE_CHECKING:
    from tests.simulation.cluster import ClusterWorld

PATIENCE_S = 5.0
POLLS_REMEMBERED = 8


class WatchedStore(SharedReferenceStore):
    """The world is told after whatever may have changed who lives and who owns what."""

    def __init__(self, world: ClusterWorld, process: Process | None, role: Role, home: str) -> None:
        super().__init__(world.state, world.true_ms, role=role, home=home)
        self._world = world
        self._process = process

    async def open(self, *, node: str, now_ms: int, lease_ms: int) -> int:
        """Join."""
        incarnation = await super().open(node=node, now_ms=now_ms, lease_ms=lease_ms)
        self._world.members.joined(incarnation, self._process)
        return incarnation

    async def rejoin(self) -> int:
        """Come back."""
        incarnation = await super().rejoin()
        self._world.members.joined(incarnation, self._process)
        return incarnation

    async def close(self) -> None:
        """Be gone."""
        await super().close()
        self._world.members.look()

    async def take_over(self) -> list[str]:
        """Declare dead."""
        dead = await super().take_over()
        self._world.members.look()
        return dead

    async def claim(self, partitions: Collection[int]) -> list[int]:
        """Own."""
        claimed = await super().claim(partitions)
        self._world.members.look()
        return claimed

    async def release(self, partitions: Collection[int]) -> None:
        """Own no longer."""
        await super().release(partitions)
        self._world.members.look()


class ClusterNodeStore(NodeStore):
    """The way of a process to the store, which may be cut."""

    def __init__(self, world: ClusterWorld, process: Process, inner: WatchedStore, node: ClusterNode) -> None:
        super().__init__(world, process, inner)
        self._database = world.database
        self._node = node

    async def look(self, partitions: Sequence[int], *, after_endpoint: int, limit: int) -> Any:
        """Poll. A poll that begins says that the one before came to its end."""
        node = self._node
        node.poll_ended()
        looked = await self.__getattr__("look")(partitions, after_endpoint=after_endpoint, limit=limit)
        node.poll_began(self._world.true_ms())
        return looked

    async def endpoint_revs(self, endpoints: Sequence[int]) -> Any:
        """The second half of a poll."""
        node = self._node
        begun_ms, node.polling_ms = node.polling_ms, None
        revs = await self.__getattr__("endpoint_revs")(endpoints)
        node.polling_ms = begun_ms
        return revs

    async def _answer(self, replies: Sequence[Any]) -> None:
        try:
            await self._pass()
        except StoreBusy:
            self._world.commits.untold(replies)
            raise StoreOutcomeUnknown("simulated") from None

    async def _pass(self) -> None:
        await super()._pass()
        try:
            await self._database.reach(self._process, PATIENCE_S)
        except (OSError, TimeoutError):
            raise StoreBusy("simulated: out of reach") from None


class ClusterNode(Node):
    """A node whose lease is renewed by a process of its own, as by a thread: the event loop may hang without it."""

    world: ClusterWorld

    def __init__(self, world: ClusterWorld, name: str, home: str, role: Role) -> None:
        self.role, self.home = role, home
        super().__init__(world, name)
        self.clock = SystemClock(lambda: world.wall_s() + world.wall_off_s(name), world.loop.time)
        self.lease_process = Process(name)
        self.durable = cast("Any", WatchedStore(world, self.process, role, home))
        self._store = cast("Any", ClusterNodeStore(world, self.process, cast("WatchedStore", self.durable), self))
        self.lease: LeaseKeeper
        self.owner: SharedOwner
        self.polling_ms: int | None = None
        self.polls_ms: deque[int] = deque(maxlen=POLLS_REMEMBERED)
        """When the last polls looked that came to their end: what had happened by then is known."""
        self.stopping = False

    def poll_began(self, now_ms: int) -> None:
        """It looked."""
        self.polling_ms = now_ms

    def poll_ended(self) -> None:
        """It went on, or another one begins."""
        if self.polling_ms is not None:
            self.polls_ms.append(self.polling_ms)
            self.polling_ms = None

    async def start(self) -> None:
        """As ``wiring`` starts a node of a cluster. Raises: StoreError."""
        world, store, loop, clock = self.world, cast("SharedStore", self._store), self.world.loop, self.clock
        telemetry, entropy = NodeTelemetry(world), NodeEntropy(random.Random(world.random.random()))
        connect = world.database.connect
        self.lease = LeaseKeeper(
            PLACE, node=self.name, lease_ms=LEASE_MS, boot_s=loop.time, monotonic_s=loop.time, connect=connect
        )
        wakeup = self._wakeup = NotifyWakeup(PLACE, sender=self.name, connect=connect)
        asked_at_s = self.lease.now_s()
        incarnation = await store.open(node=self.name, now_ms=clock.now_ms(), lease_ms=LEASE_MS)
        clock.begin_at(await cast("Any", store).clock_ms())
        self.lease.adopt(incarnation, asked_at_s)
        self._renewing = loop.create_task(self.lease.run(), context=self.lease_process.context)
        writer = self.writer = Writer(store, clock, telemetry, incarnation=incarnation, node=self.name)
        self._transport = self._make_transport()
        cluster = Cluster(self.lease, wakeup, on_fenced=lambda: None)
        engine = self.engine = Engine(
            store, writer, self._transport, clock, entropy, telemetry, self._slots, make_builder=self._make_builder,
            limits=EngineLimits(slots=world.slots, host_cap=world.host_cap), on_fatal=self._on_fatal, cluster=cluster,
        )  # fmt: skip
        writer.start()
        await self._take_over(clock.now_ms())
        self.owner = SharedOwner(
            store, writer, engine, cluster, clock, telemetry, node=self.name, incarnation=incarnation,
            delivers=self.role != "api",
        )  # fmt: skip
        wakeup.start(self.owner.heard())
        self.owner.start()
        self.services = Services(
            store=store, committer=writer, engine=engine, clock=clock, entropy=entropy, members=store,
            options=Options(),
        )  # fmt: skip
        events_s, dead_s = world.keep_s
        self._housekeeping = Housekeeping(
            store, writer, engine, clock, telemetry, node=self.name, incarnation=incarnation, lease_ms=LEASE_MS,
            retention=Retention(events_s / DAY_S, dead_s / DAY_S), stored_ms=world.state.last >> 20, owner=self.owner,
        )  # fmt: skip
        self._housekeeping.start()

    async def stop(self) -> None:
        """As ``wiring`` stops a node of a cluster."""
        self.stopping = True
        self.engine.stop_sending()
        self.owner.begin_leaving()
        await self.engine.drain(DRAIN_S)
        await self.services.auth.close()
        await self.owner.stop()
        await self._housekeeping.stop()
        await self.writer.stop()
        await self._transport.close()
        await self._store.close()
        self._renewing.cancel()
        self._wakeup.tell_members()
        await self._wakeup.stop()

    def hold(self, *, lease_too: bool) -> None:
        """SIGSTOP; or an event loop that hangs while the lease's thread goes on."""
        self.process.frozen, self.lease_process.frozen = True, lease_too

    def go_on(self) -> None:
        """SIGCONT."""
        for process in (self.process, self.lease_process):
            self.world.loop.thaw(process)

    def _make_transport(self) -> ModelTransport | WireTransport:
        network = self.world.network
        if network is None:
            return ModelTransport(self.world, self.process)
        return WireTransport(self.world, self.process, network, may_write=self._holds_lease)

    def _holds_lease(self) -> bool:
        return self.engine.holds_lease()
