"""Reading and rotating an endpoint's signing secret (contract §3): the only answers that show one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ackpost.core.model import Endpoint
from ackpost.core.signing import SECRET_RANDOM_BYTES, public_key_of, unseal
from ackpost.ports.operations import EndpointSaved, Idempotency, RotateSecret
from ackpost.service.endpoints import make_secret
from ackpost.service.results import settle

if TYPE_CHECKING:
    from ackpost.service.context import Services

OVERLAP_S: Final = 86_400.0
OVERLAP_S_MAX: Final = 30 * 86_400.0


class ShownSecret(msgspec.Struct):
    """A current secret in plain text; ``public_key`` in its place for ed25519, whose private half is never shown."""

    secret: str | None
    public_key: str | None
    created_at_ms: int
    previous_expire_ms: list[int]

    def __repr__(self) -> str:
        return f"ShownSecret(created_at_ms={self.created_at_ms})"


class SecretService:
    """Use cases around signing secrets; callers must be allowed to see them."""

    def __init__(self, services: Services) -> None:
        self._committer = services.committer
        self._clock = services.clock
        self._entropy = services.entropy

    def read(self, endpoint: Endpoint) -> ShownSecret:
        """Show the current secret and when the previous ones end."""
        return show_secret(endpoint, self._clock.now_ms())

    async def rotate(
        self, endpoint: Endpoint, given: str | None, overlap_s: float, idempotency: Idempotency | None = None
    ) -> ShownSecret:
        """Put a new secret first; the present ones sign for ``overlap_s`` more (0: not at all).

        Raises: InvalidInput, NotFound, Conflict (the Idempotency-Key was used for another call).
        """
        now_ms = self._clock.now_ms()
        secret = make_secret(endpoint.signature, given, self._entropy.token(SECRET_RANDOM_BYTES), now_ms)
        operation = RotateSecret(endpoint.tenant, endpoint.position, secret, int(overlap_s * 1000), now_ms, idempotency)
        saved = await settle(self._committer, operation, EndpointSaved)
        return show_secret(saved.endpoint, now_ms)


def show_secret(endpoint: Endpoint, now_ms: int) -> ShownSecret:
    """Open an endpoint's current secret."""
    current, *previous = endpoint.secrets
    text = unseal(current.sealed)
    asymmetric = endpoint.signature == "standard-ed25519"
    return ShownSecret(
        secret=None if asymmetric else text,
        public_key=public_key_of(text) if asymmetric else None,
        created_at_ms=current.created_at_ms,
        previous_expire_ms=[
            secret.expires_at_ms
            for secret in previous
            if secret.expires_at_ms is not None and secret.expires_at_ms > now_ms
        ],
    )


def public_key(endpoint: Endpoint) -> str | None:
    """Give the key that consumers verify ed25519 signatures with; None for shared secrets."""
    if endpoint.signature != "standard-ed25519" or not endpoint.secrets:
        return None
    return public_key_of(unseal(endpoint.secrets[0].sealed))
