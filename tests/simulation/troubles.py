"""What goes wrong in a world: which faults, how often, drawn from its seed; none after it has healed."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from ackpost.errors import StoreError
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

LEASE_MS = 20_000
SLOW_S = 1.0
QUIET_S = 7.0
KINDS = ("crash", "freeze", "step", "full", "slow")
STEPS_S = (-315_360_000, -3600, -6, -2, -0.3, 0, 0.3, 2, 6, 3600, 3600, 315_360_000)
"""Ten years, an hour, and less: by how much the wall clock is off from then on."""


class Troubles:
    """Draws faults. ``last_s`` is when something last went wrong."""

    kinds: tuple[str, ...] = KINDS

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self.random = rng
        self.last_s = 0.0
        self.disk_is_full = False
        self.wall_step_s = 0.0
        self._crash_in = 0
        self._frozen = False
        self._store_s = rng.choice([0.001, 0.001, 0.02, 0.3])
        self._kinds = [kind for kind in self.kinds if rng.random() < 0.5]
        self.store_slowest_s = SLOW_S if "slow" in self._kinds else self._store_s
        self.rates = {
            "read_fault": rng.choice([0, 0, 0.02, 0.2]),
            "busy": rng.choice([0, 0, 0.02, 0.2]),
            "broken_before": rng.choice([0, 0, 0.02, 0.1]),
            "unknown_after": rng.choice([0, 0, 0.02, 0.1]),
            "unknown_before": rng.choice([0, 0, 0.02, 0.1]),
            "flush_failed": rng.choice([0, 0, 0, 0.004]),
            "crash_before_commit": rng.choice([0, 0, 0.004]),
            "crash_after_commit": rng.choice([0, 0, 0.004]),
        }

    @property
    def step_clocks(self) -> bool:
        """Whether the wall clock steps in this world."""
        return "step" in self._kinds

    def note(self, fault: str) -> None:
        """Count a fault that happens now."""
        self._world.history.seen[f"fault {fault}"] += 1
        self.last_s = self._world.loop.time()

    def draws(self, fault: str) -> bool:
        """Whether this fault happens here and now."""
        rate = self.rates[fault]
        if rate > 0 and not self._world.healed and self.random.random() < rate:
            self.note(fault)
            return True
        return False

    def store_latency_s(self) -> float:
        """How long the store takes, one way."""
        return self.random.expovariate(1 / (0.001 if self._world.healed else self._store_s))

    def is_quiet(self) -> bool:
        """Nothing is wrong, nor was in the last seconds."""
        calm = not (self.disk_is_full or self._frozen or self._crash_in)
        return calm and self._world.loop.time() - self.last_s > QUIET_S and self._store_s < SLOW_S

    def before_callback(self, process: Process) -> None:
        """Kill the process if its time has come."""
        if self._crash_in:
            self._crash_in -= 1
            if self._crash_in == 0:
                self.note("crash")
                self._world.kill(process)

    def heal(self) -> None:
        """Nothing goes wrong any more; the wall clock stays as it is."""
        self.disk_is_full, self._crash_in = False, 0

    async def run(self) -> None:
        """Crash, freeze, step the wall clock, fill the disk, slow the store: now and then."""
        while self._kinds and self._world.loop.time() < self._world.chaos_s:
            await asyncio.sleep(self.random.expovariate(1 / 12))
            await getattr(self, f"_{self.random.choice(self._kinds)}")()

    async def poison(self) -> None:
        """One event whose answer kills the process, for a while."""
        await asyncio.sleep(self.random.uniform(0, self._world.chaos_s))
        pending = [row.event for rows in self._world.state.pending.values() for row in rows.values()]
        if pending:
            self._world.poison.add(self.random.choice(pending))

    async def _crash(self) -> None:
        self._crash_in = self.random.randint(1, 400)

    async def _freeze(self) -> None:
        node = await self._world.serving()
        self.note("freeze")
        node.process.frozen = self._frozen = True
        span_s = self.random.choice([0.5, 3.0, LEASE_MS / 1000 + 2])
        rival = self._world.loop.create_task(self._rival(node)) if span_s * 1000 > LEASE_MS else None
        await asyncio.sleep(span_s)
        if rival is not None:
            await rival
        self._frozen = False
        self.last_s = self._world.loop.time()
        self._world.loop.thaw(node.process)

    async def _rival(self, frozen: Node) -> None:
        """Another server takes over once the lease is over; the frozen one finds out when it wakes."""
        world = self._world
        await asyncio.sleep(LEASE_MS / 1000 + 1)
        if not frozen.process.alive or world.node is not frozen:
            return
        self.note("takeover")
        frozen.unlock()
        other = world.new_store("rival")
        try:
            await other.open(node="rival", now_ms=world.now_ms(), lease_ms=1)
        except StoreError:
            return
        world.owner = None
        await other.close()

    async def _step(self) -> None:
        self.wall_step_s = self.random.choice(STEPS_S)
        self.note("clock set back" if self.wall_step_s < 0 else "clock set forward")
        if self.random.random() < 0.4:
            self._crash_in = self.random.randint(1, 400)  # the next process begins with the new time

    async def _full(self) -> None:
        self.disk_is_full = True
        await asyncio.sleep(self.random.uniform(1, 8))
        self.disk_is_full = False

    async def _slow(self) -> None:
        self.note("slow store")
        before, self._store_s = self._store_s, SLOW_S
        await asyncio.sleep(self.random.uniform(1, 8))
        self._store_s = before
        self.last_s = self._world.loop.time()
