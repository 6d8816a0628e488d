"""``/v1/events``: reading events, sending them again, stopping them. Publishing is in ``api.publish``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Response
from litestar.types import ControllerRouterHandler

from ackpost.api.guards import Call
from ackpost.api.params import Listing, PageQuery, refuse, values_of
from ackpost.api.views import DeliveryBrief, EventView, delivery_brief, event_view
from ackpost.core import ids
from ackpost.core.limits import pattern_fault
from ackpost.errors import FieldError, InvalidInput, NotFound
from ackpost.ports.store import EventFilter
from ackpost.service.auth import MANAGERS, READERS
from ackpost.service.events import RoutingLine, RoutingReason, ShownEvent

_STATUSES: Final = ("pending", "delivered", "dead", "unmatched")
_TAGS: Final = ["Events"]

EventId = Annotated[str, PathParameter(description="An event's id, or the uid it was published with.")]
Types = Annotated[
    str | None, QueryParameter(name="type", description="A comma list of patterns: an exact type, `order.*` or `*`.")
]
Key = Annotated[str | None, QueryParameter(name="key", description="Events of this key.")]
Uid = Annotated[str | None, QueryParameter(name="uid", description="The event of this uid.")]
OfEndpoint = Annotated[
    str | None, QueryParameter(name="endpoint_id", description="Events with a delivery to this endpoint (id or uid).")
]
Statuses = Annotated[
    str | None, QueryParameter(name="status", description=f"A comma list of {', '.join(_STATUSES)}.")
]
Channel = Annotated[str | None, QueryParameter(name="channel", description="Events of this channel.")]
OneKey = Annotated[str, QueryParameter(name="key", description="The key whose newest event is wanted.")]


class RedeliverInput(msgspec.Struct, forbid_unknown_fields=True):
    """``endpoint_id`` (id or uid): only to that endpoint, even if it never had the event."""

    endpoint_id: str | None = None


class DeliveryIds(msgspec.Struct):
    """The deliveries that were changed."""

    deliveries: list[str]


class RoutingView(msgspec.Struct):
    """What one endpoint has of an event. ``delivery_id`` and ``status`` are null when it has nothing."""

    endpoint_id: str
    delivery_id: str | None
    status: str | None
    reason: RoutingReason


class RoutingAnswer(msgspec.Struct):
    """One line for each endpoint of the tenant."""

    data: list[RoutingView]


@get("/v1/events", roles=READERS, tenants="list", tags=_TAGS, summary="List events")
async def list_events(
    call: Call,
    page: PageQuery,
    types: Types = None,
    key: Key = None,
    uid: Uid = None,
    endpoint_id: OfEndpoint = None,
    statuses: Statuses = None,
    channel: Channel = None,
) -> Listing[EventView]:
    """Events, newest first, without their data."""
    filter = EventFilter(
        types=patterns_of(types),
        key=key,
        uid=uid,
        endpoint=None if endpoint_id is None else await endpoint_position(call, endpoint_id, ("query", "endpoint_id")),
        statuses=values_of("status", statuses, _STATUSES),
        channel=channel,
    )
    rows, cut = await call.services.events.page(call.tenant, filter, page.page())
    names = await call.services.tenants.names(row.event.tenant for row in rows)

    def view(row: ShownEvent) -> EventView:
        shown = event_view(row.event, names[row.event.tenant], call.salt)
        shown.deliveries = _briefs(row, call.salt)
        return shown

    return page.listing(rows, lambda row: row.event.position, view, cut)


@get("/v1/events/latest", roles=READERS, tenants="one", tags=_TAGS, summary="Get the newest event of a key")
async def get_latest_event(call: Call, key: OneKey, types: Types = None) -> EventView:
    """The newest event of a key, perhaps of certain types: for consumers that ask instead of being told."""
    event = await call.services.events.latest(call.one_tenant(), key, patterns_of(types))
    return await _whole(call, await call.services.events.show(event))


@get("/v1/events/{event_id:str}", roles=READERS, tenants="any", tags=_TAGS, summary="Get an event")
async def get_event(call: Call, event_id: EventId) -> EventView:
    """One event with its newest 100 deliveries and, for operator and admin keys, its data."""
    events = call.services.events
    return await _whole(call, await events.show(await events.find(call.tenant, event_id)))


@get("/v1/events/{event_id:str}/data", roles=MANAGERS, tenants="any", tags=_TAGS, summary="Get an event's data")
async def get_event_data(call: Call, event_id: EventId) -> Response[bytes]:
    """The exact bytes that were published."""
    data = await call.services.events.data(call.tenant, event_id)
    headers = {"content-disposition": 'attachment; filename="data.json"'}
    return Response(data, media_type="application/json", headers=headers)


@delete("/v1/events/{event_id:str}/data", roles=MANAGERS, tags=_TAGS, summary="Remove an event's data")
async def delete_event_data(call: Call, event_id: EventId) -> None:
    """Remove the data for good, before its time. Pending deliveries of the event end dead (`data_expired`)."""
    tenant = call.one_tenant()
    event = await call.services.events.find(tenant, event_id)
    await call.services.events.expire_data(tenant, event.position)


@get("/v1/events/{event_id:str}/routing", roles=READERS, tenants="any", tags=_TAGS, summary="Explain a routing")
async def get_event_routing(call: Call, event_id: EventId) -> RoutingAnswer:
    """For each endpoint of the tenant whether it got the event, or why not."""
    events = call.services.events
    lines = await events.routing(await events.find(call.tenant, event_id))
    return RoutingAnswer([_routing_view(line, call.salt) for line in lines])


@post(
    "/v1/events/{event_id:str}/redeliver", roles=MANAGERS, status_code=202, tags=_TAGS, summary="Send an event again"
)
async def redeliver_event(call: Call, event_id: EventId, data: JSONBody[RedeliverInput | None] = None) -> DeliveryIds:
    """Start a new round of each delivery of the event, due now; pending ones become due now."""
    tenant = call.one_tenant()
    event = await call.services.events.find(tenant, event_id)
    endpoint = None
    if data is not None and data.endpoint_id is not None:
        endpoint = await endpoint_position(call, data.endpoint_id, ("body", "endpoint_id"))
    changed = await call.services.events.redeliver(tenant, event.position, endpoint, call.idempotency)
    return delivery_ids(changed, call.salt)


@post("/v1/events/{event_id:str}/cancel", roles=MANAGERS, status_code=202, tags=_TAGS, summary="Stop an event")
async def cancel_event(call: Call, event_id: EventId) -> DeliveryIds:
    """End the event's pending deliveries as cancelled."""
    tenant = call.one_tenant()
    event = await call.services.events.find(tenant, event_id)
    return delivery_ids(await call.services.events.cancel(tenant, event.position, call.idempotency), call.salt)


def delivery_ids(positions: Iterable[int], salt: int) -> DeliveryIds:
    """Show which deliveries were changed."""
    return DeliveryIds([ids.public_id(ids.DELIVERY, position, salt) for position in positions])


def patterns_of(text: str | None) -> tuple[str, ...] | None:
    """Read a comma list of type patterns. Raises: InvalidInput."""
    patterns = values_of("type", text)
    for pattern in patterns or ():
        fault = pattern_fault(pattern)
        if fault is not None:
            refuse("type", fault)
    return patterns


async def endpoint_position(call: Call, name: str, loc: tuple[str, ...]) -> int:
    """Give the position of an endpoint named by id (it may be deleted by now) or uid.

    Raises: InvalidInput when it is neither.
    """
    position = ids.parse_id(ids.ENDPOINT, name, call.salt)
    if position is not None:
        return position
    if call.tenant is not None and ids.valid_uid(name):
        endpoint = await call.services.store.endpoint_by_uid(call.tenant, name)
        if endpoint is not None:
            return endpoint.position
    if loc[0] == "body":
        raise NotFound("There is no such endpoint.")
    message = "must be the id or uid of an endpoint"
    raise InvalidInput(f"{'.'.join(loc)} {message}", errors=[FieldError(loc, message)])


def _briefs(shown: ShownEvent, salt: int) -> list[DeliveryBrief]:
    return [delivery_brief(each.delivery, each.held_by, each.next_attempt_ms, salt) for each in shown.deliveries]


async def _whole(call: Call, shown: ShownEvent) -> EventView:
    event = shown.event
    names = await call.services.tenants.names([event.tenant])
    view = event_view(event, names[event.tenant], call.salt)
    view.deliveries = _briefs(shown, call.salt)
    view.data_expired = event.data_expired
    if call.principal.sees_data and event.data is not None:
        view.data = msgspec.Raw(event.data)
    return view


def _routing_view(line: RoutingLine, salt: int) -> RoutingView:
    return RoutingView(
        endpoint_id=ids.public_id(ids.ENDPOINT, line.endpoint, salt),
        delivery_id=None if line.delivery is None else ids.public_id(ids.DELIVERY, line.delivery, salt),
        status=line.status,
        reason=line.reason,
    )


ROUTES: Final[list[ControllerRouterHandler]] = [
    list_events,
    get_latest_event,
    get_event,
    get_event_data,
    delete_event_data,
    get_event_routing,
    redeliver_event,
    cancel_event,
]
