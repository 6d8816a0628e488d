"""Which endpoint gets which event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.matching import MatchReason, RoutingTable, match_reason, matches, pattern_matches

EXPECTED = {
    "user": {"user"},
    "user.*": {"user.created", "user.created.eu"},
    "order.*": set(),
    "*": {"user", "user_deleted", "user.created", "user.created.eu", "users.created", "orders.x", "order.", "ORDER.x"},
    "user.created": {"user.created"},
    "user.created.*": {"user.created.eu"},
    "USER.*": set(),
    "ackpost.*": {"ackpost.endpoint.failing"},
    "ackpost.endpoint.*": {"ackpost.endpoint.failing"},
    "ackpost.endpoint.failing": {"ackpost.endpoint.failing"},
}
TYPES = sorted(EXPECTED["*"] | {"ackpost.endpoint.failing", "ackpost"})


@pytest.mark.parametrize("pattern", EXPECTED)
@pytest.mark.parametrize("event_type", TYPES)
def test_patterns(pattern: str, event_type: str) -> None:
    """Exact, everything below a dot, or all but the reserved; never a mere prefix, never another case."""
    expected = event_type in EXPECTED[pattern] or (pattern, event_type) == ("*", "ackpost")
    assert pattern_matches(pattern, event_type) is expected
    assert matches([pattern], [], event_type, []) is expected
    assert RoutingTable([(1, [pattern], [], True)]).targets(event_type) == ((1,) if expected else ())


@pytest.mark.parametrize(
    ("event_types", "channels", "event_type", "event_channels", "reason"),
    [
        (["order.*"], [], "order.created", [], "matches"),
        (["order.*"], [], "order.created", ["eu"], "matches"),
        (["a", "order.*"], ["eu", "us"], "order.created", ["asia", "us"], "matches"),
        (["order.*"], ["eu"], "order.created", ["us"], "channel_not_shared"),
        (["order.*"], ["eu"], "order.created", [], "channel_not_shared"),
        (["order.*"], ["eu"], "order.created", ["EU"], "channel_not_shared"),
        (["order.*"], ["eu"], "order", ["eu"], "type_not_matched"),
        ([], [], "order", [], "type_not_matched"),
        (["*"], [], "ackpost.test", [], "type_reserved"),
        (["order.*"], [], "ackpost.test", [], "type_not_matched"),
        (["*", "ackpost.*"], [], "ackpost.test", [], "matches"),
    ],
)
def test_reasons(
    event_types: list[str], channels: list[str], event_type: str, event_channels: list[str], reason: MatchReason
) -> None:
    """Why an endpoint gets an event or not."""
    assert match_reason(event_types, channels, event_type, event_channels) == reason
    assert matches(event_types, channels, event_type, event_channels) is (reason == "matches")


_PARTS = st.sampled_from(["a", "b", "ackpost", "A"])
_TYPES = st.lists(_PARTS, min_size=1, max_size=4).map(".".join)
_PATTERNS = st.one_of(st.just("*"), _TYPES, _TYPES.map(lambda name: f"{name}.*"))
_CHANNELS = st.lists(st.sampled_from(["x", "y", "z"]), max_size=3)
_ROUTES = st.lists(st.tuples(st.lists(_PATTERNS, max_size=4), _CHANNELS, st.booleans()), max_size=6)


@given(_ROUTES, st.lists(st.tuples(_TYPES, _CHANNELS), min_size=1, max_size=8), st.randoms())
def test_the_table_agrees_with_matching_one_by_one(
    filters: list[tuple[list[str], list[str], bool]], events: list[tuple[str, list[str]]], order: object
) -> None:
    """For any endpoints and events, asked once or again: exactly the enabled endpoints that match, rising."""
    routes = [(100 - number, types, channels, enabled) for number, (types, channels, enabled) in enumerate(filters)]
    table = RoutingTable(routes)
    for event_type, event_channels in events * 2:
        expected = sorted(
            endpoint
            for endpoint, types, channels, enabled in routes
            if enabled and matches(types, channels, event_type, event_channels)
        )
        assert table.targets(event_type, event_channels) == tuple(expected)


def test_the_table_remembers_a_bounded_number_of_types() -> None:
    """Publishers with endless new types do not fill the memory, and answers stay right."""
    table = RoutingTable([(1, ["t.*"], [], True), (2, ["*"], [], True), (3, ["t.5"], [], True)])
    for number in range(5_000):
        assert table.targets(f"t.{number}") == ((1, 2, 3) if number == 5 else (1, 2))
    assert len(table._seen) <= 1024
    assert table.targets("t.5") == (1, 2, 3)


def test_two_tenants_never_cross() -> None:
    """Each tenant has a table of its own; what one's holds is in no answer of the other's."""
    tables = [RoutingTable([(tenant, ["*"], [], True)]) for tenant in (1, 2)]
    assert [table.targets("order.created") for table in tables] == [(1,), (2,)]
