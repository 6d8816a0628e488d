"""All that follows from an attempt, decided without doing any of it (design §4.6).

``decide_after_attempt`` is the only place where an outcome becomes a verdict. The engine calls it, the writer stores
the ``Decision``, the lane takes over its circuit.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ackpost.core import circuit as circuits
from ackpost.core import retry as retries
from ackpost.core.decision import Announcement, Decision, EndpointChange, Verdict
from ackpost.core.ids import public_id
from ackpost.core.model import Circuit, DeliveryRef, Endpoint
from ackpost.core.outcome import (
    DELIVERED,
    LOCAL_ERROR,
    RETRY_AFTER_MAX_MS,
    Outcome,
    counts_for_circuit,
    is_retryable,
    retry_after_ms,
)
from ackpost.core.policy import Policy
from ackpost.core.times import rfc3339_ms

FAILING_AFTER_MS: Final = 24 * 3600 * 1000
DISABLE_SPAN_MIN_MS: Final = 12 * 3600 * 1000
LOCAL_RETRY_MS: Final = 1000
RESERVED_PREFIX: Final = "ackpost."


class EndpointView(msgspec.Struct):
    """An endpoint as its owner sees it: the stored document, the policy compiled, its circuit of now."""

    endpoint: Endpoint
    policy: Policy
    retry_on: frozenset[str]
    circuit: Circuit
    salt: int


class Judgement(msgspec.Struct):
    """Verdict with reason and due time, before its consequences."""

    verdict: Verdict
    reason: str | None = None
    due_ms: int | None = None
    retry_after_until_ms: int | None = None


def decide_after_attempt(
    ref: DeliveryRef,
    view: EndpointView,
    outcome: Outcome,
    *,
    started_ms: int,
    now_ms: int,
    unit: float,
    event_type: str,
) -> Decision:
    """Turn one attempt's outcome into every consequence.

    ``ref`` is the delivery as it was sent (its counters do not include this attempt); ``unit`` in [0, 1) is the drawn
    jitter. Invariant: the same arguments give the same decision.
    """
    if outcome.code == DELIVERED:
        judgement = Judgement("delivered")
        throttle_ms = None
    else:
        throttle_ms = retry_after_ms(outcome, now_ms)
        judgement = _judge_failure(ref, view, outcome, throttle_ms, now_ms, unit)
    used = judgement.verdict != "again"
    decision = Decision(
        delivery=ref.position, event=ref.event, tenant=ref.tenant, endpoint=ref.endpoint, round=ref.round,
        number=ref.number + 1 if used else ref.number, verdict=judgement.verdict, reason=judgement.reason,
        due_ms=judgement.due_ms, trigger=ref.trigger, crashes=0 if used else ref.crashes, outcome=outcome,
        started_at_ms=started_ms, ended_at_ms=now_ms, version=view.endpoint.version, ordered=ref.ordered,
        circuit=view.circuit,
    )  # fmt: skip
    if ref.trigger != "test" and used:
        _add_consequences(decision, view, outcome, judgement, throttled=throttle_ms is not None, unit=unit)
        if decision.verdict == "dead":
            _add_death(decision, view, event_type)
    return decision


def decide_ending(ref: DeliveryRef, view: EndpointView, reason: str, *, now_ms: int, event_type: str) -> Decision:
    """End a delivery as dead without an attempt: age_exceeded, circuit_open, format_conflict, data_expired."""
    decision = Decision(
        delivery=ref.position, event=ref.event, tenant=ref.tenant, endpoint=ref.endpoint, round=ref.round,
        number=ref.number, verdict="dead", reason=reason, trigger=ref.trigger, crashes=ref.crashes,
        started_at_ms=now_ms, ended_at_ms=now_ms, version=view.endpoint.version, ordered=ref.ordered,
        circuit=view.circuit,
    )  # fmt: skip
    _add_death(decision, view, event_type)
    return decision


def _judge_failure(
    ref: DeliveryRef, view: EndpointView, outcome: Outcome, throttle_ms: int | None, now_ms: int, unit: float
) -> Judgement:
    if outcome.code == LOCAL_ERROR:
        return Judgement("again", due_ms=now_ms + LOCAL_RETRY_MS)
    if ref.trigger == "test":
        return Judgement("discarded", "test_failed")
    if outcome.status_code == 410 and view.policy.on_gone == "disable":
        return Judgement("dead", "gone")
    if throttle_ms is None and not is_retryable(outcome, view.retry_on):
        return Judgement("dead", "permanent_failure")
    wait_ms = retries.delay_ms(view.policy.retry, ref.round_attempts + 1, unit)
    if wait_ms is None:
        until_ms = None if throttle_ms is None else now_ms + throttle_ms
        return Judgement("dead", "attempts_exhausted", retry_after_until_ms=until_ms)
    age_ms = view.endpoint.clock_ms(now_ms) - ref.age_start_ms
    within_ms = retries.within_age_ms(view.policy.retry, wait_ms, age_ms)
    if throttle_ms is None:
        if within_ms is None:
            return Judgement("dead", "age_exceeded")
        return Judgement("retry", due_ms=now_ms + within_ms)
    held_ms = max(throttle_ms, within_ms or 0)
    until_ms = now_ms + min(held_ms, RETRY_AFTER_MAX_MS)
    if retries.within_age_ms(view.policy.retry, throttle_ms, age_ms) != throttle_ms:
        return Judgement("dead", "age_exceeded", retry_after_until_ms=until_ms)
    return Judgement("retry", due_ms=now_ms + held_ms, retry_after_until_ms=until_ms)


def _add_consequences(
    decision: Decision, view: EndpointView, outcome: Outcome, judgement: Judgement, *, throttled: bool, unit: float
) -> None:
    """Circuit, failing marks, Retry-After, disabling: only what changes is stored."""
    endpoint, good = view.endpoint, judgement.verdict == "delivered"
    change = EndpointChange()
    changed = False
    if good or counts_for_circuit(outcome, throttled=throttled):
        decision.circuit = circuits.after_attempt(
            view.circuit, view.policy.circuit, view.policy.max_in_flight, good=good,
            started_ms=decision.started_at_ms, now_ms=decision.ended_at_ms, unit=unit,
        )  # fmt: skip
        if decision.circuit.state != view.circuit.state:
            change.circuit, changed = decision.circuit, True
            _announce_circuit(decision, view)
        changed = _mark_failing(decision, view, change, good=good) or changed
    if judgement.retry_after_until_ms is not None and judgement.retry_after_until_ms > endpoint.retry_after_until_ms:
        change.retry_after_until_ms, changed = judgement.retry_after_until_ms, True
    if judgement.reason == "gone":
        change.disable_reason, changed = "gone", True
    # Requests that were under way beside the one that disabled it tell nothing again.
    if change.disable_reason is not None and endpoint.state != "disabled":
        _announce(decision, view, "ackpost.endpoint.disabled", {"reason": change.disable_reason})
    if changed:
        decision.endpoint_change = change


def _mark_failing(decision: Decision, view: EndpointView, change: EndpointChange, *, good: bool) -> bool:
    endpoint, now_ms = view.endpoint, decision.ended_at_ms
    if good:
        change.clear_failing = endpoint.first_failure_ms is not None
        return change.clear_failing
    if endpoint.first_failure_ms is None:
        change.first_failure_ms = change.last_failure_ms = now_ms
        return True
    failing_ms = now_ms - endpoint.first_failure_ms
    if failing_ms >= max(view.policy.disable_after_s * 1000, DISABLE_SPAN_MIN_MS):
        change.disable_reason = "failing"
        change.last_failure_ms = now_ms
        return True
    if failing_ms >= FAILING_AFTER_MS and not endpoint.failing_announced:
        change.failing_announced = True
        change.last_failure_ms = now_ms
        disable_at_ms = endpoint.first_failure_ms + round(view.policy.disable_after_s * 1000)
        _announce(
            decision,
            view,
            "ackpost.endpoint.failing",
            {"failing_since": rfc3339_ms(endpoint.first_failure_ms), "disable_at": rfc3339_ms(disable_at_ms)},
        )
        return True
    return False


def _announce_circuit(decision: Decision, view: EndpointView) -> None:
    before, after = view.circuit.state, decision.circuit
    if after.state == "open":
        facts: dict[str, object] = {"failures": after.failures, "retry_at": rfc3339_ms(after.retry_at_ms)}
        _announce(decision, view, "ackpost.endpoint.circuit_opened", facts)
    elif after.state == "closed" and before != "closed":
        _announce(decision, view, "ackpost.endpoint.circuit_closed", {})


def _add_death(decision: Decision, view: EndpointView, event_type: str) -> None:
    decision.hold = decision.ordered and view.policy.on_dead == "hold"
    if event_type.startswith(RESERVED_PREFIX):
        return
    facts: dict[str, object] = {
        "delivery_id": public_id("dlv", decision.delivery, view.salt),
        "event_id": public_id("evt", decision.event, view.salt),
        "type": event_type,
        "reason": decision.reason,
        "attempt_count": decision.number,
        "last_error": None if decision.outcome is None else decision.outcome.code,
    }
    _announce(decision, view, "ackpost.delivery.dead", facts)


def _announce(decision: Decision, view: EndpointView, type: str, facts: dict[str, object]) -> None:
    data = {"endpoint_id": public_id("ep", view.endpoint.position, view.salt), "uid": view.endpoint.uid, **facts}
    decision.announcements = (*decision.announcements, Announcement(type, view.endpoint.position, data))
