"""Reading events, and sending or stopping all deliveries of one by hand (contract §3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ackpost.core import ids
from ackpost.core.matching import MatchReason, match_reason
from ackpost.core.model import Endpoint, Event
from ackpost.errors import DataExpired, NotFound
from ackpost.ports.operations import Cancel, DeliveriesChanged, ExpireData, Idempotency, Redeliver
from ackpost.ports.store import DeliveryFilter, EventFilter, Page
from ackpost.service.deliveries import DeliveryService, ShownDelivery
from ackpost.service.results import settle, submit

if TYPE_CHECKING:
    from ackpost.service.context import Services

DELIVERIES_SHOWN_MAX: Final = 100
"""How many of its deliveries an event is shown with."""

_ROUTED_MAX: Final = 10_000
_STEP: Final = 250

RoutingReason = Literal["has_delivery", "endpoint_disabled", "endpoint_is_newer", "filter_changed"] | MatchReason
"""Why an endpoint got an event or not. ``filter_changed``: it matches now, but made no delivery then."""


class ShownEvent(msgspec.Struct):
    """An event with its newest deliveries."""

    event: Event
    deliveries: list[ShownDelivery]


class RoutingLine(msgspec.Struct):
    """What one endpoint has of one event; ``delivery`` and ``status`` None: nothing."""

    endpoint: int
    delivery: int | None
    status: str | None
    reason: RoutingReason


class EventService:
    """Use cases around events that were accepted."""

    def __init__(self, services: Services, deliveries: DeliveryService) -> None:
        self._store = services.store
        self._committer = services.committer
        self._clock = services.clock
        self._deliveries = deliveries

    async def find(self, tenant: int | None, name: str) -> Event:
        """Find an event, with its data, by id or by the publisher's own uid. Raises: NotFound."""
        position = ids.parse_id(ids.EVENT, name, self._store.salt)
        if position is None and tenant is not None and ids.valid_uid(name):
            position = await self._store.event_by_uid(tenant, name)
        event = None if position is None else await self._store.event(tenant, position)
        if event is None:
            raise NotFound("There is no such event.")
        return event

    async def data(self, tenant: int | None, name: str) -> bytes:
        """Give the bytes that were published. Raises: NotFound, DataExpired."""
        event = await self.find(tenant, name)
        if event.data is None:
            raise DataExpired("The event's data was removed.")
        return event.data

    async def latest(self, tenant: int, key: str, types: tuple[str, ...] | None) -> Event:
        """Find the newest event of a key. Raises: NotFound."""
        event = await self._store.latest_event(tenant, key, types)
        if event is None:
            raise NotFound("There is no such event of this key.")
        return event

    async def page(self, tenant: int | None, filter: EventFilter, page: Page) -> tuple[list[ShownEvent], int | None]:
        """List events with their deliveries; second value as in the store port."""
        events, cut = await self._store.events(tenant, filter, page)
        recount = filter.statuses is None  # else an event could contradict the filter that it passed
        return await self._show(events, recount=recount), cut

    async def show(self, event: Event) -> ShownEvent:
        """Add an event's newest deliveries."""
        return (await self._show([event], recount=True))[0]

    async def _show(self, events: list[Event], *, recount: bool) -> list[ShownEvent]:
        """Add the newest deliveries of each event.

        They are read later than the events: where they are all there are, they are counted anew, so that an event's
        status never contradicts its deliveries.
        """
        having = [event.position for event in events if event.delivery_counts]
        found = await self._store.deliveries_of_events(having, each_max=DELIVERIES_SHOWN_MAX) if having else {}
        flat = [delivery for position in having for delivery in found.get(position, ())]
        shown: dict[int, list[ShownDelivery]] = {}
        for one in await self._deliveries.show(flat):
            shown.setdefault(one.delivery.event, []).append(one)
        answer: list[ShownEvent] = []
        for event in events:
            deliveries = found.get(event.position, ())
            if recount and 0 < len(deliveries) < DELIVERIES_SHOWN_MAX:
                counts = Counter(delivery.status for delivery in deliveries)
                event = msgspec.structs.replace(event, delivery_counts=dict(counts))
            answer.append(ShownEvent(event, shown.get(event.position, [])))
        return answer

    async def routing(self, event: Event) -> list[RoutingLine]:
        """Say for each endpoint of the event's tenant whether it got it, or why not; deleted ones that got it first."""
        had = await self._delivered_to(event)
        routing = await self._store.routing(event.tenant)
        endpoints = [] if routing is None else routing.endpoints
        known = {endpoint.position for endpoint in endpoints}
        lines = [
            RoutingLine(endpoint, delivery, status, "has_delivery")
            for endpoint, (delivery, status) in had.items()
            if endpoint not in known
        ]
        for endpoint in endpoints:
            delivery, status = had.get(endpoint.position, (None, None))
            reason = _why_not(endpoint, event) if delivery is None else "has_delivery"
            lines.append(RoutingLine(endpoint.position, delivery, status, reason))
        return lines

    async def _delivered_to(self, event: Event) -> dict[int, tuple[int, str]]:
        """Give delivery and status by endpoint."""
        found: dict[int, tuple[int, str]] = {}
        filter, after = DeliveryFilter(event=event.position), None
        while len(found) < _ROUTED_MAX:
            page = Page(limit=_STEP, after=after, ascending=True)
            rows, cut = await self._store.deliveries(event.tenant, filter, page)
            found.update((row.endpoint, (row.position, row.status)) for row in rows)
            if len(rows) < _STEP and cut is None:
                break
            after = cut if cut is not None else rows[-1].position
        return found

    async def redeliver(
        self, tenant: int, event: int, endpoint: int | None, idempotency: Idempotency | None
    ) -> Sequence[int]:
        """Start a new round of an event's deliveries; with ``endpoint`` of that one, even if it never had it.

        Raises: NotFound, DataExpired, Conflict.
        """
        operation = Redeliver(
            tenant, self._clock.now_ms(), event=event, endpoint=endpoint, idempotency=idempotency
        )
        return (await settle(self._committer, operation, DeliveriesChanged)).deliveries

    async def cancel(self, tenant: int, event: int, idempotency: Idempotency | None) -> Sequence[int]:
        """End an event's pending deliveries. Raises: NotFound, Conflict."""
        operation = Cancel(tenant, self._clock.now_ms(), event=event, idempotency=idempotency)
        return (await settle(self._committer, operation, DeliveriesChanged)).deliveries

    async def expire_data(self, tenant: int, event: int) -> None:
        """Remove an event's data for good. Raises: NotFound."""
        await submit(self._committer, ExpireData(tenant, event, self._clock.now_ms()))


def _why_not(endpoint: Endpoint, event: Event) -> RoutingReason:
    reason = match_reason(endpoint.event_types, endpoint.channels, event.type, event.channels)
    if reason != "matches":
        return reason
    if endpoint.created_at_ms > event.created_at_ms:
        return "endpoint_is_newer"
    return "endpoint_disabled" if endpoint.state == "disabled" else "filter_changed"
