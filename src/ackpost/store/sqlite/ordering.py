"""Order by key (rule E4): who waits, who is next, what holds a key.

The order is that of the events. A row with a ``key_id`` takes part in it; a row waits while a pending or a held row of
an earlier event of its key stands before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from ackpost.store.sqlite.ledger import Insert, Ledger, integers
from ackpost.store.values import Hot

Pair = tuple[int, int]
"""An endpoint and one of its keys."""

_encode = msgspec.json.Encoder().encode

_insert_hold = Insert("key_hold", "endpoint, key_id, delivery, event", "ON CONFLICT DO NOTHING")

SELECT_NEXT: Final = (
    "SELECT d.position FROM json_each(?) j CROSS JOIN delivery d ON d.position ="
    " (SELECT n.position FROM delivery n WHERE n.endpoint = j.value ->> 0 AND n.key_id = j.value ->> 1"
    " ORDER BY n.position - n.event_offset LIMIT 1)"
    " WHERE d.waiting = 1 AND NOT EXISTS (SELECT 1 FROM key_hold h WHERE h.endpoint = d.endpoint"
    " AND h.key_id = d.key_id AND h.event < d.position - d.event_offset)"
)
LET_GO: Final = (
    "UPDATE delivery SET waiting = 0, due_ms = ?1, age_start_ms = ifnull((SELECT ifnull(e.paused_since_ms, ?1)"
    " - e.paused_total_ms FROM endpoint e WHERE e.position = delivery.endpoint), ?1)"
    " WHERE position IN (SELECT value FROM carray(?2))"
)
IS_BLOCKED: Final = (
    "SELECT EXISTS (SELECT 1 FROM delivery WHERE endpoint = ?1 AND key_id = ?2 AND position - event_offset < ?3)"
    " OR EXISTS (SELECT 1 FROM key_hold WHERE endpoint = ?1 AND key_id = ?2 AND event < ?3)"
)


def promote_next(ledger: Ledger, keys: Iterable[Pair], now_ms: int) -> list[int]:
    """Let the first waiting row of each key go, unless it is blocked; give the rows."""
    pairs = sorted(keys)
    if not pairs:
        return []
    found = [position for (position,) in ledger.all(SELECT_NEXT, (_encode(pairs).decode(),))]
    let_go(ledger, found, now_ms)
    return found


def let_go(ledger: Ledger, positions: list[int], now_ms: int) -> None:
    """End the waiting of these rows: they are first due now."""
    if positions:
        ledger.execute(LET_GO, (now_ms, integers(positions)))


def is_blocked(ledger: Ledger, hot: Hot) -> bool:
    """Whether a pending or held one of its key comes before this row."""
    if hot.key_id is None:
        return False
    row = ledger.one(IS_BLOCKED, (hot.endpoint, hot.key_id, hot.event))
    return row is not None and bool(row[0])


def store_holds(ledger: Ledger, hots: list[Hot]) -> None:
    """Let the keys of these rows, which have just died, stand still."""
    rows = [(hot.endpoint, hot.key_id, hot.position, hot.event) for hot in hots if hot.key_id is not None]
    _insert_hold.rows(ledger.connection, rows)


def release_holds(ledger: Ledger, deliveries: Iterable[int]) -> set[Pair]:
    """Remove what these deliveries hold; give the keys."""
    wanted = list(deliveries)
    if not wanted:
        return set()
    sql = "DELETE FROM key_hold WHERE delivery IN (SELECT value FROM carray(?)) RETURNING endpoint, key_id"
    return set(ledger.all(sql, (integers(wanted),)))


def drop_holds(ledger: Ledger, endpoint: int) -> set[Pair]:
    """Remove all holds on an endpoint's keys; give the keys."""
    return set(ledger.all("DELETE FROM key_hold WHERE endpoint = ? RETURNING endpoint, key_id", (endpoint,)))
