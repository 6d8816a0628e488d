"""Recording results, set-wise (rules E3, E4, E6, E15).

Most results are first attempts that were answered well: one DELETE finds out which of them hold, one INSERT stores
delivery and attempt as a single row. Everything else goes row by row through memory and out again in few statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ackpost.core.decision import Announcement, Decision, EndpointChange
from ackpost.core.model import FIRST, RETRY, Endpoint
from ackpost.ports.operations import Record, Recorded
from ackpost.store.postgres.announcing import announce
from ackpost.store.postgres.attempts import AttemptWriter, uses_attempt
from ackpost.store.postgres.endpoint_states import disable
from ackpost.store.postgres.ledger import Insert, Ledger
from ackpost.store.postgres.moves import DELETE_DEAD, DELETE_HISTORY, Change
from ackpost.store.postgres.ordering import release_holds, store_holds
from ackpost.store.postgres.rows import (
    KEYS_OF_HOT,
    NO_ATTEMPT,
    delete_hot,
    insert_dead,
    insert_ended,
    load_ended,
    load_endpoints,
    load_hot,
    lock_keys,
    store_endpoints,
    store_hot,
)
from ackpost.store.values import CANCELLED, DELIVERED, DISCARDED, TRIGGER_CODES, Ended, Hot

_insert_good = Insert(
    "history",
    "position bigint, day integer, event_offset bigint, tenant bigint, endpoint bigint, ended_ms bigint,"
    " trigger smallint, status_code integer, attempt_position bigint, started_ms bigint, duration_ms float8,"
    " detail bytea, body bytea",
)

DELETE_FIRST: Final = (
    "DELETE FROM delivery WHERE position = ANY($1) AND round = 1 AND number = 0 RETURNING position, endpoint, key_id"
)


async def record(ledger: Ledger, operation: Record) -> Recorded:
    """Store the results that still hold; a stale owner's change nothing.

    The owner is who holds the lock of its node's row: ``commit`` took it at the beginning of this transaction.
    """
    if operation.incarnation != ledger.incarnation:
        return Recorded([False] * len(operation.decisions))
    run = _Run(ledger, operation)
    good, other = _sort(operation.decisions)
    if any(one.ordered for one in operation.decisions):
        positions = [one.delivery for one in operation.decisions]
        await lock_keys(ledger, [row[0] for row in await ledger.all(KEYS_OF_HOT, positions)])
    if good:
        failing = await run.first_successes(good)
        other = sorted(other + failing) if failing else other
    if other:
        await run.others(other)
    return await run.finish()


def _sort(decisions: Sequence[Decision]) -> tuple[list[int], list[int]]:
    """Part the indices of plain first-attempt successes from the rest."""
    good: list[int] = []
    other: list[int] = []
    for index, one in enumerate(decisions):
        plain = (
            one.verdict == "delivered" and one.number == 1 and one.round == 1 and one.outcome is not None
            and one.endpoint_change is None and not one.announcements
        )  # fmt: skip
        (good if plain else other).append(index)
    if len({one.delivery for one in decisions}) != len(decisions):
        return [], list(range(len(decisions)))
    return good, other


class _Run:
    """The work of one ``Record``."""

    def __init__(self, ledger: Ledger, operation: Record) -> None:
        self._ledger = ledger
        self._decisions = operation.decisions
        self._applied = [False] * len(operation.decisions)
        self._attempts = AttemptWriter(ledger, operation.node)
        self._change = Change(ledger, operation.now_ms)
        self._told: list[tuple[int, Announcement]] = []
        self._endpoints: dict[int, Endpoint] = {}
        self._changed: dict[int, Endpoint] = {}
        self._ended: list[tuple[Any, ...]] = []
        self._dead: list[tuple[Any, ...]] = []
        self._held: list[Hot] = []
        self._released: list[int] = []
        used = [uses_attempt(one) for one in operation.decisions]
        first = ledger.allocate(sum(used), operation.now_ms) if any(used) else 0
        self._positions: list[int] = []
        for is_used in used:
            self._positions.append(first if is_used else 0)
            first += is_used

    async def first_successes(self, indices: list[int]) -> list[int]:
        """Move deliveries straight into the history; give the indices that did not hold."""
        ledger, decisions, failing = self._ledger, self._decisions, list[int]()
        gone = await ledger.all(DELETE_FIRST, [decisions[index].delivery for index in indices])
        if len(gone) != len(indices):
            found = {row[0] for row in gone}
            failing = [index for index in indices if decisions[index].delivery not in found]
            indices = [index for index in indices if decisions[index].delivery in found]
        self._change.keys.update((endpoint, key_id) for _, endpoint, key_id in gone if key_id is not None)
        columns, positions, applied = self._attempts.columns, self._positions, self._applied
        day_of, now_ms = ledger.day_of, self._change.now_ms
        rows: list[tuple[Any, ...]] = []
        for index in indices:
            one = decisions[index]
            outcome = one.outcome
            assert outcome is not None
            rows.append((
                one.delivery, day_of(one.event), one.delivery - one.event, one.tenant, one.endpoint,
                one.ended_at_ms or now_ms, TRIGGER_CODES[one.trigger], outcome.status_code,
                *columns(one, outcome, positions[index]),
            ))  # fmt: skip
            applied[index] = True
        await _insert_good.rows(ledger, rows)
        return failing

    async def others(self, indices: list[int]) -> None:
        """Apply the remaining decisions one after another to the rows in memory, then write these."""
        decisions = [self._decisions[index] for index in indices]
        hots = await load_hot(self._ledger, [one.delivery for one in decisions], ordered=False)
        self._endpoints = await load_endpoints(
            self._ledger, {one.endpoint for one in decisions if one.endpoint_change is not None}
        )
        before = set(hots)
        changed: dict[int, Hot] = {}
        for index in indices:
            one = self._decisions[index]
            hot = hots.get(one.delivery)
            if hot is not None and hot.tenant == one.tenant and _holds(one, hot):
                self._applied[index] = True
                inline = self._attempts.take(one, self._positions[index])
                if one.verdict in {"retry", "again"}:
                    _reschedule(one, hot)
                    changed[hot.position] = hot
                else:
                    del hots[hot.position]
                    changed.pop(hot.position, None)
                    self._end(one, hot, inline)
                is_good = True
            else:
                await self._write(before, hots, changed)
                is_good = await self._late(one, index, pending=hot is not None)
            await self._follow(one, index, is_good=is_good)
        await self._write(before, hots, changed)

    def _end(self, one: Decision, hot: Hot, inline: tuple[Any, ...]) -> None:
        code, status_code = hot.code, hot.status_code
        if one.outcome is not None:
            code, status_code = one.outcome.code, one.outcome.status_code
        ledger = self._ledger
        head = (hot.tenant, hot.endpoint, one.ended_at_ms or self._change.now_ms, ledger.end_mark)
        tail = (one.reason, hot.trigger, hot.round, one.number, code, status_code)
        if one.verdict == "dead":
            self._dead.append((hot.position, hot.event_offset, *head, *tail))
            if one.hold:
                self._held.append(hot)
        else:
            status = DELIVERED if one.verdict == "delivered" else DISCARDED
            day = ledger.day_of(hot.event)
            self._ended.append((hot.position, day, hot.event_offset, *head, status, *tail, *inline))
            if hot.round > 1:
                self._released.append(hot.position)
        if hot.key_id is not None:
            self._change.keys.add((hot.endpoint, hot.key_id))

    async def _write(self, before: set[int], hots: dict[int, Hot], changed: dict[int, Hot]) -> None:
        """Write what the decisions so far came to."""
        ledger = self._ledger
        await delete_hot(ledger, sorted(before - hots.keys()))
        before &= hots.keys()
        await store_hot(ledger, list(changed.values()))
        changed.clear()
        await insert_ended.rows(ledger, self._ended)
        await insert_dead.rows(ledger, self._dead)
        await store_holds(ledger, self._held)
        self._change.keys |= await release_holds(ledger, self._released)
        self._ended, self._dead, self._held, self._released = [], [], [], []

    async def _late(self, one: Decision, index: int, *, pending: bool) -> bool:
        """Keep the attempt of a decision that does not hold; say whether it was not known before.

        The delivery was ended while the request ran: the attempt counts, and an acknowledgement that still came turns
        cancelled or dead into delivered.
        """
        outcome = one.outcome
        if outcome is None or one.verdict == "again":
            return False
        is_new = await self._attempts.late(one, outcome, self._positions[index])
        ended = None if pending else (await load_ended(self._ledger, [one.delivery])).get(one.delivery)
        if ended is None or ended.tenant != one.tenant or (ended.round, ended.number) != (one.round, one.number - 1):
            return is_new
        if one.verdict == "delivered" and ended.status in {None, CANCELLED}:
            await self._acknowledge(one, ended)
            self._applied[index] = True
            return True
        table = "dead_letter" if ended.status is None else "history"
        sql = f"UPDATE {table} SET number = $1, code = $2, status_code = $3 WHERE position = $4"  # noqa: S608 - one of two names
        await self._ledger.execute(sql, one.number, outcome.code, outcome.status_code, one.delivery)
        return is_new

    async def _acknowledge(self, one: Decision, ended: Ended) -> None:
        outcome = one.outcome
        assert outcome is not None
        ledger = self._ledger
        await ledger.execute(DELETE_DEAD, [ended.position])
        await ledger.execute(DELETE_HISTORY, [ended.position])
        await insert_ended.rows(ledger, [(
            ended.position, ledger.day_of(ended.event), ended.event_offset, ended.tenant, ended.endpoint,
            one.ended_at_ms or self._change.now_ms, ledger.end_mark, DELIVERED, None, ended.trigger, ended.round,
            one.number, outcome.code, outcome.status_code, *NO_ATTEMPT,
        )])  # fmt: skip
        self._change.keys |= await release_holds(ledger, [ended.position])

    async def _follow(self, one: Decision, index: int, *, is_good: bool) -> None:
        """Change the endpoint, keep what is to be announced."""
        if is_good and one.endpoint_change is not None:
            endpoint = self._endpoints.get(one.endpoint)
            if endpoint is not None and endpoint.tenant == one.tenant:
                self._change.touched.add(endpoint.position)
                self._changed[endpoint.position] = endpoint
                await _change_endpoint(self._ledger, endpoint, one.endpoint_change, self._change.now_ms)
        for told in one.announcements:
            if self._applied[index] if told.type == "ackpost.delivery.dead" else is_good:
                self._told.append((one.tenant, told))

    async def finish(self) -> Recorded:
        """Write attempts and endpoints, wake what waited, announce."""
        await self._attempts.flush()
        await store_endpoints(self._ledger, [self._changed[position] for position in sorted(self._changed)])
        await self._change.settle()
        if self._told:
            await announce(self._change, self._told)
        if not self._change.due and not self._change.announced:
            return Recorded(self._applied, [], sorted(self._change.touched))
        return Recorded(self._applied, await self._change.refs(), sorted(self._change.touched))


def _holds(one: Decision, hot: Hot) -> bool:
    """Say whether the delivery is still as the decision's maker saw it (rule E6)."""
    return hot.round == one.round and hot.number == (one.number - 1 if uses_attempt(one) else one.number)


def _reschedule(one: Decision, hot: Hot) -> None:
    assert one.due_ms is not None, "retry and again carry a due time"
    hot.due_ms, hot.crashes = one.due_ms, one.crashes
    if one.verdict == "retry":
        if hot.klass == FIRST:
            hot.klass = RETRY
        if one.outcome is not None:
            hot.number = one.number
            hot.round_attempts += 1
            hot.code, hot.status_code = one.outcome.code, one.outcome.status_code


async def _change_endpoint(ledger: Ledger, endpoint: Endpoint, wanted: EndpointChange, now_ms: int) -> None:
    if wanted.clear_failing:
        endpoint.first_failure_ms = endpoint.last_failure_ms = None
        endpoint.failing_announced = False
    for name in ("circuit", "retry_after_until_ms", "first_failure_ms", "last_failure_ms", "failing_announced"):
        value = getattr(wanted, name)
        if value is not None:
            setattr(endpoint, name, value)
    if wanted.disable_reason is not None and endpoint.state != "disabled":
        reason = "gone" if wanted.disable_reason == "gone" else "endpoint_disabled"
        await disable(ledger, endpoint, wanted.disable_reason, reason, now_ms)
