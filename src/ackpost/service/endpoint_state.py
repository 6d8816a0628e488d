"""Pausing, resuming, disabling and enabling an endpoint, and recovering what it missed (contract §3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ackpost.core import limits
from ackpost.core.model import Endpoint, Job
from ackpost.errors import Conflict, FieldError, InvalidInput
from ackpost.ports.operations import CreateJob, EndpointSaved, Idempotency, JobSaved, JobSelector, SetEndpointState
from ackpost.service.dead_letters import selector_params
from ackpost.service.endpoint_tests import TestSender, TestSent
from ackpost.service.endpoints import Change
from ackpost.service.results import part, settle

if TYPE_CHECKING:
    from ackpost.service.context import Services


class Span(msgspec.Struct):
    """Which events to recover: accepted from ``since_ms`` to before ``until_ms`` (None: now), of any of these types."""

    since_ms: int
    until_ms: int | None = None
    event_types: tuple[str, ...] | None = None


class Enabled(msgspec.Struct):
    """What enabling brought about."""

    change: Change
    test: TestSent | None = None
    recovery: Job | None = None


class StateService:
    """Use cases around an endpoint's state."""

    def __init__(self, services: Services, tests: TestSender) -> None:
        self._store = services.store
        self._committer = services.committer
        self._clock = services.clock
        self._router = services.router
        self._tests = tests

    async def set_state(
        self,
        endpoint: Endpoint,
        verb: Literal["pause", "resume", "disable", "enable"],
        idempotency: Idempotency | None = None,
    ) -> Change:
        """Raises: NotFound, Conflict (pause or resume of a disabled endpoint)."""
        reason = "requested" if verb in {"pause", "disable"} else None
        operation = SetEndpointState(
            endpoint.tenant, endpoint.position, verb, self._clock.now_ms(), reason, idempotency
        )
        saved = await settle(self._committer, operation, EndpointSaved)
        self._router.forget(endpoint.tenant)
        return Change(saved.endpoint, job=saved.job)

    async def enable(
        self,
        endpoint: Endpoint,
        *,
        test: bool = False,
        recover: Span | None = None,
        idempotency: Idempotency | None = None,
    ) -> Enabled:
        """Enable; then perhaps send a test event, and recover what was missed.

        Everything is checked before the first step. Raises: NotFound, InvalidInput, RateLimited, Conflict.
        """
        if recover is not None:
            _check_span(recover, self._clock.now_ms(), ("body", "recover"))
        if test:
            self._tests.take(endpoint.position)
        enabled = Enabled(await self.set_state(endpoint, "enable", idempotency))
        if test:
            enabled.test = await self._tests.send_taken(enabled.change.endpoint, idempotency=part(idempotency, "test"))
        if recover is not None:
            enabled.recovery = await self.recover(enabled.change.endpoint, recover, part(idempotency, "recover"))
        return enabled

    async def recover(self, endpoint: Endpoint, span: Span, idempotency: Idempotency | None = None) -> Job:
        """Start a job that makes due again what the endpoint missed or never got in a span.

        Raises: InvalidInput, Conflict (the endpoint is disabled), NotFound.
        """
        selector = self._selector(endpoint, span)
        if endpoint.state == "disabled":
            raise Conflict("The endpoint is disabled: enable it first, or with {recover: {since}}.")
        now_ms = self._clock.now_ms()
        job = Job(
            position=0, tenant=endpoint.tenant, kind="recover", params=selector_params(selector), created_at_ms=now_ms
        )
        return (await settle(self._committer, CreateJob(job, idempotency), JobSaved)).job

    async def count_recoverable(self, endpoint: Endpoint, span: Span) -> int:
        """Count what ``recover`` would make due now. Raises: InvalidInput."""
        return await self._store.count_recoverable(
            endpoint.tenant, self._selector(endpoint, span), self._clock.now_ms()
        )

    def _selector(self, endpoint: Endpoint, span: Span) -> JobSelector:
        _check_span(span, self._clock.now_ms(), ("body",))
        return JobSelector(
            endpoint=endpoint.position, since_ms=span.since_ms, until_ms=span.until_ms, event_types=span.event_types
        )


def _check_span(span: Span, now_ms: int, loc: tuple[str, ...]) -> None:
    errors: list[FieldError] = []
    if span.since_ms > now_ms:
        errors.append(FieldError((*loc, "since"), "must not lie in the future"))
    if span.until_ms is not None and span.until_ms <= span.since_ms:
        errors.append(FieldError((*loc, "until"), "must be later than since"))
    if span.event_types is not None:
        limits.check_event_types(span.event_types, (*loc, "event_types"), errors)
    if errors:
        raise InvalidInput("The span is not valid.", errors=errors)
