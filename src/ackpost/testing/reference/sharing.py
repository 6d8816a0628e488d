"""The reference store as several nodes have it open at once: leases by one clock, partitions, the fence (rule E3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ackpost.core.ids import PARTITION_COUNT, partition_of
from ackpost.core.model import Tenant
from ackpost.errors import RequestError, StoreFenced, StoreLocked
from ackpost.ports import operations as ops
from ackpost.ports.cluster import ClusterState, Looked, NodeInfo, Role
from ackpost.ports.operations import Operation, Repeated, Result
from ackpost.testing.reference.state import NodeRow, State
from ackpost.testing.reference.store import ReferenceStore


class SharedReferenceStore(ReferenceStore):
    """One node's way to a state that others have open, too. Implements ``ackpost.ports.cluster.SharedStore``.

    ``database_ms`` is the clock that all leases go by. ``home`` tells processes of one machine and folder from others
    of the same name. Every call takes place at one moment: between two of them anything may happen.
    """

    def __init__(
        self,
        durable: State,
        database_ms: Callable[[], int],
        *,
        role: Role = "all",
        home: str = "",
        version: str = "",
        scan_rows_max: int = 10_000,
    ) -> None:
        super().__init__(durable, scan_rows_max=scan_rows_max)
        self._database_ms = database_ms
        self._role: Role = role
        self._home = home
        self._version = version
        self._node = ""
        self._lease_ms = 0

    # ---- membership

    async def open(self, *, node: str, now_ms: int, lease_ms: int) -> int:
        """Join; a process of the same home was restarted, and keeps its partitions."""
        state, is_first = self.durable, self.durable.incarnation == 0
        namesake = state.nodes.get(node)
        is_same = namesake is not None and namesake.home == self._home
        if namesake is not None and not is_same and namesake.alive and namesake.expires_ms >= self._database_ms():
            raise StoreLocked(f"Another server is called {node} and alive.")
        if not is_same or self._role == "api":
            _free(state, node)
        self._node, self._lease_ms = node, lease_ms
        incarnation = self._come_alive(now_ms)
        if is_first:
            position = state.allocate(1, now_ms)
            state.tenants[position] = Tenant(position=position, uid="default", created_at_ms=now_ms)
            state.routing_versions[position] = 1
        return incarnation

    async def rejoin(self) -> int:
        """Come back owning nothing."""
        state = self._state
        namesake = state.nodes.get(self._node)
        if namesake is None or namesake.home != self._home:
            raise StoreLocked(f"Another server is called {self._node} now.")
        _free(state, self._node)
        return self._come_alive(state.last >> 20)

    def _come_alive(self, since_ms: int) -> int:
        state = self.durable
        state.incarnation += 1
        self._incarnation = state.incarnation
        state.nodes[self._node] = NodeRow(
            role=self._role, home=self._home, version=self._version, incarnation=state.incarnation, since_ms=since_ms,
            expires_ms=self._database_ms() + self._lease_ms,
        )  # fmt: skip
        return state.incarnation

    async def close(self) -> None:
        """Be gone; what this node owned is free."""
        row = self._living()
        self._incarnation = None
        if row is not None:
            row.alive = False
            _free(self.durable, self._node)

    def _living(self) -> NodeRow | None:
        """Give the row of this node, unless it was declared dead."""
        row = self.durable.nodes.get(self._node)
        return row if row is not None and row.alive and row.incarnation == self._incarnation else None

    async def clock_ms(self) -> int:
        """The time of the database."""
        return self._database_ms()

    async def cluster(self) -> ClusterState:
        """Who lives and who owns what."""
        state, now_ms = self._state, self._database_ms()
        nodes = [
            NodeInfo(
                name, row.role, row.incarnation, row.since_ms, row.version, row.leaving, row.expires_ms - now_ms,
                sorted(partition for partition, owner in state.owners.items() if owner == name),
            )
            for name, row in sorted(state.nodes.items())
            if row.alive
        ]  # fmt: skip
        return ClusterState(nodes, [one for one in range(PARTITION_COUNT) if one not in state.owners])

    async def take_over(self) -> list[str]:
        """Declare dead whose lease has run out."""
        state, now_ms = self._state, self._database_ms()
        dead = [
            name
            for name, row in sorted(state.nodes.items())
            if row.alive and row.expires_ms < now_ms and name != self._node
        ]
        for name in dead:
            state.nodes[name].alive = False
            _free(state, name)
        return dead

    async def claim(self, partitions: Collection[int]) -> list[int]:
        """Own those of them that are free."""
        owners = self._state.owners
        if self._living() is None:
            return []
        free = [partition for partition in sorted(partitions) if partition not in owners]
        owners.update(dict.fromkeys(free, self._node))
        return free

    async def release(self, partitions: Collection[int]) -> None:
        """Own these no longer."""
        if self._living() is not None:
            _free(self._state, self._node, partitions)

    async def leave(self) -> None:
        """Take no partitions any more."""
        row = self._living()
        if row is not None:
            row.leaving = True

    # ---- commit

    async def commit(self, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        """Apply in order, unless this node was declared dead."""
        self.round_trips += 1
        state, row = self._state, self._living()
        renewals = [op for op in operations if isinstance(op, ops.RenewLease)]
        mine = self._node, self._incarnation
        if row is None or any((op.node, op.incarnation) != mine for op in renewals):
            raise StoreFenced(f"Node {self._node} was declared dead.")
        state.committing = row.incarnation
        return self._apply_all(state, operations)

    def _renew(self, state: State, op: ops.RenewLease) -> ops.Done:
        state.nodes[op.node].expires_ms = op.now_ms + op.lease_ms
        return ops.Done()

    # ---- engine

    async def look(self, partitions: Sequence[int], *, after_endpoint: int, limit: int) -> Looked:
        """Work of some partitions, and whether there are jobs."""
        state = self._state
        work = await self.scan_work(after_endpoint=after_endpoint, limit=len(state.pending))
        work = [one for one in work if partition_of(one.endpoint) in partitions]
        endpoints = set(sorted({one.endpoint for one in work})[:limit])
        has_jobs = any(job.state in {"queued", "running"} for job in state.jobs.values())
        return Looked([one for one in work if one.endpoint in endpoints], has_jobs)


def renew(state: State, node: str, incarnation: int, lease_ms: int, now_ms: int) -> int | None:
    """Move a lease's end; give the database's time, or None where the lease is this incarnation's no more."""
    row = state.nodes.get(node)
    if row is None or not row.alive or row.incarnation != incarnation:
        return None
    row.expires_ms = now_ms + lease_ms
    return now_ms


def _free(state: State, node: str, partitions: Collection[int] = range(PARTITION_COUNT)) -> None:
    for partition in partitions:
        if state.owners.get(partition) == node:
            del state.owners[partition]
