"""People of a world who publish: they repeat with the same uid or key until they are sure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ackpost.core.jsondata import decode_batch, decode_publish
from ackpost.errors import RequestError, StoreError
from ackpost.ports import operations as ops
from ackpost.ports.operations import Idempotency
from tests.simulation.history import Published
from tests.simulation.node import Node

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
            data: dict[str, object] = {"n": marker, "text": "x" * rng.randint(0, 200)}
            if rng.random() < 0.03:
                data["event"] = "a member that format flat has itself"
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
