"""Operational events (contract §5): accepted in the commit of what they tell, for the endpoints that name them."""

from __future__ import annotations

from typing import Final

import msgspec

from ackpost.core.decision import Announcement
from ackpost.core.matching import matches
from ackpost.core.model import Endpoint
from ackpost.ports.operations import Accept, Accepted, NewEvent, Target
from ackpost.store.postgres.accept import accept
from ackpost.store.postgres.moves import Change, is_by_key
from ackpost.store.values import endpoint_from

_encode = msgspec.json.Encoder().encode

HEARING_SQL: Final = "SELECT tenant, document, rev FROM endpoint WHERE tenant = ANY($1) AND hears ORDER BY position"


async def announce(change: Change, announcements: list[tuple[int, Announcement]]) -> None:
    """Accept (tenant, announcement) pairs in order; one that nobody hears is not stored."""
    ledger = change.ledger
    if not announcements:
        return
    hearing: dict[int, list[Endpoint]] = {tenant: [] for tenant, _ in announcements}
    for tenant, document, rev in await ledger.all(HEARING_SQL, sorted(hearing)):
        hearing[tenant].append(endpoint_from(document, rev))
    operations: list[Accept] = []
    for tenant, told in announcements:
        targets = tuple(target_of(endpoint) for endpoint in hearing[tenant] if _hears(endpoint, told))
        version = await ledger.routing_version(tenant) if targets else None
        if version is not None:
            event = NewEvent(type=told.type, data=_encode(told.data), targets=targets)
            operations.append(Accept(tenant, version, [event], change.now_ms))
            change.touched.update(target.endpoint for target in targets)
    if operations:
        results = await accept(ledger, operations)
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
