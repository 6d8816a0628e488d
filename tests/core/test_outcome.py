"""How answers are classified (contract §5): what is delivered, what is repeated, what speaks against an endpoint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core import outcome as outcomes
from ackpost.core.outcome import Outcome, classify_status, counts_for_circuit, is_retryable, retry_after_ms

NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("status_code", "expected"),
    [(200, "delivered"), (204, "delivered"), (299, "delivered"), (300, "redirect"), (302, "redirect"),
     (399, "redirect"), (400, "status"), (410, "status"), (500, "status"), (999, "status")],
)  # fmt: skip
def test_a_status_is_classified(status_code: int, expected: str) -> None:
    """Any 2xx is delivered, a 3xx is a refused redirect, all else is a failed status."""
    assert classify_status(status_code) == expected


@pytest.mark.parametrize(
    ("rule", "matching"),
    [
        ("any", {"400", "302", "503", *outcomes.ERROR_CODES}),
        ("4xx", {"400"}),
        ("3xx", {"302"}),
        ("5xx", {"503"}),
        ("400", {"400"}),
        ("503", {"503"}),
        ("404", set()),
        ("timeout", {"timeout", "connect_timeout"}),
        (
            "network",
            {"dns_error", "connect_refused", "connect_error", "tls_error", "reset", "bad_response",
             "response_too_large", "blocked_target", "interrupted"},
        ),
    ],
)  # fmt: skip
def test_a_rule_names_its_failures(rule: str, matching: set[str]) -> None:
    """Each word of ``retry_on`` matches exactly the failures the contract gives it."""
    failures = {
        "400": Outcome("status", status_code=400),
        "302": Outcome("redirect", status_code=302),
        "503": Outcome("status", status_code=503),
    }
    failures |= {code: Outcome(code) for code in outcomes.ERROR_CODES if code not in ("status", "redirect")}
    if rule == "any":
        failures |= {code: Outcome(code, status_code=500) for code in ("status", "redirect")}
    assert {name for name, outcome in failures.items() if is_retryable(outcome, frozenset({rule}))} == matching


def test_no_rule_matches_nothing() -> None:
    """Rules add up, and none of them means that nothing is repeated."""
    assert not is_retryable(Outcome("timeout"), frozenset())
    assert is_retryable(Outcome("timeout"), frozenset({"5xx", "timeout"}))


@pytest.mark.parametrize(
    ("code", "expected"),
    [(code, code not in ("blocked_target", "local_error", "interrupted")) for code in outcomes.ERROR_CODES],
)
def test_only_the_endpoints_own_failures_count(code: str, expected: bool) -> None:
    """Blocked targets, our own errors and crashes do not count for the circuit; a told-to-wait answer neither."""
    assert counts_for_circuit(Outcome(code), throttled=False) is expected
    assert not counts_for_circuit(Outcome(code), throttled=True)


def _date(ms: int) -> str:
    return format_datetime(datetime.fromtimestamp(ms / 1000, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("120", 120_000),
        (" 120 ", 120_000),
        ("000000000000000120", 120_000),
        ("86400", DAY_MS),
        ("86401", DAY_MS),
        ("1000000000", DAY_MS),
        ("9" * 5000, DAY_MS),
        (_date(NOW_MS + 60_000), 60_000),
        (_date(NOW_MS + 3 * DAY_MS), DAY_MS),
        ((datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(minutes=2)).ctime(), 120_000),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY_MS),
        ("0", None),
        ("000", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("²", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", None),
        ("Fri, 15 Jan 2027 25:00:00 GMT", None),
        ("21 Oct 2030 07:28:00 +9999", None),
        (None, None),
    ],
)
def test_retry_after_is_read_and_bounded(text: str | None, expected_ms: int | None) -> None:
    """Seconds and all three forms of dates are read, at most a day; garbage and the past are ignored."""
    for status_code in (429, 503):
        outcome = Outcome("status", status_code=status_code, retry_after=text)
        assert retry_after_ms(outcome, NOW_MS) == expected_ms


@pytest.mark.parametrize("status_code", [200, 301, 404, 410, 500, 502, 504, None])
def test_retry_after_of_other_answers_means_nothing(status_code: int | None) -> None:
    """Only 429 and 503 are told-to-wait answers."""
    assert retry_after_ms(Outcome("status", status_code=status_code, retry_after="60"), NOW_MS) is None


DATES = st.from_regex(r"[A-Za-z]{3}, \d{1,2} [A-Za-z]{3} \d{1,5} \d\d:\d\d:\d\d [A-Z+-]{1,5}")


@given(text=st.text(max_size=40) | DATES)
def test_any_retry_after_gives_a_wait_of_at_most_a_day_or_none(text: str) -> None:
    """Whatever a hostile server writes, the wait is None or lies in (0, 24 h]."""
    wait_ms = retry_after_ms(Outcome("status", status_code=429, retry_after=text), NOW_MS)
    assert wait_ms is None or 0 < wait_ms <= DAY_MS
