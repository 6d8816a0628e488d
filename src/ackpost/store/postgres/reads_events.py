"""Reading events. Status and counts are computed from the deliveries where they lie (rule E15)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ackpost.core.ids import partition_of
from ackpost.core.model import Event
from ackpost.ports.store import EventFilter, Page
from ackpost.store.postgres.querying import Reader, Where, direction, frontier, is_short, rows_of

_COLUMNS: Final = (
    "e.position, e.tenant, e.type, e.uid, k.key, e.sequence, e.channels, e.occurred_at_ms, e.metadata, e.data IS NULL"
)
_JOIN_KEY: Final = "LEFT JOIN key_state k ON k.id = e.key_id"

# For each event of the list $1: how many of its deliveries lie where (1 delivered, 2 dead, 3 cancelled, 4 discarded).
COUNTS_SQL: Final = """
WITH asked AS MATERIALIZED (
    SELECT e.position, e.position + e.fanout AS last, e.day FROM event e
    WHERE e.position = ANY($1))
SELECT a.position, 0, count(*) FROM asked a JOIN delivery d
    ON d.position > a.position AND d.position <= a.last GROUP BY 1
UNION ALL SELECT a.position, 2, count(*) FROM asked a JOIN dead_letter d
    ON d.position > a.position AND d.position <= a.last GROUP BY 1
UNION ALL SELECT a.position, d.status, count(*) FROM asked a JOIN history d
    ON (d.day = -1 OR d.day = a.day) AND d.position > a.position AND d.position <= a.last GROUP BY 1, 2
UNION ALL SELECT a.position, 0, count(*) FROM asked a JOIN late_delivery l ON l.event = a.position
    JOIN delivery d ON d.position = l.delivery GROUP BY 1
UNION ALL SELECT a.position, 2, count(*) FROM asked a JOIN late_delivery l ON l.event = a.position
    JOIN dead_letter d ON d.position = l.delivery GROUP BY 1
UNION ALL SELECT a.position, d.status, count(*) FROM asked a JOIN late_delivery l ON l.event = a.position
    JOIN history d ON (d.day = -1 OR d.day = a.day) AND d.position = l.delivery GROUP BY 1, 2
"""
STATUS_NAMES: Final = ("pending", "delivered", "dead", "cancelled", "discarded")

HAS_DELIVERY_TO: Final = """(
    EXISTS (SELECT 1 FROM delivery d WHERE d.position > e.position AND d.position <= e.position + e.fanout
            AND d.endpoint = ?)
    OR EXISTS (SELECT 1 FROM history d WHERE d.endpoint = ? AND (d.day = -1 OR d.day = e.day)
               AND d.position > e.position AND d.position <= e.position + e.fanout)
    OR EXISTS (SELECT 1 FROM dead_letter d WHERE d.endpoint = ? AND d.position > e.position
               AND d.position <= e.position + e.fanout)
    OR EXISTS (SELECT 1 FROM late_delivery l WHERE l.event = e.position AND (
        (SELECT 1 FROM delivery d WHERE d.position = l.delivery AND d.endpoint = ? LIMIT 1) IS NOT NULL
        OR (SELECT 1 FROM history d WHERE d.position = l.delivery AND d.endpoint = ? LIMIT 1) IS NOT NULL
        OR (SELECT 1 FROM dead_letter d WHERE d.position = l.delivery AND d.endpoint = ? LIMIT 1) IS NOT NULL))
)"""

EVENTS_OF_ENDPOINT: Final = (
    "SELECT position - event_offset FROM history WHERE endpoint = ?"
    " UNION ALL SELECT position - event_offset FROM dead_letter WHERE endpoint = ?"
    " UNION ALL SELECT position - event_offset FROM delivery WHERE waiting = 0 AND partition = ? AND endpoint = ?"
    " UNION ALL SELECT position - event_offset FROM delivery WHERE waiting = 1 AND key_id IS NOT NULL AND endpoint = ?"
)

_CHUNK_ROWS: Final = 250

_decode_channels = msgspec.json.Decoder(tuple[str, ...]).decode


def _event(row: tuple[Any, ...], counts: dict[str, int], data: bytes | None = None) -> Event:
    position, tenant, type, uid, key, sequence, channels, occurred_at_ms, metadata, expired = row[:10]
    created_at_ms = position >> 20
    return Event(
        position=position, tenant=tenant, type=type, uid=uid, key=key, sequence=sequence,
        channels=() if channels is None else _decode_channels(channels),
        occurred_at_ms=created_at_ms if occurred_at_ms is None else occurred_at_ms, created_at_ms=created_at_ms,
        metadata=metadata, data=data, data_expired=bool(expired), delivery_counts=counts,
    )  # fmt: skip


async def delivery_counts(connection: Reader, events: list[int]) -> dict[int, dict[str, int]]:
    """Deliveries by status, for each event."""
    counts: dict[int, dict[str, int]] = {event: {} for event in events}
    if events:
        for event, status, count in await connection.fetch(COUNTS_SQL, events):
            named = counts[event]
            name = STATUS_NAMES[status]
            named[name] = named.get(name, 0) + count
    return counts


async def _one(connection: Reader, where: Where, tail: str = "") -> Event | None:
    sql = f"SELECT {_COLUMNS}, e.data FROM event e {_JOIN_KEY} WHERE {where.sql} {tail}"  # noqa: S608 - values are bound
    rows = await rows_of(connection, sql, where.values)
    if not rows:
        return None
    row = rows[0]
    return _event(row, (await delivery_counts(connection, [row[0]]))[row[0]], row[10])


async def event(connection: Reader, tenant: int | None, position: int) -> Event | None:
    """One event with data."""
    where = Where()
    where.add("e.position = ?", position)
    where.equal("e.tenant", tenant)
    return await _one(connection, where)


async def event_by_uid(connection: Reader, tenant: int, uid: str) -> int | None:
    """Position of the event with this uid."""
    rows = await rows_of(connection, "SELECT event FROM event_uid WHERE tenant = ? AND uid = ?", (tenant, uid))
    return rows[0][0] if rows else None


async def latest_event(connection: Reader, tenant: int, key: str, types: tuple[str, ...] | None) -> Event | None:
    """The newest event of a key."""
    where = Where()
    where.add("e.key_id = (SELECT id FROM key_state WHERE tenant = ? AND key = ?)", tenant, key)
    where.types("e.type", types)
    return await _one(connection, where, "ORDER BY e.position DESC LIMIT 1")


async def events(
    connection: Reader, tenant: int | None, wanted: EventFilter, page: Page, scan_rows_max: int
) -> tuple[list[Event], int | None]:
    """Events without data; the scan walks positions or a key's events, at most ``scan_rows_max`` of them."""
    scan, keep = Where(), Where()
    if wanted.key is not None and tenant is not None:
        scan.add("e.key_id = (SELECT id FROM key_state WHERE tenant = ? AND key = ?)", tenant, wanted.key)
    else:
        keep.equal("k.key", wanted.key)
    if wanted.uid is not None and tenant is not None:
        scan.add("e.position = (SELECT event FROM event_uid WHERE tenant = ? AND uid = ?)", tenant, wanted.uid)
    else:
        keep.equal("e.uid", wanted.uid)
    if wanted.endpoint is not None:
        # Few are listed by index, many are met on the way.
        one = wanted.endpoint
        values = (one, one, partition_of(one), one, one)
        if await is_short(connection, EVENTS_OF_ENDPOINT, values, scan_rows_max):
            scan.add(f"e.position IN ({EVENTS_OF_ENDPOINT})", *values)
        else:
            keep.add(HAS_DELIVERY_TO, *(wanted.endpoint,) * 6)
    scan.span("e.position", page)
    inner = f"FROM event e WHERE {scan.sql} ORDER BY e.position {direction(page)}"
    keep.equal("e.tenant", tenant)
    keep.types("e.type", wanted.types)
    if wanted.channel is not None:
        keep.add("? IN (SELECT json_array_elements_text(e.channels::json))", wanted.channel)
    sql = (
        f"SELECT {_COLUMNS} FROM (SELECT e.* {inner} LIMIT ?) e {_JOIN_KEY} WHERE {keep.sql}"  # noqa: S608 - values are bound
        f" ORDER BY e.position {direction(page)}"
    )
    bound = (*scan.values, scan_rows_max, *keep.values)
    found = await _with_status(connection, sql, bound, wanted.statuses, page.limit)
    cut = None
    if len(found) < page.limit:
        cut = await frontier(connection, f"SELECT e.position {inner}", scan.values, scan_rows_max)
    return found, cut


async def _with_status(
    connection: Reader, sql: str, values: tuple[Any, ...], statuses: tuple[str, ...] | None, limit: int
) -> list[Event]:
    """Take rows until the page is full of events with a wanted status; statuses are computed a chunk at a time."""
    if statuses is None:
        rows = await rows_of(connection, f"{sql} LIMIT ?", (*values, limit))
        counts = await delivery_counts(connection, [row[0] for row in rows])
        return [_event(row, counts[row[0]]) for row in rows]
    found: list[Event] = []
    offset = 0
    while len(found) < limit:
        chunk = await rows_of(connection, f"{sql} LIMIT ? OFFSET ?", (*values, _CHUNK_ROWS, offset))
        counts = await delivery_counts(connection, [row[0] for row in chunk])
        events = (_event(row, counts[row[0]]) for row in chunk)
        found += [event for event in events if event.status in statuses]
        if len(chunk) < _CHUNK_ROWS:
            break
        offset += _CHUNK_ROWS
    return found[:limit]
