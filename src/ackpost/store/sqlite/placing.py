"""Rebuilding the order of an endpoint's pending rows after its policy changed (rule E4)."""

from __future__ import annotations

from typing import Final

from ackpost.core.model import Endpoint
from ackpost.core.policy import stored_policy
from ackpost.store.sqlite.ledger import Ledger
from ackpost.store.sqlite.moves import Change, key_ids
from ackpost.store.sqlite.ordering import is_blocked, let_go
from ackpost.store.values import TRIGGER_CODES, Hot

FOLLOWERS_MAX: Final = 64
"""How many rows behind one that takes its place are looked at. Those of its key further behind waited already.

Looking at all of them for each row would take time by the square of a key's backlog, and hold up every accept.
"""

_MAKE_WAIT: Final = (
    "UPDATE delivery SET waiting = 1 WHERE waiting = 0 AND position IN (SELECT position FROM delivery"
    " WHERE endpoint = ? AND key_id = ? AND position - event_offset > ? ORDER BY position - event_offset LIMIT ?)"
)


def place(change: Change, hots: list[Hot], endpoint: Endpoint) -> None:
    """Give each row its place in the order, one after another: a row may block those placed before it."""
    ledger = change.ledger
    policy = stored_policy(endpoint.policy)
    keys = key_ids(ledger, [hot.event for hot in hots])
    for hot in hots:
        key_id = keys.get(hot.event)
        is_waiting = _is_waiting(ledger, hot)
        ordered = (
            policy.ordering == "by-key" and key_id is not None and hot.trigger != TRIGGER_CODES["test"]
            and (hot.round == 1 or policy.on_dead == "hold")
        )  # fmt: skip
        hot.key_id = key_id if ordered else None
        ledger.execute("UPDATE delivery SET key_id = ? WHERE position = ?", (hot.key_id, hot.position))
        if ordered and is_blocked(ledger, hot):
            ledger.execute("UPDATE delivery SET waiting = 1 WHERE position = ?", (hot.position,))
        elif is_waiting:
            let_go(ledger, [hot.position], change.now_ms)
            change.due.add(hot.position)
        if ordered:
            ledger.execute(_MAKE_WAIT, (hot.endpoint, hot.key_id, hot.event, FOLLOWERS_MAX))


def _is_waiting(ledger: Ledger, hot: Hot) -> bool:
    """Read it anew: a row placed before may have changed it."""
    row = ledger.one("SELECT waiting FROM delivery WHERE position = ?", (hot.position,))
    return row is not None and bool(row[0])
