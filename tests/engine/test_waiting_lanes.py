"""A place that its waiter does not use goes to the next one: no lane waits while there is room for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from ackpost.engine.dispatcher import Dispatcher


def _lane(host: str, *, troubled: bool) -> Any:
    """A lane with one reference to send."""
    lane = SimpleNamespace(
        builder=SimpleNamespace(target=SimpleNamespace(pool_key=host)), troubled=troubled, unproven=False, left=1,
        queued=False, host_waiting=False, slot_waiting=False, trouble_waiting=False, in_flight=0, wake_ms=0, timer_ms=0,
    )  # fmt: skip

    def take(_: int) -> object:
        lane.left -= 1
        return lane if lane.left >= 0 else None

    lane.tenant, lane.take = id(lane), take
    return lane


class _Turns:
    """A dispatcher whose requests the test ends."""

    def __init__(self, *, slots: int, host_cap: int) -> None:
        clock: Any = SimpleNamespace(now_ms=lambda: 1)
        self.under_way: list[tuple[Any, str, bool]] = []
        self._dispatcher = Dispatcher(clock, self._send, slots=slots, host_cap=host_cap, may_send=lambda: True)

    def _send(self, lane: Any, _ref: object, _now_ms: int) -> None:
        host = lane.builder.target.pool_key
        self.under_way.append((lane, host, lane.troubled))
        self._dispatcher.started(host, troubled=lane.troubled)

    async def activate(self, *lanes: Any) -> None:
        """Have each lane take its turn."""
        for lane in lanes:
            self._dispatcher.activate(lane)
            await _settle()

    async def end(self, lane: Any, *, troubled: bool) -> None:
        """End the lane's request."""
        flight = next(flight for flight in self.under_way if flight[0] is lane)
        self.under_way.remove(flight)
        lane.troubled = troubled
        self._dispatcher.finished(lane, flight[1], troubled=flight[2])
        await _settle()

    def sends(self, lane: Any) -> bool:
        """Whether a request of the lane is under way."""
        return any(flight[0] is lane for flight in self.under_way)


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def _play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_a_good_lane_gets_the_place_of_a_host_that_one_in_trouble_may_not_use() -> None:
    """One hangs, one fails, one in trouble waits before a good one: the good one goes at once."""

    async def story() -> None:
        turns = _Turns(slots=100, host_cap=2)
        hanging, failing = _lane("a", troubled=True), _lane("a", troubled=False)
        waiting, good = _lane("a", troubled=True), _lane("a", troubled=False)
        failing.left = 2
        await turns.activate(hanging, failing, waiting, good)
        await turns.end(failing, troubled=True)
        assert turns.sends(good)

    _play(story)


def test_a_lane_whose_host_changed_leaves_its_place_to_the_next() -> None:
    """It was woken for a place of the host that it no longer sends to."""

    async def story() -> None:
        turns = _Turns(slots=100, host_cap=1)
        first, moved, good = (_lane("a", troubled=False) for _ in range(3))
        await turns.activate(first, moved, good)
        moved.builder = SimpleNamespace(target=SimpleNamespace(pool_key="b"))
        await turns.end(first, troubled=False)
        assert turns.sends(moved)
        assert turns.sends(good)

    _play(story)


def test_a_slot_that_a_full_host_cannot_use_goes_to_another_host() -> None:
    """Of two in trouble that wait for a slot, the first's host has no place for it: the second goes."""

    async def story() -> None:
        turns = _Turns(slots=4, host_cap=2)
        hanging, ending = _lane("a", troubled=True), _lane("c", troubled=True)
        stuck, free = _lane("a", troubled=True), _lane("b", troubled=True)
        await turns.activate(hanging, ending, stuck, free)
        await turns.end(ending, troubled=False)
        assert turns.sends(free)

    _play(story)


def test_a_lane_that_has_recovered_takes_no_place_of_those_in_trouble() -> None:
    """It waited among them; the place that it needs no more goes to the next."""

    async def story() -> None:
        turns = _Turns(slots=100, host_cap=3)
        hanging, recovered, waiting = (_lane("a", troubled=True) for _ in range(3))
        await turns.activate(hanging, recovered, waiting)
        recovered.troubled = False
        await turns.end(hanging, troubled=True)
        assert turns.sends(recovered)
        assert turns.sends(waiting)

    _play(story)
