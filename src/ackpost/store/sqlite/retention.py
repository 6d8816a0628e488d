"""What leaves by age, in small steps that touch old rows only (rule E14)."""

from __future__ import annotations

from typing import Final

from ackpost.ports.operations import Retain, Retained
from ackpost.store.sqlite.ledger import Ledger, integers
from ackpost.store.sqlite.moves import Change
from ackpost.store.sqlite.ordering import release_holds

SCAN_ROWS_MAX: Final = 2_000
"""So many old rows a step looks at in vain, at most; the next one goes on behind them."""

_DELIVERIES_MAX: Final = 5_000
_VACUUM_PAGES: Final = 256
_VACUUM_SHARE: Final = 4

FREE_EVENTS: Final = """
SELECT e.position, e.fanout FROM (
    SELECT position, fanout FROM event WHERE position > ?1 AND position < ?2 ORDER BY position LIMIT ?3) e
WHERE NOT EXISTS (SELECT 1 FROM delivery d WHERE d.position > e.position AND d.position <= e.position + e.fanout)
    AND NOT EXISTS (SELECT 1 FROM dead_letter d WHERE d.position > e.position AND d.position <= e.position + e.fanout)
    AND NOT EXISTS (SELECT 1 FROM late_delivery l WHERE l.event = e.position AND (
        EXISTS (SELECT 1 FROM delivery d WHERE d.position = l.delivery)
        OR EXISTS (SELECT 1 FROM dead_letter d WHERE d.position = l.delivery)))
LIMIT ?4
"""
ENDED_OF_EVENTS: Final = """
SELECT h.position FROM event e CROSS JOIN history h ON h.position > e.position AND h.position <= e.position + e.fanout
WHERE e.position IN (SELECT value FROM carray(?1))
UNION ALL SELECT l.delivery FROM late_delivery l CROSS JOIN history h ON h.position = l.delivery
WHERE l.event IN (SELECT value FROM carray(?1))
"""
OLD_DEAD: Final = (
    "SELECT position FROM (SELECT position FROM dead_letter WHERE ended_ms < ? ORDER BY ended_ms LIMIT ?)"
    " ORDER BY position LIMIT ?"
)
OLD_KEYS: Final = """
SELECT k.id, k.last_sequence > 0 FROM (
    SELECT * FROM key_state WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3) k
WHERE k.last_event < ?2 AND (k.last_sequence > 0 OR NOT EXISTS (SELECT 1 FROM event e WHERE e.key_id = k.id))
ORDER BY k.last_sequence = 0, k.last_event >> 20, k.tenant, k.key LIMIT ?4
"""


def retain(ledger: Ledger, op: Retain) -> Retained:
    """Remove at most ``rows_max`` objects that are older than their cut-offs; nothing pending."""
    change = Change(ledger, op.now_ms)
    removed = dict.fromkeys(("idempotency", "keys", "jobs", "events", "deliveries"), 0)
    left = op.rows_max
    removed["idempotency"] = _remove_answers(ledger, op.idempotency_before_ms, left)
    left -= removed["idempotency"]
    removed["keys"], more_keys = _remove_keys(ledger, op.keys_before_ms << 20, left)
    left -= removed["keys"]
    dead_letters = _remove_dead(change, op.dead_before_ms, left)
    left -= dead_letters
    removed["jobs"] = _remove_jobs(ledger, op.events_before_ms, left)
    left -= removed["jobs"]
    removed["events"], removed["deliveries"], more_events = _remove_events(ledger, op.events_before_ms << 20, left)
    left -= removed["events"]
    change.settle()
    if dead_letters or removed["events"]:
        _give_back_space(ledger)
    return Retained(removed, dead_letters, more=left == 0 or more_keys or more_events)


def _remove_answers(ledger: Ledger, before_ms: int, rows_max: int) -> int:
    ledger.execute(
        "DELETE FROM idempotency WHERE id IN (SELECT id FROM (SELECT * FROM idempotency ORDER BY id LIMIT ?)"
        " WHERE created_ms < ? ORDER BY created_ms, tenant, key LIMIT ?)",
        (SCAN_ROWS_MAX, before_ms, rows_max),
    )
    return ledger.connection.changes()


def _remove_keys(ledger: Ledger, before: int, rows_max: int) -> tuple[int, bool]:
    """Forget keys whose last event was accepted before a position; say how many, and whether the scan was cut short.

    A row whose events are still there keeps their key's name, and counts from the beginning.
    """
    after = ledger.keys_looked_at
    sql = "SELECT id FROM key_state WHERE id > ? AND id < ? ORDER BY id LIMIT 1 OFFSET ?"
    last = ledger.one(sql, (after, before, SCAN_ROWS_MAX - 1))
    rows = ledger.all(OLD_KEYS, (after, before, SCAN_ROWS_MAX, rows_max))
    old = integers([row[0] for row in rows])
    ledger.execute(
        "DELETE FROM key_state WHERE id IN (SELECT value FROM carray(?))"
        " AND NOT EXISTS (SELECT 1 FROM event e WHERE e.key_id = key_state.id)",
        (old,),
    )
    ledger.execute("UPDATE key_state SET last_sequence = 0 WHERE id IN (SELECT value FROM carray(?))", (old,))
    if len(rows) == rows_max:
        return sum(row[1] for row in rows), False
    ledger.keys_looked_at = 0 if last is None else last[0]
    return sum(row[1] for row in rows), last is not None


def _remove_dead(change: Change, before_ms: int, rows_max: int) -> int:
    """Remove dead letters with their attempts; what they held may go."""
    ledger = change.ledger
    positions = [position for (position,) in ledger.all(OLD_DEAD, (before_ms, SCAN_ROWS_MAX, rows_max))]
    if positions:
        listed = integers(positions)
        change.keys |= release_holds(ledger, positions)
        ledger.execute(
            "DELETE FROM late_delivery WHERE (event, delivery) IN (SELECT position - event_offset, position"
            " FROM dead_letter WHERE position IN (SELECT value FROM carray(?)))",
            (listed,),
        )
        ledger.execute("DELETE FROM dead_letter WHERE position IN (SELECT value FROM carray(?))", (listed,))
        ledger.execute("DELETE FROM attempt WHERE delivery IN (SELECT value FROM carray(?))", (listed,))
    return len(positions)


def _remove_jobs(ledger: Ledger, before_ms: int, rows_max: int) -> int:
    ledger.execute(
        "DELETE FROM job WHERE position IN (SELECT position FROM job WHERE open = 0 AND position < ?"
        " AND json_extract(document, '$.finished_at_ms') < ? ORDER BY position LIMIT ?)",
        ((before_ms << 20) + (1 << 20), before_ms, rows_max),
    )
    return ledger.connection.changes()


def _remove_events(ledger: Ledger, before: int, rows_max: int) -> tuple[int, int, bool]:
    """Remove events that neither a pending nor a dead delivery needs, with all that is theirs.

    Gives events, deliveries, and whether the step ended before it knew of an end.
    """
    after = ledger.events_looked_at
    sql = "SELECT position FROM event WHERE position > ? AND position < ? ORDER BY position LIMIT 1 OFFSET ?"
    last = ledger.one(sql, (after, before, SCAN_ROWS_MAX - 1))
    rows = ledger.all(FREE_EVENTS, (after, before, SCAN_ROWS_MAX, rows_max))
    taken, fanout = 0, 0
    while taken < len(rows) and (not taken or fanout + rows[taken][1] <= _DELIVERIES_MAX):
        fanout += rows[taken][1]
        taken += 1
    deliveries = _remove_whole(ledger, [row[0] for row in rows[:taken]])
    if taken < len(rows) or len(rows) == rows_max:
        return taken, deliveries, taken < len(rows)
    ledger.events_looked_at = 0 if last is None else last[0]
    return taken, deliveries, last is not None


def _remove_whole(ledger: Ledger, events: list[int]) -> int:
    if not events:
        return 0
    listed = integers(events)
    ended = [position for (position,) in ledger.all(ENDED_OF_EVENTS, (listed,))]
    if ended:
        ledger.execute("DELETE FROM history WHERE position IN (SELECT value FROM carray(?))", (integers(ended),))
        ledger.execute("DELETE FROM attempt WHERE delivery IN (SELECT value FROM carray(?))", (integers(ended),))
    ledger.execute("DELETE FROM late_delivery WHERE event IN (SELECT value FROM carray(?))", (listed,))
    ledger.execute(
        "DELETE FROM event_uid WHERE (tenant, uid) IN (SELECT tenant, uid FROM event"
        " WHERE position IN (SELECT value FROM carray(?)) AND uid IS NOT NULL)",
        (listed,),
    )
    ledger.execute("DELETE FROM event WHERE position IN (SELECT value FROM carray(?))", (listed,))
    return len(ended)


def _give_back_space(ledger: Ledger) -> None:
    """Return a few free pages to the file system when a good part of the file is free: more is used again soon."""
    connection = ledger.connection
    if connection.pragma("freelist_count") * _VACUUM_SHARE > connection.pragma("page_count"):
        ledger.all(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
