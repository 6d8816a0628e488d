"""What must not reach the others: outages, half the world failing, one that hangs, a noisy tenant, a large replay.

Time is virtual, so ratios of latencies are exact (R19 to R22, R37 of the fault tables).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

from ackpost.core.model import Endpoint
from ackpost.core.outcome import Outcome
from ackpost.ports import operations as ops
from tests.engine.rig import START_MS, Request, Rig, answer, play

Reply = Callable[[Request], tuple[float, Outcome] | None]
WORK_S = 0.02
ROUNDS = 40


def p95(latencies_ms: Sequence[int]) -> int:
    """The latency that 95 of 100 stay below."""
    ordered = sorted(latencies_ms)
    return ordered[len(ordered) * 95 // 100]


async def _trickle(rig: Rig, endpoints: Sequence[Endpoint], rounds: int, pause_s: float) -> dict[int, int]:
    """Publish an event to each endpoint round by round; give when each was published, by its number."""
    published: dict[int, int] = {}
    for _ in range(rounds):
        for endpoint in endpoints:
            published[rig._count] = rig.now_ms()
            await rig.publish(endpoint)
        await rig.pass_s(pause_s)
    return published


def _latencies(rig: Rig, published: dict[int, int], prefix: str) -> list[int]:
    """How long the first request of each of these events took to leave, to endpoints of that name."""
    first: dict[int, int] = {}
    for request in rig.wire.requests:
        if request.n in published and request.target.path_query.startswith(prefix):
            first.setdefault(request.n, request.at_ms)
    return [first[n] - published[n] for n in first]


def _healthy_p95(reply: Reply, names: Sequence[str], *, slots: int, host: str | None = None) -> int:
    """The p95 of the endpoints called ``/good…`` while all of them get an event every 0.1 s for some seconds."""

    async def story(rig: Rig) -> int:
        rig.wire.reply = reply
        endpoints = [await rig.endpoint(name, host=host) for name in names]
        await _trickle(rig, endpoints, 30, 0.1)  # until it is known who is in trouble
        published = await _trickle(rig, endpoints, ROUNDS, 0.1)
        wanted = ROUNDS * sum(name.startswith("/good") for name in names)
        await rig.until(lambda: len(_latencies(rig, published, "/good")) == wanted)
        return p95(_latencies(rig, published, "/good"))

    return play(story, slots=slots)


def test_half_of_all_endpoints_failing_hardly_slows_the_others() -> None:
    """With as many that answer 500 as good ones, the good ones' p95 is at most twice that without them (R20)."""

    def reply(request: Request) -> tuple[float, Outcome]:
        return (0.9, answer(500)) if request.target.path_query.startswith("/bad") else (WORK_S, answer())

    good = [f"/good{number}" for number in range(10)]
    alone = _healthy_p95(reply, good, slots=8)
    beside = _healthy_p95(reply, [*good, *(f"/bad{number}" for number in range(10))], slots=8)
    assert beside <= 2 * max(alone, 1)


def test_one_that_hangs_hardly_slows_the_others_of_its_host() -> None:
    """One endpoint that never answers among 20 on one host: the others' p95 is at most 1.5 times that without (R21)."""

    def reply(request: Request) -> tuple[float, Outcome] | None:
        if request.target.path_query == "/hang":
            return 15.0, Outcome("timeout", phase="wait")
        return WORK_S, answer()

    good = [f"/good{number}" for number in range(20)]
    alone = _healthy_p95(reply, good, slots=12, host="one")
    beside = _healthy_p95(reply, [*good, "/hang"], slots=12, host="one")
    assert beside <= 1.5 * max(alone, 1)


def test_a_tenant_that_queues_thousands_delays_nobody() -> None:
    """Ten events of each of 25 tenants are out within a second while one tenant has 5,000 waiting (R22)."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (WORK_S, answer())
        noisy = await rig.endpoint("/noisy", max_in_flight=100)
        for _ in range(5):
            await rig.publish(noisy, count=1000)
        await rig.pass_s(1)
        quiet = [await rig.endpoint(f"/q{number}", tenant=await rig.tenant(f"t{number}")) for number in range(25)]
        began = rig.loop.time()
        for endpoint in quiet:
            await rig.publish(endpoint, count=10)
        await rig.until(lambda: sum(one.target.path_query.startswith("/q") for one in rig.wire.requests) == 250)
        assert rig.loop.time() - began < 1
        assert len(rig.wire.to("/noisy")) < 4000

    play(story, slots=20)


def test_a_backlog_goes_out_by_the_ramp_after_an_outage() -> None:
    """After ten minutes down 2,000 wait: the first seconds see probes, then at most twice as much every 5 s (R19)."""

    async def story(rig: Rig) -> None:
        back_ms = START_MS + 600_000
        rig.wire.reply = lambda request: (WORK_S, answer(200 if request.at_ms >= back_ms else 503))
        endpoint = await rig.endpoint("/a", max_in_flight=16)
        for _ in range(4):
            await rig.publish(endpoint, count=500)
            await rig.pass_s(100)
        while len({one.n for one in rig.wire.requests if one.at_ms >= back_ms}) < 2000:
            await rig.pass_s(1)
            assert rig.loop.time() < 1500
        good = [one.at_ms for one in rig.wire.requests if one.at_ms >= back_ms]
        probes = good[:3]
        assert all(after - before >= WORK_S * 1000 - 1 for before, after in pairwise(probes)), "one probe at a time"
        ramp_ms = good[3]
        for step in range(4):
            seen = sum(ramp_ms + step * 5000 <= at_ms < ramp_ms + (step + 1) * 5000 for at_ms in good)
            assert seen <= 1.2 * 2**step * 5 / WORK_S, f"step {step}: {seen}"
        within_ms = good[-1] - ramp_ms
        assert within_ms <= 1.3 * 15_000, "the ramp alone takes 15 s, and carries most of it"

    play(story)


def _live_p95(replayed: int) -> int:
    async def story(rig: Rig) -> int:
        rig.wire.reply = lambda request: (WORK_S, answer(400 if request.n < replayed and not dead else 200))
        dead: list[int] = []
        endpoint = await rig.endpoint("/good", max_in_flight=10, retry={"max_attempts": 1}, circuit={"enabled": False})
        first = await rig.publish(endpoint, count=replayed) if replayed else []
        await rig.until(lambda: not rig.engine.budget.refs, within_s=600)
        dead += first
        rig.wire.requests.clear()
        rig._count = max(rig._count, 10_000)
        replay = asyncio.ensure_future(_replay(rig, endpoint, first))
        published = await _trickle(rig, [endpoint], 300, 0.05)
        live = _latencies(rig, published, "/good")
        await replay
        await rig.until(lambda: len({one.n for one in rig.wire.requests if one.n < replayed}) == replayed, 600)
        return p95(live)

    return play(story)


async def _replay(rig: Rig, endpoint: Endpoint, deliveries: Sequence[int]) -> None:
    for delivery in deliveries:
        await rig.submit(ops.Redeliver(endpoint.tenant, rig.now_ms(), delivery=delivery))


def test_a_large_replay_hardly_slows_what_is_live() -> None:
    """While 1,000 dead ones are replayed to an endpoint, its live ones' p95 is at most 1.5 times that without (R37)."""
    assert _live_p95(1000) <= 1.5 * max(_live_p95(0), WORK_S * 1000)
