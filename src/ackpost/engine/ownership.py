"""How a node that shares its store comes by partitions, keeps them and gives them up (rules E1, E3).

Every few seconds, and whenever others tell of a change, it looks who lives. Nodes whose lease has run out are declared
dead. What is then free is spread evenly; what a node has too much of it gives up once nothing of it is under way. A
node that was itself declared dead drops all it holds and comes back with a new incarnation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from ackpost.core.partitions import moves_of
from ackpost.engine.engine import Engine
from ackpost.engine.partitions import Cluster
from ackpost.engine.writer import Writer
from ackpost.errors import StoreError, StoreFenced, StoreLocked
from ackpost.ports.clock import Clock
from ackpost.ports.cluster import ClusterState, Heard, Lease, NodeInfo, SharedStore, Wakeup
from ackpost.ports.store import Work
from ackpost.ports.telemetry import Telemetry

BALANCE_S: Final = 5.0
DRAIN_LOOK_S: Final = 0.05
"""How often a node looks whether what it gives up is drained."""
TROUBLE_PAUSE_S: Final = 0.5
LOOKS_TRUSTED: Final = 4
"""So many looks in a row trust hints to have told of all that was added behind what is known."""
BEAT_S: Final = 0.25


class FollowingClock(Clock, Protocol):
    """Process time that follows the store's clock (rule E16)."""

    def follow(self, offset_ms: int) -> None:
        """The store's clock is that much ahead of monotonic time."""


class SharedOwner:
    """Membership of one node. ``delivers`` False: it accepts only, and owns nothing."""

    def __init__(
        self,
        store: SharedStore,
        writer: Writer,
        engine: Engine,
        cluster: Cluster,
        clock: FollowingClock,
        telemetry: Telemetry,
        *,
        node: str,
        incarnation: int,
        delivers: bool,
    ) -> None:
        self._store = store
        self._writer = writer
        self._engine = engine
        self._lease: Lease = cluster.lease
        self._wakeup: Wakeup = cluster.wakeup
        self._clock = clock
        self._telemetry = telemetry
        self._node = node
        self._incarnation = incarnation
        self._delivers = delivers
        self._is_fenced = False
        self._was_valid = True
        self._leaving = False
        self._giving: set[int] = set()
        self._balance_wanted = asyncio.Event()
        self._hints_lost = True
        self._known: set[tuple[str, int]] = set()
        self._looks = 0
        self._task: asyncio.Task[None] | None = None
        self._beats: asyncio.TimerHandle | None = None
        self.look_wanted = asyncio.Event()
        """Set when the store should be looked through at once."""
        self.has_jobs = True
        """Whether the last look found open jobs."""
        cluster.on_fenced = self.on_fenced

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin to beat and to take partitions."""
        self._beat()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="partitions")

    def begin_leaving(self) -> None:
        """The node stops: give everything up as soon as it is drained, for others to take at once."""
        self._leaving = True
        self._balance_wanted.set()

    async def stop(self) -> None:
        """End; what is still owned is given up when the store closes."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._beats is not None:
            self._beats.cancel()

    def heard(self) -> Heard:
        """What hints of other nodes lead to."""
        return Heard(
            work=self._engine.heard_work,
            change=self._engine.heard_change,
            members=self._balance_wanted.set,
            anything=self._look_everywhere,
        )

    def on_fenced(self) -> None:
        """A commit found that this node was declared dead."""
        self._is_fenced = True
        self._balance_wanted.set()

    # ------------------------------------------------------------ what housekeeping asks

    async def look(self, *, after_endpoint: int, limit: int) -> list[Work]:
        """Work of the partitions owned now; notes whether there are jobs."""
        owned = sorted(self._engine.parts.owned or ())
        looked = await self._store.look(owned, after_endpoint=after_endpoint, limit=limit)
        self.has_jobs = looked.has_jobs
        return looked.work

    def hints_may_be_lost(self) -> bool:
        """Whether rows may have been added that nobody told of, since this was last asked.

        Now and then it is assumed: a node may die between its commit and its hint.
        """
        self._looks += 1
        lost, self._hints_lost = self._hints_lost, not self._wakeup.is_listening
        return lost or self._hints_lost or self._looks % LOOKS_TRUSTED == 0

    def _look_everywhere(self) -> None:
        self._hints_lost = True
        self.look_wanted.set()

    # ------------------------------------------------------------ beat

    def _beat(self) -> None:
        """Tell the lease that the loop lives; stop all sending when the lease runs out (rule E3)."""
        self._lease.beat()
        offset_ms = self._lease.clock_offset_ms()
        if offset_ms is not None:
            self._clock.follow(offset_ms)
        is_valid = self._lease.is_valid()
        if self._was_valid and not is_valid:
            self._engine.flights.cut_off("this node's lease ran out")
            self._telemetry.note("lease.lapsed", node=self._node)
        elif is_valid and not self._was_valid:
            self._telemetry.note("lease.renewed", node=self._node)
            self._engine.dispatcher.kick()
        self._was_valid = is_valid
        if self._lease.lost and not self._is_fenced:
            self.on_fenced()
        self._beats = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    # ------------------------------------------------------------ balance

    async def _run(self) -> None:
        while True:
            try:
                pause_s = await self._step()
            except StoreFenced:
                self._is_fenced = True
                pause_s = 0.0
            except StoreLocked as error:
                self._engine.on_fatal(error)
                raise
            except StoreError:
                pause_s = TROUBLE_PAUSE_S
            except Exception as error:
                self._engine.on_fatal(error)
                raise
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._balance_wanted.wait()
            self._balance_wanted.clear()

    async def _step(self) -> float:
        """Do what the state of the cluster asks for; give how long to wait for the next look."""
        if self._is_fenced:
            await self._rejoin()
        if self._giving:
            return await self._release()
        if self._leaving and self._delivers and self._engine.parts.owned:
            await self._store.leave()
            self._give(self._engine.parts.owned)
            return await self._release()
        state = await self._store.cluster()
        expired = [node.id for node in state.nodes if node.lease_left_ms < 0 and node.id != self._node]
        if expired:
            dead = await self._store.take_over()
            if dead:
                self._telemetry.note("nodes.dead", nodes=", ".join(dead))
                self._wakeup.tell_members()
            state = await self._store.cluster()
        self._note_losses(state)
        me = next((node for node in state.nodes if node.id == self._node), None)
        if me is None or me.incarnation != self._incarnation:
            self.on_fenced()
            return 0.0
        if self._delivers and not self._leaving and self._lease.is_valid():
            await self._balance(state, me)
        return DRAIN_LOOK_S if self._giving else BALANCE_S

    def _note_losses(self, state: ClusterState) -> None:
        """A node that is gone may have died between a commit and the hint that would have told of it (rule E1)."""
        living = {(node.id, node.incarnation) for node in state.nodes}
        if self._known - living:
            self._look_everywhere()
        self._known = living

    async def _balance(self, state: ClusterState, me: NodeInfo) -> None:
        owned = {node.id: node.partitions for node in state.nodes if node.delivers}
        moves = moves_of(self._node, owned, state.free)
        gained = set(me.partitions) - (self._engine.parts.owned or frozenset())
        if moves.take:
            gained.update(await self._store.claim(moves.take))
        if gained:
            self._engine.parts.take(gained)
            self._telemetry.note("partitions.taken", count=len(gained), owned=len(self._engine.parts.owned or ()))
            self._look_everywhere()
        if moves.give:
            self._give(moves.give)

    def _give(self, partitions: Sequence[int] | frozenset[int]) -> None:
        self._giving.update(partitions)
        self._engine.parts.leave(partitions)

    async def _release(self) -> float:
        """Give up what is drained of what is to be given."""
        drained = self._engine.parts.left(self._giving)
        if drained:
            await self._store.release(drained)
            self._giving.difference_update(drained)
            self._telemetry.note("partitions.released", count=len(drained), owned=len(self._engine.parts.owned or ()))
            self._wakeup.tell_members()
        return DRAIN_LOOK_S if self._giving else 0.0 if not self._leaving else BALANCE_S

    async def _rejoin(self) -> None:
        """Drop what this node held and come back: others may have taken all of it."""
        self._giving.clear()
        self._engine.abandon()
        asked_at_s = self._lease.now_s()
        self._incarnation = await self._store.rejoin()
        self._writer.rejoin(self._incarnation)
        self._lease.adopt(self._incarnation, asked_at_s)
        self._is_fenced = False
        self._telemetry.note("node.rejoined", node=self._node, incarnation=self._incarnation)
        self._wakeup.tell_members()
