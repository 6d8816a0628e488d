"""A world: one store, a node that serves it, receivers, people, and troubles; all drawn from one seed."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ackpost.core.model import Endpoint, EndpointSecret
from ackpost.core.signing import new_secret, seal
from ackpost.errors import RequestError, StoreError
from ackpost.ports import operations as ops
from ackpost.ports.store import Store
from ackpost.testing.reference import ReferenceStore, State
from tests.simulation import invariants
from tests.simulation.checks import Checks
from tests.simulation.clients import Operator, Publisher
from tests.simulation.history import History, Send, Violation
from tests.simulation.loop import Process, VirtualLoop, run
from tests.simulation.mirror import MirroredStore
from tests.simulation.models import KINDS, Model
from tests.simulation.network import Network
from tests.simulation.node import LEASE_MS, START_MS, Node
from tests.simulation.receivers import KINDS as WIRE_KINDS
from tests.simulation.receivers import Receiver
from tests.simulation.wire import Wire

SETTLE_S = 3600.0
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
SAMPLE_S = 5.0
TOLD_MS = 100
SLOW_S = 1.0
FORMATS = ("standard", "standard", "store", "flat", "bare")


class World:
    """Everything of one run. ``violation`` is the first promise that was broken."""

    def __init__(self, seed: int, *, sqlite: bool = False, wire: bool | None = None) -> None:
        self.seed = seed
        self._folder = tempfile.TemporaryDirectory(prefix="ackpost-world-", dir=_MEMORY) if sqlite else None
        self._mirrors: list[MirroredStore] = []
        self.random = rng = random.Random(seed)
        self.loop = VirtualLoop(rng.getrandbits(64))
        self.loop.shuffling = rng.random() < 0.8
        self.context = contextvars.copy_context()
        self.history = History()
        self.checks = Checks(self)
        self.state = State()
        self.salt = self.state.salt
        self.slot_file: dict[int, ops.Mark] = {}
        self.owner: Process | None = None
        self.node: Node | None = None
        self.nodes: list[Node] = []
        self.tenants: list[int] = []
        self.models: dict[int, Model] = {}
        self.endpoint_of_path: dict[str, int] = {}
        self.secrets: dict[int, list[str]] = {}
        self.poison: set[int] = set()
        self.accepted_events = self.accepted_deliveries = 0
        self.wall_step_ms = 0
        self.disk_is_full = False
        self.slots = rng.choice([4, 20, 1000])
        self.host_cap = rng.choice([2, 100, 100])
        self.chaos_s = rng.uniform(20, 90)
        self.idle_s = rng.choice([0.5, 3.0, 30.0])
        self.connect_s = rng.choice([0.5, 2.0, 5.0])
        self.network: Network | None = None
        if rng.random() < 0.6 if wire is None else wire:
            wires = Wire(self.loop, random.Random(rng.getrandbits(64)), self.context)
            self.network = self.loop.network = Network(self, wires)
        self.healed = False
        self.violation: BaseException | None = None
        self._over: asyncio.Future[None]
        self._served: asyncio.Event
        self._crash_in = 0
        self._slow_s = rng.choice([0.001, 0.001, 0.02, 0.3])
        self._troubles = [kind for kind in ("crash", "freeze", "step", "full", "slow") if rng.random() < 0.5]
        self._slowest_s = SLOW_S if "slow" in self._troubles else self._slow_s
        self._rates = {
            "read_fault": rng.choice([0, 0, 0.02, 0.2]),
            "busy": rng.choice([0, 0, 0.02, 0.2]),
            "broken_before": rng.choice([0, 0, 0.02, 0.1]),
            "unknown_after": rng.choice([0, 0, 0.02, 0.1]),
            "crash_before_commit": rng.choice([0, 0, 0.004]),
            "crash_after_commit": rng.choice([0, 0, 0.004]),
        }

    # ---- what nodes ask

    def now_ms(self) -> int:
        """The present."""
        return START_MS + int(self.loop.time() * 1000)

    def draws(self, fault: str) -> bool:
        """Whether this fault happens here and now."""
        rate = self._rates[fault]
        return rate > 0 and not self.healed and self.random.random() < rate

    def store_latency_s(self) -> float:
        """How long the store takes, one way."""
        return self.random.expovariate(1 / (0.001 if self.healed else self._slow_s))

    def new_store(self, node: str) -> Store:
        """The durable store as a process of this node finds it."""
        if self._folder is None:
            return ReferenceStore(self.state)
        mirrored = MirroredStore(f"{self._folder.name}/ackpost.db", self.state, node)
        self._mirrors.append(mirrored)
        return cast("Store", mirrored)

    def delivery_of(self, event: int, endpoint: int) -> tuple[int, int]:
        """Position and round of a delivery. Raises: Violation when there is none."""
        row = self.state.row_for(event, endpoint)
        if row is None:
            raise Violation(f"a request for a delivery that does not exist: event {event}, endpoint {endpoint}")
        return row.position, row.round

    def told(self, replies: Sequence[Any]) -> None:
        """The answer of a commit reached the process: it must act on it at once."""
        for reply in replies:
            self._changed(reply, self.history.known_ms, self.now_ms() + TOLD_MS)

    def _found_ms(self) -> int:
        """When a change that nobody told of is found: at a poll, which may fail a few times, after some slow reads."""
        polls = 8 if self._rates["read_fault"] else 2
        return self.now_ms() + 1000 * (polls + 1) + int(8000 * self._slowest_s)

    def untold(self, replies: Sequence[Any]) -> None:
        """The answer of a commit is lost: the comparison of revs finds the change, a second and some reads later."""
        for reply in replies:
            self._changed(reply, self.history.found_ms, self._found_ms())

    def _changed(self, reply: Any, times_ms: dict[int, int], known_ms: int) -> None:
        if isinstance(reply, ops.Recorded):
            return
        touched = list(getattr(reply, "touched", ()))
        if isinstance(reply, ops.EndpointSaved):
            touched.append(reply.endpoint.position)
        for endpoint in touched:
            times_ms[endpoint] = known_ms

    def committed(self, process: Process, operations: Sequence[ops.Operation], replies: Sequence[Any]) -> None:
        """A commit became durable."""
        if self.owner is not process:
            self.fail(Violation(f"I3: {process} changed the store, but {self.owner} owns it"))
        for operation, reply in zip(operations, replies, strict=True):
            if isinstance(operation, ops.SetEndpointState) and operation.verb in ("resume", "enable"):
                self.checks.waits_ended(operation.endpoint)
            self._changed(reply, self.history.known_ms, self._found_ms())
            if isinstance(reply, ops.JobSaved) and reply.job.kind == "switch_ordering":
                self.history.reordered_ms[int(reply.job.params["endpoint"])] = self.now_ms()
            if isinstance(operation, ops.Promote) and isinstance(reply, ops.Promoted) and reply.refs:
                self.fail(Violation(f"I4: rows waited for nothing: {reply.refs}"))

    def request_left(self, send: Send) -> None:
        """A poisonous delivery kills who sends it."""
        if send.event in self.poison and not self.healed:
            self.history.seen["fault poison"] += 1
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
        for delivery in {mark.delivery for mark in self.slot_file.values()}:
            self.history.in_flight_at_crash[delivery] += 1
        for node in self.nodes:
            if node.process is process and not node.died.done():
                node.died.set_result(None)
                node.abandon()

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
            name = f"n{number}" if self.random.random() < 0.2 else "n0"
            node = Node(self, name)
            self.nodes.append(node)
            starting = self.loop.create_task(node.start(), context=node.process.context)
            await asyncio.wait({starting, node.died}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and self._started(starting):
                self.checks.forget()
                self.node = node
                self._served.set()
                await asyncio.wait({node.died})
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

    def _before_callback(self, process: Process) -> None:
        if self._crash_in:
            self._crash_in -= 1
            if self._crash_in == 0:
                self.history.seen["fault crash"] += 1
                self.kill(process)

    # ---- troubles

    async def _trouble(self) -> None:
        """Crash, freeze, step the wall clock, fill the disk, slow the store: now and then."""
        rng = self.random
        kinds = self._troubles
        while kinds and self.loop.time() < self.chaos_s:
            await asyncio.sleep(rng.expovariate(1 / 12))
            await getattr(self, f"_{rng.choice(kinds)}")()

    async def _crash(self) -> None:
        self._crash_in = self.random.randint(1, 400)

    async def _freeze(self) -> None:
        node = await self.serving()
        self.history.seen["fault freeze"] += 1
        node.process.frozen = True
        span_s = self.random.choice([0.5, 3.0, LEASE_MS / 1000 + 2])
        rival = self.loop.create_task(self._rival(node)) if span_s * 1000 > LEASE_MS else None
        await asyncio.sleep(span_s)
        if rival is not None:
            await rival
        self.loop.thaw(node.process)

    async def _rival(self, frozen: Node) -> None:
        """Another server takes over once the lease is over; the frozen one finds out when it wakes."""
        await asyncio.sleep(LEASE_MS / 1000 + 1)
        if not frozen.process.alive or self.node is not frozen:
            return
        self.history.seen["fault takeover"] += 1
        frozen.unlock()
        other = self.new_store("rival")
        try:
            await other.open(node="rival", now_ms=self.now_ms(), lease_ms=1)
        except StoreError:
            return
        self.owner = None
        await other.close()

    async def _step(self) -> None:
        self.history.seen["fault clock"] += 1
        self.wall_step_ms = self.random.choice([-3_600_000, 3_600_000, 0, 315_360_000_000])

    async def _full(self) -> None:
        self.disk_is_full = True
        await asyncio.sleep(self.random.uniform(1, 8))
        self.disk_is_full = False

    async def _slow(self) -> None:
        self.history.seen["fault slow store"] += 1
        before, self._slow_s = self._slow_s, SLOW_S
        await asyncio.sleep(self.random.uniform(1, 8))
        self._slow_s = before

    # ---- the run

    async def _make_endpoints(self) -> None:
        rng, store = self.random, self.new_store("setup")
        await store.open(node="setup", now_ms=self.now_ms(), lease_ms=1)
        self.salt = store.salt
        (default,) = self.state.tenants
        self.tenants = [default]
        kinds = ["good", *rng.choices(KINDS if self.network is None else WIRE_KINDS, k=rng.randint(1, 4))]
        for number, kind in enumerate(kinds):
            path = f"/e{number}"
            host = "shared" if rng.random() < 0.3 else f"h{number}"
            signature = rng.choice(["standard", "standard", "sha256-hex"])
            text = new_secret(cast("Any", signature), rng.randbytes(32))
            types = rng.choice([("*",), ("*",), ("order.*",), ("*", "ackpost.*"), ("ackpost.*",)])
            endpoint = Endpoint(
                position=0, tenant=default, url=f"https://{host}.example{path}", event_types=types,
                format=rng.choice(FORMATS), signature=signature, policy=self._policy(), created_at_ms=self.now_ms(),
                secrets=(EndpointSecret(seal(text), self.now_ms()),),
            )  # fmt: skip
            (saved,) = await store.commit([ops.CreateEndpoint(endpoint, 1000)])
            assert isinstance(saved, ops.EndpointSaved)
            position = saved.endpoint.position
            self._add_receiver(position, kind, host, path)
            self.endpoint_of_path[path] = position
            self.secrets[position] = [text]
            self.history.seen[f"model {kind}"] += 1
        await store.close()

    def _add_receiver(self, position: int, kind: str, host: str, path: str) -> None:
        rng = random.Random(self.random.getrandbits(64))
        if self.network is None:
            self.models[position] = Model(kind, rng, self.chaos_s)
        else:
            self.network.site(f"{host}.example").receivers[path] = Receiver(kind, rng, self.chaos_s)

    def _policy(self) -> dict[str, Any]:
        rng = self.random
        retry: dict[str, Any] = {
            "base_s": rng.choice([0.1, 0.5, 1]), "cap_s": rng.choice([2, 10, 30]),
            "jitter": rng.choice(["full", "equal", "none"]), "max_attempts": rng.choice([None, 3, 8]),
            "max_age_s": rng.choice([20, 120, 600]),
            "retry_on": rng.choice([["any"], ["any"], ["network", "timeout", "5xx"]]),
        }  # fmt: skip
        if rng.random() < 0.15:
            retry = {"schedule_s": [0.5, 2, 10], "jitter_ratio": 0.2, "max_age_s": None}
        policy: dict[str, Any] = {
            "retry": retry, "timeout_s": rng.choice([1, 2, 5]), "max_in_flight": rng.choice([1, 3, 10]),
            "ordering": rng.choice(["best-effort", "by-key"]), "on_dead": rng.choice(["skip", "hold"]),
            "on_gone": rng.choice(["disable", "fail"]),
            "circuit": {
                "enabled": rng.random() < 0.8, "failures": rng.choice([3, 5, 10]), "attempts_min": rng.choice([6, 20]),
                "span_min_s": rng.choice([0, 1, 5]), "open_s": rng.choice([1, 4, 10]), "open_max_s": 20,
                "successes": rng.choice([1, 3]), "on_open": rng.choice(["park", "park", "fail-fast"]),
            },
        }  # fmt: skip
        if rng.random() < 0.2:
            policy["rate_per_s"] = rng.choice([1, 5])
        return policy

    async def _main(self) -> None:
        self._over = self.loop.create_future()
        self._served = asyncio.Event()
        await self._make_endpoints()
        self.loop.before = self._before_callback
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
        people.append(self._trouble())
        if rng.random() < 0.3:
            people.append(self._poison())
        await asyncio.gather(*people)
        await asyncio.sleep(max(0.0, self.chaos_s - self.loop.time()))
        self.healed, self.disk_is_full, self._crash_in = True, False, 0
        await operator.resume_all()
        await self._settle(operator)
        await self._end()

    async def _poison(self) -> None:
        """One event whose answer kills the process, for a while."""
        await asyncio.sleep(self.random.uniform(0, self.chaos_s))
        pending = [row.event for rows in self.state.pending.values() for row in rows.values()]
        if pending:
            self.poison.add(self.random.choice(pending))

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
        stopping = self.loop.create_task(node.stop(), context=node.process.context)
        await asyncio.wait({stopping}, timeout=60)
        if not stopping.done():
            raise Violation(f"the node does not stop: {stopping.get_stack()}")
        stopping.result()
        invariants.memory_is_clean(node)
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
