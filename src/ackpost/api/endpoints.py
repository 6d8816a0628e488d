"""Endpoints: make, list, read, replace, patch, delete (contract §3); ``api.endpoint_actions`` has the rest."""

from __future__ import annotations

from typing import Annotated, Final

from litestar import Response, delete, get, patch, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from ackpost.api.endpoint_views import ChangedEndpointView, EndpointView, changed_endpoint_view, endpoint_view
from ackpost.api.guards import Call
from ackpost.api.params import Listing, PageQuery, values_of
from ackpost.core import ids
from ackpost.service.auth import MANAGERS, READERS
from ackpost.service.endpoint_input import EndpointInput, EndpointPatch
from ackpost.service.endpoint_secrets import show_secret
from ackpost.service.endpoints import Change, EndpointFilter

STATES: Final = ("enabled", "paused", "disabled")
CIRCUITS: Final = ("closed", "open", "half-open", "ramping")

EndpointName = Annotated[str, PathParameter(description="The endpoint's `id`, or your own `uid` of it.")]
_TAGS: Final = ["Endpoints"]


@post("/v1/endpoints", roles=MANAGERS, tags=_TAGS, summary="Make an endpoint")
async def create_endpoint(call: Call, data: JSONBody[EndpointInput]) -> ChangedEndpointView:
    """Make an endpoint. The answer has its `secret`, which later only the secret calls show."""
    change = await call.services.endpoints.create(call.one_tenant(), data, call.idempotency)
    return await shown_change(call, change)


@get("/v1/endpoints", roles=READERS, tenants="list", tags=_TAGS, summary="List endpoints")
async def list_endpoints(
    call: Call,
    plain_page: PageQuery,
    endpoint_state: Annotated[
        str | None, QueryParameter(name="state", description="Any of enabled, paused, disabled (comma list).")
    ] = None,
    circuit: Annotated[
        str | None, QueryParameter(description="Any of closed, open, half-open, ramping (comma list).")
    ] = None,
    url: Annotated[str | None, QueryParameter(description="Exactly this URL.")] = None,
    event_type: Annotated[
        str | None, QueryParameter(description="Endpoints whose filters take, or name, any of these types (a list).")
    ] = None,
) -> Listing[EndpointView]:
    """List endpoints, newest first."""
    filter = EndpointFilter(
        states=values_of("state", endpoint_state, STATES),
        circuits=values_of("circuit", circuit, CIRCUITS),
        url=url,
        event_types=values_of("event_type", event_type),
    )
    rows, scanned_to = await call.services.endpoints.page(call.tenant, filter, plain_page.page())
    names = await call.services.tenants.names(row.tenant for row in rows)
    now_ms = call.services.clock.now_ms()
    return plain_page.listing(
        rows,
        lambda row: row.position,
        lambda row: endpoint_view(row, names[row.tenant], call.salt, now_ms, with_credentials=call.principal.sees_data),
        scanned_to,
    )


@get("/v1/endpoints/{endpoint:str}", roles=READERS, tenants="any", tags=_TAGS, summary="Read an endpoint")
async def get_endpoint(call: Call, endpoint: EndpointName) -> EndpointView:
    """Read an endpoint with its state, circuit and policy."""
    found = await call.services.endpoints.find(call.tenant, endpoint)
    names = await call.services.tenants.names([found.tenant])
    now_ms = call.services.clock.now_ms()
    return endpoint_view(found, names[found.tenant], call.salt, now_ms, with_credentials=call.principal.sees_data)


@put(
    "/v1/endpoints/{endpoint:str}",
    roles=MANAGERS,
    tags=_TAGS,
    summary="Make or replace an endpoint",
    responses={201: ResponseSpec(ChangedEndpointView, description="It was made; with its `secret`.")},
)
async def put_endpoint(
    call: Call,
    endpoint: Annotated[str, PathParameter(description="Your own `uid` for it, or the `id` of one to replace.")],
    data: JSONBody[EndpointInput],
) -> Response[ChangedEndpointView]:
    """Make the endpoint with this `uid`, or replace all that can be set of it: what is left out gets its default.

    State, circuit and secrets stay.
    """
    change = await call.services.endpoints.put(call.one_tenant(), endpoint, data)
    return Response(await shown_change(call, change), status_code=201 if change.created else 200)


@patch("/v1/endpoints/{endpoint:str}", roles=MANAGERS, tags=_TAGS, summary="Change an endpoint")
async def patch_endpoint(call: Call, endpoint: EndpointName, data: JSONBody[EndpointPatch]) -> ChangedEndpointView:
    """Apply a JSON Merge Patch (RFC 7396): objects merge, lists replace, `null` resets to the default.

    Changing scheme, host or port of the URL drops `secret_headers` unless they are sent again in this call.
    """
    return await shown_change(call, await call.services.endpoints.patch(call.one_tenant(), endpoint, data))


@delete("/v1/endpoints/{endpoint:str}", roles=MANAGERS, tags=_TAGS, summary="Delete an endpoint")
async def delete_endpoint(call: Call, endpoint: EndpointName) -> None:
    """Delete an endpoint; its pending deliveries end as `cancelled` (`endpoint_deleted`)."""
    await call.services.endpoints.delete(call.one_tenant(), endpoint)


async def shown_change(call: Call, change: Change) -> ChangedEndpointView:
    """Show an endpoint after a call; one that was just made with its secret."""
    endpoint = change.endpoint
    names = await call.services.tenants.names([endpoint.tenant])
    now_ms = call.services.clock.now_ms()
    view = changed_endpoint_view(endpoint, names[endpoint.tenant], call.salt, now_ms)
    if change.created:
        secret = show_secret(endpoint, now_ms).secret
        if secret is not None:
            view.secret = secret
    if change.duplicate_url:
        view.warnings = ["duplicate_url"]
    if change.job is not None:
        view.job_id = job_id(call, change.job)
    return view


def job_id(call: Call, position: int) -> str:
    """Give a job's public id."""
    return ids.public_id(ids.JOB, position, call.salt)


ROUTES: Final[list[ControllerRouterHandler]] = [
    create_endpoint,
    list_endpoints,
    get_endpoint,
    put_endpoint,
    patch_endpoint,
    delete_endpoint,
]
