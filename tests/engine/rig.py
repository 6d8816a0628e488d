"""An engine with its writer over a store in memory, in virtual time, sending into a network that tests steer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ackpost.core.decision import Decision
from ackpost.core.model import Endpoint, EndpointSecret, Tenant
from ackpost.core.outcome import Outcome, classify_status
from ackpost.core.signing import new_secret, seal
from ackpost.core.target import Target
from ackpost.engine.engine import Engine, EngineLimits
from ackpost.engine.request import RequestBuilder
from ackpost.engine.writer import Writer
from ackpost.errors import RequestError
from ackpost.ports import operations as ops
from ackpost.ports.store import Store
from ackpost.service.routing import target_of
from ackpost.testing.reference import ReferenceStore
from tests.simulation.loop import VirtualLoop, run

T = TypeVar("T")
START_MS = 1_800_000_000_000
SECOND_S = 1.0


def answer(status_code: int = 200, retry_after: str | None = None) -> Outcome:
    """A complete answer."""
    return Outcome(classify_status(status_code), status_code=status_code, retry_after=retry_after)


@dataclass(slots=True)
class Request:
    """One request as it left."""

    at_ms: int
    target: Target
    headers: dict[str, str]
    body: bytes
    done: Callable[[Outcome], None]
    timeout_s: float
    ended: bool = False
    aborted: bool = False

    @property
    def n(self) -> int:
        """The number that the event was published with."""
        return int(json.loads(self.body)["data"]["n"])

    def abort(self) -> None:
        """Asked for by the engine."""
        self.aborted = True


class Wire:
    """The network. ``reply`` gives what a request comes to and after how long; None: the test ends it itself."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.requests: list[Request] = []
        self.under_way: list[Request] = []
        self.reply: Callable[[Request], tuple[float, Outcome] | None] = lambda _: (0.01, answer())
        self.came = asyncio.Event()
        self.most_by_host: dict[str, int] = {}

    def send(
        self, target: Target, headers: bytes, body: bytes, timeout_s: float, on_done: Callable[[Outcome], None]
    ) -> Request:
        """Start one request."""
        lines = [line.partition(": ") for line in headers.decode("latin-1").split("\r\n") if line]
        request = Request(
            START_MS + int(self._loop.time() * 1000), target, {name.lower(): value for name, _, value in lines}, body,
            on_done, timeout_s,
        )  # fmt: skip
        self.requests.append(request)
        self.under_way.append(request)
        at_host = sum(one.target.host == target.host for one in self.under_way)
        self.most_by_host[target.host] = max(at_host, self.most_by_host.get(target.host, 0))
        planned = self.reply(request)
        if planned is not None:
            self._loop.call_later(planned[0], self.end, request, planned[1])
        self.came.set()
        return request

    def end(self, request: Request, outcome: Outcome | None = None) -> None:
        """Answer a request."""
        if not request.aborted:
            request.ended = True
            self.under_way.remove(request)
            request.done(outcome or answer())

    async def close(self) -> None:
        """Nothing is open."""

    def to(self, path: str) -> list[Request]:
        """Requests to one endpoint."""
        return [request for request in self.requests if request.target.path_query == path]


class RigSlots:
    """Marks in memory."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self._next = 0

    def take(self, delivery: int, in_round: int, number: int) -> int:
        """Mark."""
        self._next += 1
        self.taken[self._next] = delivery
        return self._next

    def free(self, slot: int) -> None:
        """Unmark."""
        del self.taken[slot]

    def close(self) -> None:
        """Nothing to do."""


@dataclass
class Told:
    """What the engine tells telemetry."""

    decisions: list[Decision] = field(default_factory=list)
    circuits: list[tuple[int, str]] = field(default_factory=list)
    notes: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    events: int = 0

    def accepted(self, events: int, deliveries: int) -> None:
        """Counted."""
        self.events += events

    def committed(self, operations: int, duration_s: float) -> None:
        """Not looked at."""

    def attempts(self, decisions: Sequence[Decision]) -> None:
        """Kept."""
        self.decisions.extend(decisions)

    def circuit(self, endpoint: int, state: str) -> None:
        """Kept."""
        self.circuits.append((endpoint, state))

    def note(self, name: str, **fields: object) -> None:
        """Kept."""
        self.notes.append((name, fields))

    def noted(self, name: str) -> bool:
        """Whether a note of this name came."""
        return any(name == note for note, _ in self.notes)


class Rig:
    """Everything together. Make it inside ``play``."""

    def __init__(
        self, loop: VirtualLoop, *, store: Store | None = None, slots: int = 1000, host_cap: int = 100
    ) -> None:
        self.loop = loop
        self.store: Any = store if store is not None else ReferenceStore()
        self.wire = Wire(loop)
        self.told = Told()
        self.marks = RigSlots()
        self.fatal: list[BaseException] = []
        self.units = 0.5
        self._limits = EngineLimits(slots=slots, host_cap=host_cap)
        self._count = 0
        self.writer: Writer
        self.engine: Engine

    # ---- clock and entropy

    def now_ms(self) -> int:
        """Process time."""
        return START_MS + int(self.loop.time() * 1000)

    def monotonic(self) -> float:
        """Seconds."""
        return self.loop.time()

    def wall_s(self) -> int:
        """Wall clock."""
        return self.now_ms() // 1000

    def unit(self) -> float:
        """The middle, unless set."""
        return self.units

    def token(self, length_bytes: int) -> bytes:
        """Nothing random."""
        return bytes(length_bytes)

    # ---- life

    async def start(self) -> int:
        """Open the store and begin."""
        incarnation: int = await self.store.open(node="rig", now_ms=self.now_ms(), lease_ms=20_000)
        self.writer = Writer(self.store, self, self.told, incarnation=incarnation, node="rig")
        self.engine = Engine(
            self.store, self.writer, self.wire, self, self, self.told, self.marks, make_builder=self.build,
            limits=self._limits, on_fatal=self.fatal.append,
        )  # fmt: skip
        self.writer.start()
        return incarnation

    def build(self, endpoint: Endpoint) -> RequestBuilder:
        """As wiring does."""
        return RequestBuilder(endpoint, salt=self.store.salt, user_agent="Ackpost/0", allow_http=False)

    async def stop(self) -> None:
        """Stop in good order."""
        await self.engine.drain(30)
        await self.writer.stop()

    # ---- what tests do

    async def submit(self, operation: ops.Operation) -> Any:
        """Hand an operation to the writer."""
        return await self.writer.submit(operation)

    async def tenant(self, uid: str) -> int:
        """Make a tenant."""
        saved = await self.submit(ops.CreateTenant(Tenant(position=0, uid=uid)))
        return int(saved.tenant.position)

    async def endpoint(
        self, path: str = "/a", *, tenant: int | None = None, host: str | None = None, **policy: Any
    ) -> Endpoint:
        """Make an endpoint; each on its own host unless said."""
        if tenant is None:
            tenant = (await self.store.tenant_by_uid("default")).position
        endpoint = Endpoint(
            position=0, tenant=tenant, url=f"https://{host or path.strip('/')}.example{path}", policy=policy,
            created_at_ms=self.now_ms(), secrets=(EndpointSecret(seal(new_secret("standard", bytes(32))), 1),),
        )  # fmt: skip
        saved = await self.submit(ops.CreateEndpoint(endpoint, 10_000))
        result: Endpoint = saved.endpoint
        return result

    async def fresh(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint as stored now."""
        found: Endpoint = (await self.store.load_endpoints([endpoint.position]))[endpoint.position]
        return found

    async def publish(
        self, *endpoints: Endpoint, count: int = 1, key: str | None = None, trigger: Any = "schedule",
        type: str = "order.created",
    ) -> list[int]:  # fmt: skip
        """Accept events for these endpoints; give the positions of the deliveries to the first one."""
        fresh = [await self.fresh(endpoint) for endpoint in endpoints]
        targets = tuple(target_of(endpoint) for endpoint in fresh)
        events = []
        for _ in range(count):
            data = b'{"n":%d}' % self._count
            events.append(ops.NewEvent(type, data, key=key, targets=targets, trigger=trigger))
            self._count += 1
        tenant = fresh[0].tenant
        routing = await self.store.routing(tenant)
        accepted = await self.submit(ops.Accept(tenant, routing.version, events, self.now_ms()))
        return [event.position + 1 for event in accepted.events]

    async def state(self, endpoint: Endpoint, verb: Any) -> None:
        """Pause, resume, disable or enable."""
        await self.submit(ops.SetEndpointState(endpoint.tenant, endpoint.position, verb, self.now_ms()))

    async def status(self, delivery: int) -> tuple[str, str | None]:
        """A delivery's status and reason."""
        found = await self.store.delivery(None, delivery)
        return found.status, found.reason

    async def pass_s(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        """Let time pass in small steps until something holds."""
        for _ in range(int(within_s * 100)):
            if condition():
                return
            await asyncio.sleep(SECOND_S / 100)
        raise AssertionError("it did not happen in time")


def play(story: Callable[[Rig], Awaitable[T]], **given: Any) -> T:
    """Run a story with a rig that was started; nothing may go wrong unseen."""
    loop = VirtualLoop(1)
    loop.shuffling = False

    async def main() -> T:
        rig = Rig(loop, **given)
        await rig.start()
        return await story(rig)

    result = run(loop, main())
    assert loop.errors == []
    return result


async def refused(attempt: Awaitable[object]) -> RequestError:
    """The refusal that an attempt meets."""
    try:
        await attempt
    except RequestError as refusal:
        return refusal
    raise AssertionError("it was not refused")
