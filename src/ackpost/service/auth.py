"""Who calls: bearer keys to principals, from memory where possible (contract §2).

A key is looked up by the SHA-256 of its text: it is random, so no slow hash is needed and nothing is compared by hand.
What was found is trusted for ``TRUSTED_FOR_S`` and then looked up again, so a key revoked elsewhere ends within that
time; on this node ``forget`` ends it at once. A key that is not known is never remembered.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final

import msgspec

from ackpost.core.model import Role
from ackpost.errors import Unauthenticated, Unavailable
from ackpost.ports.clock import Clock, Entropy
from ackpost.ports.commit import Committer
from ackpost.ports.operations import TouchApiKeys
from ackpost.ports.store import Store

TRUSTED_FOR_S: Final = 4.0
"""With the look-up itself, a revoked key is refused everywhere within 5 s."""

KEY_PREFIX: Final = "apk_"
SHOWN_CHARS: Final = 8

_CACHED_MAX: Final = 10_000
_KEY_BYTES_MAX: Final = 512
_TOUCH_EVERY_S: Final = 60.0

OPERATOR: Final[frozenset[Role]] = frozenset({"operator"})
MANAGERS: Final[frozenset[Role]] = frozenset({"operator", "admin"})
PUBLISHERS: Final[frozenset[Role]] = frozenset({"operator", "admin", "publisher"})
READERS: Final[frozenset[Role]] = frozenset({"operator", "admin", "publisher", "reader"})


class Principal(msgspec.Struct, frozen=True):
    """Whose key it is. ``tenant`` None: the operator, who acts for any tenant; ``key`` is the key's position."""

    role: Role
    tenant: int | None
    key: int
    expires_at_ms: int | None = None

    @property
    def sees_data(self) -> bool:
        """Whether events' data, response bodies and secrets may be shown."""
        return self.role in MANAGERS


class _Known(msgspec.Struct):
    principal: Principal
    trusted_until: float


def new_key(entropy: Entropy) -> str:
    """Make a key with 256 bits of randomness; its first ``SHOWN_CHARS`` characters may be shown later."""
    return KEY_PREFIX + entropy.token(32).hex()


def digest_of(key: str) -> bytes:
    """Give what is stored of a key."""
    return hashlib.sha256(key.encode()).digest()


class Authenticator:
    """Turns the value of an ``Authorization`` header into a principal."""

    def __init__(self, store: Store, committer: Committer, clock: Clock) -> None:
        self._store = store
        self._committer = committer
        self._clock = clock
        self._known: dict[bytes, _Known] = {}
        self._looking: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._used_ms: dict[int, int] = {}
        self._touched_at: float | None = None
        self._touching: asyncio.Task[None] | None = None
        self._generation = 0

    def recall(self, authorization: bytes | None) -> Principal | None:
        """Give the principal if the key was looked up a moment ago; None says nothing, ask ``principal``."""
        if authorization is None or authorization[:7] != b"Bearer ":
            return None
        known = self._known.get(hashlib.sha256(authorization[7:]).digest())
        if known is None or self._clock.monotonic() >= known.trusted_until:
            return None
        expires_at_ms = known.principal.expires_at_ms
        if expires_at_ms is not None and self._clock.now_ms() >= expires_at_ms:
            return None
        return known.principal

    async def principal(self, authorization: bytes | None) -> Principal:
        """Give the principal of a header's value.

        Raises: Unauthenticated when there is no key, or it is unknown, expired or revoked.
        """
        key = _bearer(authorization)
        digest = hashlib.sha256(key).digest()
        looking = self._looking.get(digest)
        if looking is None:
            looking = asyncio.create_task(self._look_up(digest))
            self._looking[digest] = looking
            looking.add_done_callback(lambda _: self._looking.pop(digest, None))
        principal = await asyncio.shield(looking)
        if principal is None:
            raise Unauthenticated("The API key is unknown, expired or revoked.")
        return principal

    def forget(self) -> None:
        """Look every key up again: one was revoked, or its tenant deleted."""
        self._generation += 1
        self._known.clear()

    async def close(self) -> None:
        """Store what is known of the keys' last use."""
        if self._touching is not None:
            await self._touching
        await self._touch()

    async def _look_up(self, digest: bytes) -> Principal | None:
        generation = -1
        while generation != self._generation:
            generation = self._generation
            found = await self._store.api_key_by_digest(digest)
        now_ms = self._clock.now_ms()
        if found is None or (found.expires_at_ms is not None and now_ms >= found.expires_at_ms):
            self._known.pop(digest, None)
            return None
        principal = Principal(found.role, found.tenant, found.position, found.expires_at_ms)
        if len(self._known) >= _CACHED_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[digest] = _Known(principal, self._clock.monotonic() + TRUSTED_FOR_S)
        self._used_ms[found.position] = now_ms
        self._touch_sometimes()
        return principal

    def _touch_sometimes(self) -> None:
        now = self._clock.monotonic()
        due = self._touched_at is None or now - self._touched_at >= _TOUCH_EVERY_S
        if due and (self._touching is None or self._touching.done()):
            self._touched_at = now
            self._touching = asyncio.create_task(self._touch())

    async def _touch(self) -> None:
        used_ms, self._used_ms = self._used_ms, {}
        if not used_ms:
            return
        try:
            await self._committer.submit(TouchApiKeys(used_ms))
        except Unavailable:
            # Noting a use can wait: it goes with the next minute's.
            self._used_ms = {**used_ms, **self._used_ms}


def _bearer(authorization: bytes | None) -> bytes:
    if authorization is None:
        raise Unauthenticated("Send an API key: Authorization: Bearer KEY.")
    scheme, _, key = authorization.partition(b" ")
    key = key.strip()
    if scheme.lower() != b"bearer" or not key or len(key) > _KEY_BYTES_MAX:
        raise Unauthenticated("The Authorization header must be: Bearer KEY.")
    return key
