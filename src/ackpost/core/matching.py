"""Which endpoints get which events (contract §3, §7).

A type filter is a list of patterns: an exact type, ``order.*`` (everything below ``order.``, not ``order``), or ``*``.
Ackpost's own events (``ackpost.…``) go only to patterns that begin with ``ackpost.``. An endpoint with channels gets
only events that share one of them; an endpoint without gets them all. Nothing matches by mere prefix or by another
case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

RESERVED_PREFIX: Final = "ackpost."

MatchReason = Literal["matches", "type_reserved", "type_not_matched", "channel_not_shared"]

# An endpoint as the table needs it: (endpoint position, event types, channels, enabled).
Route = tuple[int, Sequence[str], Sequence[str], bool]

_TYPES_CACHED_MAX: Final = 1024


def matches(
    event_types: Iterable[str], channels: Sequence[str], event_type: str, event_channels: Iterable[str]
) -> bool:
    """Say whether an endpoint's filter takes an event of this type and these channels."""
    return match_reason(event_types, channels, event_type, event_channels) == "matches"


def match_reason(
    event_types: Iterable[str], channels: Sequence[str], event_type: str, event_channels: Iterable[str]
) -> MatchReason:
    """Say why an endpoint's filter takes an event or not.

    ``type_reserved``: ``*`` stands in the filter, but the type is one of Ackpost's own and must be named.
    """
    patterns = list(event_types)
    if not any(_takes(pattern, event_type) for pattern in patterns):
        reserved = event_type.startswith(RESERVED_PREFIX) and "*" in patterns
        return "type_reserved" if reserved else "type_not_matched"
    if channels and set(channels).isdisjoint(event_channels):
        return "channel_not_shared"
    return "matches"


def pattern_matches(pattern: str, event_type: str) -> bool:
    """Say whether one pattern takes a type; the list filter ``type`` uses it as the endpoints do."""
    return _takes(pattern, event_type)


def _takes(pattern: str, event_type: str) -> bool:
    if pattern == "*":
        return not event_type.startswith(RESERVED_PREFIX)
    if pattern.endswith(".*"):
        return len(event_type) >= len(pattern) and event_type.startswith(pattern[:-1])
    return pattern == event_type


class _Targets(msgspec.Struct):
    """Who takes one type: whatever the channels, and by channel."""

    always: tuple[int, ...]
    by_channel: dict[str, tuple[int, ...]]


class RoutingTable:
    """The filters of one tenant's endpoints, indexed; endpoints that are not enabled get nothing.

    Invariant: ``targets`` agrees with ``matches`` for every enabled endpoint and rises by position.
    """

    __slots__ = ("_by_pattern", "_channels", "_seen")

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_pattern: dict[str, list[int]] = {}
        self._channels: dict[int, tuple[str, ...]] = {}
        self._seen: dict[str, _Targets] = {}
        for endpoint, event_types, channels, enabled in routes:
            if not enabled:
                continue
            self._channels[endpoint] = tuple(channels)
            for pattern in event_types:
                self._by_pattern.setdefault(pattern, []).append(endpoint)

    def targets(self, event_type: str, channels: Sequence[str] = ()) -> tuple[int, ...]:
        """Give the positions of the endpoints that get such an event, rising.

        The type is looked up once and then remembered (at most 1,024 types; then all are forgotten).
        """
        seen = self._seen.get(event_type)
        if seen is None:
            seen = self._learn(event_type)
        if not channels or not seen.by_channel:
            return seen.always
        sharing = [seen.by_channel[channel] for channel in channels if channel in seen.by_channel]
        if not sharing:
            return seen.always
        return tuple(sorted({*seen.always, *(endpoint for group in sharing for endpoint in group)}))

    def _learn(self, event_type: str) -> _Targets:
        found: set[int] = set()
        for pattern in _patterns_for(event_type):
            found.update(self._by_pattern.get(pattern, ()))
        always: list[int] = []
        by_channel: dict[str, list[int]] = {}
        for endpoint in sorted(found):
            channels = self._channels[endpoint]
            if not channels:
                always.append(endpoint)
            for channel in channels:
                by_channel.setdefault(channel, []).append(endpoint)
        learnt = _Targets(tuple(always), {channel: tuple(group) for channel, group in by_channel.items()})
        if len(self._seen) >= _TYPES_CACHED_MAX:
            self._seen.clear()
        self._seen[event_type] = learnt
        return learnt


def _patterns_for(event_type: str) -> list[str]:
    """Give every pattern that takes this type."""
    patterns = [event_type]
    if not event_type.startswith(RESERVED_PREFIX):
        patterns.append("*")
    dot = event_type.find(".")
    while dot != -1:
        if dot + 1 < len(event_type):
            patterns.append(f"{event_type[: dot + 1]}*")
        dot = event_type.find(".", dot + 1)
    return patterns
