"""Publishing: validate, route, accept in one durable commit (design §4.1).

On the hot path nothing is looked up: tenant, routes and targets are in memory, and the store refuses what is stale.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable
from typing import Final

import msgspec

from ackpost.core.jsondata import BatchBody, PublishBody
from ackpost.core.limits import EventInput, Limits, check_batch, check_publish
from ackpost.errors import FieldError, InvalidInput, RateLimited, Unavailable
from ackpost.ports.clock import Clock
from ackpost.ports.commit import Committer
from ackpost.ports.operations import Accept, Accepted, AcceptedEvent, Idempotency, NewEvent, Repeated, Result
from ackpost.service.routing import Router, TenantRoutes
from ackpost.service.tenants import TenantDirectory

DELIVERIES_MAX: Final = 10_000
_ROUTINGS_MAX: Final = 8
"""How often one publish is routed anew before it gives up: each time somebody changed an endpoint in between."""

_BUCKETS_MAX: Final = 10_000


class Publisher:
    """Accepts events."""

    def __init__(
        self, router: Router, tenants: TenantDirectory, committer: Committer, clock: Clock, *, data_bytes_max: int
    ) -> None:
        self._router = router
        self._tenants = tenants
        self._committer = committer
        self._clock = clock
        self._limits = Limits(data_bytes_max=data_bytes_max)
        self._rates = Rates(clock)
        self._again: set[asyncio.Task[None]] = set()

    @property
    def limits(self) -> Limits:
        """What an event may be."""
        return self._limits

    def can_start(self, tenant: int) -> bool:
        """Say whether ``start`` may be called now: all that a publish looks up is in memory."""
        return self._tenants.is_recalled(tenant) and self._router.recall(tenant) is not None

    def start(self, tenant: int, body: PublishBody, on_done: Callable[[AcceptedEvent | Exception], None]) -> None:
        """Accept one event and call back when it is durable or has failed: as ``publish``, without task and future.

        Raises: as ``publish``, as far as it is known before the commit; then ``on_done`` is not called.
        """
        event = check_publish(body, self._limits)
        self._take_rate(tenant, 1)
        routes = self._router.recall(tenant)
        new_events = [_new_event(event)]
        if routes is None:
            self._start_anew(tenant, new_events, on_done)
            return
        _route(new_events, routes)
        operation = Accept(tenant, routes.version, new_events, self._clock.now_ms())
        self._committer.queue(operation, _Started(self, operation, on_done))

    def _start_anew(
        self, tenant: int, new_events: list[NewEvent], on_done: Callable[[AcceptedEvent | Exception], None]
    ) -> None:
        """Go the long way with an event whose routes are not in memory, or were refused as stale."""

        async def publish() -> None:
            try:
                accepted = await self._commit(tenant, new_events, None, batch=False)
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
                on_done(error)
            else:
                on_done(accepted[0])

        task = asyncio.get_running_loop().create_task(publish())
        self._again.add(task)
        task.add_done_callback(self._again.discard)

    async def publish(self, tenant: int, body: PublishBody, idempotency: Idempotency | None) -> AcceptedEvent:
        """Accept one event; returns when it is durable.

        Raises: InvalidInput, TooLarge, RateLimited, Conflict (uid, sequence, Idempotency-Key), Unavailable, NotFound.
        """
        event = check_publish(body, self._limits)
        accepted = await self._accept(tenant, [event], idempotency, batch=False)
        return accepted[0]

    async def publish_batch(
        self, tenant: int, body: BatchBody, idempotency: Idempotency | None
    ) -> list[AcceptedEvent]:
        """Accept many events, all or none.

        Raises: as ``publish``, with each wrong event's index in ``errors``.
        """
        return await self._accept(tenant, check_batch(body, self._limits), idempotency, batch=True)

    async def take_over(self, tenant: int, events: list[EventInput], outbox: tuple[int, ...]) -> None:
        """Accept the checked events of an outbox's rows, all or none; the rows are deleted in the same commit.

        They were not held back by a publish rate when they were written, and are not now.
        Raises: as ``publish_batch``.
        """
        await self._commit(tenant, [_new_event(event) for event in events], None, batch=True, outbox=outbox)

    async def _accept(
        self, tenant: int, events: list[EventInput], idempotency: Idempotency | None, *, batch: bool
    ) -> list[AcceptedEvent]:
        self._take_rate(tenant, len(events))
        return await self._commit(tenant, [_new_event(event) for event in events], idempotency, batch=batch)

    def _take_rate(self, tenant: int, events: int) -> None:
        rate_per_s = self._tenants.rate_per_s(tenant)
        if rate_per_s is not None:
            self._rates.take(tenant, rate_per_s, events)

    async def _commit(
        self,
        tenant: int,
        new_events: list[NewEvent],
        idempotency: Idempotency | None,
        *,
        batch: bool,
        outbox: tuple[int, ...] = (),
    ) -> list[AcceptedEvent]:
        routes = self._router.recall(tenant)
        if routes is None:
            routes = await self._router.routes(tenant)
        for _ in range(_ROUTINGS_MAX):
            _route(new_events, routes)
            operation = Accept(tenant, routes.version, new_events, self._clock.now_ms(), batch, idempotency, outbox)
            result = await self._committer.submit(operation)
            if isinstance(result, Repeated):
                result = result.result
            if isinstance(result, Accepted):
                return result.events
            routes = await self._router.refresh(tenant, routes)
        raise Unavailable(
            "The tenant's endpoints are changing all the time: try again.", code="overloaded", retry_after_s=1
        )


class _Started:
    """Waits for one event's commit (``ports.commit.Waiter``)."""

    __slots__ = ("_on_done", "_operation", "_publisher")

    def __init__(
        self, publisher: Publisher, operation: Accept, on_done: Callable[[AcceptedEvent | Exception], None]
    ) -> None:
        self._publisher = publisher
        self._operation = operation
        self._on_done = on_done

    def done(self) -> bool:
        return False

    def set_result(self, result: Result | Repeated, /) -> None:
        if type(result) is Accepted:
            self._on_done(result.events[0])
        else:  # routed by what is out of date
            operation = self._operation
            self._publisher._start_anew(operation.tenant, operation.events, self._on_done)

    def set_exception(self, error: Exception, /) -> None:
        self._on_done(error)


class Rates:
    """A token bucket for each tenant with a publish rate; a bucket holds one second's worth, at least one event.

    A batch larger than the bucket passes when the bucket is full, and leaves a debt that later events wait for.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[int, _Bucket] = {}

    def take(self, tenant: int, rate_per_s: float, events: int) -> None:
        """Take room for some events.

        Raises: RateLimited.
        """
        now = self._clock.monotonic()
        size = max(1.0, rate_per_s)
        bucket = self._buckets.get(tenant)
        if bucket is None:
            if len(self._buckets) >= _BUCKETS_MAX:
                self._buckets.clear()
            bucket = self._buckets[tenant] = _Bucket(size, now)
        level = min(size, bucket.level + (now - bucket.at) * rate_per_s)
        bucket.at = now
        bucket.level = level
        needed = min(float(events), size)
        if level < needed:
            wait_s = (needed - level) / rate_per_s
            raise RateLimited(
                f"This tenant may publish {rate_per_s:g} events a second.", retry_after_s=max(1, math.ceil(wait_s))
            )
        bucket.level = level - events


class _Bucket(msgspec.Struct):
    level: float
    at: float


def _new_event(event: EventInput) -> NewEvent:
    return NewEvent(
        event.type,
        event.data,
        event.occurred_at_ms,
        event.uid,
        None if event.uid is None else fingerprint(event),
        event.key,
        event.sequence,
        event.channels,
        event.metadata,
    )


def _route(events: list[NewEvent], routes: TenantRoutes) -> None:
    deliveries = 0
    for event in events:
        event.targets = routes.targets(event.type, event.channels)
        deliveries += len(event.targets)
    if deliveries > DELIVERIES_MAX:
        message = f"would make {deliveries:,} deliveries, and at most {DELIVERIES_MAX:,} are allowed in one request"
        raise InvalidInput(
            f"The request {message}.", code="too_many_deliveries", errors=[FieldError(("body",), message)]
        )


def fingerprint(event: EventInput) -> bytes:
    """Give a digest of all that was published: the same ``uid`` with other bytes is a conflict.

    Each part is preceded by its length, so that no two different events give the same text.
    """
    channels = "\n".join(event.channels)
    parts = (
        event.type.encode(),
        b"" if event.key is None else b"k" + event.key.encode(),
        b"" if event.sequence is None else b"%d" % event.sequence,
        channels.encode(),
        b"" if event.occurred_at_ms is None else b"%d" % event.occurred_at_ms,
        event.metadata or b"",
        event.data,
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
