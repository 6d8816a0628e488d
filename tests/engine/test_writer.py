"""Group commit (rule E6): groups, strangers, troubles of the store, bounds, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ackpost.engine import writer as writers
from ackpost.errors import (
    Conflict,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreOutcomeUnknown,
    Unavailable,
)
from ackpost.ports import operations as ops
from tests.engine.rig import Rig, answer, play, refused


class Broken:
    """A store's commit with troubles: ``fault`` is raised by each commit that ``when`` picks."""

    def __init__(self, rig: Rig, fault: BaseException | None = None) -> None:
        self._commit = rig.store.commit
        self.fault = fault
        self.when: Callable[[Sequence[Any]], bool] = lambda _: True
        self.after = False
        self.groups: list[list[ops.Operation]] = []
        self.gate: asyncio.Event | None = None
        rig.store.commit = self.commit

    async def commit(self, operations: Sequence[ops.Operation]) -> Any:
        """Commit, unless there is trouble."""
        self.groups.append(list(operations))
        if self.gate is not None:
            await self.gate.wait()
        broken = self.fault is not None and self.when(operations)
        replies = None if broken and not self.after else await self._commit(operations)
        if broken and self.fault is not None:
            raise self.fault
        return replies


async def _accept(rig: Rig, data: bytes = b"1", **fields: Any) -> ops.Accept:
    tenant = await rig.store.tenant_by_uid("default")
    routing = await rig.store.routing(tenant.position)
    return ops.Accept(tenant.position, routing.version, [ops.NewEvent("a", data, **fields)], rig.now_ms())


def test_what_gathers_during_a_commit_is_the_next_group() -> None:
    """A hundred operations that come while one commit runs are one commit more."""

    async def story(rig: Rig) -> None:
        store = Broken(rig)
        store.gate = asyncio.Event()
        first = rig.writer.enqueue(await _accept(rig))
        await rig.pass_s(0.1)
        others = [rig.writer.enqueue(await _accept(rig)) for _ in range(100)]
        assert rig.writer.queued == 100
        store.gate.set()
        await asyncio.gather(first, *others)
        assert [len(group) for group in store.groups] == [1, 100]
        assert rig.told.events == 101

    play(story)


def test_what_is_ready_in_the_next_turns_joins_the_group() -> None:
    """Operations that come turn after turn of the loop share one commit; a trickle does not hold it up for ever."""

    async def story(rig: Rig) -> None:
        store = Broken(rig)
        operations = [await _accept(rig) for _ in range(2 + 3 * writers.GATHER_TURNS_MAX)]
        waiting = []
        for operation in operations:
            waiting.append(rig.writer.enqueue(operation))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert 1 < len(store.groups[0]) <= 1 + writers.GATHER_TURNS_MAX
        assert sum(map(len, store.groups)) == len(operations)

    play(story)


def test_a_group_is_bounded_in_operations_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a group holds becomes several commits, in order; one that is too large alone goes alone."""
    monkeypatch.setattr(writers, "GROUP_OPERATIONS_MAX", 10)
    monkeypatch.setattr(writers, "GROUP_BYTES_MAX", 10_000)

    async def story(rig: Rig) -> None:
        store = Broken(rig)
        sizes = [10] * 25 + [4000] * 3 + [20_000, 10]
        waiting = [rig.writer.enqueue(await _accept(rig, b"1" * size)) for size in sizes]
        replies = await asyncio.gather(*waiting)
        assert [len(group) for group in store.groups] == [10, 10, 6, 2, 1, 1]
        positions = [reply.events[0].position for reply in replies if isinstance(reply, ops.Accepted)]
        assert positions == sorted(positions)

    play(story)


def test_one_bad_operation_never_fails_strangers() -> None:
    """A group that fails as a whole is repeated one by one: only the bad one is refused."""

    async def story(rig: Rig) -> None:
        store = Broken(rig, StoreError("bad row"))
        store.when = lambda operations: any(b"bad" in one.events[0].data for one in operations)
        waiting = [rig.writer.enqueue(await _accept(rig, data)) for data in (b'"a"', b'"bad"', b'"c"')]
        good, bad, also_good = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(good, ops.Accepted)
        assert isinstance(also_good, ops.Accepted)
        assert isinstance(bad, Unavailable)
        assert bad.code == "overloaded"

    play(story)


def test_a_refusal_is_its_operations_alone() -> None:
    """409 for one, 202 for its neighbours in the same commit."""

    async def story(rig: Rig) -> None:
        first = await _accept(rig, b"1", uid="u", digest=b"1")
        await rig.submit(first)
        conflict, good = rig.writer.enqueue(await _accept(rig, b"2", uid="u", digest=b"2")), rig.writer.enqueue(first)
        assert isinstance(await refused(conflict), Conflict)
        again = await good
        assert isinstance(again, ops.Accepted)
        assert again.events[0].duplicate

    play(story)


@pytest.mark.parametrize(
    ("fault", "code", "retry_after_s"),
    [
        (StoreFull("full"), "storage_full", 10),
        (StoreBusy("busy"), "overloaded", 1),
        (StoreOutcomeUnknown("gone"), "outcome_unknown", 1),
    ],
)
def test_troubles_are_told_and_end(fault: StoreError, code: str, retry_after_s: int) -> None:
    """503 with its code and Retry-After, readiness says why; as soon as a commit goes through all is well again."""

    async def story(rig: Rig) -> None:
        store = Broken(rig, fault)
        refusal = await refused(rig.submit(await _accept(rig)))
        assert (refusal.code, refusal.retry_after_s) == (code, retry_after_s)
        assert len(store.groups) == 1, "such an operation is not repeated by itself"
        assert rig.engine.readiness() == str(fault)
        store.fault = None
        await rig.submit(await _accept(rig))
        assert rig.engine.readiness() is None
        assert [name for name, _ in rig.told.notes] == ["store.trouble", "store.recovered"]

    play(story)


def _recorded(store: Broken) -> list[int]:
    """How many results each group held that held any."""
    return [len(one.decisions) for group in store.groups for one in group if isinstance(one, ops.Record)]


def test_results_that_nobody_waits_for_wait_for_each_other_a_moment() -> None:
    """Answers spread over half a second take a commit every 25 ms, not one each; none waits longer."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.1 + 0.005 * len(rig.wire.requests), answer())
        endpoints = [await rig.endpoint(f"/{number}") for number in range(100)]
        store = Broken(rig)
        await rig.publish(*endpoints)
        await rig.until(lambda: len(rig.wire.requests) == 100)
        began_s = rig.loop.time()
        await rig.until(lambda: sum(_recorded(store)) == 100)
        assert 100 / len(_recorded(store)) > 4
        assert rig.loop.time() - began_s < 0.1 + 0.5 + 2 * writers.LINGER_S

    play(story)


def test_results_go_with_the_next_request() -> None:
    """A request waits for no results, and takes along those that are there."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.01, answer())
        endpoint = await rig.endpoint()
        store = Broken(rig)
        await rig.publish(endpoint)
        await rig.pass_s(0.01 + writers.LINGER_S / 2)
        assert _recorded(store) == []
        operation = await _accept(rig)
        began_s = rig.loop.time()
        await rig.submit(operation)
        assert rig.loop.time() == began_s
        assert len(store.groups[-1]) == 2
        assert _recorded(store) == [1]

    play(story)


@pytest.mark.parametrize("why", ["a test", "order", "enough"])
def test_a_result_that_something_waits_for_is_stored_at_once(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next of a key, whoever asked for a test, and as many results as are worth a commit wait for nothing."""
    monkeypatch.setattr(writers, "RESULTS_WORTH_A_COMMIT", 1 if why == "enough" else 500)

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.01, answer())
        endpoint = await rig.endpoint(ordering="by-key" if why == "order" else "best-effort")
        store = Broken(rig)
        trigger = "test" if why == "a test" else "schedule"
        await rig.publish(endpoint, key="k" if why == "order" else None, trigger=trigger)
        await rig.pass_s(0.01 + writers.LINGER_S / 2)
        assert _recorded(store) == [1]

    play(story)


def test_results_outlive_a_full_disk_and_delivery_goes_on() -> None:
    """Nothing is sent twice: what was answered while the disk was full is stored when there is room (R6)."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        deliveries = await rig.publish(endpoint, count=40)
        store = Broken(rig, StoreFull("full"))
        await rig.pass_s(60)
        assert {(await rig.status(delivery))[0] for delivery in deliveries} == {"pending"}
        store.fault = None
        await rig.pass_s(10)
        assert {await rig.status(delivery) for delivery in deliveries} == {("delivered", None)}
        assert len(rig.wire.requests) == 40
        assert rig.marks.taken == {}

    play(story)


def test_results_of_an_unknown_commit_are_stored_once() -> None:
    """The commit was durable after all: the repeated results change nothing, and the retry still comes at its time."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.01, answer(200 if len(rig.wire.requests) > 1 else 500))
        endpoint = await rig.endpoint(retry={"base_s": 5, "jitter": "none"})
        store = Broken(rig, StoreOutcomeUnknown("gone"))
        store.after = True
        store.when = lambda operations: any(isinstance(one, ops.Record) for one in operations)
        (delivery,) = await rig.publish(endpoint)
        await rig.pass_s(1)
        store.fault = None
        await rig.pass_s(10)
        assert await rig.status(delivery) == ("delivered", None)
        first, second = rig.wire.requests
        assert 5000 <= second.at_ms - first.at_ms < 5500
        assert len(rig.store.durable.attempts[delivery]) == 2

    play(story)


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound of operations or bytes the answer is 503 at once; what is in the queue is not disturbed."""
    monkeypatch.setattr(writers, "QUEUE_OPERATIONS_MAX", 20)
    monkeypatch.setattr(writers, "QUEUE_BYTES_MAX", 100_000)

    async def story(rig: Rig) -> None:
        store = Broken(rig)
        store.gate = asyncio.Event()
        running = rig.writer.enqueue(await _accept(rig))
        await rig.pass_s(0.1)
        waiting = [rig.writer.enqueue(await _accept(rig, b"1" * 25_000)) for _ in range(3)]
        assert (await refused(rig.submit(await _accept(rig, b"1" * 25_000)))).code == "overloaded"
        waiting += [rig.writer.enqueue(await _accept(rig)) for _ in range(17)]
        assert (await refused(rig.submit(await _accept(rig)))).code == "overloaded"
        store.gate.set()
        assert len(await asyncio.gather(running, *waiting)) == 21

    play(story)


def test_losing_the_store_ends_the_node_and_hangs_nobody() -> None:
    """Another server owns the database: all waiting requests are answered, nothing more is accepted or sent."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        await rig.publish(endpoint, count=3)
        await rig.pass_s(1)
        store = Broken(rig, StoreLocked("taken"))
        waiting = [rig.writer.enqueue(await _accept(rig)) for _ in range(3)]
        assert {(await refused(one)).code for one in waiting} == {"starting"}
        await rig.pass_s(0.1)
        assert isinstance(rig.fatal[0], StoreLocked)
        assert "taken" in str(rig.engine.readiness())
        store.fault = None
        assert (await refused(rig.submit(await _accept(rig)))).code == "starting"

    play(story)


def test_losing_the_store_while_repeating_one_by_one_hangs_nobody() -> None:
    """The group failed, and the second of its repetitions finds the database taken."""

    async def story(rig: Rig) -> None:
        store = Broken(rig, StoreError("odd"))
        waiting = [rig.writer.enqueue(await _accept(rig)) for _ in range(4)]

        def when(operations: Sequence[ops.Operation]) -> bool:
            if len(store.groups) == 3:
                store.fault = StoreLocked("taken")
            return len(store.groups) != 2

        store.when = when
        results = await asyncio.gather(*waiting, return_exceptions=True)
        codes = [getattr(result, "code", "stored") for result in results]
        assert codes == ["stored", "starting", "starting", "starting"]

    play(story)


def test_a_broken_writer_ends_the_node_and_hangs_nobody() -> None:
    """An error that no store should raise: waiting requests learn that their outcome is unknown."""

    async def story(rig: Rig) -> None:
        Broken(rig, ZeroDivisionError())
        assert (await refused(rig.submit(await _accept(rig)))).code == "outcome_unknown"
        await rig.pass_s(0.1)
        assert isinstance(rig.fatal[0], ZeroDivisionError)

    play(story)


def test_stopping_commits_what_is_queued_and_takes_nothing_more() -> None:
    """All that was accepted before is durable when stop returns."""

    async def story(rig: Rig) -> None:
        waiting = [rig.writer.enqueue(await _accept(rig)) for _ in range(50)]
        await rig.writer.stop()
        assert all(one.done() for one in waiting)
        assert (await refused(rig.submit(await _accept(rig)))).code == "starting"

    play(story)


def test_stopping_does_not_wait_for_a_broken_store_for_ever() -> None:
    """Results that the store does not take are given up after a while: the marks make the next start send again."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        await rig.publish(endpoint)
        Broken(rig, StoreFull("full"))
        await rig.pass_s(1)
        begun_s = rig.loop.time()
        await rig.writer.stop()
        assert rig.loop.time() - begun_s < 30
        assert isinstance(rig.fatal[0], StoreFull)
        assert len(rig.marks.taken) == 1

    play(story)


def test_a_caller_that_went_away_disturbs_nothing() -> None:
    """Its operation is stored all the same, and the others of the group are answered."""

    async def story(rig: Rig) -> None:
        gone, stays = rig.writer.enqueue(await _accept(rig)), rig.writer.enqueue(await _accept(rig))
        gone.cancel()
        assert isinstance(await stays, ops.Accepted)
        assert rig.told.events == 2

    play(story)
