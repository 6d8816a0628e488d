"""``/v1/api-keys``: making and revoking keys."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody, PathParameter
from litestar.types import ControllerRouterHandler

from ackpost.api.guards import Call
from ackpost.api.params import Listing, PageQuery
from ackpost.api.views import ApiKeyView, NewApiKeyView, api_key_view
from ackpost.core import ids
from ackpost.core.model import ApiKey
from ackpost.errors import NotFound
from ackpost.service.api_keys import ApiKeyInput
from ackpost.service.auth import MANAGERS

_TAGS: Final = ["API keys"]

KeyId = Annotated[str, PathParameter(description="A key's id.")]


@get("/v1/api-keys", roles=MANAGERS, tenants="named", tags=_TAGS, summary="List API keys")
async def list_api_keys(call: Call, plain_page: PageQuery) -> Listing[ApiKeyView]:
    """Keys of a tenant, newest first; of all tenants and operators when an operator names no tenant."""
    rows = await call.services.api_keys.page(call.tenant, plain_page.page())
    names = await call.services.tenants.names(row.tenant for row in rows if row.tenant is not None)

    def view(row: ApiKey) -> ApiKeyView:
        return api_key_view(row, None if row.tenant is None else names[row.tenant], call.salt)

    return plain_page.listing(rows, lambda row: row.position, view)


@post("/v1/api-keys", roles=MANAGERS, tenants="any", tags=_TAGS, summary="Make an API key")
async def create_api_key(call: Call, data: JSONBody[ApiKeyInput]) -> NewApiKeyView:
    """Make a key. The answer is the only place that ever shows it."""
    tenant = None if data.role == "operator" else call.one_tenant()
    made = await call.services.api_keys.create(call.principal, tenant, data, call.idempotency)
    names = await call.services.tenants.names([] if made.key.tenant is None else [made.key.tenant])
    shown = api_key_view(made.key, None if made.key.tenant is None else names[made.key.tenant], call.salt)
    return NewApiKeyView(**msgspec.structs.asdict(shown), key=made.text)


@delete("/v1/api-keys/{key_id:str}", roles=MANAGERS, tenants="named", tags=_TAGS, summary="Revoke an API key")
async def delete_api_key(call: Call, key_id: KeyId) -> None:
    """Revoke a key: it is refused at once here, and within 5 seconds by every other node."""
    position = ids.parse_id(ids.API_KEY, key_id, call.salt)
    if position is None:
        raise NotFound("There is no such API key.")
    await call.services.api_keys.delete(call.tenant, position)


ROUTES: Final[list[ControllerRouterHandler]] = [list_api_keys, create_api_key, delete_api_key]
