"""One server process of a world: real engine, writer, housekeeping and services; a store and a network of models."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ackpost.core.decision import Decision
from ackpost.core.model import Endpoint
from ackpost.engine.engine import Engine, EngineLimits
from ackpost.engine.housekeeping import Housekeeping, Retention
from ackpost.engine.request import RequestBuilder
from ackpost.engine.writer import Writer
from ackpost.errors import StoreBroken, StoreBusy, StoreError, StoreFull, StoreOutcomeUnknown
from ackpost.ports.operations import Interrupt, Interrupted, Mark
from ackpost.ports.store import Store
from ackpost.service.context import Options, Services
from ackpost.service.nodes import SoleMember
from ackpost.wiring.system import SystemClock
from tests.simulation.history import Violation
from tests.simulation.loop import Process
from tests.simulation.mirror import MirroredStore
from tests.simulation.transports import ModelTransport, WireTransport
from tests.simulation.troubles import LEASE_MS

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
CRASHES_MAX = 3
DAY_S = 86_400.0
DRAIN_S = 30.0


class NodeEntropy:
    """Seeded chance."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng

    def unit(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()

    def token(self, length_bytes: int) -> bytes:
        """Bytes."""
        return self._random.randbytes(length_bytes)


class NodeTelemetry:
    """Counts what was told, for the coverage of behaviours and for the invariants."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._states: dict[int, str] = {}

    def accepted(self, events: int, deliveries: int) -> None:
        """Seen."""
        self._world.accepted_events += events
        self._world.accepted_deliveries += deliveries

    def committed(self, operations: int, duration_s: float) -> None:
        """Seen."""

    def attempts(self, decisions: Sequence[Decision]) -> None:
        """Verdicts and codes are behaviours."""
        seen = self._world.history.seen
        self._world.counted_attempts += len(decisions)
        for decision in decisions:
            reason = f":{decision.reason}" if decision.verdict == "dead" else ""
            seen[f"verdict {decision.verdict}{reason}"] += 1
            if decision.outcome is not None:
                seen[f"code {decision.outcome.code}"] += 1

    def circuit(self, endpoint: int, state: str) -> None:
        """Transitions are behaviours."""
        self._world.checks.circuit_is(endpoint, state)

    def note(self, name: str, **fields: object) -> None:
        """Notes are behaviours; a promotion by the sweep means that a row was stuck."""
        self._world.history.seen[f"note {name}"] += 1
        self._world.history.notes.append((name, fields))
        if name in ("order.promoted_by_sweep", "endpoint.broken"):
            raise Violation(f"{name}: {fields}")


class NodeStore:
    """The world's durable store as one process sees it: with latency, faults, and answers that are lost with it."""

    def __init__(self, world: World, process: Process, inner: Store) -> None:
        self._world = world
        self._process = process
        self._inner = inner
        self.salt = inner.salt

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        inner = getattr(self._inner, name)

        async def read(*args: Any, **given: Any) -> Any:
            await self._pass()
            if self._world.troubles.draws("read_fault"):
                raise StoreBusy("simulated")
            found = await inner(*args, **given)
            await self._pass()
            return found

        return read

    async def open(self, *, node: str, now_ms: int, lease_ms: int) -> int:
        """Take the store; from now on another process must not send."""
        await self._pass()
        incarnation = await self._inner.open(node=node, now_ms=now_ms, lease_ms=lease_ms)
        self.salt = self._inner.salt
        self._world.owner = self._process
        await self._pass()
        return incarnation

    async def close(self) -> None:
        """Give it up."""
        await self._inner.close()

    async def commit(self, operations: Sequence[Any]) -> Any:
        """Commit, or fail before or after it is durable, or die before or after."""
        world, troubles = self._world, self._world.troubles
        await self._pass()
        if troubles.disk_is_full:
            troubles.note("full")
            raise StoreFull("simulated")
        for name, error in (
            ("busy", StoreBusy),
            ("broken_before", StoreError),
            ("unknown_before", StoreOutcomeUnknown),
        ):
            if troubles.draws(name):
                raise error("simulated")
        flush_fails = troubles.draws("flush_failed")
        if flush_fails and troubles.random.random() < 0.5:
            raise StoreBroken("simulated")
        await self._die("crash_before_commit")
        world.commits.begins(operations)
        replies = await self._inner.commit(operations)
        try:
            world.commits.durable(self._process, operations, replies)
        except Violation as violation:
            world.fail(violation)
        await self._die("crash_after_commit")
        if flush_fails or troubles.draws("unknown_after"):
            world.commits.untold(replies)
            raise (StoreBroken if flush_fails else StoreOutcomeUnknown)("simulated")
        await self._answer(replies)
        world.commits.told(operations, replies)
        return replies

    async def _answer(self, replies: Sequence[Any]) -> None:
        """The way back of a commit."""
        await self._pass()

    async def _pass(self) -> None:
        await asyncio.sleep(self._world.troubles.store_latency_s())

    async def _die(self, name: str) -> None:
        if self._world.troubles.draws(name):
            self._world.kill(self._process)
            await asyncio.get_running_loop().create_future()


class NodeSlots:
    """The slot file: it outlives the process."""

    def __init__(self, taken: dict[int, Mark], process: Process) -> None:
        self._process = process
        self._taken = taken
        self.left = sorted(set(self._taken.values()), key=lambda mark: mark.delivery)

    def clear(self) -> None:
        """What was left is recorded."""
        self._taken.clear()

    def take(self, delivery: int, in_round: int, number: int) -> int:
        """Mark."""
        slot = next(number for number in range(len(self._taken) + 1) if number not in self._taken)
        if self._process.alive:
            self._taken[slot] = Mark(delivery, in_round, number)
        return slot

    def free(self, slot: int) -> None:
        """Unmark."""
        if self._process.alive:
            del self._taken[slot]

    def close(self) -> None:
        """Nothing to release."""


class Node:
    """A process that serves. ``died`` is done when it was killed or ended itself."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process = Process(name)
        self.died: asyncio.Future[None] = world.loop.create_future()
        self.clock = SystemClock(world.wall_s, world.loop.time)
        self.engine: Engine
        self.writer: Writer
        self.services: Services
        self._housekeeping: Housekeeping
        self.durable = world.new_store(name)
        self._store = cast("Store", NodeStore(world, self.process, self.durable))
        self.marks = world.slot_file_of(name)
        self._slots = NodeSlots(self.marks, self.process)

    async def start(self) -> None:
        """As ``wiring`` starts a node. Raises: StoreError."""
        world, store = self.world, self._store
        clock, telemetry = self.clock, NodeTelemetry(world)
        events_s, dead_s = world.keep_s
        entropy = NodeEntropy(random.Random(world.random.random()))
        incarnation = await store.open(node=self.name, now_ms=clock.now_ms(), lease_ms=LEASE_MS)
        stored_ms = world.state.last >> 20
        clock.continue_from(stored_ms)
        world.set_clock(clock)
        self.writer = Writer(store, clock, telemetry, incarnation=incarnation, node=self.name)
        self._transport = self._make_transport()
        self.engine = Engine(
            store, self.writer, self._transport, clock, entropy, telemetry, self._slots,
            make_builder=self._make_builder, limits=EngineLimits(slots=world.slots, host_cap=world.host_cap),
            on_fatal=self._on_fatal,
        )  # fmt: skip
        self.writer.start()
        await self._take_over(clock.now_ms())
        self._housekeeping = Housekeeping(
            store, self.writer, self.engine, clock, telemetry, node=self.name, incarnation=incarnation,
            lease_ms=LEASE_MS, retention=Retention(events_s / DAY_S, dead_s / DAY_S),
            stored_ms=stored_ms,
        )  # fmt: skip
        self._housekeeping.start()
        self.services = Services(
            store=store, committer=self.writer, engine=self.engine, clock=clock, entropy=entropy,
            members=SoleMember(self.name, "", clock.now_ms(), lambda: self.engine.lease_until_ms, clock),
            options=Options(),
        )  # fmt: skip

    async def _take_over(self, now_ms: int) -> None:
        if self._slots.left:
            result = await self.writer.submit(Interrupt(self._slots.left, CRASHES_MAX, now_ms, self.name))
            if isinstance(result, Interrupted) and result.dead:
                self.world.history.seen["verdict dead:poison"] += result.dead
            self._slots.clear()

    def abandon(self) -> None:
        """The process died: the operating system closes its files."""
        if isinstance(self.durable, MirroredStore):
            self.durable.abandon()

    def unlock(self) -> None:
        """Seen from another machine there is no lock of the operating system, only the lease."""
        if isinstance(self.durable, MirroredStore):
            self.durable.unlock()

    async def stop(self) -> None:
        """As ``wiring`` stops a node."""
        await self.services.auth.close()
        await self._housekeeping.stop()
        await self.engine.drain(DRAIN_S)
        await self.writer.stop()
        await self._transport.close()
        await self._store.close()

    def _make_transport(self) -> ModelTransport | WireTransport:
        network = self.world.network
        if network is None:
            return ModelTransport(self.world, self.process)
        return WireTransport(self.world, self.process, network)

    def _make_builder(self, endpoint: Endpoint) -> RequestBuilder:
        return RequestBuilder(endpoint, salt=self._store.salt, user_agent="Ackpost/0", allow_http=False)

    def _on_fatal(self, error: BaseException) -> None:
        """The process ends itself."""
        self.world.history.seen[f"fatal {type(error).__name__}"] += 1
        if not isinstance(error, StoreError):
            self.world.fail(error)
        self.world.kill(self.process)
