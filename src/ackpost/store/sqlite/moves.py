"""The moves that changes of deliveries are made of: end, begin a new round, add what was missing.

Set-wise: a step of a job moves hundreds of rows with a handful of statements.
"""

from __future__ import annotations

from typing import Any, Final

from ackpost.core.decision import Announcement
from ackpost.core.ids import ENDPOINT, public_id
from ackpost.core.model import REPLAY, DeliveryRef, Endpoint, Trigger
from ackpost.core.policy import stored_policy
from ackpost.store.sqlite.ledger import Insert, Ledger, integers
from ackpost.store.sqlite.ordering import Pair, is_blocked, promote_next, release_holds, store_holds
from ackpost.store.sqlite.rows import delete_hot, insert_dead, insert_ended, load_endpoint, load_hot, store_hot
from ackpost.store.values import CANCELLED, DISCARDED, TRIGGER_CODES, Ended, Hot

_insert_late = Insert("late_delivery", "event, delivery")

_NO_ATTEMPT: Final = (None, None, None, None, None)
_KEEP_INLINE: Final = (
    "INSERT INTO attempt (position, delivery, round, number, event, tenant, endpoint, trigger, code, status_code,"
    " started_ms, duration_ms, detail, body) SELECT attempt_position, position, round, number, position - event_offset,"
    " tenant, endpoint, trigger, code, status_code, started_ms, duration_ms, detail, body FROM history"
    " WHERE position IN (SELECT value FROM carray(?)) AND attempt_position IS NOT NULL ON CONFLICT DO NOTHING"
)


ENDED_COLUMNS: Final = ", ".join(Ended.__struct_fields__[:-1])
_SELECT_ENDED: Final = (
    f"SELECT {ENDED_COLUMNS}, status FROM history WHERE position IN (SELECT value FROM carray(?1))"  # noqa: S608 - constants only
    f" UNION ALL SELECT {ENDED_COLUMNS}, NULL FROM dead_letter WHERE position IN (SELECT value FROM carray(?1))"
)


class Change:
    """What one operation did beyond its result: endpoints whose lanes must look again, rows that may be due."""

    __slots__ = ("announced", "due", "keys", "ledger", "now_ms", "touched")

    def __init__(self, ledger: Ledger, now_ms: int) -> None:
        self.ledger = ledger
        self.now_ms = now_ms
        self.touched: set[int] = set()
        self.due: set[int] = set()
        self.announced: list[DeliveryRef] = []
        self.keys: set[Pair] = set()

    def settle(self) -> None:
        """Let go what waited behind rows that ended."""
        self.due.update(promote_next(self.ledger, self.keys, self.now_ms))
        self.keys.clear()

    def refs(self) -> list[DeliveryRef]:
        """Rows now due-able, by position; announced ones with their payload."""
        refs = [hot.ref() for hot in load_hot(self.ledger, sorted(self.due)).values() if not hot.waiting]
        return sorted(refs + self.announced, key=lambda ref: ref.position)


def load_ended(ledger: Ledger, positions: list[int]) -> dict[int, Ended]:
    """Give the ended ones of these deliveries, whatever they ended as."""
    if not positions:
        return {}
    return {row[0]: Ended(*row) for row in ledger.execute(_SELECT_ENDED, (integers(positions),))}


def open_endpoints(ledger: Ledger, positions: set[int]) -> dict[int, Endpoint]:
    """Give those of the endpoints that exist and are not disabled."""
    found = ((position, load_endpoint(ledger, position)) for position in sorted(positions))
    return {position: one for position, one in found if one is not None and one.state != "disabled"}


def raise_revs(ledger: Ledger, endpoints: set[int]) -> None:
    """Tell the endpoints' owner that somebody else changed something (rule E2)."""
    if endpoints:
        sql = "UPDATE endpoint SET rev = rev + 1 WHERE position IN (SELECT value FROM carray(?))"
        ledger.execute(sql, (integers(sorted(endpoints)),))


def end_pending(change: Change, hots: list[Hot], status: int | None, reason: str | None, *, hold: bool = False) -> None:
    """End pending rows without an attempt: ``status`` as in the history, None: dead (``hold``: keys stand still)."""
    ledger = change.ledger
    delete_hot(ledger, [hot.position for hot in hots])
    rows: list[Any] = []
    for hot in hots:
        head = (hot.position, hot.event_offset, hot.tenant, hot.endpoint, change.now_ms, ledger.last_position)
        tail = (reason, hot.trigger, hot.round, hot.number, hot.code, hot.status_code)
        rows.append((*head, *tail) if status is None else (*head, status, *tail, *_NO_ATTEMPT))
    (insert_dead if status is None else insert_ended).rows(ledger.connection, rows)
    if status is None and hold:
        store_holds(ledger, hots)
    if status is not None:
        change.keys |= release_holds(ledger, [hot.position for hot in hots if hot.round > 1])
    change.keys.update((hot.endpoint, hot.key_id) for hot in hots if hot.key_id is not None)


def end_dead(change: Change, hots: list[Hot], reason: str) -> None:
    """End pending rows as dead by the store's own doing: they hold their keys where the policy says so."""
    by_endpoint: dict[int, list[Hot]] = {}
    for hot in hots:
        by_endpoint.setdefault(hot.endpoint, []).append(hot)
    for position, group in by_endpoint.items():
        endpoint = load_endpoint(change.ledger, position)
        end_pending(change, group, None, reason, hold=endpoint is not None and holds_keys(endpoint))


def discard_dead(change: Change, dead: list[Ended]) -> None:
    """Turn dead letters into discarded deliveries; they keep their reason."""
    ledger, positions = change.ledger, [one.position for one in dead]
    ledger.execute("DELETE FROM dead_letter WHERE position IN (SELECT value FROM carray(?))", (integers(positions),))
    insert_ended.rows(
        ledger.connection,
        [
            (one.position, one.event_offset, one.tenant, one.endpoint, change.now_ms, ledger.last_position, DISCARDED,
             one.reason, one.trigger, one.round, one.number, one.code, one.status_code, *_NO_ATTEMPT)
            for one in dead
        ],
    )  # fmt: skip
    change.keys |= release_holds(ledger, positions)


def cancel_pending(change: Change, hots: list[Hot], reason: str | None) -> None:
    """End pending rows as cancelled."""
    end_pending(change, hots, CANCELLED, reason)


def revive(change: Change, ended: list[Ended], endpoints: dict[int, Endpoint], trigger: Trigger) -> None:
    """Begin a new round of ended rows with what their endpoints are now."""
    ledger, positions = change.ledger, integers([one.position for one in ended])
    keys = key_ids(ledger, [one.event for one in ended if holds_keys(endpoints[one.endpoint])])
    ledger.execute(_KEEP_INLINE, (positions,))
    ledger.execute("DELETE FROM history WHERE position IN (SELECT value FROM carray(?))", (positions,))
    ledger.execute("DELETE FROM dead_letter WHERE position IN (SELECT value FROM carray(?))", (positions,))
    hots: list[Hot] = []
    for one in ended:
        endpoint = endpoints[one.endpoint]
        hots.append(Hot(
            one.position, one.event_offset, one.tenant, one.endpoint, endpoint.rev, change.now_ms,
            endpoint.clock_ms(change.now_ms), endpoint.pin, TRIGGER_CODES[trigger],
            keys.get(one.event) if holds_keys(endpoint) else None, 0, REPLAY, one.round + 1, one.number, 0, 0,
            one.code, one.status_code,
        ))  # fmt: skip
    _enter(change, hots)


def add_missing(change: Change, events: list[int], tenant: int, endpoint: Endpoint, trigger: Trigger) -> list[int]:
    """Make the deliveries that these events never had to an endpoint; give their positions."""
    ledger, now_ms = change.ledger, change.now_ms
    keys = key_ids(ledger, events) if is_by_key(endpoint) else {}
    first = ledger.allocate(len(events), now_ms)
    hots = [
        Hot(position, position - event, tenant, endpoint.position, endpoint.rev, now_ms, endpoint.clock_ms(now_ms),
            endpoint.pin, TRIGGER_CODES[trigger], keys.get(event), 0, REPLAY, 1, 0, 0, 0)
        for position, event in enumerate(events, start=first)
    ]  # fmt: skip
    _insert_late.rows(ledger.connection, [(hot.event, hot.position) for hot in hots])
    _enter(change, hots)
    return [hot.position for hot in hots]


def _enter(change: Change, hots: list[Hot]) -> None:
    """Take rows into the backlog; ordered ones one by one, because each may be blocked by the one before."""
    store_hot(change.ledger, [hot for hot in hots if hot.key_id is None])
    for hot in hots:
        if hot.key_id is not None:
            hot.waiting = int(is_blocked(change.ledger, hot))
            store_hot(change.ledger, [hot])
    change.due.update(hot.position for hot in hots)


def key_ids(ledger: Ledger, events: list[int]) -> dict[int, int]:
    """Give the keys of those of these events that have one."""
    if not events:
        return {}
    sql = "SELECT position, key_id FROM event WHERE position IN (SELECT value FROM carray(?)) AND key_id IS NOT NULL"
    return dict(ledger.all(sql, (integers(events),)))


def is_by_key(endpoint: Endpoint) -> bool:
    """Say whether the endpoint gets the events of a key in order."""
    return stored_policy(endpoint.policy).ordering == "by-key"


def holds_keys(endpoint: Endpoint) -> bool:
    """Say whether a dead delivery holds its key."""
    policy = stored_policy(endpoint.policy)
    return policy.ordering == "by-key" and policy.on_dead == "hold"


def death_notice(ledger: Ledger, tenant: int, endpoint: int, reason: str, count: int) -> tuple[int, Announcement]:
    """Tell of what the store ended itself: one event with a count."""
    data = {"endpoint_id": public_id(ENDPOINT, endpoint, ledger.salt), "reason": reason, "count": count}
    return tenant, Announcement("ackpost.delivery.dead", endpoint, data)
