"""Fingerprints and rates of publishing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.limits import EventInput
from ackpost.errors import RateLimited
from ackpost.service.publish import Rates, fingerprint
from tests.api.world import ManualClock

# Few letters, those that the fingerprint itself writes among them: so that fields run into each other.
_TEXT = st.text("ak1:", max_size=3)
_EVENTS = st.builds(
    EventInput,
    type=_TEXT,
    data=_TEXT.map(str.encode),
    key=st.none() | _TEXT,
    sequence=st.none() | st.integers(min_value=1, max_value=20),
    channels=st.lists(st.sampled_from(["a", "b", "ab"]), max_size=2).map(tuple),
    occurred_at_ms=st.none() | st.integers(min_value=0, max_value=20),
    metadata=st.none() | _TEXT.filter(bool).map(str.encode),
)


@given(_EVENTS, _EVENTS)
def test_two_events_have_one_fingerprint_only_if_they_are_the_same(first: EventInput, second: EventInput) -> None:
    """No shift of bytes between neighbouring fields goes unnoticed."""
    assert (fingerprint(first) == fingerprint(second)) is (msgspec.to_builtins(first) == msgspec.to_builtins(second))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "ab"}, {"type": "a", "key": "b"}),
        ({"type": "akb"}, {"type": "a", "key": "b"}),
        ({"key": ""}, {}),
        ({"channels": ("a", "b")}, {"channels": ("ab",)}),
        ({"metadata": b"{}"}, {}),
        ({"occurred_at_ms": 0}, {}),
    ],
)
def test_neighbouring_fields_are_told_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The cases a plain concatenation would miss."""
    assert fingerprint(EventInput(**{"type": "a", "data": b"1", **one})) != fingerprint(
        EventInput(**{"type": "a", "data": b"1", **other})
    )


def test_a_rate_holds_over_time() -> None:
    """Whatever is asked, at most one second's worth plus what has refilled passes."""
    clock = ManualClock()
    rates = Rates(clock)
    passed = 0
    for _ in range(1000):
        try:
            rates.take(1, 10.0, 1)
            passed += 1
        except RateLimited:
            pass
        clock.forward(0.01)
    assert 109 <= passed <= 110


def test_a_batch_larger_than_the_bucket_passes_and_is_paid_for() -> None:
    """Else it could never be published; other tenants do not pay."""
    clock = ManualClock()
    rates = Rates(clock)
    rates.take(1, 10.0, 500)
    with pytest.raises(RateLimited) as refusal:
        rates.take(1, 10.0, 1)
    assert refusal.value.retry_after_s == 50
    rates.take(2, 10.0, 1)
    clock.forward(50)
    rates.take(1, 10.0, 1)
