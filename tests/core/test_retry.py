"""When the next attempt is due: presets to the contract's numbers, bounds of every delay, the age limit."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.policy import Retry, effective_policy
from ackpost.core.retry import LAST_ATTEMPT_LATE_MAX_MS, aged_out, delay_ms, within_age_ms

STORE = effective_policy({"preset": "store"}).retry
STANDARD = effective_policy({"preset": "standard-webhooks"}).retry
MESSAGING = effective_policy({}).retry

UNIT = st.floats(0, 1, exclude_max=True)
EXPONENTIAL = st.builds(
    Retry,
    base_s=st.floats(0.05, 86400),
    factor=st.floats(1, 10),
    cap_s=st.floats(0.05, 604800),
    jitter=st.sampled_from(["full", "equal", "none"]),
    max_attempts=st.none() | st.integers(1, 1000),
    max_age_s=st.none() | st.floats(1, 31_536_000),
)


def _delays_ms(retry: Retry, unit: float = 0.5) -> list[int]:
    """All delays of a round without an age limit."""
    delays: list[int] = []
    while (wait_ms := delay_ms(retry, len(delays) + 1, unit)) is not None:
        delays.append(wait_ms)
    return delays


def test_the_store_preset_repeats_after_1_2_to_512_seconds() -> None:
    """Ten retries after 1, 2, 4 … 512 s: 1,023 s in all, whatever is drawn."""
    for unit in (0.0, 0.5, 0.999):
        assert _delays_ms(STORE, unit) == [1000 * 2**n for n in range(10)]
    assert sum(_delays_ms(STORE)) == 1_023_000


def test_the_standard_preset_follows_its_list() -> None:
    """Nine delays of the list; its jitter spreads each by at most a fifth."""
    assert [ms // 1000 for ms in _delays_ms(STANDARD)] == [5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]
    assert _delays_ms(STANDARD, 0.0)[:2] == [4000, 240_000]
    assert _delays_ms(STANDARD, 0.999_999)[:2] == [6000, 360_000]


def test_the_messaging_preset_makes_about_155_attempts_in_72_hours() -> None:
    """Full jitter below 1 h fills the 72 hours with 155 attempts, give or take what is drawn, the last at the limit."""
    drawn = random.Random(7)
    counts = []
    for _ in range(200):
        attempts, age_ms = 1, 0
        while True:
            wait_ms = delay_ms(MESSAGING, attempts, drawn.random())
            assert wait_ms is not None
            left_ms = within_age_ms(MESSAGING, wait_ms, age_ms)
            if left_ms is None:
                break
            age_ms += left_ms
            attempts += 1
        assert age_ms == 72 * 3600 * 1000
        counts.append(attempts)
    assert 150 <= sum(counts) / len(counts) <= 160


@given(retry=EXPONENTIAL, failures=st.integers(1, 1_000_000), unit=UNIT)
def test_each_delay_lies_within_its_bounds(retry: Retry, failures: int, unit: float) -> None:
    """full: [0, bound], equal: [bound/2, bound], none: the bound; bound = min(cap, base · factor^(n-1)), for any n."""
    wait_ms = delay_ms(retry, failures, unit)
    if retry.max_attempts is not None and failures >= retry.max_attempts:
        assert wait_ms is None
        return
    try:
        bound_s = min(retry.cap_s, retry.base_s * retry.factor ** (failures - 1))
    except OverflowError:
        bound_s = retry.cap_s
    least_s = {"full": 0.0, "equal": bound_s / 2, "none": bound_s}[retry.jitter]
    assert wait_ms is not None
    slack_ms = 1 + bound_s * 1e-6
    assert least_s * 1000 - slack_ms <= wait_ms <= bound_s * 1000 + slack_ms


@given(
    schedule_s=st.lists(st.floats(0.05, 2_592_000), min_size=1, max_size=100),
    ratio=st.floats(0, 0.99),
    failures=st.integers(1, 150),
    unit=UNIT,
)
def test_a_list_of_delays_is_followed_and_then_ends(
    schedule_s: list[float], ratio: float, failures: int, unit: float
) -> None:
    """The n-th delay is the list's n-th ± the ratio; after the last one the attempts are used up."""
    wait_ms = delay_ms(Retry(schedule_s=tuple(schedule_s), jitter_ratio=ratio), failures, unit)
    if failures > len(schedule_s):
        assert wait_ms is None
        return
    middle_ms = schedule_s[failures - 1] * 1000
    assert wait_ms is not None
    assert middle_ms * (1 - ratio) - 1 <= wait_ms <= middle_ms * (1 + ratio) + 1


@given(
    limit_s=st.none() | st.integers(1, 1_000_000), wait_ms=st.integers(0, 10**9), age_ms=st.integers(0, 2 * 10**9)
)
def test_no_attempt_is_planned_beyond_the_age_limit(limit_s: int | None, wait_ms: int, age_ms: int) -> None:
    """A wait is never lengthened and never ends beyond the limit; with the age used up there is none."""
    within_ms = within_age_ms(Retry(max_age_s=limit_s), wait_ms, age_ms)
    if limit_s is None:
        assert within_ms == wait_ms
    elif age_ms >= limit_s * 1000:
        assert within_ms is None
    else:
        assert within_ms == min(wait_ms, limit_s * 1000 - age_ms)


@pytest.mark.parametrize(
    ("age_ms", "overdue_ms", "expected"),
    [
        (10_000, 10_000, False),  # never too old
        (3_600_000, 5000, False),  # exactly as old as allowed
        (3_600_001, 5000, True),  # was due in time, comes too late
        (3_600_900, 900, False),  # the last attempt, due exactly at the limit, a little late
        (3_600_000 + LAST_ATTEMPT_LATE_MAX_MS, LAST_ATTEMPT_LATE_MAX_MS, False),
        (3_600_001 + LAST_ATTEMPT_LATE_MAX_MS, LAST_ATTEMPT_LATE_MAX_MS + 1, True),
        (3_601_000, 0, False),  # our own error at the last attempt: a second later again
        (3_660_001, 0, True),  # crash after crash made it due again
    ],
)
def test_a_delivery_held_up_beyond_its_age_is_not_sent(age_ms: int, overdue_ms: int, expected: bool) -> None:
    """What waited behind a circuit or a full slot dies of age; only the attempt planned for the limit may be late."""
    assert aged_out(Retry(max_age_s=3600), age_ms, overdue_ms) is expected


def test_without_an_age_limit_nothing_ages_out() -> None:
    """The store preset waits for ever when it is held up."""
    assert not aged_out(STORE, 10**12, 10**12)


@given(retry=EXPONENTIAL, failures=st.integers(1, 40), unit=UNIT)
def test_jitter_is_what_was_drawn(retry: Retry, failures: int, unit: float) -> None:
    """full spreads over all of [0, bound], equal over its upper half: the drawn share decides, nothing else."""
    unlimited = msgspec.structs.replace(retry, max_attempts=None)
    least_ms, wait_ms, most_ms = (delay_ms(unlimited, failures, drawn) for drawn in (0.0, unit, 1.0))
    assert least_ms is not None
    assert wait_ms is not None
    assert most_ms is not None
    assert abs(least_ms - {"full": 0, "equal": most_ms / 2, "none": most_ms}[retry.jitter]) <= 1
    assert abs(wait_ms - (least_ms + unit * (most_ms - least_ms))) <= 1
