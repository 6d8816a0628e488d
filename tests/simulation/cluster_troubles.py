"""What goes wrong where several nodes share a store."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from tests.simulation.sessions import Away
from tests.simulation.troubles import LEASE_MS, Troubles

if TYPE_CHECKING:
    from tests.simulation.cluster import ClusterWorld
    from tests.simulation.cluster_node import ClusterNode

KINDS = ("crash", "freeze", "hang", "away", "outage", "leave", "join", "lose", "full", "slow")
NODES_MAX = 20
LEASE_S = LEASE_MS / 1000


class ClusterTroubles(Troubles):
    """Draws faults for several nodes; each is of one node, but an outage, and a full or slow store."""

    kinds = KINDS

    def __init__(self, world: ClusterWorld, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._cluster = world
        self.rates["flush_failed"] = 0
        self._hint_loss = rng.choice([0.0, 0.0, 0.2, 1.0])
        self._hint_mean_s = rng.choice([0.001, 0.02, 0.5])
        self._gone_long = rng.random() < 0.4

    def hint_s(self) -> float | None:
        """How long a hint takes; None: it is lost. Those of the beginning and the end arrive like the others."""
        if self.random.random() < self._hint_loss:
            self._cluster.history.seen["fault hint lost"] += 1
            return None
        return self.random.expovariate(1 / self._hint_mean_s)

    def away_s(self) -> float:
        """How long a machine is down after a crash."""
        if self._gone_long and not self._cluster.healed and self.random.random() < 0.5:
            return self.random.uniform(0.5, 2.5) * LEASE_S
        return self.random.uniform(0.05, 2)

    def heal(self) -> None:
        """All is well; what stood still goes on."""
        super().heal()
        database = self._cluster.database
        database.away.clear()
        self._hint_loss = 0.0
        for node in list(self._cluster.up):
            if node.process.frozen:
                self._go_on(node)

    def _node(self) -> ClusterNode | None:
        return self.random.choice(self._cluster.up) if self._cluster.up else None

    def _go_on(self, node: ClusterNode) -> None:
        self._cluster.thawed_s[node.name] = self.last_s = self._cluster.loop.time()
        node.go_on()

    async def _freeze(self, *, lease_too: bool = True) -> None:
        node = self._node()
        if node is None or node.process.frozen:
            return
        self.note("freeze" if lease_too else "hang")
        node.hold(lease_too=lease_too)
        span_s = self.random.choice([0.5, 3.0, 12.0, LEASE_S - 1, LEASE_S + 2, 2 * LEASE_S + 1])
        self._cluster.loop.call_later(span_s, self._thaw, node)
        await asyncio.sleep(self.random.uniform(0, 1.2) * span_s)

    def _thaw(self, node: ClusterNode) -> None:
        if node.process.frozen:
            self._go_on(node)

    async def _hang(self) -> None:
        await self._freeze(lease_too=False)

    async def _away(self) -> None:
        node = self._node()
        if node is None:
            return
        self.note("away")
        await self._cut([node.name])

    async def _outage(self) -> None:
        self.note("outage")
        await self._cut([node.name for node in self._cluster.up])

    async def _cut(self, names: list[str]) -> None:
        database, how = self._cluster.database, self._how()
        for name in names:
            database.away[name] = how
            if self.random.random() < 0.7:
                database.lose(name)
        await asyncio.sleep(self.random.choice([1.0, 6.0, LEASE_S - 1, LEASE_S + 4, 2 * LEASE_S]))
        for name in names:
            database.away.pop(name, None)
        self.last_s = self._cluster.loop.time()

    def _how(self) -> Away:
        return "refused" if self.random.random() < 0.5 else "silent"

    async def _leave(self) -> None:
        node = self._node()
        if node is None or node.process.frozen or len(self._cluster.up) < 2:
            return
        self.note("leave")
        await self._cluster._end_node(node)

    async def _join(self) -> None:
        if len(self._cluster.up) < NODES_MAX:
            self.note("join")
            self._cluster.live()

    async def _lose(self) -> None:
        """All sessions of a node are cut, and it may connect at once."""
        node = self._node()
        if node is not None:
            self.note("sessions lost")
            self._cluster.database.lose(node.name)
