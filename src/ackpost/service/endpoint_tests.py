"""Sending one test event to exactly one endpoint, by the very path that real ones take (contract §3)."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from ackpost.core import limits
from ackpost.core.matching import RESERVED_PREFIX
from ackpost.core.model import Endpoint
from ackpost.errors import FieldError, InvalidInput, RateLimited, TooLarge, Unavailable
from ackpost.ports.operations import Accept, Accepted, AcceptedEvent, Idempotency, NewEvent
from ackpost.ports.store import DeliveryFilter, Page
from ackpost.service.deliveries import DeliveryService, ShownAttempt
from ackpost.service.results import submit
from ackpost.service.routing import target_of

if TYPE_CHECKING:
    from ackpost.service.context import Services

TEST_TYPE: Final = "ackpost.test"
TEST_DATA: Final = b'{"message":"This is a test."}'
TESTS_A_MINUTE: Final = 10
WAIT_S_MAX: Final = 30.0

_MINUTE_S: Final = 60.0
_ENDPOINTS_REMEMBERED_MAX: Final = 10_000
_ROUTINGS_MAX: Final = 8


class TestSent(msgspec.Struct):
    """A test event that is durable; ``attempt`` when it was waited for and came in time."""

    __test__ = False  # it is no test case of pytest

    event: int
    delivery: int
    attempt: ShownAttempt | None = None


class TestSender:
    """Use cases around test events."""

    __test__ = False  # it is no test case of pytest

    def __init__(self, services: Services, deliveries: DeliveryService) -> None:
        self._store = services.store
        self._committer = services.committer
        self._clock = services.clock
        self._engine = services.engine
        self._router = services.router
        self._data_bytes_max = services.options.data_bytes_max
        self._deliveries = deliveries
        self._sent_at: dict[int, deque[float]] = {}

    async def send(
        self,
        endpoint: Endpoint,
        *,
        type: str = TEST_TYPE,
        data: bytes = TEST_DATA,
        wait_s: float = 0.0,
        idempotency: Idempotency | None = None,
    ) -> TestSent:
        """Send an event to this endpoint only, whatever its state and filters say; wait for its attempt.

        Raises: InvalidInput, TooLarge, RateLimited (more than ten a minute), Unavailable, NotFound, Conflict.
        """
        self._check(type, data)
        self.take(endpoint.position)
        sent = await self.send_taken(endpoint, type=type, data=data, idempotency=idempotency)
        if wait_s > 0:
            sent.attempt = await self._wait(endpoint.tenant, sent.delivery, wait_s)
        return sent

    def take(self, endpoint: int) -> None:
        """Count one test. Raises: RateLimited."""
        now = self._clock.monotonic()
        sent_at = self._sent_at.setdefault(endpoint, deque())
        while sent_at and now - sent_at[0] >= _MINUTE_S:
            sent_at.popleft()
        if len(sent_at) >= TESTS_A_MINUTE:
            wait_s = math.ceil(sent_at[0] + _MINUTE_S - now)
            raise RateLimited(
                f"At most {TESTS_A_MINUTE} tests a minute for one endpoint.", retry_after_s=max(1, wait_s)
            )
        sent_at.append(now)
        if len(self._sent_at) > _ENDPOINTS_REMEMBERED_MAX:
            self._sent_at = {one: times for one, times in self._sent_at.items() if now - times[-1] < _MINUTE_S}

    async def send_taken(
        self,
        endpoint: Endpoint,
        *,
        type: str = TEST_TYPE,
        data: bytes = TEST_DATA,
        idempotency: Idempotency | None = None,
    ) -> TestSent:
        """Send a test that was counted by ``take``. Raises: Unavailable, NotFound, Conflict."""
        event = NewEvent(type, data, targets=(target_of(endpoint),), trigger="test")
        routes = await self._router.routes(endpoint.tenant)
        for _ in range(_ROUTINGS_MAX):
            now_ms = self._clock.now_ms()
            operation = Accept(endpoint.tenant, routes.version, [event], now_ms, idempotency=idempotency)
            result = await submit(self._committer, operation)
            if isinstance(result, Accepted):
                return await self._sent(endpoint.tenant, result.events[0], result)
            routes = await self._router.refresh(endpoint.tenant, routes)
        raise Unavailable(
            "The tenant's endpoints are changing all the time: try again.", code="overloaded", retry_after_s=1
        )

    async def _sent(self, tenant: int, event: AcceptedEvent, accepted: Accepted) -> TestSent:
        if accepted.refs:
            return TestSent(event.position, accepted.refs[0].position)
        rows, _ = await self._store.deliveries(tenant, DeliveryFilter(event=event.position), Page(limit=1))
        return TestSent(event.position, rows[0].position)

    async def _wait(self, tenant: int, delivery: int, wait_s: float) -> ShownAttempt | None:
        """The wait begins before the look, so that an attempt recorded in between is not missed."""
        waiting = asyncio.ensure_future(self._engine.wait_attempt(delivery, wait_s))
        try:
            found = await self._newest(tenant, delivery)
            if found is None:
                await waiting
                found = await self._newest(tenant, delivery)
        finally:
            waiting.cancel()
        return found

    async def _newest(self, tenant: int, delivery: int) -> ShownAttempt | None:
        attempts = await self._deliveries.newest_attempts(tenant, delivery, Page(limit=1))
        return attempts[0] if attempts else None

    def _check(self, type: str, data: bytes) -> None:
        if len(data) > self._data_bytes_max:
            message = f"is longer than {self._data_bytes_max} bytes"
            raise TooLarge(f"data {message}", errors=[FieldError(("body", "data"), message)])
        fault = limits.type_fault(type)
        if fault is None and type.startswith(RESERVED_PREFIX) and type != TEST_TYPE:
            fault = f"must not begin with {RESERVED_PREFIX}, but for {TEST_TYPE}: such events are Ackpost's own"
        if fault is not None:
            raise InvalidInput(f"type {fault}", errors=[FieldError(("body", "type"), fault)])
