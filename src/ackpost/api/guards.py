"""Who may call what. Nothing is open unless its handler says so: each names its roles, and one guard checks all.

A handler's keyword arguments: ``roles`` (a set of ``service.auth``), ``public=True`` instead for the few open ones
(``open_on_loopback=True`` for what only strangers need a key for),
``tenants`` (``service.tenants.Scope``: ``one`` unless said otherwise; None for calls that belong to no tenant).
"""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.exceptions import MethodNotAllowedException
from litestar.handlers import BaseRouteHandler

from ackpost.api.idempotency import idempotency_of
from ackpost.api.params import check_query
from ackpost.api.request import NO_QUERY, StrictRequest
from ackpost.errors import Forbidden
from ackpost.ports.operations import Idempotency
from ackpost.service.auth import Principal
from ackpost.service.context import Services
from ackpost.service.tenants import required

CALL_KEY = "ackpost.call"
QUERIES_KEY = "queries"
METHODS_KEY = "methods"

_TENANT_HEADER = b"ackpost-tenant"


class AdmittedCall:
    """A call that has passed the guard.

    ``tenant`` None: an operator who left it open, or a call that belongs to no tenant. ``idempotency`` is set on POST.
    A plain class, so that the framework passes it on as it is: it would look into anything it could take apart.
    """

    __slots__ = ("idempotency", "principal", "services", "tenant")

    def __init__(self, services: Services, principal: Principal, tenant: int | None) -> None:
        self.services = services
        self.principal = principal
        self.tenant = tenant
        self.idempotency: Idempotency | None = None

    @property
    def salt(self) -> int:
        """The store's salt, for ids."""
        return self.services.store.salt

    def one_tenant(self) -> int:
        """Give the tenant.

        Raises: InvalidInput (tenant_required).
        """
        if self.tenant is None:
            raise required("Name one tenant by the header Ackpost-Tenant.")
        return self.tenant


Call = NamedDependency[AdmittedCall]
"""The type of a handler's argument ``call``."""


async def guard(connection: ASGIConnection[Any, Any, Any, State], handler: BaseRouteHandler) -> None:
    """Check key, role, tenant and names of query parameters, before the body is read.

    Raises: Unauthenticated, Forbidden, InvalidInput, NotFound (unknown_tenant).
    """
    services: Services = connection.app.state.services
    options = handler.opt
    scope = connection.scope
    path, method = scope["path_template"], str(scope.get("method", ""))
    if method == "OPTIONS":
        # The router makes such handlers by itself; no other site's script is to call this API.
        raise MethodNotAllowedException(headers={"allow": ", ".join(connection.app.state[METHODS_KEY][path])})
    if not (options.get("public") or (options.get("open_on_loopback") and services.options.metrics_are_public)):
        authorization, tenant_name = _headers(scope["headers"])
        principal = services.auth.recall(authorization) or await services.auth.principal(authorization)
        if principal.role not in options.get("roles", ()):
            raise Forbidden(f"A key of role {principal.role} may not do this.")
        tenants = options.get("tenants", "one")
        tenant = None
        if tenants is not None:
            tenant = await services.tenants.meant(principal, tenant_name, tenants)
        elif principal.tenant is not None:
            tenant = await services.tenants.meant(principal, tenant_name, "one")
        scope["state"][CALL_KEY] = AdmittedCall(services, principal, tenant)
    known = connection.app.state[QUERIES_KEY].get((path, method), NO_QUERY)
    check_query(scope["query_string"], known)


async def provide_call(request: StrictRequest) -> AdmittedCall:
    """Give the call that the guard let pass.

    Raises: InvalidInput (Idempotency-Key), TooLarge.
    """
    call: AdmittedCall = request.scope["state"][CALL_KEY]
    if request.method == "POST":
        for name, value in request.scope["headers"]:
            if name == b"idempotency-key":
                call.idempotency = idempotency_of(
                    value,
                    tenant=call.tenant,
                    method="POST",
                    path=request.scope["path"],
                    body=await request.body(),
                    now_ms=call.services.clock.now_ms(),
                )
                break
    return call


def _headers(headers: Any) -> tuple[bytes | None, str | None]:
    authorization: bytes | None = None
    tenant_name: str | None = None
    for name, value in headers:
        if name == b"authorization":
            authorization = value
        elif name == _TENANT_HEADER:
            tenant_name = value.decode("latin-1")
    return authorization, tenant_name
