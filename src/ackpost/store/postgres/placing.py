"""Rebuilding the order of an endpoint's pending rows after its policy changed (rule E4)."""

from __future__ import annotations

from typing import Final

from ackpost.core.model import Endpoint
from ackpost.core.policy import stored_policy
from ackpost.store.postgres.ledger import Ledger
from ackpost.store.postgres.moves import Change, key_ids
from ackpost.store.postgres.ordering import is_blocked, let_go
from ackpost.store.postgres.rows import lock_keys
from ackpost.store.values import TRIGGER_CODES, Hot

FOLLOWERS_MAX: Final = 64
"""How many rows behind one that takes its place are looked at. Those of its key further behind waited already.

Looking at all of them for each row would take time by the square of a key's backlog, and hold up every accept.
"""

MAKE_WAIT: Final = (
    "UPDATE delivery SET waiting = 1 WHERE waiting = 0 AND position = ANY (ARRAY(SELECT position FROM delivery"
    " WHERE endpoint = $1 AND key_id = $2 AND position - event_offset > $3 ORDER BY position - event_offset LIMIT $4))"
)


async def place(change: Change, hots: list[Hot], endpoint: Endpoint) -> None:
    """Give each row its place in the order, one after another: a row may block those placed before it."""
    ledger = change.ledger
    policy = stored_policy(endpoint.policy)
    keys = await key_ids(ledger, [hot.event for hot in hots])
    await lock_keys(ledger, keys.values())
    for hot in hots:
        key_id = keys.get(hot.event)
        is_waiting = await _is_waiting(ledger, hot)
        ordered = (
            policy.ordering == "by-key" and key_id is not None and hot.trigger != TRIGGER_CODES["test"]
            and (hot.round == 1 or policy.on_dead == "hold")
        )  # fmt: skip
        hot.key_id = key_id if ordered else None
        await ledger.execute("UPDATE delivery SET key_id = $1 WHERE position = $2", hot.key_id, hot.position)
        if ordered and await is_blocked(ledger, hot):
            await ledger.execute("UPDATE delivery SET waiting = 1 WHERE position = $1", hot.position)
        elif is_waiting:
            await let_go(ledger, [hot.position], change.now_ms)
            change.due.add(hot.position)
        if ordered:
            await ledger.execute(MAKE_WAIT, hot.endpoint, hot.key_id, hot.event, FOLLOWERS_MAX)


async def _is_waiting(ledger: Ledger, hot: Hot) -> bool:
    """Read it anew: a row placed before may have changed it."""
    row = await ledger.one("SELECT waiting FROM delivery WHERE position = $1", hot.position)
    return row is not None and bool(row[0])
