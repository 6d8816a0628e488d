"""A world with several nodes at one shared store: they crash, stand still, leave, join, and lose the database."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import cast

from ackpost.core.ids import PARTITION_COUNT
from ackpost.errors import RequestError, StoreError
from ackpost.ports import operations as ops
from ackpost.ports.cluster import Role
from ackpost.ports.store import Store
from ackpost.wiring.system import SystemClock
from tests.simulation import invariants
from tests.simulation.cluster_node import ClusterNode, WatchedStore
from tests.simulation.cluster_troubles import ClusterTroubles
from tests.simulation.history import Send, Violation
from tests.simulation.loop import Process
from tests.simulation.members import ClusterChecks, ClusterCommits, Members
from tests.simulation.node import Node
from tests.simulation.operators import Operator
from tests.simulation.sessions import Database
from tests.simulation.troubles import LEASE_MS
from tests.simulation.world import World

NAMES = "abcdefghijklmnopqrstuvwxyz"
QUIET_AFTER_S = LEASE_MS / 1000 + 8
"""After the last trouble: a lease, and a look."""
EVEN_AFTER_S = 60.0
WATCH_S = 0.25
OFFSETS_S = (0.0, 0.0, 120.0, -120.0, 7.5)


class ClusterWorld(World):
    """``count`` nodes at first; drawn from the seed when left out."""

    troubles: ClusterTroubles

    def __init__(self, seed: int, *, count: int | None = None, wire: bool | None = None) -> None:
        super().__init__(seed, sqlite=False, wire=wire)
        rng = self.random
        drawn = rng.choice([2, 2, 3, 3, 4, 5])
        self.count = drawn if count is None else count
        self.up: list[ClusterNode] = []
        self.by_process: dict[Process, ClusterNode] = {}
        self.changed_ms: dict[int, int] = {}
        self.thawed_s: dict[str, float] = {}
        self.members = Members(self)
        self.checks = ClusterChecks(self)
        self.commits = ClusterCommits(self)
        self.database = Database(self.loop, self.state, self.true_ms)
        self.database.latency_s = lambda: 0.0
        self.database.hint_s = self.troubles.hint_s
        self.revoked_within_s = 5.0 + 10 * self.troubles.store_slowest_s
        self.clocks_differ_ms = 50 + int(12_000 * self.troubles.store_slowest_s)
        self._slot_files: dict[str, dict[int, ops.Mark]] = {}
        self._offsets_s: dict[str, float] = {}
        self._names = iter(NAMES)
        self._lives: list[asyncio.Task[None]] = []
        self.healed_s = 0.0

    def make_troubles(self, rng: random.Random) -> ClusterTroubles:
        """Those of a cluster, too."""
        return ClusterTroubles(self, rng)

    # ---- what nodes ask

    def now_ms(self) -> int:
        """The database's clock, which all go by."""
        return self.true_ms()

    def clock_of(self, process: Process) -> SystemClock:
        """Each has its own."""
        return self.node_of(process).clock

    def wall_off_s(self, name: str) -> float:
        """By how much a machine's clock is wrong."""
        return self._offsets_s.setdefault(name, self.random.choice(OFFSETS_S))

    def slot_file_of(self, node: str) -> dict[int, ops.Mark]:
        """Each home has one."""
        return self._slot_files.setdefault(node, {})

    def new_store(self, node: str) -> Store:
        """For whoever only looks or sets up."""
        return cast("Store", WatchedStore(self, None, "api", node))

    def node_of(self, process: Process) -> ClusterNode:
        """By either of its processes."""
        return self.by_process[process]

    def node_for(self, endpoint: int) -> Node | None:
        """Who delivers to an endpoint."""
        process = self.members.owner(endpoint)
        return None if process is None else self.by_process[process]

    def owner_trouble(self, process: Process, endpoint: int) -> str | None:
        """See ``Members``."""
        return self.members.owner_trouble(process, endpoint)

    def writer_trouble(self, process: Process, operations: Sequence[ops.Operation]) -> str | None:
        """See ``Members``."""
        return self.members.writer_trouble(process, operations)

    def aborted(self, send: Send) -> None:
        """The engine aborted a request: it is made again."""
        if not send.told:
            self.lost(send)

    def lost(self, send: Send) -> None:
        """Whatever a request comes to, nobody records it."""
        send.lost = True
        self.checks.forget_send(send.delivery)

    def interrupted(self, node: ClusterNode) -> None:
        """See ``kill``."""
        self._interrupted(node)

    # ---- life and death

    def kill(self, process: Process) -> None:
        """``kill -9`` takes both."""
        node = self.node_of(process)
        node.lease_process.alive = False
        super().kill(node.process)
        if node in self.up:
            self.up.remove(node)

    async def serving(self) -> ClusterNode:
        """Any node that is up."""
        while not self.up:
            self._served.clear()
            await self._served.wait()
        return self.random.choice(self.up)

    async def _supervise(self) -> None:
        """Begin with some nodes; the troubles add more."""
        for number in range(self.count):
            role: Role = "api" if number == 2 and self.random.random() < 0.3 else "all"
            self.live(role)
            await asyncio.sleep(self.random.choice([0.0, 0.0, 3.0]))
        await asyncio.get_running_loop().create_future()

    def live(self, role: Role = "all") -> str:
        """Let one more node live, and come back after each death; give its name."""
        name = next(self._names)
        self._lives.append(self.loop.create_task(self._live(name, role), name=f"life of {name}"))
        return name

    async def _live(self, name: str, role: Role) -> None:
        while True:
            node = ClusterNode(self, name, f"home of {name}", role)
            self.nodes.append(node)
            self.by_process[node.process] = self.by_process[node.lease_process] = node
            starting = self.loop.create_task(node.start(), context=node.process.context)
            await asyncio.wait({starting, node.died}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and self._started(starting) and not node.died.done():
                self.up.append(node)
                self._served.set()
                await asyncio.wait({node.died})
                self.troubles.last_s = self.loop.time()
                self.history.seen["crash"] += 1
            else:
                self.kill(node.process)
            await asyncio.sleep(self.troubles.away_s())

    async def _end_node(self, node: ClusterNode) -> None:
        """Stop a node in good order; what keeps it from that ends it."""
        node.stopping = True
        if node in self.up:
            self.up.remove(node)
        stopping = self.loop.create_task(node.stop(), context=node.process.context)
        await asyncio.wait({stopping, node.died}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if not (stopping.done() or node.died.done()):
            raise Violation(f"{node.name} does not stop: {stopping.get_stack()}")
        if stopping.done() and stopping.exception() is None:
            invariants.memory_is_clean(node)
            self.history.seen["left in good order"] += 1
        elif stopping.done() and not isinstance(stopping.exception(), StoreError | RequestError):
            stopping.result()
        self.kill(node.process)

    # ---- the run

    async def _main(self) -> None:
        self.watching = self.loop.create_task(self._watch())
        await super()._main()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                self.members.watch()
            except Violation as violation:
                self.fail(violation)
                return

    async def _settle(self, operator: Operator) -> None:
        """All is owned evenly after a while, and stays so; then as elsewhere."""
        self.healed_s = self.served_s = self.loop.time() + QUIET_AFTER_S
        settling = self.loop.create_task(super()._settle(operator))
        settled: set[asyncio.Task[None]] = {settling}
        while not settling.done():
            await asyncio.wait(settled, timeout=WATCH_S)
            self.served_s = max(self.healed_s, self.members.changed_s)
        settling.result()
        await asyncio.sleep(max(0.0, self.healed_s + EVEN_AFTER_S - self.loop.time()))
        owners = list(self.state.owners.values())
        shares = [owners.count(node.name) for node in self.up if node.role != "api"]
        if sum(shares) != PARTITION_COUNT or max(shares) - min(shares) > 1:
            raise Violation(f"I8: the partitions are not spread evenly: {shares}")
        self.history.seen[f"settled with {len(shares)} nodes"] += 1

    async def _end(self) -> None:
        """Stop all nodes in good order, one after the other, then look at everything."""
        await invariants.reads_agree(self, self.up[0])
        while self.up:
            await self._end_node(self.up[0])
        for life in self._lives:
            life.cancel()
        invariants.counts_are_right(self)
        invariants.check_all(self)
