"""JSON Merge Patch: the RFC's own examples, and the properties that a PATCH relies on."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.merge_patch import merge_patch

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
NAMES = st.sampled_from(["a", "b", "c", "d"])
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
OBJECTS = st.dictionaries(NAMES, DOCUMENTS, max_size=4)


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_rfc_examples(target: Any, patch: Any, expected: Any) -> None:
    """The test cases of RFC 7396, appendix A."""
    assert merge_patch(target, patch) == expected


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}


@given(DOCUMENTS, DOCUMENTS)
def test_the_same_patch_twice_is_the_same_as_once(target: Any, patch: Any) -> None:
    """A repeated PATCH changes nothing more, and the arguments stay as they were."""
    before = copy.deepcopy((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert (target, patch) == before


@given(OBJECTS)
def test_a_patch_of_nothing_makes_the_patch_without_its_nulls(patch: dict[str, Any]) -> None:
    """Nulls of a patch remove; they never come into a document."""
    assert merge_patch({}, patch) == _without_nulls(patch)


@given(OBJECTS, OBJECTS)
def test_names_the_patch_does_not_speak_of_stay(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Each member of the result comes from the patch if it names it, else from the document unchanged."""
    merged = merge_patch(target, patch)
    for name in target.keys() - patch.keys():
        assert merged[name] == target[name]
    for name, value in patch.items():
        assert (name not in merged) if value is None else (name in merged)
