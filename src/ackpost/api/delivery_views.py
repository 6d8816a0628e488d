"""What callers are shown of deliveries, attempts and dead letters (contract §3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

import ackpost
from ackpost.api.views import time_text
from ackpost.core import ids
from ackpost.core.model import DeliveryStatus, Event, HeldBy, Trigger
from ackpost.core.outcome import BLOCKED_TARGET, DELIVERED
from ackpost.core.times import rfc3339_ms
from ackpost.core.view_state import mask_headers, request_headers
from ackpost.service.auth import Principal
from ackpost.service.dead_letters import DeadLetter
from ackpost.service.deliveries import ShownAttempt, ShownDelivery

USER_AGENT: Final = f"Ackpost/{ackpost.__version__}"
BLOCKED_DETAIL: Final = "The address must not be called; the operator opens a range with --allow-target."


class PhasesView(msgspec.Struct):
    """How long each part of a request took, in milliseconds; zeros before `wait` on a reused connection."""

    dns: float
    connect: float
    tls: float
    wait: float
    read: float


class AttemptBrief(msgspec.Struct):
    """An attempt without headers and bodies. `error` is null when it was delivered; `error_detail` says more of it."""

    id: str
    delivery_id: str
    number: int
    trigger: Trigger
    round: int
    started_at: str
    duration_ms: float
    phases_ms: PhasesView
    url: str | None
    remote_ip: str | None
    outcome: Literal["delivered", "failed"]
    status_code: int | None
    error: str | None
    error_detail: str | None
    next_attempt_at: str | None
    node: str


class AttemptView(AttemptBrief, kw_only=True):
    """One HTTP request and its result; signature and secret values are masked.

    `response_body` is text, capped (`truncated`); null for keys that may not see it.
    """

    request_headers: list[tuple[str, str]]
    response_headers: list[tuple[str, str]]
    response_body: str | None
    truncated: bool


class DeliveryView(msgspec.Struct):
    """An event on its way to an endpoint. `attempts`: the newest 25 at most, without headers and bodies."""

    id: str
    tenant: str
    event_id: str
    endpoint_id: str
    type: str
    key: str | None
    status: DeliveryStatus
    reason: str | None
    held_by: HeldBy | None
    attempt_count: int
    round: int
    next_attempt_at: str | None
    event_created_at: str
    created_at: str
    ended_at: str | None
    last_error: str | None
    attempts: list[AttemptBrief] | msgspec.UnsetType = msgspec.UNSET


class DeadLetterView(msgspec.Struct):
    """A delivery that ended unacknowledged. `url` is its endpoint's of now; null when that was deleted."""

    delivery_id: str
    event_id: str
    endpoint_id: str
    tenant: str
    url: str | None
    type: str
    key: str | None
    reason: str | None
    attempt_count: int
    last_error: str | None
    died_at: str | None


class WholeDeadLetterView(DeadLetterView, kw_only=True):
    """A dead letter with its attempts and, for keys that may see it, the published data."""

    data_expired: bool
    attempts: list[AttemptView]
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def attempt_brief(shown: ShownAttempt, salt: int, viewer: Principal) -> AttemptBrief:
    """Show an attempt in short."""
    return AttemptBrief(**_brief_fields(shown, salt, viewer))


def attempt_view(shown: ShownAttempt, salt: int, viewer: Principal) -> AttemptView:
    """Show an attempt; what the endpoint answered is for those who may see data."""
    attempt, version = shown.attempt, shown.version
    event_id = ids.public_id(ids.EVENT, attempt.event, salt)
    sent = (
        []
        if version is None
        else request_headers(version, attempt, event_id=event_id, sequence=shown.sequence, user_agent=USER_AGENT)
    )
    return AttemptView(
        **_brief_fields(shown, salt, viewer),
        request_headers=sent,
        response_headers=mask_headers(attempt.response_headers),
        response_body=attempt.response_body.decode("utf-8", "replace") if viewer.sees_data else None,
        truncated=attempt.truncated,
    )


def _brief_fields(shown: ShownAttempt, salt: int, viewer: Principal) -> dict[str, Any]:
    attempt = shown.attempt
    delivered = attempt.code == DELIVERED
    detail = ": ".join(part for part in (attempt.phase, attempt.detail) if part)
    remote_ip = attempt.remote_ip
    if attempt.code == BLOCKED_TARGET and viewer.role != "operator":
        # Which internal address a name has is nobody's business who does not run the network (case S24).
        detail, remote_ip = BLOCKED_DETAIL, None
    return {
        "id": ids.attempt_id(attempt.position, attempt.delivery),
        "delivery_id": ids.public_id(ids.DELIVERY, attempt.delivery, salt),
        "number": attempt.number,
        "trigger": attempt.trigger,
        "round": attempt.round,
        "started_at": rfc3339_ms(attempt.started_at_ms),
        "duration_ms": round(attempt.duration_ms, 1),
        "phases_ms": PhasesView(*(round(phase_ms, 1) for phase_ms in attempt.phases_ms)),
        "url": None if shown.version is None else shown.version.url,
        "remote_ip": remote_ip,
        "outcome": "delivered" if delivered else "failed",
        "status_code": attempt.status_code,
        "error": None if delivered else attempt.code,
        "error_detail": None if delivered or not detail else detail,
        "next_attempt_at": time_text(attempt.next_due_ms),
        "node": attempt.node,
    }


def delivery_view(
    shown: ShownDelivery, tenant_uid: str, salt: int, attempts: list[AttemptBrief] | None = None
) -> DeliveryView:
    """Show a delivery, with its attempts when one is asked for."""
    delivery = shown.delivery
    view = DeliveryView(
        id=ids.public_id(ids.DELIVERY, delivery.position, salt),
        tenant=tenant_uid,
        event_id=ids.public_id(ids.EVENT, delivery.event, salt),
        endpoint_id=ids.public_id(ids.ENDPOINT, delivery.endpoint, salt),
        type=delivery.type,
        key=delivery.key,
        status=delivery.status,
        reason=delivery.reason,
        held_by=shown.held_by,
        attempt_count=delivery.attempt_count,
        round=delivery.round,
        next_attempt_at=time_text(shown.next_attempt_ms),
        event_created_at=rfc3339_ms(delivery.event_created_at_ms),
        created_at=rfc3339_ms(delivery.created_at_ms),
        ended_at=time_text(delivery.ended_at_ms),
        last_error=delivery.last_error,
    )
    if attempts is not None:
        view.attempts = attempts
    return view


def dead_letter_view(letter: DeadLetter, tenant_uid: str, salt: int) -> DeadLetterView:
    """Show a dead letter in a list."""
    return DeadLetterView(**_letter_fields(letter, tenant_uid, salt))


def whole_dead_letter_view(
    letter: DeadLetter,
    event: Event | None,
    attempts: Sequence[ShownAttempt],
    tenant_uid: str,
    salt: int,
    viewer: Principal,
) -> WholeDeadLetterView:
    """Show one dead letter; the data is for those who may see it."""
    view = WholeDeadLetterView(
        **_letter_fields(letter, tenant_uid, salt),
        data_expired=event is None or event.data_expired,
        attempts=[attempt_view(attempt, salt, viewer) for attempt in attempts],
    )
    if viewer.sees_data and event is not None and event.data is not None:
        view.data = msgspec.Raw(event.data)
    return view


def _letter_fields(letter: DeadLetter, tenant_uid: str, salt: int) -> dict[str, Any]:
    delivery = letter.delivery
    return {
        "delivery_id": ids.public_id(ids.DELIVERY, delivery.position, salt),
        "event_id": ids.public_id(ids.EVENT, delivery.event, salt),
        "endpoint_id": ids.public_id(ids.ENDPOINT, delivery.endpoint, salt),
        "tenant": tenant_uid,
        "url": letter.url,
        "type": delivery.type,
        "key": delivery.key,
        "reason": delivery.reason,
        "attempt_count": delivery.attempt_count,
        "last_error": delivery.last_error,
        "died_at": time_text(delivery.ended_at_ms),
    }
