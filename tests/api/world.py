"""A whole API over the reference store, driven without sockets, threads or real time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ackpost.api.app import create_app
from ackpost.core import ids
from ackpost.core.decision import Decision, EndpointChange, Verdict
from ackpost.core.model import ApiKey, Circuit, Delivery, Role, Tenant
from ackpost.core.outcome import Outcome
from ackpost.errors import RequestError
from ackpost.ports.commit import Waiter
from ackpost.ports.operations import (
    CreateApiKey,
    CreateTenant,
    KeySaved,
    Operation,
    Record,
    Recorded,
    Repeated,
    Result,
    StepJob,
    TenantSaved,
)
from ackpost.ports.store import DeliveryFilter, Page
from ackpost.service.auth import digest_of
from ackpost.service.context import Options, Services
from ackpost.service.nodes import SoleMember
from ackpost.testing.reference import ReferenceStore

START_MS = 1_800_000_000_000
T = TypeVar("T")


class ManualClock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.ms = START_MS

    def now_ms(self) -> int:
        """The present."""
        return self.ms

    def monotonic(self) -> float:
        """The present, in seconds."""
        return self.ms / 1000

    def wall_s(self) -> int:
        """The present, in whole seconds."""
        return self.ms // 1000

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        self.ms += int(seconds * 1000)


class CountingEntropy:
    """Randomness without any: each token differs from the one before."""

    def __init__(self) -> None:
        self._counter = itertools.count(1)

    def unit(self) -> float:
        """Always the middle."""
        return 0.5

    def token(self, length_bytes: int) -> bytes:
        """The next number, as bytes."""
        return next(self._counter).to_bytes(length_bytes, "big")


class DirectCommitter:
    """Commits each operation by itself, and can do something in between first."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store
        self.before: Callable[[Operation], Awaitable[None]] | None = None
        self.failure: Exception | None = None
        self.seen: list[Operation] = []
        self.queued: list[asyncio.Task[None]] = []

    async def submit(self, operation: Operation) -> Result | Repeated:
        """Commit now."""
        before, self.before = self.before, None
        if before is not None:
            await before(operation)
        if self.failure is not None:
            raise self.failure
        self.seen.append(operation)
        result = (await self._store.commit([operation]))[0]
        if isinstance(result, RequestError):
            raise result
        return result

    def queue(self, operation: Operation, waiter: Waiter) -> None:
        """Commit soon."""

        async def commit() -> None:
            try:
                result = await self.submit(operation)
            except Exception as error:  # noqa: BLE001 - the waiter is told, whatever it is
                waiter.set_exception(error)
            else:
                waiter.set_result(result)

        self.queued.append(asyncio.get_running_loop().create_task(commit()))


class FakeEngine:
    """An engine that tests steer: ``on_wait`` runs while somebody waits for an attempt."""

    def __init__(self) -> None:
        self.on_wait: Callable[[int], Awaitable[bool]] | None = None
        self.rate_held: set[int] = set()
        self.flying: dict[int, int] = {}
        self.held: dict[int, str] = {}
        self.trouble: str | None = None

    async def wait_attempt(self, delivery: int, timeout_s: float) -> bool:
        """Do what the test wants in the meantime; else the time is over at once."""
        return self.on_wait is not None and await self.on_wait(delivery)

    def in_flight(self, endpoint: int) -> int:
        """As set."""
        return self.flying.get(endpoint, 0)

    def held_back(self) -> dict[int, str]:
        """As set."""
        return self.held

    def due_unsent(self) -> int:
        """None."""
        return 0

    def partitions_owned(self) -> int:
        """All of them."""
        return 256

    def requests_in_flight(self) -> int:
        """None."""
        return 0

    def is_rate_held(self, endpoint: int) -> bool:
        """As set."""
        return endpoint in self.rate_held

    def readiness(self) -> str | None:
        """As set."""
        return self.trouble


@dataclass
class Answer:
    """An answer as the client got it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The stable code of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self.body
        return str(self.json["code"])

    @property
    def locs(self) -> list[tuple[Any, ...]]:
        """Where the refused inputs are."""
        return [tuple(error["loc"]) for error in self.json.get("errors", [])]


class World:
    """One API with its store, and keys of all roles (``admin``, ``publisher``, ``reader`` of tenant default)."""

    def __init__(self, **options: Any) -> None:
        self.store = ReferenceStore()
        self.committer = DirectCommitter(self.store)
        self.engine = FakeEngine()
        self.clock = ManualClock()
        self._options = Options(**options)
        self.default_tenant = 0

    async def start(self) -> None:
        """Open the store, make the keys and the app."""
        await self.store.open(node="n", now_ms=self.clock.now_ms(), lease_ms=1_000_000)
        self.services = Services(
            store=self.store,
            committer=self.committer,
            engine=self.engine,
            clock=self.clock,
            entropy=CountingEntropy(),
            members=SoleMember("n", "1.2.3", self.clock.now_ms(), lambda: self.clock.now_ms() + 20_000, self.clock),
            options=self._options,
        )
        self.app = create_app(self.services)
        tenant = await self.store.tenant_by_uid("default")
        assert tenant is not None
        self.default_tenant = tenant.position
        await self.make_key("operator", "operator", None)
        roles: tuple[Role, ...] = ("admin", "publisher", "reader")
        for role in roles:
            await self.make_key(role, role, self.default_tenant)

    async def make_key(self, text: str, role: Role, tenant: int | None) -> None:
        """Make an API key whose text is ``text``."""
        key = ApiKey(
            position=0, name=text, prefix=text[:8], digest=digest_of(text), role=role, tenant=tenant, created_at_ms=0
        )
        assert isinstance(await self.committer.submit(CreateApiKey(key)), KeySaved)

    async def make_tenant(self, uid: str) -> int:
        """Make another tenant; gives its position."""
        result = await self.committer.submit(CreateTenant(Tenant(position=0, uid=uid, created_at_ms=self.clock.ms)))
        assert isinstance(result, TenantSaved)
        self.services.tenants.forget()
        return result.tenant.position

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = "admin",
        tenant: str | None = None,
        idempotency_key: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> Answer:
        """Send one request; ``key`` None: without any."""
        headers = [(b"host", b"ackpost.test"), *headers]
        if key is not None:
            headers.append((b"authorization", f"Bearer {key}".encode()))
        if tenant is not None:
            headers.append((b"ackpost-tenant", tenant.encode()))
        if idempotency_key is not None:
            headers.append((b"idempotency-key", idempotency_key.encode()))
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers.append((b"content-length", str(len(content)).encode()))
        return await self.send(method, path, headers, [content])

    async def send(
        self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], parts: Sequence[bytes]
    ) -> Answer:
        """Send one request as it is, its body in ``parts``."""
        url = urlsplit(path)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": url.path,
            "raw_path": url.path.encode(),
            "root_path": "",
            "query_string": url.query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 50_000),
            "server": ("ackpost.test", 80),
            "state": {},
        }
        last = len(parts) - 1
        requests = iter(
            [{"type": "http.request", "body": part, "more_body": n < last} for n, part in enumerate(parts)]
        )
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return next(requests, {"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        answer_headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], answer_headers, b"".join(message.get("body", b"") for message in sent[1:]))

    async def get(self, path: str, **more: Any) -> Answer:
        """GET."""
        return await self.call("GET", path, **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        """POST."""
        return await self.call("POST", path, body, **more)

    async def patch(self, path: str, body: Any, **more: Any) -> Answer:
        """PATCH."""
        return await self.call("PATCH", path, body, **more)

    async def put(self, path: str, body: Any, **more: Any) -> Answer:
        """PUT."""
        return await self.call("PUT", path, body, **more)

    async def delete(self, path: str, **more: Any) -> Answer:
        """DELETE."""
        return await self.call("DELETE", path, **more)

    # ---- what the engine would do

    async def endpoint(self, **fields: Any) -> dict[str, Any]:
        """Make an endpoint; gives its document."""
        answer = await self.post("/v1/endpoints", {"url": "https://a.example/hook", **fields})
        assert answer.status == 201, answer.body
        document: dict[str, Any] = answer.json
        return document

    async def event(self, type: str = "order.created", **fields: Any) -> str:
        """Publish an event; gives its id."""
        answer = await self.post("/v1/events", {"type": type, "data": {"n": 1}, **fields}, key="publisher")
        assert answer.status == 202, answer.body
        return str(answer.json["id"])

    async def pending(self) -> list[Delivery]:
        """All pending deliveries, oldest first."""
        rows, _ = await self.store.deliveries(
            None, DeliveryFilter(statuses=("pending",)), Page(limit=1000, ascending=True)
        )
        return rows

    async def attempted(
        self,
        delivery: Delivery,
        verdict: Verdict = "delivered",
        outcome: Outcome | None = None,
        *,
        reason: str | None = None,
        due_in_ms: int = 60_000,
        circuit: Circuit | None = None,
        **marks: Any,
    ) -> None:
        """Record an attempt of a pending delivery."""
        endpoint = (await self.store.load_endpoints([delivery.endpoint]))[delivery.endpoint]
        windows = [await self.store.load_window(delivery.endpoint, k, after=None, limit=1000) for k in (0, 1, 2)]
        ref = next(ref for window in windows for ref in window if ref.position == delivery.position)
        change = EndpointChange(circuit=circuit, **marks) if circuit is not None or marks else None
        decision = Decision(
            delivery=delivery.position,
            event=delivery.event,
            tenant=delivery.tenant,
            endpoint=delivery.endpoint,
            round=delivery.round,
            number=delivery.attempt_count + 1,
            verdict=verdict,
            reason=reason,
            due_ms=self.clock.ms + due_in_ms if verdict == "retry" else None,
            trigger=ref.trigger,
            outcome=outcome or Outcome("delivered", status_code=200),
            started_at_ms=self.clock.ms,
            ended_at_ms=self.clock.ms,
            version=endpoint.version,
            endpoint_change=change,
        )
        incarnation = self.store.durable.incarnation
        result = await self.committer.submit(Record([decision], incarnation, self.clock.ms, "n"))
        assert isinstance(result, Recorded)
        assert result.applied == [True]

    async def failed(self, delivery: Delivery, verdict: Verdict = "dead", status_code: int = 500, **more: Any) -> None:
        """Record a failed attempt of a pending delivery."""
        if verdict == "dead":
            more.setdefault("reason", "attempts_exhausted")
        await self.attempted(delivery, verdict, Outcome("status", status_code=status_code), **more)

    async def dead(self, count: int = 1, type: str = "order.created") -> list[str]:
        """Publish events that end as dead letters; gives the ids of their deliveries, oldest first."""
        for _ in range(count):
            await self.event(type)
        rows = await self.pending()
        for row in rows:
            await self.failed(row)
        return [ids.public_id(ids.DELIVERY, row.position, self.store.salt) for row in rows]

    async def run_jobs(self) -> None:
        """Do all jobs to their end."""
        while jobs := await self.store.open_jobs(10):
            for job in jobs:
                await self.committer.submit(StepJob(job.position, 500, self.clock.ms))


def run(scenario: Callable[[World], Coroutine[Any, Any, T]], **options: Any) -> T:
    """Run a scenario in a fresh world."""

    async def whole() -> T:
        world = World(**options)
        await world.start()
        return await scenario(world)

    return asyncio.run(whole())
