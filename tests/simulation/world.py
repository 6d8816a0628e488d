"""A world: one store, a node that serves it, receivers, people, and troubles; all drawn from one seed."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from ackpost.errors import RequestError, StoreError
from ackpost.ports import operations as ops
from ackpost.ports.store import Store
from ackpost.testing.reference import ReferenceStore, State
from ackpost.wiring.system import SystemClock
from tests.simulation import invariants
from tests.simulation.checks import Checks
from tests.simulation.clients import Publisher
from tests.simulation.commits import Commits
from tests.simulation.history import History, Send, Violation
from tests.simulation.loop import Process, VirtualLoop, run
from tests.simulation.mirror import MirroredStore
from tests.simulation.models import Model
from tests.simulation.network import Network
from tests.simulation.node import Node
from tests.simulation.operators import Operator
from tests.simulation.setup import new_endpoint
from tests.simulation.troubles import Troubles
from tests.simulation.wire import Wire

START_S = 1_800_000_000
SETTLE_S = 3600.0
SAMPLE_S = 5.0
DAY_S = 86_400.0
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class World:
    """Everything of one run. ``violation`` is the first promise that was broken.

    ``sqlite`` and ``wire`` say what it runs on, and are drawn from the seed when left out.
    """

    def __init__(self, seed: int, *, sqlite: bool | None = None, wire: bool | None = None) -> None:
        self.seed = seed
        self.random = rng = random.Random(seed)
        drawn_sqlite, drawn_wire = rng.random() < 0.4, rng.random() < 0.6
        self.on_sqlite = drawn_sqlite if sqlite is None else sqlite
        self._folder = tempfile.TemporaryDirectory(prefix="ackpost-world-", dir=_MEMORY) if self.on_sqlite else None
        self._mirrors: list[MirroredStore] = []
        self.loop = VirtualLoop(rng.getrandbits(64))
        self.loop.shuffling = rng.random() < 0.8
        self.context = contextvars.copy_context()
        self.history = History()
        self.checks = Checks(self)
        self.commits = Commits(self)
        self.troubles = self.make_troubles(random.Random(rng.getrandbits(64)))
        self.clock = SystemClock(self.wall_s, self.loop.time)
        self.state = State()
        self.salt = self.state.salt
        self.slot_file: dict[int, ops.Mark] = {}
        self.owner: Process | None = None
        self.node: Node | None = None
        self.nodes: list[Node] = []
        self.tenants: list[int] = []
        self.paths: dict[str, list[str]] = {}
        """Paths of endpoints with the secrets that signed or will sign for them."""
        self.models: dict[str, Model] = {}
        self.poison: set[int] = set()
        self.accepted_events = self.accepted_deliveries = self.counted_attempts = 0
        self.slots = rng.choice([4, 20, 1000])
        self.host_cap = rng.choice([2, 100, 100])
        self.chaos_s = rng.uniform(20, 90)
        self.idle_s = rng.choice([0.5, 3.0, 30.0])
        self.connect_s = rng.choice([0.5, 2.0, 5.0])
        self.keep_s = rng.choice([30 * DAY_S, 30 * DAY_S, 25.0]), rng.choice([90 * DAY_S, 90 * DAY_S, 40.0])
        self.network: Network | None = None
        if drawn_wire if wire is None else wire:
            wires = Wire(self.loop, random.Random(rng.getrandbits(64)), self.context)
            self.network = self.loop.network = Network(self, wires)
        self.clocks_differ_ms = 0
        """How far the clocks of nodes may be from each other, and step."""
        self.revoked_within_s = 0.0
        """How long a node may still know a key that was revoked on another."""
        self.healed = False
        self.violation: BaseException | None = None
        self.served_s = 0.0
        self._over: asyncio.Future[None]
        self._served: asyncio.Event

    def make_troubles(self, rng: random.Random) -> Troubles:
        """What goes wrong here."""
        return Troubles(self, rng)

    # ---- what nodes ask

    def wall_s(self) -> float:
        """What the wall clock shows."""
        return START_S + self.loop.time() + self.troubles.wall_step_s

    def true_ms(self) -> int:
        """The present, whatever clocks show."""
        return START_S * 1000 + int(self.loop.time() * 1000)

    def now_ms(self) -> int:
        """The present as the newest process sees it."""
        return self.clock.now_ms()

    def set_clock(self, clock: SystemClock) -> None:
        """A process begins, with its own idea of the present."""
        history = self.history
        history.old_leaps_ms += history.leap_ms
        history.began_s = self.loop.time()
        history.leap_ms = max(0, clock.now_ms() - self.clock.now_ms())
        self.clock = clock

    def clock_of(self, process: Process) -> SystemClock:
        """The clock of a process that lives."""
        return self.clock

    def slot_file_of(self, node: str) -> dict[int, ops.Mark]:
        """The file in which a node marks what is in flight."""
        return self.slot_file

    def node_for(self, endpoint: int) -> Node | None:
        """Who delivers to an endpoint."""
        return self.node

    def owner_trouble(self, process: Process, endpoint: int) -> str | None:
        """Say why a process may not send to an endpoint now."""
        return None if self.owner is process else f"{self.owner} owns the store"

    def writer_trouble(self, process: Process, operations: Sequence[ops.Operation]) -> str | None:
        """Say why a process may not commit these now."""
        return None if self.owner is process else f"{self.owner} owns it"

    def aborted(self, send: Send) -> None:
        """The engine aborted a request."""

    def retention_ms(self) -> tuple[int, int]:
        """How long events and dead letters are kept."""
        events_s, dead_s = self.keep_s
        return int(events_s * 1000), int(dead_s * 1000)

    def new_store(self, node: str) -> Store:
        """The durable store as a process of this node finds it."""
        if self._folder is None:
            return ReferenceStore(self.state)
        mirrored = MirroredStore(f"{self._folder.name}/ackpost.db", self.state, node)
        self._mirrors.append(mirrored)
        return cast("Store", mirrored)

    def endpoint_at(self, path: str, event: int) -> int:
        """Position of the endpoint that an event's request on this path is for. Raises: Violation."""
        for row in self.state.rows_of_event.get(event, ()):
            endpoint = self.state.rows[row].endpoint
            if self.history.path_of_endpoint.get(endpoint) == path:
                return endpoint
        raise Violation(f"a request for a delivery that does not exist: event {event}, path {path}")

    def delivery_of(self, event: int, endpoint: int) -> tuple[int, int]:
        """Position and round of a delivery. Raises: Violation when there is none."""
        row = self.state.row_for(event, endpoint)
        if row is None:
            raise Violation(f"a request for a delivery that does not exist: event {event}, endpoint {endpoint}")
        return row.position, row.round

    def request_left(self, send: Send) -> None:
        """A poisonous delivery kills who sends it."""
        if send.event in self.poison and not self.healed:
            self.troubles.note("poison")
            self.kill(send.process)

    # ---- life and death of processes

    def fail(self, error: BaseException) -> None:
        """End the run: a promise is broken."""
        if self.violation is None:
            self.violation = error
        if not self._over.done():
            self._over.set_result(None)

    def kill(self, process: Process) -> None:
        """``kill -9``."""
        if not process.alive:
            return
        process.alive = False
        if self.network is not None:
            self.network.wire.kill(process)
        for node in self.nodes:
            if node.process is process and not node.died.done():
                self._interrupted(node)
                node.died.set_result(None)
                node.abandon()

    def _interrupted(self, node: Node) -> None:
        """What a node has marked as under way was perhaps received, and is not recorded."""
        for delivery in {mark.delivery for mark in node.marks.values()}:
            self.history.in_flight_at_crash[delivery] += 1

    async def serving(self) -> Node:
        """The node that serves, once there is one."""
        while self.node is None or not self.node.process.alive:
            self._served.clear()
            await self._served.wait()
        return self.node

    async def _supervise(self) -> None:
        """Keep a node running; after a crash the next one starts, perhaps another node after the lease."""
        number = 0
        while True:
            other = self.random.random() < 0.2 and not self.troubles.step_clocks
            name = f"n{number}" if other else "n0"
            node = Node(self, name)
            self.nodes.append(node)
            starting = self.loop.create_task(node.start(), context=node.process.context)
            await asyncio.wait({starting, node.died}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and self._started(starting):
                self.checks.forget()
                self.node, self.served_s = node, self.loop.time()
                self._served.set()
                await asyncio.wait({node.died})
                self.troubles.last_s = self.loop.time()
                self.history.seen["crash"] += 1
            else:
                self.kill(node.process)
            number += 1
            await asyncio.sleep(self.random.uniform(0.05, 2))

    def _started(self, starting: asyncio.Task[None]) -> bool:
        error = starting.exception()
        if error is None:
            return True
        self.history.seen[f"start failed {type(error).__name__}"] += 1
        if not isinstance(error, StoreError | RequestError):
            self.fail(error)
        return False

    # ---- the run

    async def _make_endpoints(self) -> None:
        rng, store = self.random, self.new_store("setup")
        await store.open(node="setup", now_ms=self.now_ms(), lease_ms=1)
        self.salt = store.salt
        (default,) = self.state.tenants
        self.tenants = [default]
        for kind in ["good", *[None] * rng.randint(1, 4)]:
            (saved,) = await store.commit([ops.CreateEndpoint(new_endpoint(self, default, kind), 1000)])
            assert isinstance(saved, ops.EndpointSaved)
            self.commits.made(saved.endpoint)
        await store.close()

    async def _main(self) -> None:
        self._over = self.loop.create_future()
        self._served = asyncio.Event()
        await self._make_endpoints()
        self.loop.before = self.troubles.before_callback
        self.loop.on_error = lambda context: self.fail(context.get("exception") or Violation(str(context)))
        work = [self._supervise(), self._story()]
        tasks = [self.loop.create_task(one) for one in work]
        done, _ = await asyncio.wait({*tasks, self._over}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done and task.exception() is not None:
                self.fail(cast("BaseException", task.exception()))

    async def _story(self) -> None:
        """Troubles, then health, then all must settle."""
        rng = self.random
        people = [
            Publisher(self, random.Random(rng.random()), number).run(rng.randint(5, 25), self.chaos_s / 20)
            for number in range(rng.randint(2, 4))
        ]
        operator = Operator(self, random.Random(rng.random()))
        busy = rng.choice([0.0, 1.0, 4.0])
        if busy:
            people.append(operator.run(self.chaos_s, busy))
        people.append(self.troubles.run())
        if rng.random() < 0.3:
            people.append(self.troubles.poison())
        await asyncio.gather(*people)
        await asyncio.sleep(max(0.0, self.chaos_s - self.loop.time()))
        self.healed = True
        self.troubles.heal()
        await operator.resume_all()
        await self._settle(operator)
        await self._end()

    async def _settle(self, operator: Operator) -> None:
        """Wait until nothing is pending; meanwhile nothing may be due and unsent (I8)."""
        begun_s = self.loop.time()
        while any(self.state.pending.values()) or any(job.finished_at_ms is None for job in self.state.jobs.values()):
            if self.loop.time() - begun_s > SETTLE_S:
                left = [row for rows in self.state.pending.values() for row in rows.values()]
                raise Violation(f"I8: after {SETTLE_S} s without faults {len(left)} are pending: {left[:3]}")
            await asyncio.sleep(SAMPLE_S)
            await operator.discard_dead()
            invariants.nothing_is_forgotten(self)

    async def _end(self) -> None:
        """Stop in good order, then look at everything."""
        node = await self.serving()
        await invariants.reads_agree(self, node)
        stopping = self.loop.create_task(node.stop(), context=node.process.context)
        await asyncio.wait({stopping}, timeout=60)
        if not stopping.done():
            raise Violation(f"the node does not stop: {stopping.get_stack()}")
        stopping.result()
        invariants.memory_is_clean(node)
        invariants.counts_are_right(self)
        invariants.check_all(self)

    def fingerprint(self) -> str:
        """What makes two runs the same."""
        digest = hashlib.sha256()
        for send in self.history.sends:
            digest.update(f"{send.at_ms} {send.delivery} {send.number} {send.code} {send.done_ms}\n".encode())
        return f"{self.loop.steps} {len(self.history.sends)} {digest.hexdigest()}"

    def run(self) -> History:
        """Live. Raises: Violation with the seed."""
        try:
            run(self.loop, self._main())
        finally:
            if self.network is not None:
                self.network.wire.close()
            for mirrored in self._mirrors:
                mirrored.abandon()
            if self._folder is not None:
                self._folder.cleanup()
        if self.violation is None and self.loop.errors:
            self.violation = Violation(f"an error in a callback: {self.loop.errors[0]}")
        if self.violation is not None:
            raise Violation(f"seed {self.seed}: {self.violation}") from self.violation
        return self.history
