"""Dropping whole days (rule E14): what is still needed moves to day -1 in steps, then the day's partitions go.

Only the oldest day is closed. From its closing on, what is written about its events goes to day -1 at once; the rows of
an event therefore lie in its day or in day -1, never elsewhere.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import asyncpg

from ackpost.store.postgres.days import LOCK_DAYS, SELECT_DAYS, TABLES
from ackpost.store.postgres.ledger import DAY_MS, Ledger

BIG_BYTES: Final = 4 * 1024 * 1024
"""A day with less is emptied row by row: cheap, and nobody is locked out meanwhile."""

NEVER: Final = 1 << 40
"""A day that does not come."""

_DROP_LOCK_MS: Final = 250

_SIZES: Final = f"""
SELECT d.day, (SELECT sum(pg_total_relation_size(to_regclass(t || '_' || d.day))) FROM unnest($1::text[]) t)
FROM ({SELECT_DAYS}) d WHERE d.day <= $2 ORDER BY d.day
"""  # noqa: S608 - constants only
# Events of a day that a pending or a dead delivery needs. Deliveries made later stand in late_delivery.
NEEDED: Final = """
SELECT e.position, e.fanout FROM (
    SELECT position - event_offset AS event FROM delivery
        WHERE position >= $2 AND position < $3 AND position - event_offset >= $2
    UNION SELECT position - event_offset FROM dead_letter
        WHERE position >= $2 AND position < $3 AND position - event_offset >= $2
    UNION SELECT l.event FROM late_delivery l WHERE l.event >= $2 AND l.event < $3 AND (
        (SELECT 1 FROM delivery d WHERE d.position = l.delivery LIMIT 1) IS NOT NULL
        OR (SELECT 1 FROM dead_letter d WHERE d.position = l.delivery LIMIT 1) IS NOT NULL)
) n JOIN event e ON e.position = n.event AND e.day = $1
LIMIT $4
"""
_DELIVERIES: Final = """
SELECT h.position FROM event e JOIN history h
    ON h.day = $2 AND h.position > e.position AND h.position <= e.position + e.fanout
WHERE e.position = ANY($1)
UNION SELECT delivery FROM late_delivery WHERE event = ANY($1)
"""


_COUNTS: Final = "SELECT reltuples FROM pg_class WHERE oid IN (to_regclass($1), to_regclass($2)) ORDER BY relname"


_ORPHANED_HISTORY: Final = """
DELETE FROM history h WHERE h.day = -1 AND h.position - h.event_offset >= $1 AND h.position - h.event_offset < $2
AND NOT EXISTS (SELECT 1 FROM event e WHERE e.day = -1 AND e.position = h.position - h.event_offset)
"""
_ORPHANED_ATTEMPTS: Final = """
DELETE FROM attempt a WHERE a.day = -1 AND a.event >= $1 AND a.event < $2
AND NOT EXISTS (SELECT 1 FROM event e WHERE e.day = -1 AND e.position = a.event)
"""


class Closed(NamedTuple):
    """What left with a day; ``more`` when there is another step to do."""

    events: int = 0
    deliveries: int = 0
    more: bool = False


async def first_big_day(ledger: Ledger, before_ms: int) -> int:
    """Give the oldest day before a time that is to be dropped rather than emptied."""
    for day, size_bytes in await ledger.all(_SIZES, TABLES, before_ms // DAY_MS):
        if size_bytes >= BIG_BYTES:
            return int(day)
    return NEVER


async def close_oldest(ledger: Ledger, before_ms: int, rows_max: int, big_day: int) -> Closed:
    """Do a step to drop the oldest day, if all of it is older than ``before_ms``.

    A small one, which has been emptied, has time until the next round.
    """
    days = await ledger.all(SELECT_DAYS)
    if not days or (days[0][0] + 1) * DAY_MS > before_ms or days[0][0] >= ledger.newest_day:
        return Closed()
    day = days[0][0]
    is_big = day == big_day
    if ledger.oldest_day <= day:
        await ledger.execute("UPDATE meta SET oldest_day = greatest(oldest_day, $1)", day + 1)
        ledger.oldest_day = day + 1
    span = (day * DAY_MS << 20, (day + 1) * DAY_MS << 20)
    moved = await _keep(ledger, day, span, rows_max)
    forgotten = await _forget(ledger, day, span, rows_max)
    if moved == rows_max or forgotten:
        return Closed(more=is_big)
    await ledger.execute("SAVEPOINT dropping")
    try:
        closed = await _drop(ledger, day, span, is_big=is_big)
    except asyncpg.LockNotAvailableError:
        # Somebody reads long, or is in the middle of a change: the next round of retention tries again.
        await ledger.execute("ROLLBACK TO dropping")
        closed = Closed()
    await ledger.execute("RELEASE dropping")
    return closed


async def _keep(ledger: Ledger, day: int, span: tuple[int, int], rows_max: int) -> int:
    """Move events that are needed still, with all that is theirs, to day -1; give how many."""
    events = [row[0] for row in await ledger.all(NEEDED, day, *span, rows_max)]
    if events:
        ended = [row[0] for row in await ledger.all(_DELIVERIES, events, day)]
        await ledger.execute("UPDATE attempt SET day = -1 WHERE day = $1 AND event = ANY($2)", day, events)
        await ledger.execute("UPDATE history SET day = -1 WHERE day = $1 AND position = ANY($2)", day, ended)
        await ledger.execute("UPDATE event SET day = -1 WHERE day = $1 AND position = ANY($2)", day, events)
    return len(events)


async def _forget(ledger: Ledger, day: int, span: tuple[int, int], rows_max: int) -> bool:
    """Remove what lies in tables without days, uids and late deliveries; say whether there was any."""
    uids = await ledger.all(
        "SELECT position, tenant, uid FROM event WHERE day = $1 AND position > $2 AND uid IS NOT NULL"
        " ORDER BY position LIMIT $3",
        day, max(ledger.uids_looked_at, span[0] - 1), rows_max,
    )  # fmt: skip
    if uids:
        ledger.uids_looked_at = uids[-1][0]
        await ledger.execute(
            "DELETE FROM event_uid WHERE (tenant, uid, event) IN"
            " (SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[]))",
            [row[1] for row in uids], [row[2] for row in uids], [row[0] for row in uids],
        )  # fmt: skip
    late = await ledger.execute(
        "DELETE FROM late_delivery WHERE event = ANY (ARRAY(SELECT l.event FROM late_delivery l JOIN event e"
        " ON e.position = l.event AND e.day = $1 WHERE l.event >= $2 AND l.event < $3 LIMIT $4))",
        day, *span, rows_max,
    )  # fmt: skip
    return bool(uids) or late > 0


async def _drop(ledger: Ledger, day: int, span: tuple[int, int], *, is_big: bool) -> Closed:
    """Lock the day, look once more, drop it."""
    await ledger.one(LOCK_DAYS)
    await ledger.execute(f"SET LOCAL lock_timeout = {_DROP_LOCK_MS}")
    # Parents first: a statement that reads them waits here instead of between two of the partitions.
    await ledger.execute(f"LOCK TABLE {', '.join(TABLES)} IN ACCESS EXCLUSIVE MODE")
    if await ledger.one(NEEDED, day, *span, 1) is not None:
        return Closed(more=is_big)
    events, deliveries = (
        max(0, int(row[0]))
        for row in await ledger.all(
            _COUNTS, f"event_{day}", f"history_{day}"
        )
    )  # fmt: skip
    for table in TABLES:
        await ledger.execute(f"DROP TABLE {table}_{day}")
    # What was written about events of the day that ended while it was closed.
    await ledger.execute(_ORPHANED_HISTORY, *span)
    await ledger.execute(_ORPHANED_ATTEMPTS, *span)
    ledger.uids_looked_at = 0
    # What a small day had was counted when it left.
    return Closed(events, deliveries, more=True) if is_big else Closed()
