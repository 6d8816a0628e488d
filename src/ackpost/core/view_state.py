"""What people are shown of states: computed from what is stored, never stored itself (contract §3)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ackpost.core.decide import FAILING_AFTER_MS
from ackpost.core.headers import MASK, masked
from ackpost.core.model import Attempt, CircuitName, Delivery, Endpoint, EndpointVersion, HeldBy
from ackpost.core.signing import masked_headers


class CircuitView(msgspec.Struct, frozen=True):
    """An endpoint's circuit as shown; ``opened_at_ms`` unless closed, ``retry_at_ms`` only while open."""

    state: CircuitName
    failures: int
    opened_at_ms: int | None
    retry_at_ms: int | None


def circuit_view(endpoint: Endpoint) -> CircuitView:
    """Give the part of the circuit that is shown."""
    circuit = endpoint.circuit
    return CircuitView(
        state=circuit.state,
        failures=circuit.failures,
        opened_at_ms=circuit.opened_at_ms if circuit.state != "closed" else None,
        retry_at_ms=circuit.retry_at_ms if circuit.state == "open" else None,
    )


def held_by(delivery: Delivery, endpoint: Endpoint | None, now_ms: int, rate_held: bool) -> HeldBy | None:
    """Say what keeps a pending delivery from being sent; None when it only waits for its due time, or has ended.

    ``rate_held``: the endpoint's rate limit holds something back now. ``busy``: its request is under way, or others
    take up the slots. A disabled endpoint holds nothing: its deliveries are about to end. ``endpoint`` None: deleted.
    """
    if delivery.status != "pending" or endpoint is None:
        return None
    if endpoint.state == "paused":
        return "paused"
    if delivery.waiting:
        return "order"
    due_ms = delivery.due_ms if delivery.due_ms is not None else now_ms
    if endpoint.retry_after_until_ms > max(now_ms, due_ms):
        return "retry_after"
    if _held_by_circuit(endpoint, now_ms, due_ms):
        return "circuit"
    if due_ms > now_ms or endpoint.state == "disabled":
        return None
    return "rate" if rate_held else "busy"


def _held_by_circuit(endpoint: Endpoint, now_ms: int, due_ms: int) -> bool:
    circuit = endpoint.circuit
    if circuit.state not in ("open", "half-open"):
        return False
    # Once the time has come one probe goes; whatever else is due waits for what it tells.
    return due_ms <= now_ms or (circuit.state == "open" and circuit.retry_at_ms > due_ms)


def next_attempt_ms(delivery: Delivery, held: HeldBy | None, endpoint: Endpoint | None) -> int | None:
    """Give the earliest time of the next attempt; None when there is none, or only a person or a key decides it."""
    if delivery.status != "pending" or delivery.due_ms is None or held in ("paused", "order"):
        return None
    if endpoint is not None and held == "retry_after":
        return max(delivery.due_ms, endpoint.retry_after_until_ms)
    if endpoint is not None and held == "circuit":
        return max(delivery.due_ms, endpoint.circuit.retry_at_ms)
    return delivery.due_ms


def failing_since_ms(endpoint: Endpoint, now_ms: int) -> int | None:
    """Give the first failure when there have been failures only for 24 hours, else None."""
    first_ms = endpoint.first_failure_ms
    return first_ms if first_ms is not None and now_ms - first_ms >= FAILING_AFTER_MS else None


def disable_at_ms(endpoint: Endpoint, disable_after_s: float, now_ms: int) -> int | None:
    """Give the time from which the next failure disables a failing endpoint, None when it is not failing."""
    since_ms = failing_since_ms(endpoint, now_ms)
    if since_ms is None or endpoint.state == "disabled":
        return None
    return since_ms + int(disable_after_s * 1000)


def mask_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Mask the values of headers that usually carry credentials, however their names are spelt (case A156)."""
    return [(name, masked(name, value)) for name, value in headers]


def request_headers(
    version: EndpointVersion, attempt: Attempt, *, event_id: str, sequence: int | None, user_agent: str
) -> list[tuple[str, str]]:
    """Show the headers an attempt was sent with, signature and secret values masked (contract §4).

    ``event_id`` is the public id; ``sequence`` the event's, None without a key.
    """
    timestamp_s = attempt.started_at_ms // 1000
    headers = [("content-type", "application/json"), ("user-agent", user_agent)]
    headers.extend(mask_headers(version.headers.items()))
    headers.extend((name, MASK) for name in version.secret_header_names)
    headers.extend(masked_headers(version.signature, event_id, timestamp_s, version.signature_header))
    headers.append(("ackpost-attempt", str(attempt.number)))
    if sequence is not None:
        headers.append(("ackpost-sequence", str(sequence)))
    if attempt.trigger == "test":
        headers.append(("ackpost-test", "true"))
    return headers
