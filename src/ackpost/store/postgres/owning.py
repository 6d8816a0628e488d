"""Who owns the deliveries of this database: a lease that others see, and an incarnation that fences (rule E3).

This is the ownership of one node alone, whose lease is told by the caller's clock: commands that need the database for
themselves. Servers share it: ``sharing``.
"""

from __future__ import annotations

from typing import Final

from ackpost.core.model import Tenant
from ackpost.core.times import rfc3339_ms
from ackpost.errors import StoreError, StoreLocked
from ackpost.ports.operations import Done, RenewLease
from ackpost.store.postgres.days import make_days
from ackpost.store.postgres.ledger import DAY_MS, SLOT_BITS, Ledger
from ackpost.store.postgres.tenants import insert_tenant

LOCK_LEASE: Final = "SELECT expires_ms FROM node_lease WHERE id = $1 FOR UPDATE"
_LOCK_OPENING: Final = "SELECT pg_advisory_xact_lock(hashtext(current_schema()), 41635)"
_MAKE_META: Final = """
INSERT INTO meta (id, salt, incarnation, oldest_day) VALUES (
    1, coalesce($1, ('x0' || substr(replace(gen_random_uuid()::text, '-', ''), 18))::bit(64)::bigint), 0, 0)
ON CONFLICT DO NOTHING
"""
_SELECT_OTHERS: Final = """
SELECT n.id, n.since_ms, l.expires_ms FROM node_lease l JOIN node n ON n.id = l.id
WHERE n.alive AND n.id <> $1 ORDER BY l.id FOR UPDATE OF l
"""
_UPSERT_NODE: Final = """
INSERT INTO node (id, incarnation, alive, slot, since_ms, role, leaving, home, version)
VALUES ($1, $2, true, $3, $4, $5, false, $6, $7)
ON CONFLICT (id) DO UPDATE SET incarnation = excluded.incarnation, alive = true, slot = excluded.slot,
    since_ms = excluded.since_ms, role = excluded.role, leaving = false, home = excluded.home,
    version = excluded.version
"""
UPSERT_LEASE: Final = (
    "INSERT INTO node_lease (id, incarnation, expires_ms) VALUES ($1, $2, $3)"
    " ON CONFLICT (id) DO UPDATE SET incarnation = excluded.incarnation, expires_ms = excluded.expires_ms"
)


async def own(
    ledger: Ledger, *, node: str, now_ms: int, lease_ms: int, salt: int | None, importing: bool = False
) -> None:
    """Become owner inside a transaction: nodes open one after another.

    An owner whose lease has run out is declared dead, which waits for its commit under way; a node of the same name
    has restarted. Raises: StoreLocked when another node's lease has not run out.
    """
    is_new = await begin_opening(ledger, salt, importing=importing)
    for other, since_ms, expires_ms in await ledger.all(_SELECT_OTHERS, node):
        if expires_ms > now_ms:
            raise StoreLocked(f"The database is in use: by node {other} since {rfc3339_ms(since_ms)}. Stop that one.")
        await ledger.execute("UPDATE node SET alive = false WHERE id = $1", other)
    await ledger.one(LOCK_LEASE, node)
    incarnation = await register(ledger, node, since_ms=now_ms, role="sole", home="", version="")
    await ledger.execute(UPSERT_LEASE, node, incarnation, now_ms + lease_ms)
    await ledger.execute("UPDATE partition SET node = $1 WHERE node IS DISTINCT FROM $1", node)
    await finish_opening(ledger, now_ms, is_new=is_new)


async def begin_opening(ledger: Ledger, salt: int | None, *, importing: bool = False) -> bool:
    """Wait for who opens now; say whether this is the first time anybody does.

    Raises: StoreError when another database is being copied into this one, or was in vain; unless ``importing``.
    """
    await ledger.one(_LOCK_OPENING)
    is_new = await ledger.execute(_MAKE_META, salt) == 1
    if not importing and await ledger.one("SELECT 1 FROM meta WHERE NOT is_complete") is not None:
        raise StoreError("The database is the target of a copy that has not ended: repeat `ackpost copy`.")
    return is_new


async def register(ledger: Ledger, node: str, *, since_ms: int, role: str, home: str, version: str) -> int:
    """Be alive under a new incarnation, with a slot of its own; give the incarnation."""
    row = await ledger.one("UPDATE meta SET incarnation = incarnation + 1 RETURNING incarnation, salt, oldest_day")
    assert row is not None
    incarnation, ledger.salt, ledger.oldest_day = row
    slot = await _free_slot(ledger, node)
    await ledger.execute(_UPSERT_NODE, node, incarnation, slot, since_ms, role, home, version)
    await ledger.execute("INSERT INTO position_slot VALUES ($1, 0) ON CONFLICT DO NOTHING", slot)
    bound = await ledger.one("SELECT position_bound FROM position_slot WHERE slot = $1 FOR UPDATE", slot)
    assert bound is not None
    ledger.adopt(node=node, incarnation=incarnation, slot=slot, position_bound=bound[0])
    return int(incarnation)


async def finish_opening(ledger: Ledger, now_ms: int, *, is_new: bool) -> None:
    """Make what a store has from its first moment on, and today's partitions."""
    await make_days(ledger, max(now_ms, ledger.last_position >> 20) // DAY_MS)
    if is_new:
        await insert_tenant(
            ledger, Tenant(position=ledger.allocate(1, now_ms), uid="default", created_at_ms=now_ms)
        )  # fmt: skip
    await ledger.store_bound()


async def _free_slot(ledger: Ledger, node: str) -> int:
    """Give the lowest number that no other living node has: positions with it are this node's alone."""
    taken = {row[0] for row in await ledger.all("SELECT slot FROM node WHERE alive AND id <> $1", node)}
    for slot in range(1 << SLOT_BITS):
        if slot not in taken:
            return slot
    raise StoreError(f"{1 << SLOT_BITS} nodes use this database, the most it can have.")


async def renew_lease(ledger: Ledger, operation: RenewLease) -> Done:
    """Move the end of the lease.

    Raises: StoreLocked when somebody else has become owner.
    """
    if operation.incarnation != ledger.incarnation or operation.node != ledger.node:
        raise StoreLocked("Another node owns the database now.")
    sql = "UPDATE node_lease SET expires_ms = $1 WHERE id = $2 AND incarnation = $3"
    await ledger.execute(sql, operation.now_ms + operation.lease_ms, ledger.node, ledger.incarnation)
    return Done()


async def release(ledger: Ledger) -> None:
    """Say that this node is gone, and which position was its last."""
    await ledger.one(LOCK_LEASE, ledger.node)
    sql = "UPDATE node SET alive = false WHERE id = $1 AND incarnation = $2 AND alive"
    if await ledger.execute(sql, ledger.node, ledger.incarnation) == 0:
        return
    await ledger.execute("UPDATE node_lease SET incarnation = 0, expires_ms = 0 WHERE id = $1", ledger.node)
    await ledger.execute("UPDATE partition SET node = NULL WHERE node = $1", ledger.node)
    sql = "UPDATE position_slot SET position_bound = $1 WHERE slot = $2"
    await ledger.execute(sql, ledger.last_position, ledger.slot)
