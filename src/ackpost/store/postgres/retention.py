"""What leaves by age, in small steps that touch old rows only (rule E14).

Events of a day with little in it leave one by one. A day with much is dropped whole, once all of it is old
(``closing``).
"""

from __future__ import annotations

from typing import Final

from ackpost.ports.operations import Retain, Retained
from ackpost.store.postgres.closing import close_oldest, first_big_day
from ackpost.store.postgres.days import make_days
from ackpost.store.postgres.ledger import DAY_MS, Ledger
from ackpost.store.postgres.moves import DELETE_DEAD, DELETE_HISTORY, Change
from ackpost.store.postgres.ordering import release_holds

SCAN_ROWS_MAX: Final = 2_000
"""So many old rows a step looks at in vain, at most; the next one goes on behind them."""

_DELIVERIES_MAX: Final = 5_000

FREE_EVENTS: Final = """
SELECT e.position, e.fanout FROM (
    SELECT position, fanout FROM event WHERE position > $1 AND position < $2 ORDER BY position LIMIT $3) e
WHERE NOT EXISTS (SELECT 1 FROM delivery d WHERE d.position > e.position AND d.position <= e.position + e.fanout)
    AND NOT EXISTS (SELECT 1 FROM dead_letter d WHERE d.position > e.position AND d.position <= e.position + e.fanout)
    AND NOT EXISTS (SELECT 1 FROM late_delivery l WHERE l.event = e.position AND (
        (SELECT 1 FROM delivery d WHERE d.position = l.delivery LIMIT 1) IS NOT NULL
        OR (SELECT 1 FROM dead_letter d WHERE d.position = l.delivery LIMIT 1) IS NOT NULL))
ORDER BY e.position LIMIT $4
"""
ENDED_OF_EVENTS: Final = """
SELECT h.position FROM event e JOIN history h
    ON (h.day = -1 OR h.day = e.day) AND h.position > e.position AND h.position <= e.position + e.fanout
WHERE e.position = ANY($1)
UNION ALL SELECT l.delivery FROM late_delivery l JOIN history h ON h.position = l.delivery WHERE l.event = ANY($1)
"""
OLD_DEAD: Final = (
    "SELECT position FROM (SELECT position FROM dead_letter WHERE ended_ms < $1 ORDER BY ended_ms LIMIT $2) d"
    " ORDER BY position LIMIT $3"
)
OLD_KEYS: Final = """
SELECT k.id, k.last_sequence > 0 FROM (
    SELECT * FROM key_state WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3) k
WHERE k.last_event < $2 AND (k.last_sequence > 0 OR NOT EXISTS (SELECT 1 FROM event e WHERE e.key_id = k.id))
ORDER BY k.last_sequence = 0, k.last_event >> 20, k.tenant, k.key LIMIT $4
"""
OLD_ANSWERS: Final = """
DELETE FROM idempotency WHERE (tenant, key) IN (SELECT tenant, key FROM idempotency WHERE created_ms < $1
    ORDER BY created_ms, tenant, key LIMIT $2)
"""
OLD_JOBS: Final = """
DELETE FROM job WHERE position = ANY (ARRAY(SELECT position FROM job
    WHERE NOT open AND position < $1 AND finished_ms < $2 ORDER BY position LIMIT $3))
"""


async def retain(ledger: Ledger, op: Retain) -> Retained:
    """Remove at most ``rows_max`` objects that are older than their cut-offs; nothing pending."""
    change = Change(ledger, op.now_ms)
    removed = dict.fromkeys(("idempotency", "keys", "jobs", "events", "deliveries"), 0)
    left = op.rows_max
    removed["idempotency"] = await ledger.execute(OLD_ANSWERS, op.idempotency_before_ms, left)
    left -= removed["idempotency"]
    removed["keys"], more_keys = await _remove_keys(ledger, op.keys_before_ms << 20, left)
    left -= removed["keys"]
    dead_letters = await _remove_dead(change, op.dead_before_ms, left)
    left -= dead_letters
    jobs_before = (op.events_before_ms << 20) + (1 << 20)
    removed["jobs"] = await ledger.execute(OLD_JOBS, jobs_before, op.events_before_ms, left)
    left -= removed["jobs"]
    big_day = await first_big_day(ledger, op.events_before_ms)
    before = min(op.events_before_ms, big_day * DAY_MS) << 20
    removed["events"], removed["deliveries"], more_events = await _remove_events(ledger, before, left)
    left -= removed["events"]
    await change.settle()
    # Behind the rows, as accepts do it: both lock keys before they lock the days.
    await make_days(ledger, max(ledger.newest_day, op.now_ms // DAY_MS))
    more = left == 0 or more_keys or more_events
    if not more:
        closed = await close_oldest(ledger, op.events_before_ms, op.rows_max, big_day)
        removed["events"] += closed.events
        removed["deliveries"] += closed.deliveries
        more = closed.more
    return Retained(removed, dead_letters, more=more)


async def _remove_keys(ledger: Ledger, before: int, rows_max: int) -> tuple[int, bool]:
    """Forget keys whose last event was accepted before a position; say how many, and whether the scan was cut short.

    A row whose events are still there keeps their key's name, and counts from the beginning.
    """
    after = ledger.keys_looked_at
    sql = "SELECT id FROM key_state WHERE id > $1 AND id < $2 ORDER BY id LIMIT 1 OFFSET $3"
    last = await ledger.one(sql, after, before, SCAN_ROWS_MAX - 1)
    rows = await ledger.all(OLD_KEYS, after, before, SCAN_ROWS_MAX, rows_max)
    old = sorted(row[0] for row in rows)
    if old:
        await ledger.execute(
            "DELETE FROM key_state WHERE id = ANY($1) AND last_event < $2"
            " AND NOT EXISTS (SELECT 1 FROM event e WHERE e.key_id = key_state.id)",
            old, before,
        )  # fmt: skip
        sql = "UPDATE key_state SET last_sequence = 0 WHERE id = ANY($1) AND last_event < $2"
        await ledger.execute(sql, old, before)
    if len(rows) == rows_max:
        return sum(row[1] for row in rows), False
    ledger.keys_looked_at = 0 if last is None else last[0]
    return sum(row[1] for row in rows), last is not None


async def _remove_dead(change: Change, before_ms: int, rows_max: int) -> int:
    """Remove dead letters with their attempts; what they held may go."""
    ledger = change.ledger
    positions = [row[0] for row in await ledger.all(OLD_DEAD, before_ms, SCAN_ROWS_MAX, rows_max)]
    if positions:
        change.keys |= await release_holds(ledger, positions)
        await ledger.execute(
            "DELETE FROM late_delivery WHERE (event, delivery) IN (SELECT position - event_offset, position"
            " FROM dead_letter WHERE position = ANY($1))",
            positions,
        )
        await ledger.execute(DELETE_DEAD, positions)
        await ledger.execute("DELETE FROM attempt WHERE delivery = ANY($1)", positions)
    return len(positions)


async def _remove_events(ledger: Ledger, before: int, rows_max: int) -> tuple[int, int, bool]:
    """Remove events that neither a pending nor a dead delivery needs, with all that is theirs.

    Gives events, deliveries, and whether the step ended before it knew of an end.
    """
    after = ledger.events_looked_at
    sql = "SELECT position FROM event WHERE position > $1 AND position < $2 ORDER BY position LIMIT 1 OFFSET $3"
    last = await ledger.one(sql, after, before, SCAN_ROWS_MAX - 1)
    rows = await ledger.all(FREE_EVENTS, after, before, SCAN_ROWS_MAX, rows_max)
    taken, fanout = 0, 0
    while taken < len(rows) and (not taken or fanout + rows[taken][1] <= _DELIVERIES_MAX):
        fanout += rows[taken][1]
        taken += 1
    deliveries = await _remove_whole(ledger, [row[0] for row in rows[:taken]])
    if taken < len(rows) or len(rows) == rows_max:
        return taken, deliveries, taken < len(rows)
    ledger.events_looked_at = 0 if last is None else last[0]
    return taken, deliveries, last is not None


async def _remove_whole(ledger: Ledger, events: list[int]) -> int:
    if not events:
        return 0
    ended = [row[0] for row in await ledger.all(ENDED_OF_EVENTS, events)]
    if ended:
        await ledger.execute(DELETE_HISTORY, ended)
        await ledger.execute("DELETE FROM attempt WHERE delivery = ANY($1)", ended)
    await ledger.execute("DELETE FROM late_delivery WHERE event = ANY($1)", events)
    await ledger.execute(
        "DELETE FROM event_uid WHERE (tenant, uid) IN (SELECT tenant, uid FROM event"
        " WHERE position = ANY($1) AND uid IS NOT NULL)",
        events,
    )
    await ledger.execute("DELETE FROM event WHERE position = ANY($1)", events)
    return len(ended)
