"""Policies: presets as the contract prints them, merging field by field, refusals that name the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.policy import PRESETS, effective_policy, stored_policy
from ackpost.errors import InvalidInput


def test_the_default_is_the_contracts() -> None:
    """Nothing set gives the messaging preset with every value of the contract's policy line."""
    assert msgspec.to_builtins(effective_policy({})) == {
        "preset": "messaging",
        "retry": {
            "base_s": 2.0, "factor": 2.0, "cap_s": 3600.0, "jitter": "full", "max_attempts": None,
            "max_age_s": 259200.0, "retry_on": ("any",), "schedule_s": None, "jitter_ratio": 0.0,
        },
        "timeout_s": 5.0, "max_in_flight": 10, "rate_per_s": None, "ordering": "best-effort", "on_dead": "skip",
        "on_gone": "disable", "disable_after_s": 432000.0,
        "circuit": {
            "enabled": True, "failures": 10, "ratio": 0.5, "attempts_min": 20, "window_s": 60.0, "span_min_s": 5.0,
            "open_s": 30.0, "open_max_s": 600.0, "successes": 3, "on_open": "park",
        },
    }  # fmt: skip


def test_the_store_preset_is_the_contracts() -> None:
    """1 s doubling to 512 s, eleven attempts, no age, circuit off, and only passing failures repeated."""
    policy = effective_policy({"preset": "store"})
    retry = policy.retry
    assert (retry.base_s, retry.factor, retry.cap_s, retry.jitter) == (1, 2, 512, "none")
    assert (retry.max_attempts, retry.max_age_s, retry.retry_on) == (11, None, ("network", "timeout", "5xx"))
    assert policy.circuit.enabled is False
    assert effective_policy({"preset": "store", "circuit": {"enabled": True}}).circuit.enabled


def test_the_standard_preset_is_the_contracts() -> None:
    """The list of Standard Webhooks with a fifth of jitter and no age."""
    retry = effective_policy({"preset": "standard-webhooks"}).retry
    assert list(retry.schedule_s or ()) == [5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]
    assert (retry.jitter_ratio, retry.max_age_s, retry.retry_on) == (0.2, None, ("any",))


def test_fields_merge_over_the_preset() -> None:
    """What is set wins, the rest is the preset's, inside ``retry`` and ``circuit`` too; null means the default."""
    policy = effective_policy(
        {
            "preset": "store", "timeout_s": 9, "rate_per_s": None, "max_in_flight": None, "retry": {"cap_s": 60},
            "circuit": {"open_s": 5, "failures": None},
        }
    )  # fmt: skip
    assert (policy.timeout_s, policy.rate_per_s, policy.max_in_flight) == (9, None, 10)
    assert (policy.retry.base_s, policy.retry.cap_s, policy.retry.max_attempts) == (1, 60, 11)
    assert (policy.circuit.enabled, policy.circuit.open_s, policy.circuit.failures) == (False, 5, 10)
    assert effective_policy({"retry": None, "circuit": None}) == effective_policy({})


def test_a_list_replaces_the_exponential_rule_and_the_reverse() -> None:
    """Setting one kind of rule over a preset of the other leaves nothing of the preset's delays."""
    listed = effective_policy({"retry": {"schedule_s": [1, 2]}}).retry
    assert (listed.schedule_s, listed.max_age_s, listed.jitter_ratio) == ((1, 2), 259200, 0)
    exponential = effective_policy({"preset": "standard-webhooks", "retry": {"base_s": 1, "max_attempts": 3}}).retry
    assert (exponential.schedule_s, exponential.base_s, exponential.max_attempts) == (None, 1, 3)


@pytest.mark.parametrize(
    ("stored", "loc"),
    [
        ({"preset": "bank"}, ("preset",)),
        ({"preset": 3}, ("preset",)),
        ({"retry": []}, ("retry",)),
        ({"retry": False}, ("retry",)),
        ({"circuit": "on"}, ("circuit",)),
        ({"circuit": 0}, ("circuit",)),
        ({"retry": {"base_s": 0.01}}, ("retry", "base_s")),
        ({"retry": {"base_s": "2"}}, ("retry", "base_s")),
        ({"retry": {"base_s": None}}, ("retry", "base_s")),
        ({"retry": {"factor": 0.5}}, ("retry", "factor")),
        ({"retry": {"cap_s": 604801}}, ("retry", "cap_s")),
        ({"retry": {"max_attempts": 0}}, ("retry", "max_attempts")),
        ({"retry": {"max_attempts": True}}, ("retry", "max_attempts")),
        ({"retry": {"max_age_s": 0}}, ("retry", "max_age_s")),
        ({"retry": {"max_age_s": None}}, ("retry", "max_age_s")),
        ({"retry": {"jitter": "some"}}, ("retry", "jitter")),
        ({"retry": {"schedule_s": [1], "jitter_ratio": 1}}, ("retry", "jitter_ratio")),
        ({"retry": {"jitter_ratio": 0.1}}, ("retry",)),
        ({"retry": {"schedule_s": []}}, ("retry", "schedule_s")),
        ({"retry": {"schedule_s": [0]}}, ("retry", "schedule_s")),
        ({"retry": {"schedule_s": [1], "base_s": 1}}, ("retry",)),
        ({"retry": {"retry_on": []}}, ("retry", "retry_on")),
        ({"retry": {"retry_on": ["2xx"]}}, ("retry", "retry_on")),
        ({"retry": {"retry_on": ["200"]}}, ("retry", "retry_on")),
        ({"retry": {"retry_on": ["५००"]}}, ("retry", "retry_on")),
        ({"retry": {"tries": 3}}, ("retry",)),
        ({"circuit": {"open_s": 700}}, ("circuit",)),
        ({"circuit": {"ratio": 0}}, ("circuit", "ratio")),
        ({"timeout_s": 31}, ("timeout_s",)),
        ({"timeout_s": 0.5}, ("timeout_s",)),
        ({"max_in_flight": 101}, ("max_in_flight",)),
        ({"rate_per_s": 0}, ("rate_per_s",)),
        ({"ordering": "strict"}, ("ordering",)),
        ({"disable_after_s": 3600}, ("disable_after_s",)),
        ({"speed": 1}, ()),
    ],
)
def test_a_bad_policy_is_refused_by_field(stored: dict[str, Any], loc: tuple[str, ...]) -> None:
    """Each refusal is 422 and names the field below ``body.policy``."""
    with pytest.raises(InvalidInput) as caught:
        effective_policy(stored)
    assert caught.value.errors[0].loc == ("body", "policy", *loc)
    assert caught.value.errors[0].message


def test_all_wrong_numbers_are_named_at_once() -> None:
    """Two wrong fields of the retry rule make two errors."""
    with pytest.raises(InvalidInput) as caught:
        effective_policy({"retry": {"base_s": 0, "factor": 11}})
    assert [error.loc[-1] for error in caught.value.errors] == ["base_s", "factor"]


@given(
    preset=st.sampled_from(sorted(PRESETS)),
    retry=st.dictionaries(
        st.sampled_from(["base_s", "factor", "cap_s", "max_attempts", "max_age_s", "schedule_s", "jitter_ratio"]),
        st.none() | st.integers(-1, 100) | st.floats(allow_nan=False) | st.lists(st.integers(0, 9), max_size=3),
    ),
)
def test_a_policy_is_valid_or_refused(preset: str, retry: dict[str, Any]) -> None:
    """Whatever is set: a policy that ends some day and follows one kind of rule, or a refusal with an error."""
    try:
        policy = effective_policy({"preset": preset, "retry": retry})
    except InvalidInput as refusal:
        assert refusal.errors
        return
    rule = policy.retry
    assert rule.schedule_s or rule.max_attempts or rule.max_age_s
    assert rule.schedule_s or not rule.jitter_ratio


def test_of_a_stored_policy_what_can_be_used_is_used() -> None:
    """A field that is not allowed (any more) counts as left out, and the others hold."""
    good = {"preset": "store", "ordering": "by-key", "retry": {"base_s": 3.0}}
    assert stored_policy(good) == effective_policy(good)
    broken = {**good, "timeout_s": "soon", "circuit": {"failures": 0}, "colour": "red"}
    assert stored_policy(broken) == effective_policy(good)
    assert stored_policy({"preset": "gone", "on_dead": "hold"}) == effective_policy({"on_dead": "hold"})
