"""Several nodes at one database: who lives, by leases told by the database's clock, and who owns which partitions.

A node's row in ``node`` is the fence: each of its commits locks it and expects it alive with its incarnation. Whoever
takes over locks the lease, which stops its renewal, and then sets that row dead, which waits for the commit under way.
Lock order: lease, node, partitions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from ackpost.errors import StoreLocked
from ackpost.ports.cluster import ClusterState, NodeInfo, Role
from ackpost.store.postgres.connection import Connection
from ackpost.store.postgres.ledger import Ledger
from ackpost.store.postgres.owning import LOCK_LEASE, UPSERT_LEASE, begin_opening, finish_opening, register
from ackpost.store.postgres.querying import NOW_MS, Reader

_SELECT_SOLE: Final = f"""
SELECT n.id FROM node n JOIN node_lease l ON l.id = n.id
WHERE n.alive AND n.role = 'sole' AND l.expires_ms >= {NOW_MS} LIMIT 1
"""  # noqa: S608 - constants only
_SELECT_NAMESAKE: Final = f"""
SELECT n.home, n.alive AND l.expires_ms >= {NOW_MS} FROM node_lease l JOIN node n ON n.id = l.id WHERE l.id = $1
"""  # noqa: S608 - constants only
_STATE: Final = f"""
SELECT n.id, n.role, n.incarnation, n.since_ms, n.version, n.leaving, l.expires_ms - {NOW_MS},
    (SELECT coalesce(array_agg(p.id ORDER BY p.id), '{{}}') FROM partition p WHERE p.node = n.id)
FROM node n JOIN node_lease l ON l.id = n.id WHERE n.alive AND n.role <> 'sole'
UNION ALL
SELECT '', '', 0, 0, '', false, 0, (SELECT coalesce(array_agg(p.id ORDER BY p.id), '{{}}') FROM partition p
    WHERE p.node IS NULL)
ORDER BY 1
"""  # noqa: S608 - constants only
_EXPIRED: Final = f"""
SELECT l.id FROM node_lease l JOIN node n ON n.id = l.id
WHERE n.alive AND l.expires_ms < {NOW_MS} AND l.id <> $1 ORDER BY l.id FOR UPDATE OF l SKIP LOCKED
"""  # noqa: S608 - constants only
_FENCED_UPDATE: Final = """
WITH me AS (SELECT id FROM node WHERE id = $1 AND incarnation = $2 AND alive FOR NO KEY UPDATE)
"""
_CLAIM: Final = (
    f"{_FENCED_UPDATE} UPDATE partition p SET node = me.id FROM me"  # noqa: S608 - constants only
    " WHERE p.id = ANY($3) AND p.node IS NULL RETURNING p.id"
)
_RELEASE: Final = f"{_FENCED_UPDATE} UPDATE partition p SET node = NULL FROM me WHERE p.id = ANY($3) AND p.node = me.id"  # noqa: S608 - constants only
_LEAVE: Final = "UPDATE node SET leaving = true WHERE id = $1 AND incarnation = $2 AND alive"

RENEW: Final = f"""
UPDATE node_lease SET expires_ms = {NOW_MS} + $3 WHERE id = $1 AND incarnation = $2 RETURNING expires_ms - $3
"""  # noqa: S608 - constants only
"""Moves the lease's end; gives the database's time, and no row where the lease is this incarnation's no more."""


class Sharing(msgspec.Struct, frozen=True):
    """How a node takes part. ``home`` tells processes of one machine and folder from others of the same name."""

    role: Role
    home: str
    version: str
    lease_ms: int


async def join(ledger: Ledger, sharing: Sharing, *, node: str, now_ms: int, salt: int | None) -> None:
    """Take part, inside a transaction. A process of the same home was restarted: its partitions are kept.

    Raises: StoreLocked when the name is in use elsewhere, or a command has the database for itself.
    """
    is_new = await begin_opening(ledger, salt)
    sole = await ledger.one(_SELECT_SOLE)
    if sole is not None:
        raise StoreLocked(f"The database is in use by a command ({sole[0]}). Wait for its end.")
    await ledger.one(LOCK_LEASE, node)
    namesake = await ledger.one(_SELECT_NAMESAKE, node)
    if namesake is not None and namesake[1] and namesake[0] != sharing.home:
        raise StoreLocked(f"Another server is called {node} and alive: give this one its own node_name.")
    if namesake is None or namesake[0] != sharing.home or sharing.role == "api":
        await ledger.execute("UPDATE partition SET node = NULL WHERE node = $1", node)
    await _come_alive(ledger, sharing, node, now_ms)
    await finish_opening(ledger, now_ms, is_new=is_new)


async def rejoin(ledger: Ledger, sharing: Sharing, *, node: str, now_ms: int) -> None:
    """Come back after having been declared dead, owning nothing, inside a transaction.

    Raises: StoreLocked when another process has taken the name.
    """
    await begin_opening(ledger, None)
    await ledger.one(LOCK_LEASE, node)
    namesake = await ledger.one(_SELECT_NAMESAKE, node)
    if namesake is None or namesake[0] != sharing.home:
        raise StoreLocked(f"Another server is called {node} now: give this one its own node_name.")
    await ledger.execute("UPDATE node SET alive = false WHERE id = $1", node)
    await ledger.execute("UPDATE partition SET node = NULL WHERE node = $1", node)
    await _come_alive(ledger, sharing, node, now_ms)
    await finish_opening(ledger, now_ms, is_new=False)


async def _come_alive(ledger: Ledger, sharing: Sharing, node: str, now_ms: int) -> None:
    ledger.is_shared = True
    incarnation = await register(
        ledger, node, since_ms=now_ms, role=sharing.role, home=sharing.home, version=sharing.version
    )
    row = await ledger.one(f"SELECT {NOW_MS}")
    assert row is not None
    await ledger.execute(UPSERT_LEASE, node, incarnation, row[0] + sharing.lease_ms)


async def state(connection: Reader) -> ClusterState:
    """All living nodes and the free partitions."""
    rows = await connection.fetch(_STATE)
    nodes = [NodeInfo(*row) for row in rows if row[0]]
    return ClusterState(nodes, next(list(row[7]) for row in rows if not row[0]))


async def settle(connection: Connection) -> int:
    """Wait for the commits under way on all nodes; give the database's time before.

    What a node commits afterwards has positions from that time on, and sees what was committed before it.
    """
    now_ms: int = await connection.fetchval(f"SELECT {NOW_MS}")
    for (node,) in await connection.fetch("SELECT id FROM node WHERE alive"):
        await connection.fetchrow("SELECT 1 FROM node WHERE id = $1 AND alive FOR SHARE", node)
    return now_ms


async def take_over(connection: Connection, own: str) -> list[str]:
    """Declare dead whose lease has run out, and free what they owned; give their names."""
    async with connection.transaction():
        dead = [row[0] for row in await connection.fetch(_EXPIRED, own)]
        if dead:
            await connection.execute(
                "UPDATE node_lease SET incarnation = 0, expires_ms = 0 WHERE id = ANY($1)", dead
            )  # fmt: skip
            await connection.execute("UPDATE node SET alive = false WHERE id = ANY($1)", dead)
            await connection.execute("UPDATE partition SET node = NULL WHERE node = ANY($1)", dead)
    return dead


async def claim(connection: Connection, node: str, incarnation: int, partitions: Collection[int]) -> list[int]:
    """Own those that are free."""
    rows = await connection.fetch(_CLAIM, node, incarnation, sorted(partitions))
    return [row[0] for row in rows]


async def release(connection: Connection, node: str, incarnation: int, partitions: Collection[int]) -> None:
    """Own them no longer."""
    await connection.execute(_RELEASE, node, incarnation, sorted(partitions))


async def leave(connection: Connection, node: str, incarnation: int) -> None:
    """Take no partitions any more."""
    await connection.execute(_LEAVE, node, incarnation)
