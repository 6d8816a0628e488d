"""Ends of a process: drained, cut off, crashed, and crashed again by the same delivery (rule E5)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ackpost.core.model import FIRST, RETRY
from ackpost.engine.engine import SUSPECT_CRASHES
from ackpost.engine.slots import SlotFile
from ackpost.ports import operations as ops
from ackpost.testing.reference import ReferenceStore
from tests.engine.rig import Rig, answer, play


def test_draining_waits_for_what_is_under_way_and_sends_nothing_more() -> None:
    """A graceful stop loses nothing and repeats nothing (R28)."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (2.0, answer())
        endpoint = await rig.endpoint(max_in_flight=2)
        deliveries = await rig.publish(endpoint, count=10)
        await rig.until(lambda: len(rig.wire.requests) == 2)
        stopping = asyncio.ensure_future(rig.stop())
        await rig.pass_s(0.1)
        assert rig.engine.readiness() == "The server is stopping."
        await stopping
        assert len(rig.wire.requests) == 2
        ends = [(await rig.status(delivery))[0] for delivery in deliveries]
        assert ends == ["delivered"] * 2 + ["pending"] * 8
        assert rig.marks.taken == {}

    play(story)


def test_what_does_not_end_in_time_is_cut_off_and_marked() -> None:
    """After the grace the sockets are closed; the marks stay, so that the next start knows."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint()
        deliveries = await rig.publish(endpoint, count=2)
        await rig.until(lambda: len(rig.wire.requests) == 2)
        assert await rig.engine.drain(5) == 2
        await rig.writer.stop()
        assert all(request.aborted for request in rig.wire.requests)
        assert sorted(rig.marks.taken.values()) == deliveries

    play(story)


def test_an_engine_with_nothing_under_way_stops_at_once() -> None:
    """No grace is waited for."""

    async def story(rig: Rig) -> None:
        assert await rig.engine.drain(30) == 0
        assert rig.loop.time() == 0

    play(story)


def _crash_while_sending(store: ReferenceStore, path: Path) -> list[ops.Mark]:
    """A process that dies with one delivery under way; gives what the next one finds marked."""

    async def story(rig: Rig) -> None:
        rig.marks = SlotFile(path, 100)  # type: ignore[assignment] # the real one here
        rig.engine.flights._slots = rig.marks
        left = SlotFile(path, 100).left
        if left:
            await rig.submit(ops.Interrupt(left, 3, rig.now_ms(), "rig"))
            rig.marks.clear()  # type: ignore[attr-defined] # the real one here
        rig.wire.reply = lambda _: None
        if not rig.store.durable.rows:
            await rig.publish(await rig.endpoint())
        rig.engine.found_work(await rig.store.scan_work(after_endpoint=0, limit=10))
        await rig.pass_s(1)

    play(story, store=store)
    return SlotFile(path, 100).left


def test_a_delivery_that_kills_the_process_three_times_is_poison(tmp_path: Path) -> None:
    """Each start counts the crash; the third makes it a dead letter, and the node lives."""
    store, path = ReferenceStore(), tmp_path / "inflight"
    for _ in range(3):
        (mark,) = _crash_while_sending(store, path)
        store = ReferenceStore(store.durable)
    assert _crash_while_sending(store, path) == []
    row = store.durable.rows[mark.delivery]
    assert (row.status, row.reason) == ("dead", "poison")
    assert [one.code for one in store.durable.attempts[mark.delivery]] == ["interrupted"] * 3


def test_suspects_are_sent_one_at_a_time() -> None:
    """What was under way at crashes again and again goes out alone among its like, while innocents flow on."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=10)
        await rig.state(endpoint, "pause")
        suspects = await rig.publish(endpoint, count=5)
        for number in range(SUSPECT_CRASHES):
            marks = [ops.Mark(delivery, 1, number) for delivery in suspects]
            await rig.submit(ops.Interrupt(marks, 3, rig.now_ms(), "rig"))
        await rig.publish(endpoint, count=20)
        at_once = 0

        def reply(request: object) -> tuple[float, object]:
            nonlocal at_once
            under_way = [one for one in rig.wire.under_way if one.n < 5]
            at_once = max(at_once, len(under_way))
            return 0.05, answer()

        rig.wire.reply = reply  # type: ignore[assignment] # gives an outcome
        await rig.state(endpoint, "resume")
        await rig.until(lambda: len(rig.wire.requests) == 25, within_s=10)
        assert at_once == 1
        assert {rig.store.durable.rows[delivery].klass for delivery in suspects} <= {FIRST, RETRY}

    play(story)
