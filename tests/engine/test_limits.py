"""Limits of an endpoint and of the node: in flight, rate, Retry-After, age, fail-fast, unrecorded results, lease."""

from __future__ import annotations

from typing import Any

import pytest

from ackpost.core.outcome import Outcome
from ackpost.engine import engine as engines
from ackpost.ports import operations as ops
from tests.engine.rig import Request, Rig, answer, play


def test_an_endpoint_starts_at_two_in_flight_and_grows_by_success() -> None:
    """Nobody is hit by its full limit at once; each success allows one more, up to the limit."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint(max_in_flight=6)
        await rig.publish(endpoint, count=100)
        limits = []
        for _ in range(8):
            await rig.pass_s(0.1)
            limits.append(len(rig.wire.under_way))
            rig.wire.end(rig.wire.under_way[0])
        assert limits == [2, 3, 4, 5, 6, 6, 6, 6]

    play(story)


def test_failures_halve_what_may_be_in_flight() -> None:
    """An endpoint that begins to fail gets fewer at a time, at least two, while its circuit is closed."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint(max_in_flight=8, circuit={"enabled": False}, retry={"base_s": 900, "cap_s": 900})
        await rig.publish(endpoint, count=100)
        for _ in range(6):
            await rig.pass_s(0.1)
            rig.wire.end(rig.wire.under_way[0])
        await rig.pass_s(0.1)
        assert len(rig.wire.under_way) == 8
        for request in list(rig.wire.under_way):
            rig.wire.end(request, answer(500))
        await rig.pass_s(0.1)
        assert len(rig.wire.under_way) == 2

    play(story)


@pytest.mark.parametrize(("rate_per_s", "least", "most"), [(5, 50, 56), (0.5, 5, 7), (50, 499, 551)])
def test_a_rate_is_kept(rate_per_s: float, least: int, most: int) -> None:
    """A second's worth at once, then that much a second."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(rate_per_s=rate_per_s, max_in_flight=100)
        await rig.publish(endpoint, count=1000)
        await rig.pass_s(10)
        assert least <= len(rig.wire.requests) <= most
        assert rig.engine.is_rate_held(endpoint.position)
        assert rig.engine.held_back() == {endpoint.position: "rate"}

    play(story)


def test_retry_after_holds_the_whole_endpoint() -> None:
    """Nothing goes to it until the time is over, then everything; the time is stored."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda request: (0.01, answer(429, "30") if request.n == 0 else answer())
        endpoint = await rig.endpoint(max_in_flight=1)
        await rig.publish(endpoint, count=10)
        await rig.pass_s(29)
        assert len(rig.wire.requests) == 1
        assert rig.engine.held_back() == {endpoint.position: "retry_after"}
        assert (await rig.fresh(endpoint)).retry_after_until_ms == rig.wire.requests[0].at_ms + 30_010
        rig.wire.reply = lambda _: (0.01, answer())
        await rig.pass_s(3)
        assert len(rig.wire.requests) == 11

    play(story)


def test_held_up_beyond_its_age_is_dead_not_late() -> None:
    """What could not be sent in time for a rate dies of age, without an attempt."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(rate_per_s=1, retry={"max_age_s": 10})
        deliveries = await rig.publish(endpoint, count=30)
        await rig.pass_s(60)
        ends = [await rig.status(delivery) for delivery in deliveries]
        assert 10 <= ends.count(("delivered", None)) <= 13
        assert ends.count(("delivered", None)) + ends.count(("dead", "age_exceeded")) == 30

    play(story)


def _opening(request: Request) -> tuple[float, Outcome]:
    return 0.01, answer(500)


FAIL_FAST: dict[str, Any] = {
    "circuit": {"failures": 2, "span_min_s": 0, "open_s": 30, "open_max_s": 30, "on_open": "fail-fast"},
    "retry": {"base_s": 100, "cap_s": 100, "jitter": "none", "max_attempts": 9},
}  # fmt: skip


def test_fail_fast_ends_what_is_accepted_while_open() -> None:
    """Dead at once with its reason; after the open time the next new one is the probe."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = _opening
        endpoint = await rig.endpoint(**FAIL_FAST)
        await rig.publish(endpoint, count=2)
        await rig.until(lambda: ("open" in [state for _, state in rig.told.circuits]))
        await rig.pass_s(1)
        refused = await rig.publish(endpoint, count=3)
        await rig.pass_s(1)
        assert {await rig.status(delivery) for delivery in refused} == {("dead", "circuit_open")}
        assert len(rig.wire.requests) == 2
        await rig.pass_s(40)
        rig.wire.reply = lambda _: (0.01, answer())
        (probe,) = await rig.publish(endpoint)
        await rig.pass_s(1)
        assert await rig.status(probe) == ("delivered", None)

    play(story)


def test_fail_fast_holds_for_a_lane_that_is_not_in_memory() -> None:
    """After a restart an event for an open endpoint dies as fast, and older ones wait for the probe."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = _opening
        endpoint = await rig.endpoint(**FAIL_FAST)
        older = await rig.publish(endpoint, count=2)
        await rig.until(lambda: ("open" in [state for _, state in rig.told.circuits]))
        await rig.pass_s(1)
        rig.engine.lanes.clear()
        (refused,) = await rig.publish(endpoint)
        await rig.pass_s(1)
        assert await rig.status(refused) == ("dead", "circuit_open")
        assert {(await rig.status(delivery))[0] for delivery in older} == {"pending"}

    play(story)


def test_a_format_conflict_is_dead_without_a_request() -> None:
    """Format flat with data of its own names: nothing is sent."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        changed = await rig.fresh(endpoint)
        changed.format = "flat"
        await rig.submit(ops.ReplaceEndpoint(changed, changed.rev, rig.now_ms()))
        routing = await rig.store.routing(endpoint.tenant)
        target = ops.Target(endpoint.position, changed.rev, "flat")
        event = ops.NewEvent("order.created", b'{"event":1}', targets=(target,))
        accepted = await rig.submit(ops.Accept(endpoint.tenant, routing.version, [event], rig.now_ms()))
        await rig.pass_s(1)
        assert await rig.status(accepted.events[0].position + 1) == ("dead", "format_conflict")
        assert rig.wire.requests == []

    play(story)


def test_data_that_expired_while_it_waited_is_dead() -> None:
    """A delivery that was taken for sending and finds no data any more ends, without a request."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        (delivery,) = await rig.publish(endpoint)

        async def nothing(_: object) -> dict[int, object]:
            return {}

        rig.store.load_payloads = nothing
        await rig.state(endpoint, "resume")
        await rig.pass_s(1)
        assert await rig.status(delivery) == ("dead", "data_expired")
        assert rig.wire.requests == []

    play(story)


def test_sending_stops_at_the_bound_of_unrecorded_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes no results stops the node from sending more than it may have to send again."""
    monkeypatch.setattr(engines, "UNRECORDED_MAX", 50)

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=20)
        await rig.publish(endpoint, count=300)
        commit = rig.store.commit

        async def slow(operations: list[ops.Operation]) -> object:
            await rig.pass_s(60)
            return await commit(operations)

        rig.store.commit = slow
        await rig.pass_s(50)
        assert 50 <= rig.engine.unrecorded() <= 70
        sent = len(rig.wire.requests)
        await rig.pass_s(5)
        assert len(rig.wire.requests) == sent
        rig.store.commit = commit
        await rig.until(lambda: len(rig.wire.requests) == 300, within_s=200)

    play(story)


def test_nothing_is_sent_after_the_lease() -> None:
    """A node that cannot renew its lease stops sending before another may begin, and goes on when it can."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        rig.engine.renewed(rig.now_ms() + 5000)
        await rig.pass_s(4)
        await rig.publish(endpoint)
        await rig.until(lambda: len(rig.wire.requests) == 1, within_s=0.5)
        await rig.pass_s(2)
        await rig.publish(endpoint)
        await rig.pass_s(5)
        assert len(rig.wire.requests) == 1
        rig.engine.renewed(rig.now_ms() + 5000)
        await rig.until(lambda: len(rig.wire.requests) == 2, within_s=0.5)

    play(story)


def test_by_key_order_is_kept_and_other_keys_flow_on() -> None:
    """One key's failing delivery holds that key alone (R23)."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda request: (0.01, answer(500 if b'"key":"bad"' in request.body else 200))
        endpoint = await rig.endpoint(
            ordering="by-key", circuit={"enabled": False}, retry={"base_s": 1, "jitter": "none", "max_attempts": 3}
        )
        bad = [*(await rig.publish(endpoint, key="bad")), *(await rig.publish(endpoint, key="bad"))]
        good = [(await rig.publish(endpoint, key=f"k{number}"))[0] for number in range(20)]
        await rig.pass_s(0.5)
        assert {await rig.status(delivery) for delivery in good} == {("delivered", None)}
        assert [one.n for one in rig.wire.requests if b'"key":"bad"' in one.body] == [0]
        await rig.pass_s(10)
        assert [one.n for one in rig.wire.requests if b'"key":"bad"' in one.body] == [0, 0, 0, 1, 1, 1]
        assert {await rig.status(delivery) for delivery in bad} == {("dead", "attempts_exhausted")}

    play(story)
