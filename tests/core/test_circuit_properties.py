"""The circuit under any run of answers: what never happens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ackpost.core import circuit as circuits
from ackpost.core.model import CLOSED, Circuit
from ackpost.core.policy import CircuitPolicy

NOW_MS = 1_800_000_000_000
RUNS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 20_000), st.floats(0, 1, exclude_max=True)), max_size=12
)
"""Answers of one kind come in runs: single ones by chance would hardly ever lead through all states."""
STEPS = RUNS.map(
    lambda runs: [(gap_ms, good, unit) for good, count, gap_ms, unit in runs for _ in range(count)]
)
POLICIES = st.builds(
    CircuitPolicy,
    failures=st.integers(1, 12),
    ratio=st.floats(0.1, 1),
    attempts_min=st.integers(1, 30),
    window_s=st.floats(1, 120),
    span_min_s=st.floats(0, 20),
    open_s=st.floats(0.1, 60),
    open_max_s=st.floats(60, 600),
    successes=st.integers(1, 5),
)


class Endpoint:
    """One request at a time, sent only when the circuit allows it: each ``step`` waits until it does."""

    def __init__(self, policy: CircuitPolicy, full: int) -> None:
        self.policy = policy
        self.full = full
        self.circuit: Circuit = CLOSED
        self.now_ms = NOW_MS

    def step(self, gap_ms: int, good: bool, unit: float) -> tuple[Circuit, Circuit]:
        """Wait, send, get an answer; give the circuit at the sending and the one after the answer."""
        self.now_ms += gap_ms
        self.circuit = circuits.wake(self.circuit, self.now_ms)
        if self.circuit.state == "open":
            assert circuits.limit(self.circuit, self.policy, self.full) == 0
            self.now_ms = self.circuit.retry_at_ms
            self.circuit = circuits.wake(self.circuit, self.now_ms)
        sent, started_ms = self.circuit, self.now_ms
        self.now_ms += 1
        self.circuit = circuits.after_attempt(
            sent, self.policy, self.full, good=good, started_ms=started_ms, now_ms=self.now_ms, unit=unit
        )
        return sent, self.circuit


@given(policy=POLICIES, full=st.integers(1, 100), steps=STEPS)
def test_the_states_follow_their_table(
    policy: CircuitPolicy, full: int, steps: list[tuple[int, bool, float]]
) -> None:
    """Only the transitions of ARCHITECTURE.md happen, and each by the answer that causes it."""
    allowed = {
        ("closed", "closed"): {True, False}, ("closed", "open"): {False},
        ("half-open", "half-open"): {True}, ("half-open", "open"): {False}, ("half-open", "ramping"): {True},
        ("ramping", "ramping"): {True, False}, ("ramping", "open"): {False}, ("ramping", "closed"): {True, False},
    }  # fmt: skip
    endpoint = Endpoint(policy, full)
    for gap_ms, good, unit in steps:
        before, after = endpoint.step(gap_ms, good, unit)
        assert good in allowed[before.state, after.state]


@given(policy=POLICIES, full=st.integers(1, 100), steps=STEPS)
def test_numbers_stay_in_their_bounds(policy: CircuitPolicy, full: int, steps: list[tuple[int, bool, float]]) -> None:
    """Limits lie in [1, full] when not open, the ramp at most doubles, the open time stays below its maximum + 20 %."""
    endpoint = Endpoint(policy, full)
    for gap_ms, good, unit in steps:
        before, after = endpoint.step(gap_ms, good, unit)
        assert 1 <= circuits.limit(before, policy, full) <= full
        assert len(after.window) <= 13
        if after.state == "open":
            open_ms = after.retry_at_ms - after.opened_at_ms
            assert policy.open_s * 1000 * 0.8 - 1 <= open_ms <= policy.open_max_s * 1000 * 1.2 + 1
        if before.state == after.state == "ramping":
            assert after.ramp_limit <= before.ramp_limit * 2
        if before.state == "half-open" and after.state == "ramping":
            assert after.ramp_limit == 1


@given(policy=POLICIES, full=st.integers(1, 100), steps=STEPS)
def test_only_successes_keep_it_closed(policy: CircuitPolicy, full: int, steps: list[tuple[int, bool, float]]) -> None:
    """An endpoint that never fails is never limited, and one that always fails is never closed once it opened."""
    healthy = Endpoint(policy, full)
    for gap_ms, _, unit in steps:
        sent, _ = healthy.step(gap_ms, True, unit)
        assert circuits.limit(sent, policy, full) == full
    dead, opened = Endpoint(policy, full), False
    for gap_ms, _, unit in steps:
        sent, after = dead.step(gap_ms, False, unit)
        assert not opened or sent.state == "half-open"
        opened = opened or after.state == "open"
