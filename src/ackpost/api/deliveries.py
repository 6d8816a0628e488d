"""Deliveries and attempts: list, read, redeliver, cancel (contract §3)."""

from __future__ import annotations

from typing import Annotated, Final, cast, get_args

from litestar import get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler

from ackpost.api.delivery_views import AttemptView, DeliveryView, attempt_brief, attempt_view, delivery_view
from ackpost.api.events import DeliveryIds, delivery_ids, endpoint_position, patterns_of
from ackpost.api.guards import Call
from ackpost.api.inputs import NoFields, path_id
from ackpost.api.params import Listing, PageQuery, refuse, values_of
from ackpost.core import ids
from ackpost.core.model import DeliveryStatus, HeldBy
from ackpost.core.outcome import ERROR_CODES
from ackpost.errors import NotFound
from ackpost.ports.store import DeliveryFilter, Page
from ackpost.service.auth import MANAGERS, READERS
from ackpost.service.deliveries import ATTEMPTS_SHOWN_MAX

STATUSES: Final[tuple[str, ...]] = get_args(DeliveryStatus)
HELD_BY: Final[tuple[str, ...]] = get_args(HeldBy)

EndpointIdQuery = Annotated[str | None, QueryParameter(description="The endpoint's `id`, or your own `uid` of it.")]
EventIdQuery = Annotated[str | None, QueryParameter(description="The event's `id`, or your own `uid` of it.")]
TypeQuery = Annotated[str | None, QueryParameter(description="Event types or patterns like `order.*` (comma list).")]
ReasonQuery = Annotated[str | None, QueryParameter(description="Any of these reasons (comma list).")]
KeyQuery = Annotated[str | None, QueryParameter(description="Exactly this key.")]
_TAGS: Final = ["Deliveries"]


@get("/v1/deliveries", roles=READERS, tenants="list", tags=_TAGS, summary="List deliveries")
async def list_deliveries(
    call: Call,
    page: PageQuery,
    endpoint_id: EndpointIdQuery = None,
    event_id: EventIdQuery = None,
    status: Annotated[str | None, QueryParameter(description=f"Any of {', '.join(STATUSES)} (comma list).")] = None,
    reason: ReasonQuery = None,
    error: Annotated[
        str | None, QueryParameter(description="The last attempt's error, any of these (comma list).")
    ] = None,
    status_code: Annotated[
        str | None, QueryParameter(description="The last answer's status code, any of these (comma list).")
    ] = None,
    held_by: Annotated[str | None, QueryParameter(description=f"Any of {', '.join(HELD_BY)} (comma list).")] = None,
    key: KeyQuery = None,
    type: TypeQuery = None,
) -> Listing[DeliveryView]:
    """List deliveries of all states, newest first."""
    filter = DeliveryFilter(
        endpoint=await queried_endpoint(call, endpoint_id),
        event=await queried_event(call, event_id),
        statuses=values_of("status", status, STATUSES),
        reasons=values_of("reason", reason),
        errors=values_of("error", error, ERROR_CODES),
        status_codes=_status_codes(status_code),
        key=key,
        types=patterns_of(type),
    )
    held = cast("tuple[HeldBy, ...] | None", values_of("held_by", held_by, HELD_BY))
    rows, scanned_to = await call.services.deliveries.page(call.tenant, filter, page.page(), held)
    names = await call.services.tenants.names(row.delivery.tenant for row in rows)
    return page.listing(
        rows,
        lambda row: row.delivery.position,
        lambda row: delivery_view(row, names[row.delivery.tenant], call.salt),
        scanned_to,
    )


@get("/v1/deliveries/{delivery:str}", roles=READERS, tenants="any", tags=_TAGS, summary="Read a delivery")
async def get_delivery(call: Call, delivery: FromPath[str]) -> DeliveryView:
    """Read a delivery with its newest attempts."""
    position = delivery_of(call, delivery)
    shown = await call.services.deliveries.get(call.tenant, position)
    attempts = await call.services.deliveries.newest_attempts(call.tenant, position, Page(limit=ATTEMPTS_SHOWN_MAX))
    names = await call.services.tenants.names([shown.delivery.tenant])
    briefs = [attempt_brief(attempt, call.salt, call.principal) for attempt in attempts]
    return delivery_view(shown, names[shown.delivery.tenant], call.salt, briefs)


@get("/v1/deliveries/{delivery:str}/attempts", roles=READERS, tenants="any", tags=_TAGS, summary="List its attempts")
async def delivery_attempts(call: Call, delivery: FromPath[str], page: PageQuery) -> Listing[AttemptView]:
    """List the attempts of a delivery, newest first."""
    rows = await call.services.deliveries.attempts(call.tenant, delivery_of(call, delivery), page.page())
    return page.listing(
        rows,
        lambda row: row.attempt.position,
        lambda row: attempt_view(row, call.salt, call.principal),
    )


@get("/v1/attempts/{attempt:str}", roles=READERS, tenants="any", tags=_TAGS, summary="Read an attempt")
async def get_attempt(call: Call, attempt: FromPath[str]) -> AttemptView:
    """Read one attempt: its request with masked secrets, and the answer."""
    positions = ids.parse_attempt_id(attempt)
    if positions is None:
        raise NotFound("There is no such attempt.")
    shown = await call.services.deliveries.attempt(call.tenant, positions[1], positions[0])
    return attempt_view(shown, call.salt, call.principal)


@post("/v1/deliveries/{delivery:str}/redeliver", roles=MANAGERS, status_code=202, tags=_TAGS, summary="Redeliver")
async def redeliver(call: Call, delivery: FromPath[str], data: JSONBody[NoFields | None] = None) -> DeliveryIds:  # noqa: ARG001 - refuses any field
    """Start a new round of a delivery now; a pending one becomes due now."""
    position = delivery_of(call, delivery)
    changed = await call.services.deliveries.redeliver(call.one_tenant(), position, call.idempotency)
    return delivery_ids(changed, call.salt)


@post("/v1/deliveries/{delivery:str}/cancel", roles=MANAGERS, status_code=202, tags=_TAGS, summary="Cancel")
async def cancel(call: Call, delivery: FromPath[str], data: JSONBody[NoFields | None] = None) -> DeliveryIds:  # noqa: ARG001 - refuses any field
    """End a pending delivery. An attempt that is under way is the last one; if it succeeds, that counts."""
    position = delivery_of(call, delivery)
    changed = await call.services.deliveries.cancel(call.one_tenant(), position, call.idempotency)
    return delivery_ids(changed, call.salt)


def delivery_of(call: Call, text: str) -> int:
    """Read a delivery's id in a path. Raises: NotFound."""
    return path_id(ids.DELIVERY, text, call.salt, "delivery")


async def queried_endpoint(call: Call, name: str | None) -> int | None:
    """Read an endpoint's id or uid in a query. Raises: InvalidInput."""
    return None if name is None else await endpoint_position(call, name, ("query", "endpoint_id"))


async def queried_event(call: Call, name: str | None) -> int | None:
    """Read an event's id or uid in a query. Raises: InvalidInput."""
    if name is None:
        return None
    position = ids.parse_id(ids.EVENT, name, call.salt)
    if position is None and call.tenant is not None and ids.valid_uid(name):
        position = await call.services.store.event_by_uid(call.tenant, name)
    if position is None:
        refuse("event_id", "must be the id or uid of an event")
    return position


def _status_codes(text: str | None) -> tuple[int, ...] | None:
    values = values_of("status_code", text)
    if values is None:
        return None
    if not all(len(value) == 3 and value.isascii() and value.isdigit() for value in values):
        refuse("status_code", "must be a status code like 503, or a comma list of them")
    return tuple(int(value) for value in values)


ROUTES: Final[list[ControllerRouterHandler]] = [
    list_deliveries,
    get_delivery,
    delivery_attempts,
    get_attempt,
    redeliver,
    cancel,
]
