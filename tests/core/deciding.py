"""Values for the tests of ``core.decide``: a delivery, an endpoint's view, an answer."""

from __future__ import annotations

from typing import Any

import msgspec

from ackpost.core.decide import EndpointView, decide_after_attempt
from ackpost.core.decision import Decision
from ackpost.core.model import CLOSED, Circuit, DeliveryRef, Endpoint
from ackpost.core.outcome import Outcome, classify_status
from ackpost.core.policy import effective_policy

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SALT = 7


def view(policy: dict[str, Any] | None = None, circuit: Circuit = CLOSED, **fields: Any) -> EndpointView:
    """An endpoint at position 2 of tenant 1 as its owner sees it."""
    effective = effective_policy(policy or {})
    endpoint = Endpoint(position=2, tenant=1, url="https://a.example/", policy=policy or {}, version=3, **fields)
    return EndpointView(endpoint, effective, frozenset(effective.retry.retry_on), circuit, SALT)


def ref(**fields: Any) -> DeliveryRef:
    """A delivery at position 9 that was first due a second ago."""
    values: dict[str, Any] = {
        "position": 9, "event": 8, "tenant": 1, "endpoint": 2, "rev": 1, "klass": 0, "due_ms": NOW_MS - 1000,
        "age_start_ms": NOW_MS - 1000, "pin": "standard",
    }  # fmt: skip
    return DeliveryRef(**{**values, **fields})


def answer(status_code: int, retry_after: str | None = None) -> Outcome:
    """A complete answer."""
    return Outcome(classify_status(status_code), status_code=status_code, retry_after=retry_after)


def decide(
    delivery: DeliveryRef, endpoint: EndpointView, outcome: Outcome, *, now_ms: int = NOW_MS, unit: float = 0.5,
    event_type: str = "order.created",
) -> Decision:  # fmt: skip
    """Decide about an attempt that took 40 ms."""
    return decide_after_attempt(
        delivery, endpoint, outcome, started_ms=now_ms - 40, now_ms=now_ms, unit=unit, event_type=event_type
    )


def announced(decision: Decision) -> list[str]:
    """The types of what a decision announces."""
    return [announcement.type for announcement in decision.announcements]


def copy(decision: Decision) -> Decision:
    """A deep copy, to compare with."""
    return msgspec.json.decode(msgspec.json.encode(decision), type=Decision)
