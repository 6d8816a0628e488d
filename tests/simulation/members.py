"""Who lives and who owns what in a world of several nodes, as the store has it at each moment (I3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ackpost.core.ids import partition_of
from ackpost.ports import operations as ops
from tests.simulation.checks import Checks
from tests.simulation.commits import Commits
from tests.simulation.history import Send, Violation
from tests.simulation.loop import Process
from tests.simulation.troubles import LEASE_MS

if TYPE_CHECKING:
    from tests.simulation.cluster import ClusterWorld

MARGIN_MS = LEASE_MS // 8
ABORTED_MS = 500
"""A lease's margin begins, and so much later nothing is under way any more."""
POLLS_LATE = 5
"""A change that no hint told of is known after so many polls: each fourth looks at all endpoints."""


class Members:
    """Follows ``State.nodes`` and ``State.owners``."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._processes: dict[int, Process | None] = {}
        self._living: dict[int, str] = {}
        self._owners: dict[int, tuple[str, int]] = {}
        self.changed_s = 0.0
        """When a partition last changed hands."""

    def joined(self, incarnation: int, process: Process | None) -> None:
        """A process got an incarnation."""
        self._processes[incarnation] = process
        self.look()

    def look(self) -> None:
        """Find out what has changed."""
        world, state = self._world, self._world.state
        living = {row.incarnation: name for name, row in state.nodes.items() if row.alive}
        for incarnation in sorted(self._living.keys() - living.keys()):
            self._gone(incarnation)
        self._living = living
        owners = {one: (name, state.nodes[name].incarnation) for one, name in sorted(state.owners.items())}
        moved = {one for one in {*owners, *self._owners} if owners.get(one) != self._owners.get(one)}
        self._owners = owners
        if moved:
            self.changed_s = world.loop.time()
            for endpoint in sorted({*state.endpoints, *state.pending}):
                if partition_of(endpoint) in moved:
                    world.checks.forget_endpoint(endpoint)

    def _gone(self, incarnation: int) -> None:
        """A node was declared dead, restarted, or closed its store: what it had sent is lost to it."""
        world, process = self._world, self._processes[incarnation]
        if process is None or not process.alive:
            return
        node = world.node_of(process)
        if node.stopping:
            return
        world.history.seen["declared dead while it lived"] += 1
        world.interrupted(node)
        for sends in world.history.flying.values():
            for send in sends:
                if send.process is process and send.under_way:
                    world.lost(send)

    # ---- may they?

    def owner(self, endpoint: int) -> Process | None:
        """The process that owns an endpoint now."""
        found = self._owners.get(partition_of(endpoint))
        return None if found is None else self._processes[found[1]]

    def owner_trouble(self, process: Process, endpoint: int) -> str | None:
        """Say why a process may not send to an endpoint now."""
        if self.owner(endpoint) is not process:
            return f"{self._owners.get(partition_of(endpoint))} owns partition {partition_of(endpoint)}"
        row = self._world.state.nodes[process.name]
        left_ms = row.expires_ms - self._world.true_ms()
        if left_ms < MARGIN_MS - 10:
            return f"its lease ends in {left_ms} ms"
        return None

    def writer_trouble(self, process: Process, operations: Sequence[ops.Operation]) -> str | None:
        """Say why a process may not commit these now."""
        incarnations = [one for one in self._living if self._processes[one] is process]
        if not incarnations:
            return "it was declared dead"
        for operation in operations:
            if isinstance(operation, ops.Record) and operation.incarnation == incarnations[0]:
                for decision in operation.decisions:
                    exists = decision.endpoint in self._world.state.endpoints
                    if exists and self.owner(decision.endpoint) is not process:
                        return f"{self.owner(decision.endpoint)} owns what it records: {decision}"
        return None

    def watch(self) -> None:
        """A node that runs has nothing under way once its lease is about to end. Raises: Violation."""
        world = self._world
        for node in world.up:
            row = world.state.nodes.get(node.name)
            frozen = node.process.frozen or world.loop.time() - world.thawed_s.get(node.name, 0.0) < 1.0
            if row is None or frozen or not row.alive or row.expires_ms - world.true_ms() > MARGIN_MS - ABORTED_MS:
                continue
            for sends in world.history.flying.values():
                for send in sends:
                    if send.process is node.process and send.under_way:
                        raise Violation(f"I3: still under way at the end of the lease: {send}")


class ClusterCommits(Commits):
    """Remembers who changed what last, and whether it was told so."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        self._cluster = world

    def durable(self, process: Process, operations: Sequence[ops.Operation], replies: Sequence[object]) -> None:
        """A commit became durable. Raises: Violation."""
        super().durable(process, operations, replies)
        for reply in replies:
            touched = list(getattr(reply, "touched", ()))
            if isinstance(reply, ops.EndpointSaved):
                touched.append(reply.endpoint.position)
            if not isinstance(reply, ops.Recorded):
                for endpoint in touched:
                    self._cluster.changed_ms[endpoint] = self._cluster.true_ms()


class ClusterChecks(Checks):
    """What must hold at each request where several nodes send."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        self._cluster = world

    def on_send(self, send: Send) -> None:
        """Raises: Violation."""
        super().on_send(send)
        for other in self._cluster.history.under_way(send.endpoint):
            if other.process is not send.process and not other.process.frozen:
                raise Violation(f"I3: {send.process} sends while a request of {other.process} is under way: {other}")
        row, endpoint = self._cluster.state.rows[send.delivery], self._cluster.state.endpoints.get(send.endpoint)
        if endpoint is not None and endpoint.state != "enabled" and not send.is_test and row.rev >= endpoint.rev:
            raise Violation(f"I6: sent though the endpoint was {endpoint.state} before the delivery was made: {row}")

    def _knows_since(self, send: Send) -> int:
        """Before that time nothing happened that the sender does not know of."""
        polls = self._cluster.node_of(send.process).polls_ms
        return polls[-POLLS_LATE] if len(polls) >= POLLS_LATE else 0

    def _is_late(self, send: Send) -> bool:
        return self._cluster.changed_ms.get(send.endpoint, 0) < self._knows_since(send)

    def _reordered(self, send: Send) -> bool:
        reordered_ms = self._cluster.history.reordered_ms.get(send.endpoint, 0)
        return super()._reordered(send) or reordered_ms >= self._knows_since(send)
