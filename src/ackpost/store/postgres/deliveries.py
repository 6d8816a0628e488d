"""What people do to deliveries, what a crash did to them, and the sweep for rows stuck in waiting."""

from __future__ import annotations

from typing import Final

from ackpost.core.ids import partition_of
from ackpost.core.model import FIRST, RETRY, Endpoint
from ackpost.errors import Conflict, DataExpired, NotFound
from ackpost.ports.operations import (
    Cancel,
    DeliveriesChanged,
    Done,
    ExpireData,
    Interrupt,
    Interrupted,
    Promote,
    Promoted,
    Redeliver,
)
from ackpost.store.postgres.announcing import announce
from ackpost.store.postgres.attempts import AttemptWriter
from ackpost.store.postgres.endpoints import endpoint_of
from ackpost.store.postgres.ledger import Ledger
from ackpost.store.postgres.moves import (
    Change,
    add_missing,
    cancel_pending,
    death_notice,
    end_dead,
    open_endpoints,
    raise_revs,
    revive,
)
from ackpost.store.postgres.ordering import let_go
from ackpost.store.postgres.rows import load_ended, load_endpoints, load_hot, store_hot
from ackpost.store.values import Ended, Hot

DELIVERIES_OF_EVENT: Final = (
    "SELECT position FROM delivery WHERE position > $1 AND position <= $1 + $2"
    " UNION ALL SELECT position FROM history WHERE position > $1 AND position <= $1 + $2"
    " UNION ALL SELECT position FROM dead_letter WHERE position > $1 AND position <= $1 + $2"
    " UNION ALL SELECT delivery FROM late_delivery WHERE event = $1"
)
EVENT_OF_TENANT: Final = "SELECT data IS NULL, fanout FROM event WHERE position = $1 AND tenant = $2"
STUCK_SQL: Final = (
    "SELECT d.position FROM delivery d WHERE d.waiting = 1 AND NOT EXISTS (SELECT 1 FROM delivery b"
    " WHERE b.endpoint = d.endpoint AND b.key_id = d.key_id"
    " AND b.position - b.event_offset < d.position - d.event_offset)"
    " AND NOT EXISTS (SELECT 1 FROM key_hold h WHERE h.endpoint = d.endpoint AND h.key_id = d.key_id"
    " AND h.event < d.position - d.event_offset) ORDER BY d.position LIMIT $1"
)


class _Asked:
    """The event and those of its deliveries that an operation is about."""

    def __init__(self) -> None:
        self.event = 0
        self.data_expired = False
        self.hots: dict[int, Hot] = {}
        self.ended: dict[int, Ended] = {}

    async def load(self, ledger: Ledger, op: Redeliver | Cancel) -> None:
        """Find them.

        Raises: NotFound.
        """
        if op.delivery is not None:
            await self._load(ledger, [op.delivery])
            found = self.hots.get(op.delivery) or self.ended.get(op.delivery)
            if found is None or found.tenant != op.tenant:
                raise NotFound("The delivery does not exist.")
            self.event = found.event
            row = await ledger.one("SELECT data IS NULL FROM event WHERE position = $1", self.event)
        else:
            row = await ledger.one(EVENT_OF_TENANT, op.event, op.tenant)
            if row is None or op.event is None:
                raise NotFound("The event does not exist.")
            self.event = op.event
            await self._load(ledger, await deliveries_of(ledger, op.event, row[1]))
        self.data_expired = row is None or bool(row[0])

    async def _load(self, ledger: Ledger, positions: list[int]) -> None:
        self.hots = await load_hot(ledger, positions)
        self.ended = await load_ended(ledger, positions)

    def keep(self, endpoint: int) -> None:
        """Leave out the deliveries to other endpoints."""
        self.hots = {position: hot for position, hot in self.hots.items() if hot.endpoint == endpoint}
        self.ended = {position: one for position, one in self.ended.items() if one.endpoint == endpoint}

    def rows(self) -> list[Hot | Ended]:
        """All of them."""
        return [*self.hots.values(), *self.ended.values()]


async def deliveries_of(ledger: Ledger, event: int, fanout: int) -> list[int]:
    """Give all deliveries of an event, pending or ended."""
    return sorted(row[0] for row in await ledger.all(DELIVERIES_OF_EVENT, event, fanout))


async def redeliver(ledger: Ledger, op: Redeliver) -> DeliveriesChanged:
    """Make deliveries due now: a new round, or sooner if still pending."""
    asked = _Asked()
    await asked.load(ledger, op)
    wanted: Endpoint | None = None
    if op.endpoint is not None and op.delivery is None:
        wanted = await endpoint_of(ledger, op.tenant, op.endpoint)
        asked.keep(wanted.position)
    if asked.data_expired:
        raise DataExpired("The event's data has expired; it cannot be sent again.")
    rows = asked.rows()
    endpoints = await open_endpoints(ledger, {row.endpoint for row in rows})
    open_rows = [row for row in rows if row.endpoint in endpoints]
    if (rows and not open_rows) or (wanted is not None and wanted.state == "disabled"):
        raise Conflict("The endpoint is disabled or was deleted; enable it first.", code="invalid_state")
    change = Change(ledger, op.now_ms)
    touched = {row.endpoint for row in open_rows} if wanted is None else {wanted.position}
    await raise_revs(ledger, touched)
    for endpoint in (*endpoints.values(), wanted):
        if endpoint is not None:
            endpoint.rev += 1
    ended = sorted((row for row in open_rows if isinstance(row, Ended)), key=lambda row: row.position)
    if ended:
        await revive(change, ended, endpoints, op.trigger)
    sooner = [row for row in open_rows if isinstance(row, Hot) and not row.waiting]
    for hot in sooner:
        hot.due_ms = op.now_ms
    await store_hot(ledger, sooner)
    change.due.update(hot.position for hot in sooner)
    positions = sorted(row.position for row in open_rows)
    if wanted is not None and not rows:
        positions = await add_missing(change, [asked.event], op.tenant, wanted, op.trigger)
    return DeliveriesChanged(positions, sorted(touched), await change.refs())


async def cancel(ledger: Ledger, op: Cancel) -> DeliveriesChanged:
    """End pending deliveries."""
    asked = _Asked()
    await asked.load(ledger, op)
    hots = list(asked.hots.values())
    if op.delivery is not None and not hots:
        raise Conflict("The delivery has ended.", code="invalid_state")
    change = Change(ledger, op.now_ms)
    await cancel_pending(change, hots, None)
    await change.settle()
    touched = {hot.endpoint for hot in hots}
    await raise_revs(ledger, touched)
    return DeliveriesChanged(sorted(hot.position for hot in hots), sorted(touched), await change.refs())


async def expire_data(ledger: Ledger, op: ExpireData) -> Done:
    """Remove an event's data; what is still to be sent of it is dead."""
    row = await ledger.one(f"{EVENT_OF_TENANT} FOR UPDATE", op.event, op.tenant)
    if row is None:
        raise NotFound("The event does not exist.")
    if row[0]:
        return Done(op.event)
    await ledger.execute("UPDATE event SET data = NULL WHERE position = $1", op.event)
    change = Change(ledger, op.now_ms)
    hots = list((await load_hot(ledger, await deliveries_of(ledger, op.event, row[1]))).values())
    await end_dead(change, hots, "data_expired")
    await change.settle()
    change.touched = {hot.endpoint for hot in hots}
    await raise_revs(ledger, change.touched)
    counts = {endpoint: sum(hot.endpoint == endpoint for hot in hots) for endpoint in sorted(change.touched)}
    await announce(
        change, [death_notice(ledger, op.tenant, endpoint, "data_expired", n) for endpoint, n in counts.items()]
    )
    return Done(op.event, sorted(change.touched))


async def interrupt(ledger: Ledger, op: Interrupt) -> Interrupted:
    """Count the crash of the process against what was in flight (rule E5).

    What other nodes have taken over meanwhile is theirs: they may be sending it now.
    """
    change = Change(ledger, op.now_ms)
    hots = await load_hot(ledger, [mark.delivery for mark in op.marks])
    owned = {row[0] for row in await ledger.all("SELECT id FROM partition WHERE node = $1", ledger.node)}
    hots = {position: hot for position, hot in hots.items() if partition_of(hot.endpoint) in owned}
    attempts = AttemptWriter(ledger, op.node)
    endpoints = await load_endpoints(ledger, {hot.endpoint for hot in hots.values()})
    poisoned: list[Hot] = []
    alive: list[Hot] = []
    for mark in op.marks:
        hot = hots.get(mark.delivery)
        if hot is None or (hot.round, hot.number) != (mark.round, mark.number):
            continue
        hot.crashes, hot.number, hot.round_attempts = hot.crashes + 1, hot.number + 1, hot.round_attempts + 1
        endpoint = endpoints.get(hot.endpoint)
        is_dead = hot.crashes >= op.crashes_max
        position = ledger.allocate(1, op.now_ms)
        version = 1 if endpoint is None else endpoint.version
        attempts.interrupted(hot, position, op.now_ms, version, None if is_dead else op.now_ms)
        hot.code, hot.status_code, hot.due_ms = "interrupted", None, op.now_ms
        hot.klass = RETRY if hot.klass == FIRST else hot.klass
        (poisoned if is_dead else alive).append(hot)
    await attempts.flush()
    await store_hot(ledger, alive)
    await end_dead(change, poisoned, "poison")
    await change.settle()
    counts: dict[tuple[int, int], int] = {}
    for hot in poisoned:
        counts[hot.endpoint, hot.tenant] = counts.get((hot.endpoint, hot.tenant), 0) + 1
    notices = [death_notice(ledger, tenant, endpoint, "poison", n) for (endpoint, tenant), n in sorted(counts.items())]
    await announce(change, notices)
    return Interrupted(len(alive) + len(poisoned), len(poisoned), sorted(hot.position for hot in alive))


async def promote(ledger: Ledger, op: Promote) -> Promoted:
    """Free waiting rows that nobody will free any more: a bug elsewhere if there is one."""
    change = Change(ledger, op.now_ms)
    stuck = [row[0] for row in await ledger.all(STUCK_SQL, op.rows_max)]
    await let_go(ledger, stuck, op.now_ms)
    change.due.update(stuck)
    return Promoted(await change.refs())
