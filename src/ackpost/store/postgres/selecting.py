"""Which rows a job's selector names (rule E13): dead letters, and events that an endpoint has not acknowledged."""

from __future__ import annotations

from typing import Final

import msgspec

from ackpost.core.matching import RESERVED_PREFIX, matches, pattern_matches
from ackpost.core.model import Endpoint
from ackpost.ports.operations import JobSelector
from ackpost.store.postgres.querying import Reader, Where, event_of, is_short, rows_of

_decode_channels = msgspec.json.Decoder(tuple[str, ...]).decode


def dead_condition(tenant: int, selector: JobSelector) -> Where:
    """Give the condition on dead letters ``d`` and their events ``e``."""
    where = Where()
    if selector.ids is not None:
        where.add("d.position = ANY(?)", selector.ids)
    where.equal("d.endpoint", selector.endpoint)
    where.add("d.tenant = ?", tenant)
    where.equal("d.reason", selector.reason)
    if selector.since_ms is not None:
        where.add("d.ended_ms >= ?", selector.since_ms)
    if selector.until_ms is not None:
        where.add("d.ended_ms < ?", selector.until_ms)
    where.types("e.type", None if selector.type is None else [selector.type])
    return where


def dead_source(selector: JobSelector, table: str = "dead_letter") -> str:
    """Give what that condition is on; events are looked at only for their types."""
    join = "" if selector.type is None else f"JOIN event e ON {event_of('d')}"
    return f"FROM {table} d {join}"


async def count_dead(connection: Reader, tenant: int, selector: JobSelector, limit: int) -> int:
    """Dead letters that a selector names, at most ``limit``."""
    where = dead_condition(tenant, selector)
    sql = f"SELECT count(*) FROM (SELECT 1 {dead_source(selector)} WHERE {where.sql} LIMIT ?)"  # noqa: S608 - values are bound
    count: int = (await rows_of(connection, sql, (*where.values, limit)))[0][0]
    return count


async def count_all_dead(connection: Reader, tenant: int, selector: JobSelector) -> int | None:
    """Dead letters that a selector names; None where so many have to be looked at that it would take too long."""
    scan = Where()
    scan.equal("endpoint", selector.endpoint)
    rows_max = _QUICK_ROWS if selector.type is None else _JOINED_ROWS
    if not await is_short(connection, f"SELECT 1 FROM dead_letter WHERE {scan.sql}", scan.values, rows_max):  # noqa: S608 - values are bound
        return None
    return await count_dead(connection, tenant, selector, rows_max)


class Candidate(msgspec.Struct, gc=False):
    """An event of a span and its delivery to one endpoint. ``mark`` is set where that ended dead or cancelled."""

    event: int
    type: str
    channels: str | None
    expired: bool
    delivery: int | None
    mark: int | None

    def is_unacknowledged(self, before: int | None) -> bool:
        """Whether the delivery is missing, or ended dead or cancelled before a position."""
        return self.delivery is None or (self.mark is not None and (before is None or self.mark < before))


# Deliveries to endpoint $1 of the event e: position, and the mark of those that are dead or cancelled.
FIND: Final = """
SELECT e.position, e.type, e.channels, e.data IS NULL,
    coalesce(h.position, x.position, (SELECT d.position FROM delivery d
        WHERE d.position > e.position AND d.position <= e.position + e.fanout AND d.endpoint = $1)),
    coalesce(x.ended_mark, CASE WHEN h.status = 3 THEN h.ended_mark END)
FROM (SELECT * FROM event WHERE position > $2 AND position < $3 ORDER BY position LIMIT $4) e
    LEFT JOIN history h ON h.endpoint = $1 AND (h.day = -1 OR h.day = e.day)
        AND h.position > e.position AND h.position <= e.position + e.fanout
    LEFT JOIN dead_letter x ON x.endpoint = $1 AND x.position > e.position AND x.position <= e.position + e.fanout
WHERE e.tenant = $5 AND NOT starts_with(e.type, $6) ORDER BY e.position LIMIT $7
"""
FIND_LATE: Final = """
SELECT l.event, l.delivery, coalesce(x.ended_mark, CASE WHEN h.status = 3 THEN h.ended_mark END),
    coalesce(x.endpoint, h.endpoint, d.endpoint)
FROM late_delivery l LEFT JOIN delivery d ON d.position = l.delivery LEFT JOIN history h ON h.position = l.delivery
    LEFT JOIN dead_letter x ON x.position = l.delivery
WHERE l.event = ANY($1)
"""


def span_of(selector: JobSelector) -> tuple[int, int]:
    """Give the positions between which the events of a selector's span lie, both exclusive."""
    low = 0 if selector.since_ms is None else (selector.since_ms << 20) - 1
    high = (1 << 63) - 1 if selector.until_ms is None else selector.until_ms << 20
    return low, high


async def candidates(
    connection: Reader, endpoint: Endpoint, span: tuple[int, int], rows_max: int, scan_rows_max: int | None
) -> list[Candidate]:
    """Events of the endpoint's tenant inside the span, operational ones left out, with their delivery to it."""
    values = (endpoint.position, *span, scan_rows_max, endpoint.tenant, RESERVED_PREFIX, rows_max)
    found = [Candidate(*row) for row in await connection.fetch(FIND, *values)]
    missing = {one.event: one for one in found if one.delivery is None}
    if missing:
        for event, delivery, mark, owner in await connection.fetch(FIND_LATE, list(missing)):
            if owner == endpoint.position:
                missing[event].delivery, missing[event].mark = delivery, mark
    return found


def is_wanted(one: Candidate, endpoint: Endpoint, selector: JobSelector) -> bool:
    """Whether the endpoint's filter and the selector take the event."""
    channels = () if one.channels is None else _decode_channels(one.channels)
    types = selector.event_types
    return matches(endpoint.event_types, endpoint.channels, one.type, channels) and (
        types is None or any(pattern_matches(pattern, one.type) for pattern in types)
    )


async def count_recoverable(connection: Reader, endpoint: Endpoint | None, selector: JobSelector) -> int:
    """Deliveries to the endpoint that a recover job would make due, once it is enabled."""
    if endpoint is None:
        return 0
    count = 0
    low, high = span_of(selector)
    while found := await candidates(connection, endpoint, (low, high), _COUNT_ROWS, _NO_BOUND):
        low = found[-1].event
        count += sum(
            not one.expired and is_wanted(one, endpoint, selector) and one.is_unacknowledged(None) for one in found
        )
    return count


_COUNT_ROWS: Final = 1000
_QUICK_ROWS: Final = 200_000
_JOINED_ROWS: Final = 20_000
_NO_BOUND: Final = None
