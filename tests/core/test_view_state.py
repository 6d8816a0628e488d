"""What people are shown of states: why a delivery waits, when an endpoint fails, what a request looked like."""

from __future__ import annotations

from typing import Any

import pytest

from ackpost.core import view_state
from ackpost.core.headers import MASK
from ackpost.core.model import Attempt, Circuit, Delivery, Endpoint, EndpointVersion

NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3600 * 1000
OPEN = Circuit(state="open", failures=10, opened_at_ms=NOW_MS - 1000, retry_at_ms=NOW_MS + 9000)


def _endpoint(**fields: Any) -> Endpoint:
    return Endpoint(position=2, tenant=1, url="https://a.example/", **fields)


def _delivery(**fields: Any) -> Delivery:
    values: dict[str, Any] = {"status": "pending", "due_ms": NOW_MS - 5, **fields}
    return Delivery(position=9, tenant=1, event=8, endpoint=2, type="a", key=None, **values)


@pytest.mark.parametrize(
    ("delivery", "endpoint", "rate_held", "expected"),
    [
        ({"status": "delivered", "due_ms": None}, {"state": "paused"}, False, None),
        ({}, {"state": "paused"}, False, "paused"),
        ({"due_ms": NOW_MS + 5}, {"state": "paused"}, False, "paused"),
        ({"waiting": True, "due_ms": None}, {}, False, "order"),
        ({"waiting": True}, {"state": "paused"}, False, "paused"),
        ({}, {"retry_after_until_ms": NOW_MS + 100}, False, "retry_after"),
        ({"due_ms": NOW_MS + 200}, {"retry_after_until_ms": NOW_MS + 100}, False, None),
        ({}, {"retry_after_until_ms": NOW_MS - 1}, False, "busy"),
        ({}, {"circuit": OPEN}, False, "circuit"),
        ({"due_ms": NOW_MS + 5000}, {"circuit": OPEN}, False, "circuit"),
        ({"due_ms": NOW_MS + 9000}, {"circuit": OPEN}, False, None),
        ({}, {"circuit": Circuit(state="half-open")}, False, "circuit"),
        ({"due_ms": NOW_MS + 1}, {"circuit": Circuit(state="half-open")}, False, None),
        ({}, {"circuit": Circuit(state="ramping", ramp_limit=1)}, False, "busy"),
        ({"due_ms": NOW_MS + 1}, {}, True, None),
        ({}, {}, True, "rate"),
        ({}, {}, False, "busy"),
        ({"due_ms": None}, {}, False, "busy"),
        ({}, {"state": "disabled"}, True, None),
    ],
)
def test_a_waiting_delivery_says_what_holds_it(
    delivery: dict[str, Any], endpoint: dict[str, Any], rate_held: bool, expected: str | None
) -> None:
    """The strongest reason wins; a delivery that only waits for its due time is held by nothing."""
    assert view_state.held_by(_delivery(**delivery), _endpoint(**endpoint), NOW_MS, rate_held) == expected


@pytest.mark.parametrize(
    ("delivery", "held", "endpoint", "expected"),
    [
        ({"status": "dead", "due_ms": None}, None, {}, None),
        ({"due_ms": None, "waiting": True}, "order", {}, None),
        ({}, "paused", {"state": "paused"}, None),
        ({}, "retry_after", {"retry_after_until_ms": NOW_MS + 100}, NOW_MS + 100),
        ({}, "circuit", {"circuit": OPEN}, NOW_MS + 9000),
        ({"due_ms": NOW_MS + 3}, None, {}, NOW_MS + 3),
    ],
)
def test_the_next_attempt_is_never_promised_before_what_holds_it(
    delivery: dict[str, Any], held: Any, endpoint: dict[str, Any], expected: int | None
) -> None:
    """A due time in the past is not shown as the next attempt while a circuit or the endpoint says later (A071)."""
    assert view_state.next_attempt_ms(_delivery(**delivery), held, _endpoint(**endpoint)) == expected


def test_a_delivery_of_a_deleted_endpoint_is_held_by_nothing() -> None:
    """Its rows are about to be cancelled."""
    assert view_state.held_by(_delivery(), None, NOW_MS, rate_held=False) is None


@pytest.mark.parametrize(
    ("state", "first_failure_ms", "since_ms", "disable_at_ms"),
    [
        ("enabled", None, None, None),
        ("enabled", NOW_MS - DAY_MS + 1, None, None),
        ("enabled", NOW_MS - DAY_MS, NOW_MS - DAY_MS, NOW_MS + 4 * DAY_MS),
        ("paused", NOW_MS - DAY_MS, NOW_MS - DAY_MS, NOW_MS + 4 * DAY_MS),
        ("disabled", NOW_MS - 6 * DAY_MS, NOW_MS - 6 * DAY_MS, None),
    ],
)
def test_failing_is_shown_after_a_day_of_failures_only(
    state: Any, first_failure_ms: int | None, since_ms: int | None, disable_at_ms: int | None
) -> None:
    """The time of disabling is shown with it, unless it has happened (case A087)."""
    endpoint = _endpoint(state=state, first_failure_ms=first_failure_ms)
    assert view_state.failing_since_ms(endpoint, NOW_MS) == since_ms
    assert view_state.disable_at_ms(endpoint, 432_000.0, NOW_MS) == disable_at_ms


def test_a_circuit_shows_its_times_only_when_they_mean_something() -> None:
    """A closed circuit never opened; a half-open one has no time to wait for."""
    shown = view_state.circuit_view(_endpoint(circuit=OPEN))
    assert (shown.state, shown.failures, shown.opened_at_ms, shown.retry_at_ms) == (
        "open", 10, NOW_MS - 1000, NOW_MS + 9000,
    )  # fmt: skip
    half_open = view_state.circuit_view(_endpoint(circuit=Circuit(state="half-open", opened_at_ms=5, retry_at_ms=6)))
    assert (half_open.opened_at_ms, half_open.retry_at_ms) == (5, None)
    closed = view_state.circuit_view(_endpoint())
    assert (closed.state, closed.opened_at_ms, closed.retry_at_ms) == ("closed", None, None)


def _attempt(**fields: Any) -> Attempt:
    values: dict[str, Any] = {"trigger": "schedule", "started_at_ms": 1_700_000_000_999, **fields}
    return Attempt(
        position=11,
        delivery=9,
        event=8,
        endpoint=2,
        tenant=1,
        number=3,
        round=1,
        duration_ms=1.0,
        code="status",
        **values,
    )


def _version(signature: str, signature_header: str | None = None) -> EndpointVersion:
    return EndpointVersion(
        endpoint=2,
        version=1,
        url="https://a.example/",
        signature=signature,
        signature_header=signature_header,
        headers={"X-Team": "blue", "AUTHORIZATION": "Bearer MARK"},
        secret_header_names=("X-Token",),
    )


def _shown(version: EndpointVersion, attempt: Attempt, sequence: int | None = None) -> dict[str, str]:
    pairs = view_state.request_headers(version, attempt, event_id="evt_1", sequence=sequence, user_agent="Ackpost/1")
    return dict(pairs)


def test_request_headers_are_shown_with_every_secret_masked() -> None:
    """Own headers are shown, credentials in any spelling are not (case A156)."""
    assert _shown(_version("standard"), _attempt(), sequence=7) == {
        "content-type": "application/json",
        "user-agent": "Ackpost/1",
        "webhook-id": "evt_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": f"v1,{MASK}",
        "ackpost-attempt": "3",
        "ackpost-sequence": "7",
        "X-Team": "blue",
        "AUTHORIZATION": MASK,
        "X-Token": MASK,
    }


@pytest.mark.parametrize(
    ("version", "name", "value"),
    [
        (_version("standard-ed25519"), "webhook-signature", f"v1a,{MASK}"),
        (_version("sha256-hex"), "X-Webhook-Signature", f"sha256={MASK}"),
        (_version("sha256-hex", "X-Shop-Signature"), "X-Shop-Signature", f"sha256={MASK}"),
    ],
)
def test_each_signature_kind_shows_its_own_header(version: EndpointVersion, name: str, value: str) -> None:
    """The header named as it was sent, its value masked."""
    assert _shown(version, _attempt())[name] == value


def test_a_test_request_shows_its_mark() -> None:
    """``ackpost-test`` is on test requests and no others."""
    assert _shown(_version("standard"), _attempt(trigger="test"))["ackpost-test"] == "true"
    assert "ackpost-test" not in _shown(_version("standard"), _attempt())
