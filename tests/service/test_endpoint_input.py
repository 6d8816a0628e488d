"""Applying what callers set to an endpoint, as a pure step."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from ackpost.core.addresses import AddressPolicy
from ackpost.core.model import Endpoint
from ackpost.core.policy import PRESETS, effective_policy
from ackpost.core.signing import unseal
from ackpost.errors import InvalidInput
from ackpost.service.endpoint_input import (
    EndpointInput,
    EndpointPatch,
    PolicyInput,
    RetryInput,
    TargetRules,
    new_endpoint,
    patched_endpoint,
    replaced_endpoint,
)

RULES = TargetRules(AddressPolicy(), allow_http=False)
NAMES = st.sampled_from(["X-A", "x-a", "X-B", "x-C"])
SECRETS = st.dictionaries(NAMES, st.none() | st.sampled_from(["1", "2"]), max_size=3).filter(
    lambda names: len({name.lower() for name in names}) == len(names)
)
URLS = st.sampled_from(["https://a.example/", "https://a.example/x", "https://b.example/", "https://a.example:1/"])


def _new(**fields: object) -> Endpoint:
    given_ = msgspec.convert({"url": "https://a.example/", **fields}, EndpointInput)
    return new_endpoint(given_, 1, None, RULES, 5)


def _origin(url: str) -> str:
    return "/".join(url.split("/")[:3])


@given(st.lists(st.tuples(URLS, SECRETS), min_size=1, max_size=5))
def test_secret_headers_are_merged_without_case_and_never_leave_their_origin(
    steps: list[tuple[str, dict[str, str | None]]],
) -> None:
    """After any run of patches each value there was set for the present origin, and the newest wins (case S25)."""
    endpoint = _new()
    expected: dict[str, tuple[str, str]] = {}
    for url, secrets in steps:
        if _origin(url) != _origin(endpoint.url):
            expected = {}
        endpoint = patched_endpoint(endpoint, EndpointPatch(url=url, secret_headers=secrets), None, RULES)
        for name, value in secrets.items():
            if value is None:
                expected.pop(name.lower(), None)
            else:
                expected[name.lower()] = (name, value)
        assert {name: unseal(value) for name, value in endpoint.secret_headers.items()} == dict(expected.values())


@given(
    st.sampled_from(list(PRESETS)),
    st.dictionaries(st.sampled_from(["timeout_s", "max_in_flight"]), st.none() | st.integers(1, 30), max_size=2),
    st.sampled_from(list(PRESETS)) | st.none(),
)
def test_a_policy_is_kept_as_set_and_always_makes_an_effective_one(
    preset: str, values: dict[str, int | None], second: str | None
) -> None:
    """Null goes back to the preset; changing the preset keeps what was set beside it (case A090)."""
    endpoint = _new(policy={"preset": preset, "timeout_s": 7})
    patch = EndpointPatch(policy=msgspec.convert({**values, "preset": second}, PolicyInput))
    patched = patched_endpoint(endpoint, patch, None, RULES)
    expected = {"timeout_s": 7, **values, "preset": second}
    assert patched.policy == {name: value for name, value in expected.items() if value is not None}
    effective = effective_policy(patched.policy)
    assert effective.preset == (second or "messaging")
    assert effective.timeout_s == (expected["timeout_s"] or 5.0)


def test_null_in_a_new_policy_means_no_limit_and_in_a_patch_the_default() -> None:
    """A merge patch cannot set null; a whole policy can."""
    endpoint = _new(policy={"retry": {"max_age_s": None, "max_attempts": 5}})
    assert effective_policy(endpoint.policy).retry.max_age_s is None
    patch = EndpointPatch(policy=PolicyInput(retry=RetryInput(max_age_s=None)))
    patched = patched_endpoint(endpoint, patch, None, RULES)
    assert patched.policy == {"retry": {"max_attempts": 5}}
    assert effective_policy(patched.policy).retry.max_age_s == 259200.0


def test_an_empty_patch_and_the_same_description_again_change_nothing() -> None:
    """Both are safe to repeat."""
    given_ = EndpointInput(
        url="https://a.example/?x=é", channels=["b", "a", "b"], headers={"X-A": "1"}, secret_headers={"X-B": "2"}
    )
    endpoint = new_endpoint(given_, 1, "store", RULES, 5)
    assert patched_endpoint(endpoint, EndpointPatch(), "store", RULES) == endpoint
    assert replaced_endpoint(endpoint, given_, "store", RULES) == endpoint
    assert (endpoint.channels, endpoint.format) == (("b", "a"), "store")
    assert EndpointPatch().url is UNSET


def test_an_endpoint_needs_a_url() -> None:
    """An empty URL is refused like any other that names no host, although a new endpoint's present one is empty."""
    with pytest.raises(InvalidInput) as refused:
        _new(url="")
    assert [error.loc for error in refused.value.errors] == [("body", "url")]
