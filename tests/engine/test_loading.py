"""Windows (rules E1, E12): memory holds a part, the store all; whatever is read late or fails loses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ackpost.core.model import FIRST
from ackpost.engine import budget as budgets
from ackpost.engine import lane as lanes
from ackpost.errors import InvalidInput, StoreBusy
from ackpost.ports import operations as ops
from ackpost.store.sqlite import SqliteStore
from tests.engine.rig import Rig, answer, play


def _memory(rig: Rig) -> tuple[int, int]:
    """References and payload bytes that lanes hold, counted one by one."""
    refs = [ref for lane in rig.engine.lanes.values() for ref in lane.known.values()]
    return len(refs), sum(len(ref.payload.data) for ref in refs if ref.payload is not None)


def test_a_hundred_thousand_pending_rows_cost_a_window(tmp_path: Any) -> None:
    """A paused backlog of 100,000 is taken up in windows: memory stays bounded, and what is counted is what is held."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=100)
        await rig.state(endpoint, "pause")
        for _ in range(100):
            await rig.publish(endpoint, count=1000)
        assert _memory(rig) == (0, 0)
        most = 0
        await rig.state(endpoint, "resume")
        while len(rig.wire.requests) < 5000:
            await rig.pass_s(0.05)
            most = max(most, _memory(rig)[0])
            assert _memory(rig) == (rig.engine.budget.refs, rig.engine.budget.payload_bytes)
        assert most <= lanes.HANDED_REFS_MAX + 100
        assert [request.n for request in rig.wire.requests] == list(range(len(rig.wire.requests)))

    play(story, store=SqliteStore(str(tmp_path / "ackpost.db"), inline=True))


def test_a_full_window_takes_no_more_and_forgets_nothing() -> None:
    """More than a lane may hold is accepted while nothing is sent: the rest comes from the store, in order."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint(max_in_flight=50)
        await rig.publish(endpoint)
        await rig.pass_s(0.1)
        lane = rig.engine.lanes[endpoint.position]
        assert all(lane.complete), "memory knows all, so what is accepted is handed to it"
        for _ in range(3):
            await rig.publish(endpoint, count=1000)
        await rig.pass_s(1)
        assert lanes.HANDED_REFS_MAX <= len(lane.known) <= lanes.HANDED_REFS_MAX + 2
        assert not lane.complete[FIRST]
        rig.wire.reply = lambda _: (0.001, answer())
        for request in list(rig.wire.under_way):
            rig.wire.end(request)
        await rig.until(lambda: len(rig.wire.requests) == 3001)
        assert [request.n for request in rig.wire.requests] == list(range(3001))

    play(story)


def test_references_of_all_lanes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the node's references are used up each endpoint still gets a few, and is served to the end."""
    monkeypatch.setattr(lanes, "REFS_MAX", 100)
    monkeypatch.setattr("ackpost.engine.loader.REFS_MAX", 100)

    async def story(rig: Rig) -> None:
        endpoints = [await rig.endpoint(f"/e{number}") for number in range(20)]
        for endpoint in endpoints:
            await rig.publish(endpoint, count=50)
        most = 0
        while len(rig.wire.requests) < 1000:
            await rig.pass_s(0.01)
            under_way = rig.engine.requests_in_flight() + rig.engine.unrecorded()
            most = max(most, rig.engine.budget.refs - under_way)
            assert rig.loop.time() < 60
        assert most <= 100 + 20 * (lanes.REFS_A_CLASS_MIN + 2)

    play(story)


def test_payloads_beyond_the_budget_are_read_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room for payloads everything is delivered all the same, and no byte is counted twice or for ever."""
    monkeypatch.setattr(budgets, "QUEUED_BYTES_MAX", 50)
    monkeypatch.setattr("ackpost.engine.loader.QUEUED_BYTES_MAX", 50)

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=3)
        await rig.publish(endpoint, count=200)
        while len(rig.wire.requests) < 200:
            await rig.pass_s(0.01)
            assert _memory(rig) == (rig.engine.budget.refs, rig.engine.budget.payload_bytes)
            assert rig.loop.time() < 60
        await rig.pass_s(1)
        assert (rig.engine.budget.refs, rig.engine.budget.payload_bytes) == (0, 0)

    play(story)


class Held:
    """A read of the store whose answer waits: what happens meanwhile is not in it."""

    def __init__(self, rig: Rig, name: str) -> None:
        self._read = getattr(rig.store, name)
        self.gate = asyncio.Event()
        self.began = asyncio.Event()
        setattr(rig.store, name, self.read)

    async def read(self, *args: Any, **given: Any) -> Any:
        """Read now, answer later."""
        found = await self._read(*args, **given)
        self.began.set()
        await self.gate.wait()
        return found


def test_an_older_snapshot_does_not_bring_back_what_ended() -> None:
    """A window that was read before a result was stored, and comes after it, is not sent again."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint()
        first, second = await rig.publish(endpoint, count=2)
        await rig.until(lambda: len(rig.wire.requests) == 2)
        held = Held(rig, "load_window")
        rig.engine.touch([endpoint.position])
        await held.began.wait()
        for request in list(rig.wire.under_way):
            rig.wire.end(request)
        await rig.pass_s(1)
        held.gate.set()
        await rig.pass_s(5)
        assert len(rig.wire.requests) == 2
        assert {await rig.status(one) for one in (first, second)} == {("delivered", None)}

    play(story)


@pytest.mark.parametrize("name", ["load_endpoints", "load_window"])
def test_a_change_during_a_reload_is_read_too(name: str) -> None:
    """Paused between a read and its answer: the answer's endpoint is not believed."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        await rig.publish(endpoint, count=5)
        await rig.pass_s(1)
        held = Held(rig, name)
        await rig.state(endpoint, "resume")
        await held.began.wait()
        await rig.state(endpoint, "pause")
        held.gate.set()
        await rig.pass_s(5)
        assert rig.wire.requests == []

    play(story)


def test_a_payload_that_comes_after_a_cancel_is_not_sent() -> None:
    """A delivery that was taken for sending and waits for its data can still be cancelled."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        (delivery,) = await rig.publish(endpoint)
        held = Held(rig, "load_payloads")
        rig.engine._loader._prefetch = _nothing  # type: ignore[method-assign,assignment] # only the late way is looked at
        await rig.state(endpoint, "resume")
        await held.began.wait()
        await rig.submit(ops.Cancel(endpoint.tenant, rig.now_ms(), delivery=delivery))
        await rig.pass_s(1)
        held.gate.set()
        await rig.pass_s(5)
        assert rig.wire.requests == []
        assert (rig.engine.budget.refs, rig.engine.budget.payload_bytes) == (0, 0)

    play(story)


async def _nothing(*_: object) -> None:
    return None


@pytest.mark.parametrize("name", ["load_endpoints", "load_window", "load_payloads"])
def test_a_store_in_trouble_is_asked_again(name: str) -> None:
    """Reads that fail delay, and lose nothing, whichever they are."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        await rig.publish(endpoint, count=20)
        read, failures = getattr(rig.store, name), list[str]()

        async def broken(*args: Any, **given: Any) -> Any:
            if len(failures) < 5:
                failures.append(name)
                raise StoreBusy("busy")
            return await read(*args, **given)

        setattr(rig.store, name, broken)
        await rig.state(endpoint, "resume")
        await rig.until(lambda: len(rig.wire.requests) == 20, within_s=5)
        assert len(failures) == 5

    play(story)


def test_a_load_that_breaks_ends_the_node() -> None:
    """An error that no store should raise is not swallowed by a task nobody looks at."""

    async def story(rig: Rig) -> None:
        async def broken(*_: object) -> None:
            raise ZeroDivisionError

        endpoint = await rig.endpoint()
        rig.store.load_endpoints = broken
        rig.engine.touch([endpoint.position])
        rig.engine.found_work(await rig.store.scan_work(after_endpoint=0, limit=10))
        lane = rig.engine._new_lane(endpoint.position, endpoint.tenant)
        await rig.pass_s(1)
        assert isinstance(rig.fatal[0], ZeroDivisionError)
        assert lane.view is None
        rig.loop._made.clear()  # the failed task was told of

    play(story)


def test_a_change_that_is_stored_during_a_reload_is_not_overwritten() -> None:
    """An endpoint was read before a told wait was stored, and the answer comes after it: it still waits."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint(max_in_flight=1)
        await rig.publish(endpoint, count=3)
        await rig.until(lambda: len(rig.wire.requests) == 1)
        held = Held(rig, "load_endpoints")
        rig.engine.touch([endpoint.position])
        await held.began.wait()
        rig.wire.end(rig.wire.requests[0], answer(503, "60"))
        await rig.pass_s(1)
        held.gate.set()
        await rig.pass_s(50)
        assert len(rig.wire.requests) == 1

    play(story)


def test_an_endpoint_that_cannot_be_used_is_parked_until_it_is_changed() -> None:
    """A stored URL that this server refuses: told, nothing sent, nothing lost, and sent after the change."""

    async def story(rig: Rig) -> None:
        build = rig.build
        endpoint = await rig.endpoint()

        def refuse(_: object) -> Any:
            raise InvalidInput("no http here")

        rig.engine._loader._make_builder = refuse
        (delivery,) = await rig.publish(endpoint)
        await rig.pass_s(5)
        assert rig.told.noted("endpoint.broken")
        assert (await rig.status(delivery))[0] == "pending"
        rig.engine._loader._make_builder = build
        changed = await rig.fresh(endpoint)
        changed.description = "mended"
        await rig.submit(ops.ReplaceEndpoint(changed, changed.rev, rig.now_ms()))
        await rig.until(lambda: len(rig.wire.requests) == 1, within_s=1)

    play(story)


def test_an_endpoint_that_broke_while_a_request_ran_takes_its_answer() -> None:
    """The answer is judged by what was known when it was sent."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint()
        (delivery,) = await rig.publish(endpoint)
        await rig.until(lambda: len(rig.wire.requests) == 1)

        def refuse(_: object) -> Any:
            raise InvalidInput("no http here")

        rig.engine._loader._make_builder = refuse
        rig.engine.touch([endpoint.position])
        await rig.pass_s(1)
        rig.wire.end(rig.wire.requests[0])
        await rig.pass_s(1)
        assert await rig.status(delivery) == ("delivered", None)

    play(story)


def test_what_no_hint_told_of_is_found_by_the_poll() -> None:
    """A row that memory does not know goes out, also while the endpoint has other work of its class."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.2, answer())
        endpoint = await rig.endpoint(max_in_flight=1)
        await rig.publish(endpoint)
        await rig.pass_s(1)
        hand_off = rig.engine.hand_off
        rig.engine.hand_off = lambda _: None  # type: ignore[method-assign,assignment] # the hint is lost
        (lost,) = await rig.publish(endpoint)
        rig.engine.hand_off = hand_off  # type: ignore[method-assign] # as it was
        await rig.pass_s(0.01)
        await rig.publish(endpoint, count=50)
        await rig.pass_s(0.5)
        rig.engine.found_work(await rig.store.scan_work(after_endpoint=0, limit=10))
        await rig.pass_s(1)
        assert await rig.status(lost) == ("delivered", None)
        assert len(rig.wire.requests) < 20

    play(story)


def test_idle_lanes_leave_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints that have no work are forgotten, paused ones too; those with work or a troubled circuit stay."""
    monkeypatch.setattr("ackpost.engine.engine.LANES_KEPT", 20)

    async def story(rig: Rig) -> None:
        rig.engine._lanes_kept = 20
        rig.wire.reply = lambda request: (0.01, answer(500 if request.target.path_query == "/bad" else 200))
        bad = await rig.endpoint("/bad", retry={"base_s": 1000, "cap_s": 1000})
        paused = await rig.endpoint("/paused")
        await rig.state(paused, "pause")
        await rig.publish(bad)
        await rig.publish(paused)
        for number in range(100):
            await rig.publish(await rig.endpoint(f"/e{number}"))
            await rig.pass_s(0.1)
        assert len(rig.engine.lanes) <= 41
        assert bad.position in rig.engine.lanes

    play(story)


def test_a_payload_that_comes_after_a_reload_loses_nothing() -> None:
    """A delivery that waited for its data while its endpoint was loaded anew is sent once, and counted once."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        (delivery,) = await rig.publish(endpoint)
        held = Held(rig, "load_payloads")
        rig.engine._loader._prefetch = _nothing  # type: ignore[method-assign,assignment] # only the late way is looked at
        await rig.state(endpoint, "resume")
        await held.began.wait()
        rig.engine.touch([endpoint.position])
        await rig.pass_s(1)
        held.gate.set()
        await rig.pass_s(5)
        assert len(rig.wire.requests) == 1
        assert await rig.status(delivery) == ("delivered", None)
        assert (rig.engine.budget.refs, rig.engine.budget.payload_bytes) == (0, 0)

    play(story)


def test_a_refill_that_fails_is_repeated() -> None:
    """A backlog is drained to its end, though reading the next part of it fails once."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=50)
        await rig.state(endpoint, "pause")
        await rig.publish(endpoint, count=1000)
        read, calls = rig.store.load_window, []

        async def broken(*args: Any, **given: Any) -> Any:
            calls.append(args)
            if len(calls) == 5:
                raise StoreBusy("busy")
            return await read(*args, **given)

        rig.store.load_window = broken
        await rig.state(endpoint, "resume")
        await rig.until(lambda: len(rig.wire.requests) == 1000, within_s=20)

    play(story)


def test_what_did_not_fit_during_a_load_is_loaded_next() -> None:
    """Accepted while a part of a backlog is read, and behind its bound: it is sent though nobody polls."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        await rig.publish(endpoint, count=lanes.WINDOW_REFS + 10)
        await rig.state(endpoint, "resume")
        await rig.until(lambda: len(rig.wire.requests) == 2)
        held = Held(rig, "load_window")
        rig.wire.reply = lambda _: (0.001, answer())
        for request in list(rig.wire.under_way):
            rig.wire.end(request)
        await held.began.wait()
        (late,) = await rig.publish(endpoint)
        held.gate.set()
        await rig.until(lambda: len(rig.wire.requests) == lanes.WINDOW_REFS + 11, within_s=20)
        await rig.pass_s(1)
        assert await rig.status(late) == ("delivered", None)

    play(story)


def test_a_reload_keeps_what_an_answer_changed_and_is_not_stored_yet() -> None:
    """Told to wait, then loaded anew before the result is durable: the endpoint still waits."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.01, answer(503, "60"))
        endpoint = await rig.endpoint(max_in_flight=1)
        await rig.publish(endpoint, count=3)
        commit = rig.store.commit

        async def slow(operations: Any) -> Any:
            await rig.pass_s(5)
            return await commit(operations)

        rig.store.commit = slow
        await rig.until(lambda: len(rig.wire.requests) == 1)
        await rig.pass_s(0.1)
        rig.engine.touch([endpoint.position])
        await rig.pass_s(50)
        assert len(rig.wire.requests) == 1

    play(story)
