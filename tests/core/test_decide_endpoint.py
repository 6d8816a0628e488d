"""What an attempt changes of its endpoint: circuit transitions, failing marks, disabling; and what never changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.decide import decide_after_attempt
from ackpost.core.model import CLOSED, Circuit
from ackpost.core.outcome import ERROR_CODES, Outcome
from ackpost.core.times import rfc3339_ms
from tests.core.deciding import DAY_MS, HOUR_MS, NOW_MS, announced, answer, copy, decide, ref, view

FAILING = Circuit(failures=9, row_started_ms=NOW_MS - 60_000)


def test_the_opening_is_stored_and_told() -> None:
    """The failure that opens the circuit carries it, and an announcement with the time of the next probe."""
    decision = decide(ref(), view(circuit=FAILING, first_failure_ms=NOW_MS - 60_000), answer(500))
    assert decision.circuit.state == "open"
    assert decision.endpoint_change is not None
    assert decision.endpoint_change.circuit == decision.circuit
    (announcement,) = decision.announcements
    assert announcement.type == "ackpost.endpoint.circuit_opened"
    assert announcement.data["failures"] == 10
    assert announcement.data["retry_at"] == rfc3339_ms(decision.circuit.retry_at_ms)


def test_a_straggler_does_not_open_twice() -> None:
    """A failure of a request that was sent before the opening neither changes nor tells anything again."""
    opened = decide(ref(), view(circuit=FAILING), answer(500)).circuit
    late = decide_after_attempt(
        ref(), view(circuit=opened, first_failure_ms=NOW_MS - 60_000), answer(500), started_ms=NOW_MS - 3000,
        now_ms=NOW_MS + 2000, unit=0.5, event_type="a",
    )  # fmt: skip
    assert (late.circuit, late.endpoint_change, late.announcements) == (opened, None, ())


def test_a_straggler_does_not_disable_twice() -> None:
    """A second 410 of requests sent side by side ends its delivery, and tells of no second disabling."""
    decision = decide(ref(), view(state="disabled", state_reason="gone"), answer(410))
    assert (decision.verdict, decision.reason) == ("dead", "gone")
    assert announced(decision) == ["ackpost.delivery.dead"]


def test_counting_alone_is_not_stored() -> None:
    """Between transitions an attempt changes the circuit in memory only."""
    failing = view(circuit=Circuit(failures=4, row_started_ms=NOW_MS - 9), first_failure_ms=NOW_MS - 9)
    decision = decide(ref(), failing, answer(500))
    assert (decision.circuit.failures, decision.endpoint_change) == (5, None)


def test_a_probe_reopens_or_leads_on() -> None:
    """A failing probe is told as another opening; the third good one stores the ramp without a word."""
    half = Circuit(state="half-open", opened_at_ms=NOW_MS - 60_000, openings=1, successes=2)
    reopened = decide(ref(), view(circuit=half, first_failure_ms=NOW_MS - 60_000), Outcome("timeout"))
    assert announced(reopened) == ["ackpost.endpoint.circuit_opened"]
    assert reopened.circuit.openings == 2
    ramping = decide(ref(), view(circuit=half), answer(200))
    assert (ramping.circuit.state, announced(ramping)) == ("ramping", [])
    assert ramping.endpoint_change is not None
    assert ramping.endpoint_change.circuit == ramping.circuit


def test_the_closing_is_stored_and_told() -> None:
    """The ramp's last step closes the circuit and says so."""
    ramp = Circuit(state="ramping", opened_at_ms=1, ramp_limit=8, ramp_step_ms=NOW_MS - 5000, ramp_good=50)
    decision = decide(ref(), view(circuit=ramp), answer(200))
    assert (decision.circuit.state, announced(decision)) == ("closed", ["ackpost.endpoint.circuit_closed"])
    assert decision.endpoint_change is not None
    assert decision.endpoint_change.circuit == decision.circuit


def test_the_first_failure_is_marked_and_a_success_clears_it() -> None:
    """Only the first failure in a row and the success after it are stored."""
    first = decide(ref(), view(), answer(500)).endpoint_change
    assert first is not None
    assert (first.first_failure_ms, first.last_failure_ms) == (NOW_MS, NOW_MS)
    assert decide(ref(), view(first_failure_ms=NOW_MS - 1), answer(500)).endpoint_change is None
    cleared = decide(ref(), view(first_failure_ms=NOW_MS - 1), answer(200)).endpoint_change
    assert cleared is not None
    assert cleared.clear_failing
    assert decide(ref(), view(), answer(200)).endpoint_change is None


def test_failures_that_do_not_count_mark_nothing() -> None:
    """Told to wait, blocked, interrupted: an endpoint is not failing for that."""
    for outcome in (Outcome("blocked_target"), Outcome("interrupted"), Outcome("local_error")):
        assert decide(ref(), view(), outcome).endpoint_change is None
    change = decide(ref(), view(), answer(503, "60")).endpoint_change
    assert change is not None
    assert change.first_failure_ms is None


def test_after_a_day_of_failures_the_endpoint_is_failing() -> None:
    """One announcement at 24 hours, with the time it will be disabled; none before, none again."""
    assert decide(ref(), view(first_failure_ms=NOW_MS - DAY_MS + 1), answer(500)).announcements == ()
    decision = decide(ref(), view(first_failure_ms=NOW_MS - DAY_MS), answer(500))
    (announcement,) = decision.announcements
    assert announcement.type == "ackpost.endpoint.failing"
    assert announcement.data["failing_since"] == rfc3339_ms(NOW_MS - DAY_MS)
    assert announcement.data["disable_at"] == rfc3339_ms(NOW_MS + 4 * DAY_MS)
    change = decision.endpoint_change
    assert change is not None
    assert (change.failing_announced, change.last_failure_ms, change.disable_reason) == (True, NOW_MS, None)
    told = view(first_failure_ms=NOW_MS - 2 * DAY_MS, failing_announced=True)
    assert decide(ref(), told, answer(500)).announcements == ()


def test_after_five_days_of_failures_it_is_disabled() -> None:
    """``disable_after_s`` after the first failure the next one disables; the delivery itself is judged as ever."""
    almost = view(first_failure_ms=NOW_MS - 5 * DAY_MS + 1, failing_announced=True)
    assert decide(ref(), almost, answer(500)).endpoint_change is None
    decision = decide(ref(), view(first_failure_ms=NOW_MS - 5 * DAY_MS, failing_announced=True), answer(500))
    assert decision.endpoint_change is not None
    assert decision.endpoint_change.disable_reason == "failing"
    assert (decision.verdict, announced(decision)) == ("retry", ["ackpost.endpoint.disabled"])
    assert decision.announcements[0].data["reason"] == "failing"
    short = view({"disable_after_s": 43200}, first_failure_ms=NOW_MS - 12 * HOUR_MS)
    assert announced(decide(ref(), short, answer(500))) == ["ackpost.endpoint.disabled"]


OUTCOMES = st.builds(
    Outcome,
    code=st.sampled_from(["delivered", *ERROR_CODES]),
    status_code=st.sampled_from([None, 200, 301, 404, 410, 429, 500, 503]),
    retry_after=st.sampled_from([None, "1", "60", "100000", "never"]),
)
POLICIES = st.fixed_dictionaries(
    {"preset": st.sampled_from(["messaging", "store", "standard-webhooks"])},
    optional={
        "ordering": st.sampled_from(["best-effort", "by-key"]), "on_dead": st.sampled_from(["skip", "hold"]),
        "on_gone": st.sampled_from(["disable", "fail"]), "circuit": st.just({"enabled": True}),
    },
)  # fmt: skip
CIRCUITS = st.sampled_from(
    [
        CLOSED, FAILING, Circuit(state="half-open", opened_at_ms=NOW_MS - 99_999, openings=1),
        Circuit(state="open", opened_at_ms=NOW_MS - 10, retry_at_ms=NOW_MS + 30_000),
        Circuit(state="ramping", ramp_limit=4, ramp_step_ms=NOW_MS - 6000),
    ]
)  # fmt: skip
MARKS = st.fixed_dictionaries(
    {
        "first_failure_ms": st.none() | st.integers(NOW_MS - 6 * DAY_MS, NOW_MS - 1),
        "failing_announced": st.booleans(),
        "retry_after_until_ms": st.sampled_from([0, NOW_MS + 30_000]), "paused_total_ms": st.sampled_from([0, HOUR_MS]),
    }
)  # fmt: skip
REFS = st.builds(
    ref,
    number=st.integers(0, 30),
    round_attempts=st.integers(0, 30),
    age_start_ms=st.integers(NOW_MS - 4 * DAY_MS, NOW_MS),
    trigger=st.sampled_from(["schedule", "redeliver", "replay", "recover", "test"]),
    crashes=st.integers(0, 2),
    ordered=st.booleans(),
)


@given(outcome=OUTCOMES, policy=POLICIES, circuit=CIRCUITS, marks=MARKS, delivery=REFS, unit=st.floats(0, 0.999))
def test_every_decision_is_whole(outcome, policy, circuit, marks, delivery, unit) -> None:  # type: ignore[no-untyped-def] # drawn by Hypothesis
    """Whatever meets: due times in the future and within age and a day, never before Retry-After, numbers that fit."""
    endpoint = view(policy, circuit, **marks)
    decision = decide(delivery, endpoint, outcome, unit=unit)
    assert (decision.due_ms is not None) == (decision.verdict in ("retry", "again"))
    assert (decision.reason is not None) == (decision.verdict in ("dead", "discarded"))
    assert decision.number == delivery.number + (decision.verdict != "again")
    change = decision.endpoint_change
    if decision.due_ms is not None:
        age_ms = endpoint.endpoint.clock_ms(decision.due_ms) - delivery.age_start_ms
        limit_s = endpoint.policy.retry.max_age_s
        assert decision.due_ms >= NOW_MS
        assert decision.verdict == "again" or limit_s is None or age_ms <= limit_s * 1000
    if outcome.code != "delivered" and outcome.status_code in (429, 503) and outcome.retry_after in ("1", "60"):
        until_ms = NOW_MS + int(outcome.retry_after) * 1000
        assert decision.verdict != "retry" or (decision.due_ms or 0) >= until_ms
    if change is not None and change.retry_after_until_ms is not None:
        assert NOW_MS < change.retry_after_until_ms <= NOW_MS + DAY_MS
        assert decision.verdict != "retry" or (decision.due_ms or 0) >= change.retry_after_until_ms
    if delivery.trigger == "test":
        assert (change, decision.announcements, decision.circuit) == (None, (), circuit)


@given(outcome=OUTCOMES, policy=POLICIES, circuit=CIRCUITS, marks=MARKS, delivery=REFS, unit=st.floats(0, 0.999))
def test_deciding_is_pure(outcome, policy, circuit, marks, delivery, unit) -> None:  # type: ignore[no-untyped-def] # drawn by Hypothesis
    """The same arguments give the same decision, and none of them is changed by it."""
    first = copy(decide(delivery, view(policy, circuit, **marks), outcome, unit=unit))
    endpoint = view(policy, circuit, **marks)
    for _ in range(2):
        assert copy(decide(delivery, endpoint, outcome, unit=unit)) == first
    assert endpoint == view(policy, circuit, **marks)
