"""The nodes that deliver together: who lives, who owns how much, who is behind (contract §9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ackpost.core.ids import PARTITION_COUNT, partition_of
from ackpost.ports.clock import Clock
from ackpost.ports.cluster import ClusterState, NodeInfo

if TYPE_CHECKING:
    from ackpost.service.context import Services

NodeState = Literal["alive", "leaving", "expired"]

_STEP: Final = 1000


class ShownNode(msgspec.Struct):
    """A node with when its lease ends and what it has to send that is due the longest."""

    info: NodeInfo
    state: NodeState
    lease_expires_ms: int
    oldest_due_ms: int | None


class SoleMember:
    """The only node there is: it owns everything. ``lease_until_ms`` gives until when nobody else can."""

    def __init__(self, name: str, version: str, since_ms: int, lease_until_ms: Callable[[], int], clock: Clock) -> None:
        self._name, self._version, self._since_ms = name, version, since_ms
        self._lease_until_ms, self._clock = lease_until_ms, clock

    async def cluster(self) -> ClusterState:
        """Itself."""
        left_ms = self._lease_until_ms() - self._clock.now_ms()
        everything = list(range(PARTITION_COUNT))
        node = NodeInfo(self._name, "all", 0, self._since_ms, self._version, False, left_ms, everything)
        return ClusterState([node], [])


class NodeService:
    """Use cases around nodes."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._members = services.members
        self._clock = services.clock

    async def all(self) -> list[ShownNode]:
        """All nodes that live or did until their lease ran out, by name."""
        state = await self._members.cluster()
        now_ms = self._clock.now_ms()
        oldest = await self._oldest_due(state)
        return [
            ShownNode(node, _state_of(node), now_ms + node.lease_left_ms, oldest.get(node.id)) for node in state.nodes
        ]

    async def _oldest_due(self, state: ClusterState) -> dict[str, int]:
        owner = {partition: node.id for node in state.nodes for partition in node.partitions}
        oldest: dict[str, int] = {}
        after = 0
        while works := await self._store.scan_work(after_endpoint=after, limit=_STEP):
            for work in works:
                name = owner.get(partition_of(work.endpoint))
                if name is not None:
                    oldest[name] = min(work.due_ms, oldest.get(name, work.due_ms))
            after = works[-1].endpoint
        return oldest


def _state_of(node: NodeInfo) -> NodeState:
    if node.lease_left_ms < 0:
        return "expired"
    return "leaving" if node.leaving else "alive"
