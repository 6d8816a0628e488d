"""Reading deliveries and their attempts, and moving them by hand: redeliver, cancel (contract §3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ackpost.core.model import Attempt, Delivery, Endpoint, EndpointVersion, HeldBy
from ackpost.core.view_state import held_by, next_attempt_ms
from ackpost.errors import NotFound
from ackpost.ports.operations import Cancel, DeliveriesChanged, Idempotency, Redeliver
from ackpost.ports.store import DeliveryFilter, Page
from ackpost.service.results import settle

if TYPE_CHECKING:
    from ackpost.service.context import Services

ATTEMPTS_SHOWN_MAX: Final = 25
"""How many of its newest attempts a delivery is shown with."""

_HELD_SCAN_MAX: Final = 10_000
_PAYLOADS_AT_A_TIME: Final = 25


class ShownDelivery(msgspec.Struct):
    """A delivery with what holds it now and when it goes next."""

    delivery: Delivery
    held_by: HeldBy | None
    next_attempt_ms: int | None


class ShownAttempt(msgspec.Struct):
    """An attempt with how its request looked; ``sequence`` is the event's. ``version`` None: no longer known."""

    attempt: Attempt
    version: EndpointVersion | None
    sequence: int | None


class DeliveryService:
    """Use cases around deliveries and attempts."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._committer = services.committer
        self._clock = services.clock
        self._engine = services.engine

    async def get(self, tenant: int | None, position: int) -> ShownDelivery:
        """Raises: NotFound."""
        delivery = await self._store.delivery(tenant, position)
        if delivery is None:
            raise _no_delivery()
        return (await self.show([delivery]))[0]

    async def page(
        self, tenant: int | None, filter: DeliveryFilter, page: Page, held: Sequence[HeldBy] | None = None
    ) -> tuple[list[ShownDelivery], int | None]:
        """List deliveries; ``held``: only those that one of these holds.

        Second value: how far was looked when the bound on one page's work cut it short, as in the store port.
        """
        if held is None:
            rows, cut = await self._store.deliveries(tenant, filter, page)
            return await self.show(rows), cut
        return await self._page_held(tenant, filter, page, frozenset(held))

    async def _page_held(
        self, tenant: int | None, filter: DeliveryFilter, page: Page, held: frozenset[HeldBy]
    ) -> tuple[list[ShownDelivery], int | None]:
        if filter.statuses is not None and "pending" not in filter.statuses:
            return [], None
        narrow = msgspec.structs.replace(
            filter, statuses=("pending",), waiting=True if held == {"order"} else filter.waiting
        )
        found: list[ShownDelivery] = []
        after, scanned = page.after, 0
        while scanned < _HELD_SCAN_MAX:
            step = msgspec.structs.replace(page, after=after, limit=250)
            rows, cut = await self._store.deliveries(tenant, narrow, step)
            for shown in await self.show(rows):
                if shown.held_by in held:
                    found.append(shown)
                    if len(found) == page.limit:
                        return found, None
            if cut is None and len(rows) < step.limit:
                return found, None
            after = cut if cut is not None else rows[-1].position
            if cut is not None:
                break
            scanned += len(rows)
        return found, after

    async def show(self, deliveries: Sequence[Delivery]) -> list[ShownDelivery]:
        """Add what holds each delivery and when it goes next."""
        pending = {delivery.endpoint for delivery in deliveries if delivery.status == "pending"}
        endpoints = await self._store.load_endpoints(sorted(pending)) if pending else {}
        now_ms = self._clock.now_ms()
        return [self._shown(delivery, endpoints.get(delivery.endpoint), now_ms) for delivery in deliveries]

    def _shown(self, delivery: Delivery, endpoint: Endpoint | None, now_ms: int) -> ShownDelivery:
        rate_held = endpoint is not None and self._engine.is_rate_held(endpoint.position)
        held = held_by(delivery, endpoint, now_ms, rate_held)
        return ShownDelivery(delivery, held, next_attempt_ms(delivery, held, endpoint))

    async def attempts(self, tenant: int | None, delivery: int, page: Page) -> list[ShownAttempt]:
        """Attempts of one delivery. Raises: NotFound."""
        if await self._store.delivery(tenant, delivery) is None:
            raise _no_delivery()
        return await self.newest_attempts(tenant, delivery, page)

    async def newest_attempts(self, tenant: int | None, delivery: int, page: Page) -> list[ShownAttempt]:
        """Attempts of a delivery that is known to exist."""
        return await self.show_attempts(await self._store.attempts(tenant, delivery=delivery, endpoint=None, page=page))

    async def attempt(self, tenant: int | None, delivery: int, position: int) -> ShownAttempt:
        """One attempt. Raises: NotFound."""
        attempt = await self._store.attempt(tenant, delivery, position)
        if attempt is None:
            raise NotFound("There is no such attempt.")
        return (await self.show_attempts([attempt]))[0]

    async def show_attempts(self, attempts: Sequence[Attempt]) -> list[ShownAttempt]:
        """Add how each request looked."""
        versions = await self._versions({(attempt.endpoint, attempt.version) for attempt in attempts})
        sequences = await self._sequences(sorted({attempt.event for attempt in attempts}))
        return [
            ShownAttempt(attempt, versions[attempt.endpoint, attempt.version], sequences.get(attempt.event))
            for attempt in attempts
        ]

    async def _versions(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], EndpointVersion | None]:
        return {pair: await self._store.endpoint_version(*pair) for pair in sorted(wanted)}

    async def _sequences(self, events: list[int]) -> dict[int, int | None]:
        """Payloads hold the data too, so they are read in small steps and let go."""
        sequences: dict[int, int | None] = {}
        for start in range(0, len(events), _PAYLOADS_AT_A_TIME):
            payloads = await self._store.load_payloads(events[start : start + _PAYLOADS_AT_A_TIME])
            sequences.update({event: payload.sequence for event, payload in payloads.items()})
        return sequences

    async def redeliver(self, tenant: int, delivery: int, idempotency: Idempotency | None = None) -> list[int]:
        """Start a new round now; a pending one becomes due now.

        Raises: NotFound, DataExpired, Conflict (its endpoint is disabled or gone).
        """
        operation = Redeliver(tenant, self._clock.now_ms(), delivery=delivery, idempotency=idempotency)
        return await self._change(operation)

    async def cancel(self, tenant: int, delivery: int, idempotency: Idempotency | None = None) -> list[int]:
        """End a pending delivery. Raises: NotFound, Conflict (it has ended)."""
        return await self._change(Cancel(tenant, self._clock.now_ms(), delivery=delivery, idempotency=idempotency))

    async def _change(self, operation: Redeliver | Cancel) -> list[int]:
        return (await settle(self._committer, operation, DeliveriesChanged)).deliveries


def _no_delivery() -> NotFound:
    return NotFound("There is no such delivery.")
