"""Making, listing and revoking API keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ackpost.core.limits import check_text, refuse
from ackpost.core.model import ApiKey, Role
from ackpost.core.times import parse_rfc3339
from ackpost.errors import FieldError, Forbidden
from ackpost.ports.operations import CreateApiKey, DeleteApiKey, Idempotency, KeySaved, Repeated
from ackpost.ports.store import Page
from ackpost.service.auth import SHOWN_CHARS, Principal, digest_of, new_key
from ackpost.service.results import submit

if TYPE_CHECKING:
    from ackpost.service.context import Services

NAME_CHARS_MAX: Final = 256


class ApiKeyInput(msgspec.Struct, forbid_unknown_fields=True):
    """What a caller sets of a key; without ``expires_at`` it holds until it is revoked."""

    name: str
    role: Role
    expires_at: str | None = None


class NewApiKey(msgspec.Struct):
    """A key as stored, and its text; None when an earlier call made it: the text is not stored."""

    key: ApiKey
    text: str | None

    def __repr__(self) -> str:
        return f"NewApiKey(key={self.key.prefix}…)"


class ApiKeys:
    """Use cases around keys."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._committer = services.committer
        self._clock = services.clock
        self._entropy = services.entropy
        self._auth = services.auth

    async def create(
        self, principal: Principal, tenant: int | None, given: ApiKeyInput, idempotency: Idempotency | None
    ) -> NewApiKey:
        """Make a key of ``tenant``; None only for an operator's.

        Raises: Forbidden (an operator's key by anyone else), InvalidInput.
        """
        if given.role == "operator" and principal.role != "operator":
            raise Forbidden("Only an operator may make an operator's key.")
        errors: list[FieldError] = []
        check_text(given.name, NAME_CHARS_MAX, ("body", "name"), errors)
        now_ms = self._clock.now_ms()
        expires_at_ms = _expiry_ms(given.expires_at, now_ms, errors)
        refuse(errors)
        text = new_key(self._entropy)
        key = ApiKey(
            position=0,
            name=given.name,
            prefix=text[:SHOWN_CHARS],
            digest=digest_of(text),
            role=given.role,
            tenant=tenant,
            created_at_ms=now_ms,
            expires_at_ms=expires_at_ms,
        )
        result = await self._committer.submit(CreateApiKey(key, idempotency))
        repeated = isinstance(result, Repeated)
        saved = result.result if isinstance(result, Repeated) else result
        assert isinstance(saved, KeySaved)
        return NewApiKey(saved.key, None if repeated else text)

    async def page(self, tenant: int | None, page: Page) -> list[ApiKey]:
        """List keys; ``tenant`` None: all, an operator's included."""
        return await self._store.api_keys(tenant, page)

    async def delete(self, tenant: int | None, position: int) -> None:
        """Revoke a key at once. Raises: NotFound."""
        await submit(self._committer, DeleteApiKey(position, tenant))
        self._auth.forget()


def _expiry_ms(text: str | None, now_ms: int, errors: list[FieldError]) -> int | None:
    if text is None:
        return None
    try:
        expires_at_ms = parse_rfc3339(text)
    except ValueError as error:
        errors.append(FieldError(("body", "expires_at"), str(error)))
        return None
    if expires_at_ms <= now_ms:
        errors.append(FieldError(("body", "expires_at"), "must lie in the future"))
    return expires_at_ms
