"""Order by key (rule E4): who waits, who is next, what holds a key.

The order is that of the events. A row with a ``key_id`` takes part in it; a row waits while a pending or a held row of
an earlier event of its key stands before it. Whoever lets rows of a key end or begin locks the key first and looks in
a later statement, which then sees what the one before it left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ackpost.store.postgres.ledger import Insert, Ledger
from ackpost.store.postgres.rows import lock_keys
from ackpost.store.values import Hot

Pair = tuple[int, int]
"""An endpoint and one of its keys."""

_insert_hold = Insert(
    "key_hold", "endpoint bigint, key_id bigint, delivery bigint, tenant bigint, event bigint", "ON CONFLICT DO NOTHING"
)

SELECT_NEXT: Final = """
SELECT d.position FROM unnest($1::bigint[], $2::bigint[]) j (endpoint, key_id) CROSS JOIN LATERAL (
    SELECT n.position, n.waiting, n.position - n.event_offset AS event FROM delivery n
    WHERE n.endpoint = j.endpoint AND n.key_id = j.key_id ORDER BY n.position - n.event_offset LIMIT 1) d
WHERE d.waiting = 1 AND NOT EXISTS (SELECT 1 FROM key_hold h
    WHERE h.endpoint = j.endpoint AND h.key_id = j.key_id AND h.event < d.event)
"""
LET_GO: Final = """
UPDATE delivery SET waiting = 0, due_ms = $1, age_start_ms = coalesce(
    (SELECT coalesce(e.paused_since_ms, $1) - e.paused_total_ms FROM endpoint e WHERE e.position = delivery.endpoint),
    $1)
WHERE position = ANY($2)
"""
IS_BLOCKED: Final = (
    "SELECT EXISTS (SELECT 1 FROM delivery WHERE endpoint = $1 AND key_id = $2 AND position - event_offset < $3)"
    " OR EXISTS (SELECT 1 FROM key_hold WHERE endpoint = $1 AND key_id = $2 AND event < $3)"
)
RELEASE_HOLDS: Final = "DELETE FROM key_hold WHERE delivery = ANY($1) RETURNING endpoint, key_id"


async def promote_next(ledger: Ledger, keys: Iterable[Pair], now_ms: int) -> list[int]:
    """Let the first waiting row of each key go, unless it is blocked; give the rows."""
    pairs = sorted(keys)
    if not pairs:
        return []
    await lock_keys(ledger, [key for _, key in pairs])
    found = [row[0] for row in await ledger.all(SELECT_NEXT, *zip(*pairs, strict=True))]
    await let_go(ledger, found, now_ms)
    return found


async def let_go(ledger: Ledger, positions: Sequence[int], now_ms: int) -> None:
    """End the waiting of these rows: they are first due now."""
    if positions:
        await ledger.execute(LET_GO, now_ms, positions)


async def is_blocked(ledger: Ledger, hot: Hot) -> bool:
    """Whether a pending or held one of its key comes before this row."""
    if hot.key_id is None:
        return False
    row = await ledger.one(IS_BLOCKED, hot.endpoint, hot.key_id, hot.event)
    return row is not None and bool(row[0])


async def store_holds(ledger: Ledger, hots: Iterable[Hot]) -> None:
    """Let the keys of these rows, which have just died, stand still."""
    rows = [(hot.endpoint, hot.key_id, hot.position, hot.tenant, hot.event) for hot in hots if hot.key_id is not None]
    await _insert_hold.rows(ledger, rows)


async def release_holds(ledger: Ledger, deliveries: Iterable[int]) -> set[Pair]:
    """Remove what these deliveries hold; give the keys."""
    wanted = list(deliveries)
    if not wanted:
        return set()
    return {(row[0], row[1]) for row in await ledger.all(RELEASE_HOLDS, wanted)}


async def drop_holds(ledger: Ledger, endpoint: int) -> set[Pair]:
    """Remove all holds on an endpoint's keys; give the keys."""
    sql = "DELETE FROM key_hold WHERE endpoint = $1 RETURNING endpoint, key_id"
    return {(row[0], row[1]) for row in await ledger.all(sql, endpoint)}
