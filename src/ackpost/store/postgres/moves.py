"""The moves that changes of deliveries are made of: end, begin a new round, add what was missing.

Set-wise: a step of a job moves hundreds of rows with a handful of statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ackpost.core.decision import Announcement
from ackpost.core.ids import ENDPOINT, public_id
from ackpost.core.model import REPLAY, DeliveryRef, Endpoint, Trigger
from ackpost.core.policy import stored_policy
from ackpost.store.postgres.ledger import Insert, Ledger
from ackpost.store.postgres.ordering import Pair, is_blocked, promote_next, release_holds, store_holds
from ackpost.store.postgres.rows import (
    NO_ATTEMPT,
    delete_hot,
    insert_dead,
    insert_ended,
    load_endpoints,
    lock_keys,
    read_hot,
    store_hot,
)
from ackpost.store.values import CANCELLED, DISCARDED, TRIGGER_CODES, Ended, Hot

_insert_late = Insert("late_delivery", "event bigint, delivery bigint, tenant bigint")

KEEP_INLINE: Final = (
    "INSERT INTO attempt (position, delivery, day, round, number, event, tenant, endpoint, trigger, code, status_code,"
    " started_ms, duration_ms, detail, body) SELECT attempt_position, position, day, round, number,"
    " position - event_offset, tenant, endpoint, trigger, code, status_code, started_ms, duration_ms, detail, body"
    " FROM history WHERE position = ANY($1) AND attempt_position IS NOT NULL ON CONFLICT DO NOTHING"
)
DELETE_HISTORY: Final = "DELETE FROM history WHERE position = ANY($1)"
DELETE_DEAD: Final = "DELETE FROM dead_letter WHERE position = ANY($1)"
KEYS_OF_EVENTS: Final = "SELECT position, key_id FROM event WHERE position = ANY($1) AND key_id IS NOT NULL"


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

    async def settle(self) -> None:
        """Let go what waited behind rows that ended."""
        self.due.update(await promote_next(self.ledger, self.keys, self.now_ms))
        self.keys.clear()

    async def refs(self) -> list[DeliveryRef]:
        """Rows now due-able, by position; announced ones with their payload."""
        refs = [hot.ref() for hot in (await read_hot(self.ledger, sorted(self.due))).values() if not hot.waiting]
        return sorted(refs + self.announced, key=lambda ref: ref.position)


async def open_endpoints(ledger: Ledger, positions: set[int]) -> dict[int, Endpoint]:
    """Give those of the endpoints that exist and are not disabled."""
    found = await load_endpoints(ledger, positions)
    return {position: one for position, one in found.items() if one.state != "disabled"}


async def raise_revs(ledger: Ledger, endpoints: set[int]) -> None:
    """Tell the endpoints' owner that somebody else changed something (rule E2)."""
    if endpoints:
        await ledger.execute("UPDATE endpoint SET rev = rev + 1 WHERE position = ANY($1)", sorted(endpoints))


async def end_pending(
    change: Change, hots: Sequence[Hot], status: int | None, reason: str | None, *, hold: bool = False
) -> None:
    """End pending rows without an attempt: ``status`` as in the history, None: dead (``hold``: keys stand still)."""
    ledger = change.ledger
    await delete_hot(ledger, [hot.position for hot in hots])
    end = (change.now_ms, ledger.end_mark)
    if status is None:
        await insert_dead.rows(ledger, [
            (hot.position, hot.event_offset, hot.tenant, hot.endpoint, *end, reason, hot.trigger, hot.round, hot.number,
             hot.code, hot.status_code)
            for hot in hots
        ])  # fmt: skip
        if hold:
            await store_holds(ledger, hots)
    else:
        await insert_ended.rows(ledger, [
            (hot.position, ledger.day_of(hot.event), hot.event_offset, hot.tenant, hot.endpoint, *end, status, reason,
             hot.trigger, hot.round, hot.number, hot.code, hot.status_code, *NO_ATTEMPT)
            for hot in hots
        ])  # fmt: skip
        change.keys |= await release_holds(ledger, [hot.position for hot in hots if hot.round > 1])
    change.keys.update((hot.endpoint, hot.key_id) for hot in hots if hot.key_id is not None)


async def end_dead(change: Change, hots: Sequence[Hot], reason: str) -> None:
    """End pending rows as dead by the store's own doing: they hold their keys where the policy says so."""
    endpoints = await load_endpoints(change.ledger, {hot.endpoint for hot in hots})
    holding = {position for position, endpoint in endpoints.items() if holds_keys(endpoint)}
    for hold in (False, True):
        group = [hot for hot in hots if (hot.endpoint in holding) is hold]
        if group:
            await end_pending(change, group, None, reason, hold=hold)


async def discard_dead(change: Change, dead: Sequence[Ended]) -> None:
    """Turn dead letters into discarded deliveries; they keep their reason."""
    ledger, positions = change.ledger, [one.position for one in dead]
    await ledger.execute(DELETE_DEAD, positions)
    await insert_ended.rows(ledger, [
        (one.position, ledger.day_of(one.event), one.event_offset, one.tenant, one.endpoint, change.now_ms,
         ledger.end_mark, DISCARDED, one.reason, one.trigger, one.round, one.number, one.code, one.status_code,
         *NO_ATTEMPT)
        for one in dead
    ])  # fmt: skip
    change.keys |= await release_holds(ledger, positions)


async def cancel_pending(change: Change, hots: Sequence[Hot], reason: str | None) -> None:
    """End pending rows as cancelled."""
    await end_pending(change, hots, CANCELLED, reason)


async def revive(change: Change, ended: Sequence[Ended], endpoints: dict[int, Endpoint], trigger: Trigger) -> None:
    """Begin a new round of ended rows with what their endpoints are now."""
    ledger, positions = change.ledger, [one.position for one in ended]
    keys = await key_ids(ledger, [one.event for one in ended if holds_keys(endpoints[one.endpoint])])
    await ledger.execute(KEEP_INLINE, positions)
    await ledger.execute(DELETE_HISTORY, positions)
    await ledger.execute(DELETE_DEAD, positions)
    hots: list[Hot] = []
    for one in ended:
        endpoint = endpoints[one.endpoint]
        hots.append(Hot(
            one.position, one.event_offset, one.tenant, one.endpoint, endpoint.rev, change.now_ms,
            endpoint.clock_ms(change.now_ms), endpoint.pin, TRIGGER_CODES[trigger],
            keys.get(one.event) if holds_keys(endpoint) else None, 0, REPLAY, one.round + 1, one.number, 0, 0,
            one.code, one.status_code,
        ))  # fmt: skip
    await _enter(change, hots)


async def add_missing(
    change: Change, events: Sequence[int], tenant: int, endpoint: Endpoint, trigger: Trigger
) -> list[int]:
    """Make the deliveries that these events never had to an endpoint; give their positions."""
    ledger, now_ms = change.ledger, change.now_ms
    keys = await key_ids(ledger, events) if is_by_key(endpoint) else {}
    first = ledger.allocate(len(events), now_ms)
    hots = [
        Hot(position, position - event, tenant, endpoint.position, endpoint.rev, now_ms, endpoint.clock_ms(now_ms),
            endpoint.pin, TRIGGER_CODES[trigger], keys.get(event), 0, REPLAY, 1, 0, 0, 0)
        for position, event in enumerate(events, start=first)
    ]  # fmt: skip
    await _insert_late.rows(ledger, [(hot.event, hot.position, tenant) for hot in hots])
    await _enter(change, hots)
    return [hot.position for hot in hots]


async def _enter(change: Change, hots: Sequence[Hot]) -> None:
    """Take rows into the backlog; ordered ones one by one, because each may be blocked by the one before."""
    ledger = change.ledger
    await lock_keys(ledger, [hot.key_id for hot in hots if hot.key_id is not None])
    await store_hot(ledger, [hot for hot in hots if hot.key_id is None])
    for hot in hots:
        if hot.key_id is not None:
            hot.waiting = int(await is_blocked(ledger, hot))
            await store_hot(ledger, [hot])
    change.due.update(hot.position for hot in hots)


async def key_ids(ledger: Ledger, events: Sequence[int]) -> dict[int, int]:
    """Give the keys of those of these events that have one."""
    if not events:
        return {}
    return {row[0]: row[1] for row in await ledger.all(KEYS_OF_EVENTS, events)}


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
