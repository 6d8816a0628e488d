"""Making, changing and deleting tenants: the operator's work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ackpost.core import ids
from ackpost.core.formats import FORMATS
from ackpost.core.limits import check_metadata, check_text, check_uid, refuse
from ackpost.core.merge_patch import merge_patch
from ackpost.core.model import Tenant
from ackpost.errors import Conflict, FieldError
from ackpost.ports.operations import CreateTenant, DeleteTenant, Idempotency, ReplaceTenant, TenantSaved
from ackpost.service.results import settle, submit

if TYPE_CHECKING:
    from ackpost.service.context import Services

NAME_CHARS_MAX: Final = 256
RATE_MAX: Final = 1_000_000.0

_LIKE_AN_ID: Final = re.compile(r"[a-z]{2,3}_[0-9A-Z]{26}")


class TenantInput(msgspec.Struct, forbid_unknown_fields=True):
    """What a caller sets of a tenant; without ``rate_per_s`` it may publish as fast as the server can take it."""

    uid: str | None = None
    name: str = ""
    rate_per_s: float | None = None
    default_format: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class TenantPatch(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A JSON Merge Patch of a tenant; null resets a field. The uid never changes."""

    name: str | msgspec.UnsetType | None = msgspec.UNSET
    rate_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    default_format: str | msgspec.UnsetType | None = msgspec.UNSET
    metadata: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class TenantChanges:
    """Use cases of the operator."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._committer = services.committer
        self._clock = services.clock
        self._services = services

    async def create(self, given: TenantInput, idempotency: Idempotency | None) -> Tenant:
        """Make a tenant. Raises: InvalidInput, Conflict (already_exists)."""
        errors: list[FieldError] = []
        if given.uid is None:
            errors.append(FieldError(("body", "uid"), "is missing"))
        else:
            _check_new_uid(given.uid, ("body", "uid"), errors)
        _check(given, errors)
        tenant = self._filled(Tenant(position=0, uid=given.uid or "", created_at_ms=self._clock.now_ms()), given)
        saved = await settle(self._committer, CreateTenant(tenant, idempotency), TenantSaved)
        self._services.tenants.forget()
        return saved.tenant

    async def put(self, name: str, given: TenantInput) -> tuple[Tenant, bool]:
        """Make the tenant of this uid, or replace all of it that a caller sets; second value: whether it was made.

        Raises: InvalidInput.
        """
        errors: list[FieldError] = []
        present = await self._present(name)
        uid = name if present is None else present.uid
        if present is None:
            _check_new_uid(name, ("path", "tenant_id"), errors)
        if given.uid not in {None, uid}:
            errors.append(FieldError(("body", "uid"), "must be left out, or be the same as in the path"))
        _check(given, errors)
        if present is None:
            tenant = self._filled(Tenant(position=0, uid=uid, created_at_ms=self._clock.now_ms()), given)
            try:
                saved = await settle(self._committer, CreateTenant(tenant), TenantSaved)
            except Conflict:
                # Another call made it in between; then this one replaces it.
                present = await self._services.tenants.by_name(uid)
            else:
                self._services.tenants.forget()
                return saved.tenant, True
        return await self._replace(self._filled(present, given)), False

    async def patch(self, name: str, patch: TenantPatch) -> Tenant:
        """Apply a merge patch. Raises: InvalidInput, NotFound."""
        self._services.tenants.forget()
        present = await self._services.tenants.by_name(name)
        stored = {
            "name": present.name,
            "rate_per_s": present.rate_per_s,
            "default_format": present.default_format,
            "metadata": present.metadata,
        }
        merged = merge_patch(stored, msgspec.to_builtins(patch))
        given = msgspec.convert(merged, TenantInput)
        _check(given, [])
        return await self._replace(self._filled(present, given))

    async def delete(self, name: str) -> None:
        """Delete a tenant: unknown from now on, its keys revoked, its endpoints' work ended. Raises: NotFound."""
        tenant = await self._services.tenants.by_name(name)
        await submit(self._committer, DeleteTenant(tenant.position, self._clock.now_ms()))
        self._services.tenants.forget()
        self._services.auth.forget()
        self._services.router.forget(tenant.position)

    async def _present(self, name: str) -> Tenant | None:
        position = ids.parse_id(ids.TENANT, name, self._store.salt)
        if position is not None:
            return await self._store.tenant(position)
        return await self._store.tenant_by_uid(name) if ids.valid_uid(name) else None

    async def _replace(self, tenant: Tenant) -> Tenant:
        saved = await settle(self._committer, ReplaceTenant(tenant), TenantSaved)
        self._services.tenants.forget()
        return saved.tenant

    def _filled(self, tenant: Tenant, given: TenantInput) -> Tenant:
        return msgspec.structs.replace(
            tenant,
            name=given.name,
            rate_per_s=given.rate_per_s,
            default_format=given.default_format,
            metadata=given.metadata,
        )


def _check_new_uid(uid: str, loc: tuple[str, ...], errors: list[FieldError]) -> None:
    check_uid(uid, loc, errors)
    if _LIKE_AN_ID.fullmatch(uid):
        errors.append(FieldError(loc, "must not look like an id"))


def _check(given: TenantInput, errors: list[FieldError]) -> None:
    """Raises: InvalidInput."""
    check_text(given.name, NAME_CHARS_MAX, ("body", "name"), errors)
    if given.rate_per_s is not None and not 0 < given.rate_per_s <= RATE_MAX:
        errors.append(FieldError(("body", "rate_per_s"), f"must be above 0 and at most {RATE_MAX:,.0f}, or null"))
    if given.default_format is not None and given.default_format not in FORMATS:
        errors.append(FieldError(("body", "default_format"), f"must be one of {', '.join(FORMATS)}, or null"))
    check_metadata(msgspec.json.encode(given.metadata), ("body", "metadata"), errors)
    refuse(errors)
