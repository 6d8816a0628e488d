"""Operational events (contract §5): accepted in the commit of what they tell, for the endpoints that name them."""

from __future__ import annotations

import msgspec

from ackpost.core.decision import Announcement
from ackpost.core.matching import matches
from ackpost.core.model import Endpoint
from ackpost.ports.operations import Accept, Accepted, NewEvent, Target
from ackpost.store.sqlite.accept import accept
from ackpost.store.sqlite.moves import Change, is_by_key
from ackpost.store.values import endpoint_from

_encode = msgspec.json.Encoder().encode

HEARING_SQL = "SELECT document, rev FROM endpoint WHERE tenant = ? AND hears = 1 ORDER BY position"


def announce(change: Change, announcements: list[tuple[int, Announcement]]) -> None:
    """Accept (tenant, announcement) pairs in order; one that nobody hears is not stored."""
    ledger = change.ledger
    hearing: dict[int, list[Endpoint]] = {}
    operations: list[Accept] = []
    for tenant, told in announcements:
        if tenant not in hearing:
            hearing[tenant] = [endpoint_from(*row) for row in ledger.all(HEARING_SQL, (tenant,))]
        targets = tuple(target_of(endpoint) for endpoint in hearing[tenant] if _hears(endpoint, told))
        version = ledger.routing_version(tenant) if targets else None
        if version is not None:
            event = NewEvent(type=told.type, data=_encode(told.data), targets=targets)
            operations.append(Accept(tenant, version, [event], change.now_ms))
            change.touched.update(target.endpoint for target in targets)
    if operations:
        results = accept(ledger, operations)
        change.announced += [ref for result in results if isinstance(result, Accepted) for ref in result.refs]


def _hears(endpoint: Endpoint, told: Announcement) -> bool:
    return (
        endpoint.position != told.about
        and endpoint.state != "disabled"
        and matches(endpoint.event_types, endpoint.channels, told.type, ())
    )


def target_of(endpoint: Endpoint) -> Target:
    """Give an endpoint as accepting needs it."""
    return Target(
        endpoint.position, endpoint.rev, endpoint.pin, is_by_key(endpoint), endpoint.paused_since_ms,
        endpoint.paused_total_ms,
    )  # fmt: skip
