"""The lease's thread and the hints, each on simulated sessions in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ackpost.ports.cluster import Heard
from ackpost.store.postgres.lease import RENEWALS, LeaseKeeper
from ackpost.store.postgres.wakeup import PAYLOAD_MAX, NotifyWakeup
from ackpost.testing.reference import SharedReferenceStore, State
from tests.simulation.loop import Process, VirtualLoop, run
from tests.simulation.sessions import PLACE, Database

LEASE_MS = 20_000
VALID_S = 17.5
STEP_S = 0.01
START_MS = 1_800_000_000_000


class Stage:
    """A database, and the process of one node ``a`` that has joined."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.state = State()
        self.database = Database(loop, self.state, lambda: START_MS + int(loop.time() * 1000))
        self.store = SharedReferenceStore(self.state, self.database.now_ms)
        self.process = Process("a")
        self.lease = LeaseKeeper(
            PLACE, node="a", lease_ms=LEASE_MS, boot_s=loop.time, monotonic_s=loop.time, connect=self.database.connect
        )
        self.beats = True
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        """Have a lease, and keep it."""
        asked_at_s = self.lease.now_s()
        incarnation = await self.store.open(node="a", now_ms=START_MS, lease_ms=LEASE_MS)
        self.lease.adopt(incarnation, asked_at_s)
        for work in (self.lease.run(), self._beat()):
            self._tasks.append(self.loop.create_task(work, context=self.process.context))

    async def _beat(self) -> None:
        while True:
            if self.beats:
                self.lease.beat()
            await asyncio.sleep(STEP_S * 10)

    def left_ms(self) -> int:
        """What the database says is left of the lease."""
        return self.state.nodes["a"].expires_ms - self.database.now_ms()

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> float:
        """Let time pass; give how much."""
        begun_s = self.loop.time()
        while not condition():
            assert self.loop.time() - begun_s < within_s, "it did not happen in time"
            await asyncio.sleep(STEP_S)
        return self.loop.time() - begun_s

    def hints(self, name: str, heard: list[object]) -> NotifyWakeup:
        """Let a node listen."""
        wakeup = NotifyWakeup(PLACE, sender=name, connect=self.database.connect)
        wants = Heard(
            work=lambda found: heard.append(("work", *found)), change=lambda found: heard.append(("change", *found)),
            members=lambda: heard.append("members"), anything=lambda: heard.append("anything"),
        )  # fmt: skip
        Process(name).context.run(wakeup.start, wants)
        return wakeup


def play(story: Callable[[Stage], Awaitable[None]]) -> None:
    """Run a story."""
    loop = VirtualLoop(1)

    async def main() -> None:
        await story(Stage(loop))

    run(loop, main())
    assert loop.errors == []


def test_a_lease_is_renewed_four_times_in_its_time() -> None:
    """As long as the loop beats it never comes near its end."""

    async def story(stage: Stage) -> None:
        await stage.join()
        for _ in range(600):
            await asyncio.sleep(STEP_S * 20)
            assert stage.lease.is_valid()
            assert stage.left_ms() >= LEASE_MS * (1 - 1 / RENEWALS) - 100
        assert stage.lease.clock_offset_ms() == START_MS
        assert stage.lease.renewed_ago_s() <= LEASE_MS / 1000 / RENEWALS + STEP_S

    play(story)


def test_a_lease_counts_from_before_it_was_asked_for() -> None:
    """However long the answer took: here three seconds, so that it ends so much earlier than the database says."""

    async def story(stage: Stage) -> None:
        stage.database.latency_s = lambda: 1.5
        await stage.join()
        await asyncio.sleep(STEP_S * 3000)
        await stage.until(lambda: stage.lease.renewed_ago_s() <= 3.1)
        assert stage.lease.renewed_ago_s() >= 2.9
        stage.database.away["a"] = "silent"
        await stage.until(lambda: not stage.lease.is_valid())
        assert stage.left_ms() >= LEASE_MS + 1500 - VALID_S * 1000 - 20

    play(story)


def test_a_loop_that_hangs_loses_its_lease() -> None:
    """The thread renews only for a loop that beat within a third of the lease."""

    async def story(stage: Stage) -> None:
        await stage.join()
        stage.beats = False
        taken_s = await stage.until(lambda: stage.left_ms() < 0)
        assert taken_s <= LEASE_MS / 1000 * (1 + 1 / 3) + 1
        stage.beats = True
        await stage.until(stage.lease.is_valid, within_s=2)

    play(story)


def test_a_lease_that_was_taken_is_lost_at_once() -> None:
    """It is not valid any more from the first renewal that finds it so, until the node adopts another one."""

    async def story(stage: Stage) -> None:
        await stage.join()
        stage.state.nodes["a"].alive = False
        await stage.until(lambda: stage.lease.lost)
        assert not stage.lease.is_valid()
        asked_at_s = stage.lease.now_s()
        stage.lease.adopt(await stage.store.rejoin(), asked_at_s)
        assert (stage.lease.lost, stage.lease.is_valid()) == (False, True)
        await asyncio.sleep(STEP_S * 3000)
        assert stage.lease.is_valid()

    play(story)


def test_renewals_go_on_after_trouble() -> None:
    """A refused, silent or cut connection is replaced, in time while the trouble is short."""

    async def story(stage: Stage) -> None:
        await stage.join()
        for how in ("refused", "silent"):
            stage.database.away["a"] = how
            stage.database.lose("a")
            await asyncio.sleep(STEP_S * 700)
            del stage.database.away["a"]
            await stage.until(lambda: stage.lease.renewed_ago_s() < 1, within_s=7)
            assert stage.lease.is_valid()

    play(story)


def test_what_gathers_goes_out_in_one_hint() -> None:
    """And who sent it does not hear it."""

    async def story(stage: Stage) -> None:
        heard_a: list[object] = []
        heard_b: list[object] = []
        a, b = stage.hints("a", heard_a), stage.hints("b", heard_b)
        await stage.until(lambda: a.is_listening and b.is_listening)
        heard_a.clear()
        heard_b.clear()
        for number in range(5):
            a.tell_work(255 + number, 7)
            a.tell_work(255, 7)
        a.tell_change(9)
        a.tell_members()
        await asyncio.sleep(STEP_S * 5)
        assert heard_b == [("work", *((255 + one, 7) for one in range(5))), ("change", 9), "members"]
        assert (heard_a, stage.database.hints_told) == ([], 1)

    play(story)


def test_more_than_a_hint_can_hold_is_told_as_anything() -> None:
    """PostgreSQL bounds what a notification carries."""

    async def story(stage: Stage) -> None:
        heard: list[object] = []
        a, b = stage.hints("a", []), stage.hints("b", heard)
        await stage.until(lambda: a.is_listening and b.is_listening)
        heard.clear()
        for number in range(PAYLOAD_MAX // 8 + 1):
            a.tell_change(number)
        a.tell_members()
        await asyncio.sleep(STEP_S * 5)
        for number in range(PAYLOAD_MAX // 8 - 1):
            a.tell_change((1 << 60) + number)
        await asyncio.sleep(STEP_S * 5)
        assert heard == ["anything", "members", "anything"]

    play(story)


def test_hints_are_kept_while_the_database_is_away() -> None:
    """They are told once it is back; who listens anew looks everywhere."""

    async def story(stage: Stage) -> None:
        heard: list[object] = []
        a, b = stage.hints("a", []), stage.hints("b", heard)
        await stage.until(lambda: a.is_listening and b.is_listening)
        stage.database.away["a"] = "refused"
        heard.clear()
        a.tell_work(3, 4)
        await asyncio.sleep(STEP_S * 500)
        a.tell_change(5)
        del stage.database.away["a"]
        await stage.until(lambda: len(heard) == 2)
        assert heard == [("work", (3, 4)), ("change", 5)]
        stage.database.lose("b")
        await stage.until(lambda: len(heard) == 3)
        assert (heard[2], b.is_listening) == ("anything", True)

    play(story)


def test_stopping_tells_what_is_left_to_tell() -> None:
    """The last hint of a node that leaves goes out."""

    async def story(stage: Stage) -> None:
        heard: list[object] = []
        a, b = stage.hints("a", []), stage.hints("b", heard)
        await stage.until(lambda: a.is_listening and b.is_listening)
        heard.clear()
        a.tell_members()
        await a.stop()
        await stage.until(lambda: heard == ["members"])

    play(story)
