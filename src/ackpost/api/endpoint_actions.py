"""What is done with one endpoint: state, secret, test, match, health, attempts, recovery (contract §3)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler

from ackpost.api.delivery_views import AttemptView, attempt_view
from ackpost.api.endpoint_views import (
    ChangedEndpointView,
    HealthView,
    MatchView,
    SecretView,
    TestSentView,
    health_view,
    secret_view,
)
from ackpost.api.endpoints import EndpointName, job_id, shown_change
from ackpost.api.guards import Call
from ackpost.api.inputs import NoFields, body_time, body_types
from ackpost.api.jobs import CountView, JobStarted
from ackpost.api.params import Listing, PageQuery
from ackpost.core import ids, limits
from ackpost.errors import FieldError
from ackpost.service.auth import MANAGERS, READERS
from ackpost.service.endpoint_secrets import OVERLAP_S, OVERLAP_S_MAX
from ackpost.service.endpoint_state import Span
from ackpost.service.endpoint_tests import TEST_DATA, TEST_TYPE, WAIT_S_MAX, TestSent

_TAGS: Final = ["Endpoints"]


class RecoverInput(msgspec.Struct, forbid_unknown_fields=True):
    """Events accepted from `since` on, before `until` (now), of any of `event_types` (patterns)."""

    since: str
    until: str | None = None
    event_types: list[str] | None = None
    dry_run: bool = False


class RecoverSince(msgspec.Struct, forbid_unknown_fields=True):
    """Recover what was missed since a time."""

    since: str


class EnableInput(msgspec.Struct, forbid_unknown_fields=True):
    """What to do once it is enabled: send a test, recover what it missed."""

    test: bool = False
    recover: RecoverSince | None = None


class RotateInput(msgspec.Struct, forbid_unknown_fields=True):
    """A new secret (left out: one is generated); the old one signs for `overlap_s` more, 0 revokes it at once."""

    secret: str | None = None
    overlap_s: Annotated[float, msgspec.Meta(ge=0, le=OVERLAP_S_MAX)] = OVERLAP_S

    def __repr__(self) -> str:
        return f"RotateInput(overlap_s={self.overlap_s})"


class TestInput(msgspec.Struct, forbid_unknown_fields=True):
    """A test event; `data` is any JSON."""

    __test__ = False  # it is no test case of pytest

    type: str = TEST_TYPE
    data: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(TEST_DATA))


class MatchInput(msgspec.Struct, forbid_unknown_fields=True):
    """What an event would have."""

    type: str
    channels: list[str] = msgspec.field(default_factory=list)


@post("/v1/endpoints/{endpoint:str}/pause", roles=MANAGERS, status_code=200, tags=_TAGS, summary="Pause")
async def pause(call: Call, endpoint: EndpointName, data: JSONBody[NoFields | None] = None) -> ChangedEndpointView:  # noqa: ARG001 - refuses any field
    """Keep its deliveries and send nothing until it is resumed."""
    return await _set_state(call, endpoint, "pause")


@post("/v1/endpoints/{endpoint:str}/resume", roles=MANAGERS, status_code=200, tags=_TAGS, summary="Resume")
async def resume(call: Call, endpoint: EndpointName, data: JSONBody[NoFields | None] = None) -> ChangedEndpointView:  # noqa: ARG001 - refuses any field
    """Send what was kept; the next request goes at once as a probe, whatever the circuit."""
    return await _set_state(call, endpoint, "resume")


@post("/v1/endpoints/{endpoint:str}/disable", roles=MANAGERS, status_code=200, tags=_TAGS, summary="Disable")
async def disable(call: Call, endpoint: EndpointName, data: JSONBody[NoFields | None] = None) -> ChangedEndpointView:  # noqa: ARG001 - refuses any field
    """Stop sending: pending deliveries become dead (`endpoint_disabled`), later events make none to it."""
    return await _set_state(call, endpoint, "disable")


@post("/v1/endpoints/{endpoint:str}/enable", roles=MANAGERS, status_code=200, tags=_TAGS, summary="Enable")
async def enable(call: Call, endpoint: EndpointName, data: JSONBody[EnableInput | None] = None) -> ChangedEndpointView:
    """Enable, perhaps with a test event and a recovery of what it missed."""
    wanted = EnableInput() if data is None else data
    found = await call.services.endpoints.find(call.one_tenant(), endpoint)
    since_ms = None if wanted.recover is None else body_time("since", wanted.recover.since, "recover")
    enabled = await call.services.states.enable(
        found,
        test=wanted.test,
        recover=None if since_ms is None else Span(since_ms),
        idempotency=call.idempotency,
    )
    view = await shown_change(call, enabled.change)
    if enabled.test is not None:
        view.test = _test_view(call, enabled.test)
    if enabled.recovery is not None:
        view.recover_job_id = job_id(call, enabled.recovery.position)
    return view


@get("/v1/endpoints/{endpoint:str}/secret", roles=MANAGERS, tags=_TAGS, summary="Read the secret")
async def get_secret(call: Call, endpoint: EndpointName) -> SecretView:
    """Read the current signing secret (for ed25519 the public key)."""
    found = await call.services.endpoints.find(call.one_tenant(), endpoint)
    return secret_view(call.services.secrets.read(found))


@post(
    "/v1/endpoints/{endpoint:str}/secret/rotate",
    roles=MANAGERS,
    status_code=200,
    tags=_TAGS,
    summary="Rotate the secret",
)
async def rotate_secret(call: Call, endpoint: EndpointName, data: JSONBody[RotateInput | None] = None) -> SecretView:
    """Put a new secret first. During the overlap old and new sign; at most five live at a time."""
    wanted = RotateInput() if data is None else data
    found = await call.services.endpoints.find(call.one_tenant(), endpoint)
    shown = await call.services.secrets.rotate(found, wanted.secret, wanted.overlap_s, call.idempotency)
    return secret_view(shown)


@post(
    "/v1/endpoints/{endpoint:str}/test",
    roles=MANAGERS,
    status_code=202,
    tags=_TAGS,
    summary="Send a test event",
    responses={200: ResponseSpec(TestSentView, generate_examples=False, description="Its attempt came in time.")},
)
async def send_test(
    call: Call,
    endpoint: EndpointName,
    data: JSONBody[TestInput | None] = None,
    wait_s: Annotated[
        float, QueryParameter(ge=0, le=WAIT_S_MAX, description="How long to wait for the attempt.")
    ] = 0.0,
) -> Response[TestSentView]:
    """Send one event to this endpoint by the real path, whatever its state and filters say; at most ten a minute."""
    wanted = TestInput() if data is None else data
    found = await call.services.endpoints.find(call.one_tenant(), endpoint)
    sent = await call.services.tests.send(
        found, type=wanted.type, data=bytes(wanted.data), wait_s=wait_s, idempotency=call.idempotency
    )
    return Response(_test_view(call, sent), status_code=202 if sent.attempt is None else 200)


@post(
    "/v1/endpoints/{endpoint:str}/match",
    roles=READERS,
    tenants="any",
    status_code=200,
    tags=_TAGS,
    summary="Try the filters",
)
async def match_endpoint(call: Call, endpoint: EndpointName, data: JSONBody[MatchInput]) -> MatchView:
    """Say whether an event would go to this endpoint, without sending anything."""
    errors: list[FieldError] = []
    fault = limits.type_fault(data.type)
    if fault is not None:
        errors.append(FieldError(("body", "type"), fault))
    channels = limits.check_channels(data.channels, limits.EVENT_CHANNELS_MAX, ("body", "channels"), errors)
    limits.refuse(errors)
    reason = await call.services.endpoints.match(call.tenant, endpoint, data.type, channels)
    return MatchView(reason == "matches", reason)


@get("/v1/endpoints/{endpoint:str}/health", roles=READERS, tenants="any", tags=_TAGS, summary="Health")
async def endpoint_health(call: Call, endpoint: EndpointName) -> HealthView:
    """Read how the endpoint does: circuit, backlog, success rate and latency of the last hour."""
    found = await call.services.endpoints.find(call.tenant, endpoint)
    return health_view(found, await call.services.health.health(found), call.salt, call.principal)


@get("/v1/endpoints/{endpoint:str}/attempts", roles=READERS, tenants="any", tags=_TAGS, summary="List attempts")
async def endpoint_attempts(call: Call, endpoint: EndpointName, page: PageQuery) -> Listing[AttemptView]:
    """List the attempts of all deliveries to this endpoint, newest first."""
    found = await call.services.endpoints.find(call.tenant, endpoint)
    rows = await call.services.health.attempts(found, page.page())
    return page.listing(
        rows,
        lambda row: row.attempt.position,
        lambda row: attempt_view(row, call.salt, call.principal),
    )


@post(
    "/v1/endpoints/{endpoint:str}/recover",
    roles=MANAGERS,
    status_code=202,
    tags=_TAGS,
    summary="Recover missed events",
    responses={
        202: ResponseSpec(JobStarted, generate_examples=False, description="The job was made."),
        200: ResponseSpec(CountView, generate_examples=False, description="A dry run."),
    },
)
async def recover_endpoint(
    call: Call, endpoint: EndpointName, data: JSONBody[RecoverInput]
) -> Response[JobStarted] | Response[CountView]:
    """Send again every event of a span that the filter matches and whose delivery is missing, dead or cancelled."""
    found = await call.services.endpoints.find(call.one_tenant(), endpoint)
    since_ms = body_time("since", data.since)
    assert since_ms is not None
    span = Span(since_ms, body_time("until", data.until), body_types(data.event_types))
    if data.dry_run:
        return Response(CountView(await call.services.states.count_recoverable(found, span)), status_code=200)
    job = await call.services.states.recover(found, span, call.idempotency)
    return Response(JobStarted(job_id(call, job.position)), status_code=202)


async def _set_state(call: Call, name: str, verb: Literal["pause", "resume", "disable"]) -> ChangedEndpointView:
    found = await call.services.endpoints.find(call.one_tenant(), name)
    return await shown_change(call, await call.services.states.set_state(found, verb, call.idempotency))


def _test_view(call: Call, sent: TestSent) -> TestSentView:
    view = TestSentView(
        ids.public_id(ids.EVENT, sent.event, call.salt), ids.public_id(ids.DELIVERY, sent.delivery, call.salt)
    )
    if sent.attempt is not None:
        view.attempt = attempt_view(sent.attempt, call.salt, call.principal)
    return view


ROUTES: Final[list[ControllerRouterHandler]] = [
    pause,
    resume,
    disable,
    enable,
    get_secret,
    rotate_secret,
    send_test,
    match_endpoint,
    endpoint_health,
    endpoint_attempts,
    recover_endpoint,
]
