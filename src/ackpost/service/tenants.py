"""Tenants: which one a call means, and their names, from memory where possible (contract §2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from ackpost.core import ids
from ackpost.core.model import Tenant
from ackpost.errors import FieldError, Forbidden, InvalidInput, NotFound
from ackpost.ports.clock import Clock
from ackpost.ports.store import Page, Store
from ackpost.service.auth import Principal

DEFAULT: Final = "default"
ANY: Final = "*"
HEADER: Final = "Ackpost-Tenant"

Scope = Literal["one", "any", "list", "named"]
"""``one``: the call must know its tenant; ``any``: an operator may leave it open; ``list``: also by ``*``;
``named``: as ``list``, but without the header no tenant is meant, not even the only one.
"""

_TRUSTED_FOR_S: Final = 4.0
_CACHED_MAX: Final = 10_000


class _Known(msgspec.Struct):
    tenant: Tenant
    trusted_until: float


class TenantDirectory:
    """Looks tenants up and keeps them for a few seconds; ``forget`` after each change on this node."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._by_name: dict[str, _Known] = {}
        self._by_position: dict[int, _Known] = {}
        self._only_default: tuple[bool, float] = (False, 0.0)
        self._generation = 0

    def forget(self) -> None:
        """Look everything up again."""
        self._generation += 1
        self._by_name.clear()
        self._by_position.clear()
        self._only_default = (False, 0.0)

    def recall(self, name: str) -> int | None:
        """Give a tenant's position by the uid or id used a moment ago; None says nothing."""
        known = self._by_name.get(name)
        if known is None or self._clock.monotonic() >= known.trusted_until:
            return None
        return known.tenant.position

    def recall_default(self) -> int | None:
        """Give the default tenant if it was the only one a moment ago; None says nothing."""
        only, trusted_until = self._only_default
        return self.recall(DEFAULT) if only and self._clock.monotonic() < trusted_until else None

    def is_recalled(self, position: int) -> bool:
        """Say whether a tenant was looked up a moment ago."""
        known = self._by_position.get(position)
        return known is not None and self._clock.monotonic() < known.trusted_until

    def rate_per_s(self, position: int) -> float | None:
        """Give the publish rate of a tenant looked up before; None without a limit."""
        known = self._by_position.get(position)
        return None if known is None else known.tenant.rate_per_s

    async def by_name(self, name: str) -> Tenant:
        """Find a tenant by uid or id.

        Raises: NotFound (unknown_tenant).
        """
        known = self._by_name.get(name)
        if known is not None and self._clock.monotonic() < known.trusted_until:
            return known.tenant
        generation = self._generation
        position = ids.parse_id(ids.TENANT, name, self._store.salt)
        found = None if position is None else await self._store.tenant(position)
        if found is None and ids.valid_uid(name):
            found = await self._store.tenant_by_uid(name)
        if found is None:
            self._by_name.pop(name, None)
            raise NotFound("There is no such tenant.", code="unknown_tenant")
        if generation == self._generation:
            self._remember(name, found)
        return found

    async def by_position(self, position: int) -> Tenant | None:
        """Find a live tenant."""
        known = self._by_position.get(position)
        if known is not None and self._clock.monotonic() < known.trusted_until:
            return known.tenant
        generation = self._generation
        found = await self._store.tenant(position)
        if found is not None and generation == self._generation:
            self._remember(found.uid, found)
        return found

    async def names(self, positions: Iterable[int]) -> dict[int, str]:
        """Give the uid of each tenant; of a deleted one its id, so that what it left can still be told apart."""
        names: dict[int, str] = {}
        for position in set(positions):
            tenant = await self.by_position(position)
            names[position] = ids.public_id(ids.TENANT, position, self._store.salt) if tenant is None else tenant.uid
        return names

    async def meant(self, principal: Principal, name: str | None, scope: Scope) -> int | None:
        """Find the tenant that a call is about; None: all of them (an operator only).

        Raises: Forbidden (a tenant's key names another), NotFound (unknown_tenant), InvalidInput (tenant_required).
        """
        if principal.tenant is not None:
            if name is not None and not await self._is_named(principal.tenant, name):
                raise Forbidden("This key belongs to another tenant than the one that the header names.")
            return principal.tenant
        if name is None:
            return None if scope == "named" else await self._default(scope)
        if name == ANY:
            if scope not in {"list", "named"}:
                raise required("Name one tenant: * is for lists only.")
            return None
        return (await self.by_name(name)).position

    async def _is_named(self, position: int, name: str) -> bool:
        if name == ids.public_id(ids.TENANT, position, self._store.salt):
            return True
        tenant = await self.by_position(position)
        return tenant is not None and tenant.uid == name

    async def _default(self, scope: Scope) -> int | None:
        position = self.recall_default()
        if position is not None:
            return position
        generation = self._generation
        first = await self._store.tenants(Page(limit=2))
        if len(first) == 1 and first[0].uid == DEFAULT:
            if generation == self._generation:
                self._remember(DEFAULT, first[0])
                self._only_default = (True, self._clock.monotonic() + _TRUSTED_FOR_S)
            return first[0].position
        if scope == "one":
            raise required(f"There are several tenants: name one by the header {HEADER}.")
        return None

    def _remember(self, name: str, tenant: Tenant) -> None:
        if len(self._by_name) >= _CACHED_MAX or len(self._by_position) >= _CACHED_MAX:
            self._by_name.clear()
            self._by_position.clear()
        known = _Known(tenant, self._clock.monotonic() + _TRUSTED_FOR_S)
        self._by_name[name] = known
        self._by_position[tenant.position] = known


def required(message: str) -> InvalidInput:
    """Make the refusal of a call that must name its tenant."""
    return InvalidInput(message, code="tenant_required", errors=[FieldError(("header", HEADER), message)])
