"""Which endpoints an event goes to, from memory (rule E10).

What is kept may be out of date: an accept names the routing version it used, the store refuses another one
(``Stale``), and ``refresh`` gets the present one. So routing is exact without a look-up per event.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ackpost.core.matching import RoutingTable
from ackpost.core.model import Endpoint
from ackpost.core.policy import stored_policy
from ackpost.errors import NotFound
from ackpost.ports.clock import Clock
from ackpost.ports.operations import Target
from ackpost.ports.store import Routing, Store

_TENANTS_MAX: Final = 10_000
_KINDS_MAX: Final = 4_096


class TenantRoutes:
    """One tenant's routing version, made ready: event type and channels to a shared tuple of targets."""

    __slots__ = ("_kinds", "_table", "_targets", "version")

    def __init__(self, routing: Routing) -> None:
        self.version = routing.version
        self._targets = {endpoint.position: target_of(endpoint) for endpoint in routing.endpoints}
        # A paused endpoint still gets deliveries (they wait); a disabled one gets none.
        self._table = RoutingTable(
            (endpoint.position, endpoint.event_types, endpoint.channels, endpoint.state != "disabled")
            for endpoint in routing.endpoints
        )
        self._kinds: dict[tuple[str, tuple[str, ...]], tuple[Target, ...]] = {}

    def targets(self, event_type: str, channels: tuple[str, ...]) -> tuple[Target, ...]:
        """Give the targets of such an event."""
        kind = (event_type, channels)
        found = self._kinds.get(kind)
        if found is None:
            found = tuple(self._targets[position] for position in self._table.targets(event_type, channels))
            if len(self._kinds) >= _KINDS_MAX:
                self._kinds.clear()
            self._kinds[kind] = found
        return found


class Router:
    """The routes of the tenants that published lately."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._routes: dict[int, TenantRoutes] = {}
        self._loading: dict[int, asyncio.Task[TenantRoutes]] = {}

    def recall(self, tenant: int) -> TenantRoutes | None:
        """Give a tenant's routes if they are in memory."""
        return self._routes.get(tenant)

    async def routes(self, tenant: int) -> TenantRoutes:
        """Give a tenant's routes.

        Raises: NotFound (unknown_tenant).
        """
        known = self._routes.get(tenant)
        return known if known is not None else await self._load(tenant)

    async def refresh(self, tenant: int, stale: TenantRoutes) -> TenantRoutes:
        """Give other routes than ``stale``, which the store refused.

        Raises: NotFound (unknown_tenant).
        """
        known = self._routes.get(tenant)
        return known if known is not None and known is not stale else await self._load(tenant)

    def forget(self, tenant: int) -> None:
        """Load a tenant's routes anew: its endpoints were changed on this node."""
        self._routes.pop(tenant, None)

    async def _load(self, tenant: int) -> TenantRoutes:
        loading = self._loading.get(tenant)
        if loading is None:
            loading = asyncio.create_task(self._read(tenant))
            self._loading[tenant] = loading
            loading.add_done_callback(lambda _: self._loading.pop(tenant, None))
        return await asyncio.shield(loading)

    async def _read(self, tenant: int) -> TenantRoutes:
        routing = await self._store.routing(tenant)
        if routing is None:
            self._routes.pop(tenant, None)
            raise NotFound("The tenant does not exist any more.", code="unknown_tenant")
        routes = TenantRoutes(routing)
        if len(self._routes) >= _TENANTS_MAX:
            self._routes.pop(next(iter(self._routes)))
        self._routes[tenant] = routes
        return routes


def target_of(endpoint: Endpoint) -> Target:
    """Give an endpoint as an accept names it."""
    flat_key = endpoint.format == "flat" and endpoint.key_field is not None
    return Target(
        endpoint=endpoint.position,
        rev=endpoint.rev,
        pin=f"flat:{endpoint.key_field}" if flat_key else endpoint.format,
        by_key=stored_policy(endpoint.policy).ordering == "by-key",
        paused_since_ms=endpoint.paused_since_ms,
        paused_total_ms=endpoint.paused_total_ms,
    )
