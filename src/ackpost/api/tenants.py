"""``/v1/tenants``: for operators only."""

from __future__ import annotations

from typing import Annotated, Final

from litestar import delete, get, patch, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter
from litestar.response import Response
from litestar.types import ControllerRouterHandler

from ackpost.api.guards import Call
from ackpost.api.params import Listing, PageQuery
from ackpost.api.views import TenantView, tenant_view
from ackpost.service.auth import OPERATOR
from ackpost.service.tenant_changes import TenantInput, TenantPatch

_TAGS: Final = ["Tenants"]

TenantId = Annotated[str, PathParameter(description="A tenant's id or uid.")]


@get("/v1/tenants", roles=OPERATOR, tenants=None, tags=_TAGS, summary="List tenants")
async def list_tenants(call: Call, plain_page: PageQuery) -> Listing[TenantView]:
    """Tenants, newest first."""
    rows = await call.services.store.tenants(plain_page.page())
    return plain_page.listing(rows, lambda row: row.position, lambda row: tenant_view(row, call.salt))


@post("/v1/tenants", roles=OPERATOR, tenants=None, tags=_TAGS, summary="Make a tenant")
async def create_tenant(call: Call, data: JSONBody[TenantInput]) -> TenantView:
    """Make a tenant. Its `uid` is the name by which calls mean it, and never changes."""
    return tenant_view(await call.services.tenant_changes.create(data, call.idempotency), call.salt)


@get("/v1/tenants/{tenant_id:str}", roles=OPERATOR, tenants=None, tags=_TAGS, summary="Get a tenant")
async def get_tenant(call: Call, tenant_id: TenantId) -> TenantView:
    """One tenant."""
    return tenant_view(await call.services.tenants.by_name(tenant_id), call.salt)


@put(
    "/v1/tenants/{tenant_id:str}",
    roles=OPERATOR,
    tenants=None,
    tags=_TAGS,
    summary="Make or replace a tenant",
    responses={201: ResponseSpec(TenantView, generate_examples=False, description="Made.")},
)
async def put_tenant(call: Call, tenant_id: TenantId, data: JSONBody[TenantInput]) -> Response[TenantView]:
    """Make the tenant of this uid (201), or replace all that can be set of it (200)."""
    tenant, made = await call.services.tenant_changes.put(tenant_id, data)
    return Response(tenant_view(tenant, call.salt), status_code=201 if made else 200)


@patch("/v1/tenants/{tenant_id:str}", roles=OPERATOR, tenants=None, tags=_TAGS, summary="Change a tenant")
async def patch_tenant(call: Call, tenant_id: TenantId, data: JSONBody[TenantPatch]) -> TenantView:
    """Apply a JSON Merge Patch (RFC 7396)."""
    return tenant_view(await call.services.tenant_changes.patch(tenant_id, data), call.salt)


@delete("/v1/tenants/{tenant_id:str}", roles=OPERATOR, tenants=None, tags=_TAGS, summary="Delete a tenant")
async def delete_tenant(call: Call, tenant_id: TenantId) -> None:
    """Delete a tenant: it is unknown at once, its keys are revoked, its pending deliveries end."""
    await call.services.tenant_changes.delete(tenant_id)


ROUTES: Final[list[ControllerRouterHandler]] = [
    list_tenants,
    create_tenant,
    get_tenant,
    put_tenant,
    patch_tenant,
    delete_tenant,
]
