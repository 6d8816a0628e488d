"""People of a world: publishers that repeat until they are sure, operators that do anything at any time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ackpost.core.jsondata import decode_batch, decode_publish
from ackpost.core.model import EndpointSecret, Job, JobKind
from ackpost.core.signing import new_secret, seal
from ackpost.errors import RequestError, StoreError
from ackpost.ports import operations as ops
from ackpost.ports.operations import Idempotency, JobSelector
from tests.simulation.history import Published
from tests.simulation.node import Node
from tests.simulation.setup import path_of

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
TYPES = ("order.created", "order.paid", "user.created", "ping")
ANSWER_S = 15.0
SURE_REFUSALS = ("overloaded", "storage_full", "starting")


class NoAnswer(Exception):
    """The connection was lost, or nothing came in time: it may have been done."""


async def call(world: World, request: Callable[[Node], Awaitable[T]]) -> T:
    """Make a request to the node that serves now. Raises: NoAnswer, RequestError."""
    node = await world.serving()
    task: asyncio.Task[T] = world.loop.create_task(_made(request, node), context=node.process.context)
    ended: set[asyncio.Future[Any]] = {task, node.died}
    await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED, timeout=ANSWER_S)
    if not task.done():
        raise NoAnswer
    try:
        return task.result()
    except StoreError:  # a 503 of the API: a read failed
        raise NoAnswer from None


async def _made(request: Callable[[Node], Awaitable[T]], node: Node) -> T:
    return await request(node)


class Publisher:
    """Publishes one by one or in batches; repeats with the same uid or Idempotency-Key when unsure."""

    def __init__(self, world: World, rng: random.Random, number: int) -> None:
        self._world = world
        self._random = rng
        self._number = number
        self._keys = [f"k{number}-{index}" for index in range(rng.randint(1, 3))]

    async def run(self, count: int, pause_s: float) -> None:
        """Publish ``count`` events over the time of troubles."""
        while count > 0:
            size = min(count, self._random.choice([1, 1, 1, 1, self._random.randint(2, 8)]))
            await self._publish(size)
            count -= size
            await asyncio.sleep(self._random.expovariate(1 / pause_s))

    async def _publish(self, size: int) -> None:
        world, rng = self._world, self._random
        tenant = rng.choice(world.tenants)
        how = rng.choice(["uid", "key", "nothing"])
        bodies, published = [], []
        for _ in range(size):
            marker = len(world.history.published)
            data = {"n": marker, "text": "x" * rng.randint(0, 200)}
            event: dict[str, object] = {"type": rng.choice(TYPES), "data": data}
            if rng.random() < 0.5:
                event["key"] = rng.choice(self._keys)
            if how == "uid":
                event["uid"] = f"u{marker}"
            bodies.append(event)
            one = Published(marker=marker, tenant=tenant, repeatable=how != "nothing", by_key=how == "key")
            published.append(one)
            world.history.published.append(one)
        raw = msgspec.json.encode(bodies[0] if size == 1 else {"events": bodies})
        key = f"i{self._number}-{published[0].marker}" if how == "key" else None
        await self._until_sure(tenant, raw, size, key, published)

    async def _until_sure(
        self, tenant: int, raw: bytes, size: int, key: str | None, published: list[Published]
    ) -> None:
        while True:
            for one in published:
                one.tries += 1
            pause_s = self._random.uniform(0.1, 2)
            try:
                accepted = await call(self._world, lambda node: self._ask(node, tenant, raw, size, key))
            except RequestError as refusal:
                if self._is_final(refusal, published):
                    return
            except NoAnswer:
                _doubt(published)
            else:
                for one, answer in zip(published, accepted, strict=True):
                    one.position, one.deliveries = answer.position, answer.deliveries
                    self._world.history.seen["duplicate" if answer.duplicate else "accepted"] += 1
                return
            if not published[0].repeatable and published[0].unsure:
                return
            await asyncio.sleep(pause_s)

    def _is_final(self, refusal: RequestError, published: list[Published]) -> bool:
        self._world.history.seen[f"refusal {refusal.code}"] += 1
        if refusal.code == "outcome_unknown":
            _doubt(published)
        elif refusal.code not in SURE_REFUSALS:
            for one in published:
                one.refused = refusal.code
            return True
        return False

    async def _ask(self, node: Node, tenant: int, raw: bytes, size: int, key: str | None) -> list[ops.AcceptedEvent]:
        publisher = node.services.publisher
        idempotency = None if key is None else Idempotency(tenant, key, raw[:32], self._world.now_ms())
        if size == 1:
            return [await publisher.publish(tenant, decode_publish(raw), idempotency)]
        return await publisher.publish_batch(tenant, decode_batch(raw), idempotency)


def _doubt(published: list[Published]) -> None:
    for one in published:
        one.unsure += 1


class Operator:
    """Does something to something every now and then."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._random = rng

    async def run(self, until_s: float, pause_s: float) -> None:
        """Act until the time of troubles is over."""
        world, rng = self._world, self._random
        verbs = [name[4:] for name in dir(self) if name.startswith("_do_")]
        while world.loop.time() < until_s:
            await asyncio.sleep(rng.expovariate(1 / pause_s))
            verb = rng.choice(verbs)
            try:
                await getattr(self, f"_do_{verb}")()
            except NoAnswer:
                continue
            except RequestError as refusal:
                world.history.seen[f"refusal {refusal.code}"] += 1
                continue
            world.history.seen[f"operator {verb}"] += 1

    async def resume_all(self) -> None:
        """After the troubles: everything is enabled and runs."""
        for endpoint in sorted(self._world.state.endpoints):
            for verb in ("enable", "resume"):
                await self._surely(partial(self._state, verb, endpoint))

    async def discard_dead(self) -> None:
        """Let go what waits behind dead letters."""
        for endpoint in sorted({endpoint for endpoint, _ in self._world.state.holds}):
            tenant = self._tenant_of(endpoint)
            await self._surely(partial(self._job, "discard", tenant, JobSelector(endpoint=endpoint)))

    async def _surely(self, act: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await act()
            except (NoAnswer, RequestError):
                await asyncio.sleep(self._random.uniform(0.1, 1))
            else:
                return

    async def _submit(self, operation: ops.Operation) -> ops.Result | ops.Repeated:
        return await call(self._world, lambda node: node.writer.submit(operation))

    def _endpoint(self) -> int:
        return self._random.choice(sorted(self._world.state.endpoints))

    def _tenant_of(self, endpoint: int) -> int:
        return self._world.state.endpoints[endpoint].tenant

    async def _state(self, verb: str, endpoint: int) -> None:
        found = self._world.state.endpoints[endpoint]
        await call(self._world, lambda node: node.services.states.set_state(found, verb))  # type: ignore[arg-type] # one of the four

    async def _do_pause(self) -> None:
        await self._state("pause", self._endpoint())

    async def _do_resume(self) -> None:
        await self._state("resume", self._endpoint())

    async def _do_disable(self) -> None:
        if self._random.random() < 0.3:
            await self._state("disable", self._endpoint())

    async def _do_enable(self) -> None:
        await self._state("enable", self._endpoint())

    async def _do_rotate(self) -> None:
        endpoint = self._endpoint()
        found = self._world.state.endpoints[endpoint]
        text = new_secret("sha256-hex" if found.signature == "sha256-hex" else "standard", self._random.randbytes(32))
        self._world.paths[path_of(found)].append(text)
        now_ms = self._world.now_ms()
        overlap_ms = self._random.choice([0, 20_000])
        secret = EndpointSecret(seal(text), now_ms)
        await self._submit(ops.RotateSecret(found.tenant, endpoint, secret, overlap_ms, now_ms))

    async def _do_test(self) -> None:
        endpoint = self._world.state.endpoints[self._endpoint()]
        wait_s = self._random.choice([0.0, 2.0])
        await call(self._world, lambda node: node.services.tests.send(endpoint, wait_s=wait_s))

    def _delivery(self) -> tuple[int, int]:
        rows = list(self._world.state.rows)
        if not rows:
            raise NoAnswer
        row = self._world.state.rows[self._random.choice(rows)]
        self._world.history.touched_by_people.add(row.position)
        return row.tenant, row.position

    async def _do_redeliver(self) -> None:
        tenant, delivery = self._delivery()
        await call(self._world, lambda node: node.services.deliveries.redeliver(tenant, delivery))

    async def _do_redeliver_event(self) -> None:
        _, delivery = self._delivery()
        row = self._world.state.rows[delivery]
        endpoint = self._random.choice([None, row.endpoint, self._endpoint()])
        self._world.history.touched_by_people.update(self._world.state.rows_of_event[row.event])
        await self._submit(ops.Redeliver(row.tenant, self._world.now_ms(), event=row.event, endpoint=endpoint))

    async def _do_cancel(self) -> None:
        tenant, delivery = self._delivery()
        await call(self._world, lambda node: node.services.deliveries.cancel(tenant, delivery))

    async def _do_cancel_and_redeliver(self) -> None:
        pending = [row for row in self._world.state.rows.values() if row.status == "pending"]
        if not pending:
            raise NoAnswer
        row = self._random.choice(pending)
        self._world.history.touched_by_people.add(row.position)
        await call(self._world, lambda node: node.services.deliveries.cancel(row.tenant, row.position))
        await call(self._world, lambda node: node.services.deliveries.redeliver(row.tenant, row.position))

    async def _do_expire(self) -> None:
        tenant, delivery = self._delivery()
        event = self._world.state.rows[delivery].event
        self._world.history.touched_by_people.update(self._world.state.rows_of_event[event])
        self._world.history.expired_events.add(event)
        await self._submit(ops.ExpireData(tenant, event, self._world.now_ms()))

    async def _job(self, kind: JobKind, tenant: int, selector: JobSelector) -> None:
        params, now_ms = msgspec.to_builtins(selector), self._world.now_ms()
        job = Job(position=0, tenant=tenant, kind=kind, params=params, created_at_ms=now_ms)
        await self._submit(ops.CreateJob(job))

    async def _do_replay(self) -> None:
        endpoint = self._endpoint()
        await self._job("replay", self._tenant_of(endpoint), JobSelector(endpoint=endpoint))

    async def _do_discard(self) -> None:
        endpoint = self._endpoint()
        if self._random.random() < 0.3:
            await self._job("discard", self._tenant_of(endpoint), JobSelector(endpoint=endpoint))

    async def _do_recover(self) -> None:
        endpoint = self._endpoint()
        since_ms = self._world.now_ms() - self._random.randint(1, 60_000)
        await self._job("recover", self._tenant_of(endpoint), JobSelector(endpoint=endpoint, since_ms=since_ms))

    async def _do_cancel_job(self) -> None:
        jobs = list(self._world.state.jobs.values())
        if not jobs:
            raise NoAnswer
        job = self._random.choice(jobs)
        await self._submit(ops.CancelJob(job.tenant, job.position, self._world.now_ms()))

    async def _do_change_policy(self) -> None:
        """Timeouts, limits and ordering change under way."""
        endpoint = self._endpoint()
        found = self._world.state.endpoints[endpoint]
        changed = msgspec.json.decode(msgspec.json.encode(found), type=type(found))
        changed.policy = {**found.policy, "max_in_flight": self._random.randint(1, 10)}
        if self._random.random() < 0.4:
            changed.policy["ordering"] = self._random.choice(["best-effort", "by-key"])
            self._world.history.seen["ordering changed"] += 1
        await self._submit(ops.ReplaceEndpoint(changed, found.rev, self._world.now_ms()))
