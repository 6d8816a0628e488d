"""Making, changing, finding and removing endpoints (contract §3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ackpost.core import ids
from ackpost.core.addresses import AddressPolicy
from ackpost.core.matching import MatchReason, match_reason, pattern_matches
from ackpost.core.model import Endpoint, EndpointSecret
from ackpost.core.signing import SECRET_RANDOM_BYTES, SIGNATURE_KINDS, new_secret, seal
from ackpost.errors import Conflict, FieldError, InvalidInput, NotFound, Unavailable
from ackpost.ports.operations import CreateEndpoint, DeleteEndpoint, EndpointSaved, Idempotency, ReplaceEndpoint, Stale
from ackpost.ports.store import Page
from ackpost.service.endpoint_input import (
    EndpointInput,
    EndpointPatch,
    TargetRules,
    checked_secret,
    new_endpoint,
    patched_endpoint,
    replaced_endpoint,
)
from ackpost.service.results import settle, submit

if TYPE_CHECKING:
    from ackpost.service.context import Services

_TRIES_MAX: Final = 10
"""How often a change is applied anew before it gives up: each time somebody else changed the endpoint in between."""

_SCAN_MAX: Final = 10_000


class EndpointFilter(msgspec.Struct):
    """Any of the values of a list; None: no condition. ``event_types``: endpoints that take, or name, one of them."""

    states: tuple[str, ...] | None = None
    circuits: tuple[str, ...] | None = None
    url: str | None = None
    event_types: tuple[str, ...] | None = None


class Change(msgspec.Struct):
    """An endpoint as it is after a call. ``created``: there was none before. ``job``: mass work that was started."""

    endpoint: Endpoint
    created: bool = False
    duplicate_url: bool = False
    job: int | None = None


class EndpointService:
    """Use cases around what an endpoint is; its state, secrets and tests have their own modules."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._committer = services.committer
        self._clock = services.clock
        self._entropy = services.entropy
        self._router = services.router
        self._tenants = services.tenants
        self._endpoints_max = services.options.endpoints_max
        addresses = AddressPolicy(
            allowed=[str(network) for network in services.options.allow_targets], own_ports=services.options.own_ports
        )
        self._rules = TargetRules(addresses, services.options.allow_http)

    async def find(self, tenant: int | None, name: str) -> Endpoint:
        """Find an endpoint by id or by the caller's own uid. Raises: NotFound."""
        position = ids.parse_id(ids.ENDPOINT, name, self._store.salt)
        found = None if position is None else await self._store.endpoint(tenant, position)
        if found is None and position is None and tenant is not None and ids.valid_uid(name):
            found = await self._store.endpoint_by_uid(tenant, name)
        if found is None:
            raise NotFound("There is no such endpoint.")
        return found

    async def page(self, tenant: int | None, filter: EndpointFilter, page: Page) -> tuple[list[Endpoint], int | None]:
        """List endpoints; the second value tells how far was looked when that was cut short."""
        found: list[Endpoint] = []
        after, scanned = page.after, 0
        while scanned < _SCAN_MAX:
            rows = await self._store.endpoints(
                tenant,
                msgspec.structs.replace(page, after=after),
                states=filter.states,
                circuits=filter.circuits,
                url=filter.url,
            )
            found += [row for row in rows if filter.event_types is None or _takes_any(row, filter.event_types)]
            if len(found) >= page.limit or len(rows) < page.limit:
                return found[: page.limit], None
            after = rows[-1].position
            scanned += len(rows)
        return found, after

    async def create(self, tenant: int, given: EndpointInput, idempotency: Idempotency | None = None) -> Change:
        """Make an endpoint with its secret, generated or given.

        Raises: InvalidInput (also blocked_target, and too many endpoints), Conflict (already_exists), NotFound.
        """
        now_ms = self._clock.now_ms()
        endpoint = new_endpoint(given, tenant, await self._default_format(tenant), self._rules, now_ms)
        endpoint.secrets = (self._secret(endpoint.signature, given.secret, now_ms),)
        operation = CreateEndpoint(endpoint, self._endpoints_max, idempotency)
        saved = await settle(self._committer, operation, EndpointSaved)
        self._router.forget(tenant)
        return Change(saved.endpoint, created=True, duplicate_url=saved.duplicate_url)

    async def put(self, tenant: int, name: str, given: EndpointInput) -> Change:
        """Make the endpoint with this uid, or put a whole description in the place of its present one.

        An id in place of the uid replaces only. Raises: as ``create``; InvalidInput when the body has another uid.
        """
        for _ in range(_TRIES_MAX):
            present = await self._present(tenant, name)
            uid = name if present is None else present.uid
            if given.uid not in {None, uid}:
                text = "is not the one in the path, and cannot be changed"
                raise InvalidInput(f"uid {text}", errors=[FieldError(("body", "uid"), text)])
            changed = await self._put_once(tenant, present, msgspec.structs.replace(given, uid=uid))
            if changed is not None:
                return changed
        raise _too_busy()

    async def _present(self, tenant: int, name: str) -> Endpoint | None:
        if ids.parse_id(ids.ENDPOINT, name, self._store.salt) is not None:
            return await self.find(tenant, name)
        return await self._store.endpoint_by_uid(tenant, name) if ids.valid_uid(name) else None

    async def _put_once(self, tenant: int, present: Endpoint | None, given: EndpointInput) -> Change | None:
        """None when somebody else was faster."""
        if present is not None:
            default_format = await self._default_format(tenant)
            return await self._replace(present, replaced_endpoint(present, given, default_format, self._rules))
        try:
            return await self.create(tenant, given)
        except Conflict as error:
            if error.code != "already_exists":
                raise
            return None

    async def patch(self, tenant: int, name: str, patch: EndpointPatch) -> Change:
        """Apply a merge patch. Raises: NotFound, InvalidInput, Unavailable."""
        default_format = await self._default_format(tenant)
        return await self._change(
            tenant, name, lambda endpoint: patched_endpoint(endpoint, patch, default_format, self._rules)
        )

    async def delete(self, tenant: int, name: str) -> None:
        """Remove an endpoint at once; its pending deliveries are cancelled by a job. Raises: NotFound."""
        endpoint = await self.find(tenant, name)
        await submit(self._committer, DeleteEndpoint(tenant, endpoint.position, self._clock.now_ms()))
        self._router.forget(tenant)

    async def match(self, tenant: int | None, name: str, event_type: str, channels: Sequence[str]) -> MatchReason | str:
        """Say whether the endpoint gets such an event: ``matches`` or why not. Raises: NotFound."""
        endpoint = await self.find(tenant, name)
        if endpoint.state == "disabled":
            return "endpoint_disabled"
        return match_reason(endpoint.event_types, endpoint.channels, event_type, channels)

    async def _change(self, tenant: int, name: str, change: Callable[[Endpoint], Endpoint]) -> Change:
        for _ in range(_TRIES_MAX):
            endpoint = await self.find(tenant, name)
            changed = await self._replace(endpoint, change(endpoint))
            if changed is not None:
                return changed
        raise _too_busy()

    async def _replace(self, present: Endpoint, wanted: Endpoint) -> Change | None:
        """Store a changed endpoint; None when somebody else changed it first."""
        if wanted == present:
            return Change(present)
        now_ms = self._clock.now_ms()
        operation = ReplaceEndpoint(wanted, present.rev, now_ms)
        result = await submit(self._committer, operation)
        if isinstance(result, Stale):
            return None
        assert isinstance(result, EndpointSaved)
        self._router.forget(present.tenant)
        return Change(result.endpoint, duplicate_url=result.duplicate_url, job=result.job)

    def _secret(self, signature: str, given: str | None, now_ms: int) -> EndpointSecret:
        return make_secret(signature, given, self._entropy.token(SECRET_RANDOM_BYTES), now_ms)

    async def _default_format(self, tenant: int) -> str | None:
        found = await self._tenants.by_position(tenant)
        if found is None:
            raise NotFound("The tenant does not exist any more.", code="unknown_tenant")
        return found.default_format


def make_secret(signature: str, given: str | None, random_bytes: bytes, now_ms: int) -> EndpointSecret:
    """Seal a secret of this signature: the given one, else a new one of 32 random bytes. Raises: InvalidInput."""
    kind = next(kind for kind in SIGNATURE_KINDS if kind == signature)
    text = new_secret(kind, random_bytes) if given is None else checked_secret(kind, given)
    return EndpointSecret(seal(text), now_ms)


def _takes_any(endpoint: Endpoint, event_types: tuple[str, ...]) -> bool:
    return any(
        event_type in endpoint.event_types or any(pattern_matches(one, event_type) for one in endpoint.event_types)
        for event_type in event_types
    )


def _too_busy() -> Unavailable:
    return Unavailable("The endpoint is changing all the time: try again.", code="overloaded", retry_after_s=1)
