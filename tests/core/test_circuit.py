"""The circuit as a value: opening rules, suspicion, probes, doubling, ramping, closing (contract §5)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ackpost.core import circuit as circuits
from ackpost.core.model import CLOSED, Circuit
from ackpost.core.policy import CircuitPolicy

NOW_MS = 1_800_000_000_000
POLICY = CircuitPolicy()
FULL = 10


def _after(
    circuit: Circuit, good: bool, now_ms: int, *, policy: CircuitPolicy = POLICY, full: int = FULL, **given: Any
) -> Circuit:
    given = {"started_ms": now_ms - 1, "unit": 0.5, **given}
    return circuits.after_attempt(circuit, policy, full, good=good, now_ms=now_ms, **given)


def _run(circuit: Circuit, answers: str, start_ms: int, every_ms: int, policy: CircuitPolicy = POLICY) -> Circuit:
    """Answers ``+`` and ``-``, one each ``every_ms``, the first at ``start_ms``."""
    for index, answer in enumerate(answers):
        circuit = _after(circuit, answer == "+", start_ms + index * every_ms, policy=policy)
    return circuit


def _open(now_ms: int = NOW_MS, **fields: Any) -> Circuit:
    values: dict[str, Any] = {"failures": 10, "opened_at_ms": now_ms, "retry_at_ms": now_ms + 30_000, "openings": 1}
    return Circuit(state="open", **{**values, **fields})


def test_ten_failures_in_a_row_over_five_seconds_open() -> None:
    """The tenth failure in a row opens for 30 s, and the row's length is kept to be shown."""
    before = _run(CLOSED, "-" * 9, NOW_MS, 600)
    assert (before.state, before.failures) == ("closed", 9)
    opened = _after(before, False, NOW_MS + 5400)
    assert opened == Circuit(
        state="open", failures=10, opened_at_ms=NOW_MS + 5400, retry_at_ms=NOW_MS + 35_400, openings=1
    )


def test_a_burst_of_failures_waits_for_its_span() -> None:
    """Any number of failures within less than 5 s leaves it closed; the first one after 5 s opens."""
    burst = _run(CLOSED, "-" * 50, NOW_MS, 99)
    assert (burst.state, burst.failures) == ("closed", 50)
    assert _after(burst, False, NOW_MS + 4999).state == "closed"
    assert _after(burst, False, NOW_MS + 5000).state == "open"


def test_a_success_ends_the_row() -> None:
    """Nine failures, a success and nine failures more are no row of ten."""
    assert _run(CLOSED, "-" * 9 + "+" + "-" * 8, NOW_MS, 600).state == "closed"


def test_half_of_twenty_attempts_failing_opens() -> None:
    """The ratio rule: ≥ 50 % of ≥ 20 attempts within the window, spanning 5 s."""
    mixed = _run(CLOSED, "+-" * 9 + "+", NOW_MS, 300)
    assert mixed.state == "closed", "nineteen are too few"
    assert _after(mixed, False, NOW_MS + 5700).state == "open"
    assert _after(mixed, True, NOW_MS + 5700).state == "closed", "a success never opens"


def test_the_ratio_forgets_what_left_the_window() -> None:
    """Failures older than the window do not count, so a long quiet row of mixed answers stays closed."""
    assert _run(CLOSED, "+-" * 100, NOW_MS, 5000).state == "closed"
    old = _run(CLOSED, "+-" * 9 + "+", NOW_MS, 300)
    assert _after(old, False, NOW_MS + 70_000).state == "closed"


def test_the_window_is_bounded() -> None:
    """However many attempts are counted, the window is at most thirteen buckets."""
    circuit = _run(CLOSED, "++-" * 500, NOW_MS, 777)
    assert circuit.state == "closed"
    assert len(circuit.window) <= 13


@pytest.mark.parametrize("state", ["closed", "ramping"])
def test_suspicion_from_the_third_failure_on(state: Any) -> None:
    """Two failures change nothing; from the third on one at a time, half a second apart; off with the circuit."""
    two = Circuit(state=state, failures=2, ramp_limit=8)
    assert circuits.limit(two, POLICY, FULL) == (10 if state == "closed" else 8)
    assert circuits.spacing_ms(two, POLICY) == 0
    three = msgspec.structs.replace(two, failures=3)
    assert circuits.limit(three, POLICY, FULL) == 1
    assert circuits.spacing_ms(three, POLICY) == 500


def test_a_circuit_that_is_off_never_limits() -> None:
    """With ``enabled: false`` any row of failures leaves the full limit and no spacing."""
    off = CircuitPolicy(enabled=False)
    failing = Circuit(failures=50)
    assert circuits.limit(failing, off, FULL) == FULL
    assert circuits.spacing_ms(failing, off) == 0
    assert _after(failing, False, NOW_MS, policy=off) == CLOSED


def test_limits_by_state() -> None:
    """Open: none. Half-open: one. Ramping: the ramp's, never above the endpoint's own."""
    assert circuits.limit(_open(), POLICY, FULL) == 0
    assert circuits.limit(Circuit(state="half-open", failures=9), POLICY, FULL) == 1
    assert circuits.limit(Circuit(state="ramping", ramp_limit=4), POLICY, FULL) == 4
    assert circuits.limit(Circuit(state="ramping", ramp_limit=4), POLICY, 3) == 3
    assert circuits.spacing_ms(_open(), POLICY) == 0


def test_an_open_circuit_wakes_when_its_time_has_come() -> None:
    """A millisecond early it stays open; then it is half-open, and what else it knows is kept."""
    opened = _open(successes=2)
    assert circuits.wake(opened, opened.retry_at_ms - 1) is opened
    woken = circuits.wake(opened, opened.retry_at_ms)
    assert (woken.state, woken.successes, woken.openings) == ("half-open", 0, 1)
    assert circuits.wake(CLOSED, NOW_MS) is CLOSED


def test_each_reopening_doubles_the_open_time_to_its_maximum() -> None:
    """30, 60, 120, 240, 480, 600, 600 s by failing probes, each spread by a fifth."""
    circuit, now_ms, spans_s = _open(), NOW_MS, []
    for _ in range(6):
        now_ms = circuit.retry_at_ms
        circuit = _after(circuits.wake(circuit, now_ms), False, now_ms + 5, started_ms=now_ms)
        spans_s.append((circuit.retry_at_ms - circuit.opened_at_ms) // 1000)
        now_ms = circuit.retry_at_ms
    assert spans_s == [60, 120, 240, 480, 600, 600]
    low = _after(Circuit(state="half-open"), False, NOW_MS, unit=0.0)
    high = _after(Circuit(state="half-open"), False, NOW_MS, unit=0.999_999)
    assert (low.retry_at_ms - NOW_MS, high.retry_at_ms - NOW_MS) == (24_000, 36_000)


def test_a_thousand_reopenings_do_not_overflow() -> None:
    """The doubling stops at the maximum whatever the count."""
    again = _after(Circuit(state="half-open", openings=100_000), False, NOW_MS)
    assert again.retry_at_ms - NOW_MS == 600_000


def test_three_probes_in_a_row_lead_to_ramping() -> None:
    """Two good probes are not enough, a failed one in between opens again."""
    half = circuits.half_open(_open())
    two = _run(half, "++", NOW_MS + 30_000, 100)
    assert (two.state, two.successes) == ("half-open", 2)
    assert _after(two, False, NOW_MS + 31_000).state == "open"
    ramping = _after(two, True, NOW_MS + 31_000)
    assert (ramping.state, ramping.ramp_limit, ramping.openings) == ("ramping", 1, 1)


def test_what_was_sent_before_the_opening_says_nothing() -> None:
    """Answers to requests that began before the circuit opened change nothing, neither good nor bad."""
    for circuit in (_open(), circuits.half_open(_open()), Circuit(state="ramping", opened_at_ms=NOW_MS, ramp_limit=2)):
        for good in (True, False):
            assert _after(circuit, good, NOW_MS + 40_000, started_ms=NOW_MS) is circuit
    assert _after(_open(), True, NOW_MS + 10, started_ms=NOW_MS + 1) == _open(), "open: only a probe changes it"


def test_the_ramp_doubles_every_five_seconds_and_closes() -> None:
    """1, 2, 4, 8, then the full limit: closed, with the count of openings begun anew."""
    circuit = Circuit(state="ramping", ramp_limit=1, ramp_step_ms=NOW_MS, opened_at_ms=NOW_MS - 9, openings=3)
    limits, now_ms = [], NOW_MS
    while circuit.state == "ramping":
        limits.append(circuit.ramp_limit)
        circuit = _run(circuit, "+" * 51, now_ms, 100)
        now_ms += 5100
    assert limits == [1, 2, 4, 8]
    assert (circuit.state, circuit.openings, circuit.opened_at_ms) == ("closed", 0, 0)


def test_failures_in_a_step_halve_the_limit() -> None:
    """Below 90 % of success in a step the limit is halved, never below one; at 90 % it doubles."""
    circuit = Circuit(state="ramping", ramp_limit=4, ramp_step_ms=NOW_MS, ramp_good=8, ramp_bad=1)
    good = _after(circuit, True, NOW_MS + 5000)
    assert (good.ramp_limit, good.ramp_good, good.ramp_bad) == (8, 0, 0)
    bad = _after(circuit, False, NOW_MS + 5000)
    assert (bad.state, bad.ramp_limit, bad.ramp_good, bad.ramp_bad) == ("ramping", 2, 0, 0)
    one = _after(Circuit(state="ramping", ramp_limit=1, ramp_step_ms=NOW_MS), False, NOW_MS + 5000)
    assert one.ramp_limit == 1


def test_within_a_step_the_ramp_only_counts() -> None:
    """The limit changes at a step's end alone."""
    circuit = _run(Circuit(state="ramping", ramp_limit=2, ramp_step_ms=NOW_MS), "+-+", NOW_MS, 100)
    assert (circuit.ramp_limit, circuit.ramp_good, circuit.ramp_bad) == (2, 2, 1)


def test_the_opening_rule_holds_while_ramping() -> None:
    """Ten failures in a row while ramping open again, for longer than the time before."""
    circuit = Circuit(state="ramping", ramp_limit=4, ramp_step_ms=NOW_MS, openings=2)
    reopened = _run(circuit, "-" * 10, NOW_MS, 600)
    assert (reopened.state, reopened.openings) == ("open", 3)
    assert reopened.retry_at_ms - reopened.opened_at_ms == 120_000


def test_a_new_owner_starts_at_the_ramps_first_limit() -> None:
    """After a takeover a ramp begins again, its step with the first answer; other states are kept."""
    ramping = Circuit(state="ramping", ramp_limit=8, ramp_step_ms=NOW_MS - 4000, ramp_good=50, openings=2)
    anew = circuits.owned_anew(ramping)
    assert (anew.state, anew.ramp_limit, anew.ramp_good, anew.openings) == ("ramping", 1, 0, 2)
    assert _after(anew, True, NOW_MS).ramp_step_ms == NOW_MS
    for circuit in (CLOSED, _open(), circuits.half_open(_open())):
        assert circuits.owned_anew(circuit) is circuit
