"""Dead letters: list, read, replay, discard (contract §3)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler

from ackpost.api.deliveries import EndpointIdQuery, KeyQuery, ReasonQuery, TypeQuery, delivery_of, queried_endpoint
from ackpost.api.delivery_views import DeadLetterView, WholeDeadLetterView, dead_letter_view, whole_dead_letter_view
from ackpost.api.endpoints import job_id
from ackpost.api.events import endpoint_position, patterns_of
from ackpost.api.guards import Call
from ackpost.api.inputs import body_time
from ackpost.api.jobs import CountView, JobStarted
from ackpost.api.params import Listing, PageQuery, values_of
from ackpost.core import ids
from ackpost.core.limits import pattern_fault
from ackpost.core.model import DEAD_REASONS
from ackpost.errors import FieldError, InvalidInput
from ackpost.ports.operations import JobSelector
from ackpost.ports.store import DeliveryFilter, Page
from ackpost.service.auth import MANAGERS, READERS
from ackpost.service.dead_letters import IDS_MAX, too_many_ids
from ackpost.service.deliveries import ATTEMPTS_SHOWN_MAX

_TAGS: Final = ["Dead letters"]
_ANSWERS: Final = {
    202: ResponseSpec(JobStarted, generate_examples=False, description="The job was made."),
    200: ResponseSpec(CountView, generate_examples=False, description="A dry run."),
}


class SelectorInput(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters: at most 1,000 `ids` (of deliveries), or a filter, or `all`."""

    ids: list[str] | None = None
    endpoint_id: str | None = None
    type: str | None = None
    reason: str | None = None
    since: str | None = None
    until: str | None = None
    all: bool = False
    dry_run: bool = False


@get("/v1/dead-letters", roles=READERS, tenants="list", tags=_TAGS, summary="List dead letters")
async def list_dead_letters(
    call: Call,
    page: PageQuery,
    endpoint_id: EndpointIdQuery = None,
    type: TypeQuery = None,
    reason: ReasonQuery = None,
    key: KeyQuery = None,
) -> Listing[DeadLetterView]:
    """List the deliveries that ended unacknowledged, newest first."""
    filter = DeliveryFilter(
        endpoint=await queried_endpoint(call, endpoint_id),
        reasons=values_of("reason", reason, DEAD_REASONS),
        types=patterns_of(type),
        key=key,
    )
    rows, scanned_to = await call.services.dead_letters.page(call.tenant, filter, page.page())
    names = await call.services.tenants.names(row.delivery.tenant for row in rows)
    return page.listing(
        rows,
        lambda row: row.delivery.position,
        lambda row: dead_letter_view(row, names[row.delivery.tenant], call.salt),
        scanned_to,
    )


@get("/v1/dead-letters/{delivery:str}", roles=READERS, tenants="any", tags=_TAGS, summary="Read a dead letter")
async def get_dead_letter(call: Call, delivery: FromPath[str]) -> WholeDeadLetterView:
    """Read a dead letter with its newest attempts and, for keys that may see it, the published data."""
    position = delivery_of(call, delivery)
    letter, event = await call.services.dead_letters.get(call.tenant, position)
    attempts = await call.services.deliveries.newest_attempts(call.tenant, position, Page(limit=ATTEMPTS_SHOWN_MAX))
    names = await call.services.tenants.names([letter.delivery.tenant])
    return whole_dead_letter_view(letter, event, attempts, names[letter.delivery.tenant], call.salt, call.principal)


@post(
    "/v1/dead-letters/replay",
    roles=MANAGERS,
    status_code=202,
    tags=_TAGS,
    summary="Replay dead letters",
    responses=_ANSWERS,
)
async def replay(call: Call, data: JSONBody[SelectorInput | None] = None) -> Response[JobStarted] | Response[CountView]:
    """Start a job that gives each selected dead letter a new round, with URL, secrets and policy of now."""
    return await _start(call, "replay", SelectorInput() if data is None else data)


@post(
    "/v1/dead-letters/discard",
    roles=MANAGERS,
    status_code=202,
    tags=_TAGS,
    summary="Discard dead letters",
    responses=_ANSWERS,
)
async def discard(
    call: Call, data: JSONBody[SelectorInput | None] = None
) -> Response[JobStarted] | Response[CountView]:
    """Start a job that marks each selected dead letter as discarded."""
    return await _start(call, "discard", SelectorInput() if data is None else data)


async def _start(
    call: Call, kind: Literal["replay", "discard"], data: SelectorInput
) -> Response[JobStarted] | Response[CountView]:
    tenant = call.one_tenant()
    selector = await _selector(call, data)
    if data.dry_run:
        return Response(CountView(await call.services.dead_letters.count(tenant, selector)), status_code=200)
    job = await call.services.dead_letters.start(tenant, kind, selector, call.idempotency)
    return Response(JobStarted(job_id(call, job.position)), status_code=202)


async def _selector(call: Call, data: SelectorInput) -> JobSelector:
    return JobSelector(
        ids=None if data.ids is None else _delivery_ids(data.ids, call.salt),
        endpoint=None if data.endpoint_id is None else await _endpoint(call, data.endpoint_id),
        type=_known_type(data.type),
        reason=_known_reason(data.reason),
        since_ms=body_time("since", data.since),
        until_ms=body_time("until", data.until),
        all=data.all,
    )


def _delivery_ids(texts: list[str], salt: int) -> tuple[int, ...]:
    """Read ids; a repeated one counts for the limit, but is taken once."""
    if len(texts) > IDS_MAX:
        raise too_many_ids()
    positions = [ids.parse_id(ids.DELIVERY, text, salt) for text in texts]
    errors = [
        FieldError(("body", "ids", index), "must be the id of a delivery (dlv_…)")
        for index, position in enumerate(positions)
        if position is None
    ]
    if errors:
        raise InvalidInput("ids must be ids of deliveries", errors=errors[:100])
    return tuple(dict.fromkeys(position for position in positions if position is not None))


async def _endpoint(call: Call, name: str) -> int:
    """A deleted endpoint's id still selects what it left."""
    return await endpoint_position(call, name, ("body", "endpoint_id"))


def _known_type(pattern: str | None) -> str | None:
    fault = None if pattern is None else pattern_fault(pattern)
    if fault is not None:
        raise InvalidInput(f"type {fault}", errors=[FieldError(("body", "type"), fault)])
    return pattern


def _known_reason(reason: str | None) -> str | None:
    if reason is not None and reason not in DEAD_REASONS:
        text = f"must be one of {', '.join(DEAD_REASONS)}"
        raise InvalidInput(f"reason {text}", errors=[FieldError(("body", "reason"), text)])
    return reason


ROUTES: Final[list[ControllerRouterHandler]] = [list_dead_letters, get_dead_letter, replay, discard]
