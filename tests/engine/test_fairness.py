"""Fair turns (rule E12): nobody's backlog, slowness or failure keeps others from being served."""

from __future__ import annotations

from itertools import pairwise

from ackpost.core.outcome import Outcome
from ackpost.ports import operations as ops
from tests.engine.rig import Request, Rig, answer, play


def test_a_noisy_tenant_does_not_delay_the_others() -> None:
    """One tenant queues 2,000, five queue 10 each: these are all served while the noisy one has most of its left."""

    async def story(rig: Rig) -> None:
        noisy = await rig.endpoint("/noisy", max_in_flight=100)
        quiet = [await rig.endpoint(f"/q{number}", tenant=await rig.tenant(f"t{number}")) for number in range(5)]
        await rig.publish(noisy, count=1000)
        await rig.publish(noisy, count=1000)
        for endpoint in quiet:
            await rig.publish(endpoint, count=10)
        await rig.until(lambda: sum(len(rig.wire.to(f"/q{number}")) for number in range(5)) == 50)
        assert len(rig.wire.to("/noisy")) < 500

    play(story, slots=8)


def test_tenants_with_work_get_equal_shares() -> None:
    """While all have work, each gets its turn in the round, however many endpoints it has."""

    async def story(rig: Rig) -> None:
        tenants = [await rig.tenant(f"t{number}") for number in range(4)]
        for number, tenant in enumerate(tenants):
            for index in range(1 + number * 3):
                endpoint = await rig.endpoint(f"/{number}-{index}", tenant=tenant, max_in_flight=100)
                await rig.publish(endpoint, count=100)
        rig.wire.requests.clear()
        await rig.until(lambda: len(rig.wire.requests) > 200)
        paths = [request.target.path_query for request in rig.wire.requests]
        shares = [sum(path.startswith(f"/{number}-") for path in paths) for number in range(4)]
        fairness = sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
        assert fairness > 0.9, shares

    play(story, slots=8)


def test_a_hanging_endpoint_holds_only_its_own_limit() -> None:
    """Requests to others go on at their pace while one endpoint holds its in-flight limit for ever."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda request: None if request.target.path_query == "/hang" else (0.02, answer())
        hanging, good = await rig.endpoint("/hang", max_in_flight=10), await rig.endpoint("/good", max_in_flight=10)
        await rig.publish(hanging, count=200)
        await rig.publish(good, count=200)
        await rig.until(lambda: len(rig.wire.to("/good")) == 200, within_s=5)
        assert len(rig.wire.to("/hang")) <= 10

    play(story, slots=20)


def test_a_host_is_never_asked_for_more_than_its_cap() -> None:
    """Endpoints of one host share its cap, and all of them are served to the end."""

    async def story(rig: Rig) -> None:
        shared = [await rig.endpoint(f"/s{number}", host="shared", max_in_flight=50) for number in range(6)]
        for endpoint in shared:
            await rig.publish(endpoint, count=40)
        await rig.until(lambda: len(rig.wire.requests) == 240 and not rig.wire.under_way)
        assert rig.wire.most_by_host["shared.example"] == 5

    play(story, host_cap=5)


def test_endpoints_of_a_host_take_turns() -> None:
    """Where one endpoint's backlog fills all places of a host, another one's few events get every second of them."""

    async def story(rig: Rig) -> None:
        great, small = [await rig.endpoint(name, host="one", max_in_flight=50) for name in ("/great", "/small")]
        await rig.publish(great, count=400)
        await rig.until(lambda: len(rig.wire.to("/great")) > 20)
        before = len(rig.wire.to("/great"))
        await rig.publish(small, count=20)
        await rig.until(lambda: len(rig.wire.to("/small")) == 20)
        assert len(rig.wire.to("/great")) - before < 40

    play(story, host_cap=4)


def test_a_place_that_a_woken_lane_does_not_use_goes_to_the_next() -> None:
    """A lane that was paused while it waited for its host does not keep the next one waiting."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        first, second, third = [await rig.endpoint(f"/{name}", host="one") for name in "abc"]
        for endpoint in (first, second, third):
            await rig.publish(endpoint)
            await rig.pass_s(0.1)
        assert [one.target.path_query for one in rig.wire.requests] == ["/a"]
        await rig.state(second, "pause")
        await rig.pass_s(0.1)
        rig.wire.end(rig.wire.requests[0])
        await rig.pass_s(0.1)
        assert [one.target.path_query for one in rig.wire.requests] == ["/a", "/c"]

    play(story, host_cap=1)


def test_troubled_endpoints_share_half_the_slots() -> None:
    """Endpoints whose last attempt failed together never hold more than half; the others get the rest."""

    async def story(rig: Rig) -> None:
        def reply(request: Request) -> tuple[float, Outcome] | None:
            if not request.target.path_query.startswith("/bad"):
                return 0.02, answer()
            return (0.01, answer(500)) if request.n < 10 else None

        rig.wire.reply = reply
        retry = {"base_s": 100, "jitter": "none"}
        bad = [await rig.endpoint(f"/bad{number}", circuit={"enabled": False}, retry=retry) for number in range(10)]
        for endpoint in bad:
            await rig.publish(endpoint)
        await rig.pass_s(1)
        for endpoint in bad:
            await rig.publish(endpoint, count=5)
        await rig.pass_s(1)
        assert len(rig.wire.under_way) == 4
        good = await rig.endpoint("/good")
        await rig.publish(good, count=20)
        await rig.until(lambda: len(rig.wire.to("/good")) == 20, within_s=2)

    play(story, slots=8)


def test_many_that_hang_on_a_host_leave_places_for_its_others() -> None:
    """Of 200 endpoints on one host 60 never answer, from their first request on: the others hardly notice."""

    async def story(rig: Rig) -> None:
        def reply(request: Request) -> tuple[float, Outcome] | None:
            return None if request.target.path_query.startswith("/hang") else (0.01, answer())

        rig.wire.reply = reply
        names = [f"/{'hang' if number % 10 < 3 else 'good'}{number}" for number in range(200)]
        endpoints = [await rig.endpoint(name, host="one") for name in names]
        for endpoint in endpoints:
            await rig.publish(endpoint, count=20)
        began = rig.loop.time()
        await rig.until(lambda: sum(one.target.path_query.startswith("/good") for one in rig.wire.requests) == 2800)
        assert rig.loop.time() - began < 2
        assert sum(one.target.path_query.startswith("/hang") for one in rig.wire.under_way) <= 75

    play(story, host_cap=100)


def test_a_new_endpoint_is_tried_though_half_of_its_host_hangs() -> None:
    """What has not answered yet may use more of a host than what is in trouble, once."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda request: None if request.target.path_query != "/new" else (0.01, answer())
        hanging = [await rig.endpoint(f"/hang{number}", host="one") for number in range(20)]
        for endpoint in hanging:
            await rig.publish(endpoint, count=5)
        await rig.pass_s(1)
        assert len(rig.wire.under_way) == 15
        new = await rig.endpoint("/new", host="one")
        await rig.publish(new, count=10)
        await rig.pass_s(0.1)
        assert rig.wire.to("/new") == []
        rig.wire.end(rig.wire.under_way[0])
        await rig.until(lambda: len(rig.wire.to("/new")) == 10, within_s=1)

    play(story, host_cap=20)


def test_retries_and_replays_get_a_share_of_an_endpoint_never_all() -> None:
    """With all three classes due, first attempts go most often, and each class goes again and again."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda request: (0.001, answer(500 if request.n < 100 else 200))
        endpoint = await rig.endpoint(
            "/a", circuit={"enabled": False}, max_in_flight=1, retry={"base_s": 5, "jitter": "none", "max_attempts": 3}
        )
        failed = await rig.publish(endpoint, count=100)
        await rig.until(lambda: len(rig.wire.requests) == 100)
        rig.wire.reply = lambda _: (0.05, answer())
        delivered = await rig.publish(endpoint, count=100)
        await rig.until(lambda: len(rig.wire.requests) >= 200, within_s=20)
        for delivery in delivered[:80]:
            await rig.submit(ops.Redeliver(endpoint.tenant, rig.now_ms(), delivery=delivery))
        await rig.publish(endpoint, count=100)
        rig.wire.requests.clear()
        await rig.until(lambda: len(rig.wire.requests) >= 80, within_s=20)
        kinds = ["retry" if one.n < 100 else "replay" if one.n < 200 else "first" for one in rig.wire.requests[:80]]
        counts = {kind: kinds.count(kind) for kind in ("first", "retry", "replay")}
        assert counts["first"] >= counts["retry"] >= counts["replay"] >= 5, counts
        assert failed

    play(story)


def test_attempts_of_one_class_go_in_the_order_of_their_due_times() -> None:
    """What was accepted first is sent first."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=1)
        for _ in range(5):
            await rig.publish(endpoint, count=20)
            await rig.pass_s(0.05)
        await rig.until(lambda: len(rig.wire.requests) == 100)
        assert all(left.n < right.n for left, right in pairwise(rig.wire.requests))

    play(story)


def test_waiting_for_a_host_costs_one_place_a_lane() -> None:
    """A lane that is woken again and again while its host is at the cap waits once."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoints = [await rig.endpoint(f"/{name}", host="one") for name in "abc"]
        for endpoint in endpoints:
            await rig.publish(endpoint, count=5)
        for _ in range(50):
            rig.engine.found_work(await rig.store.scan_work(after_endpoint=0, limit=10))
            await rig.pass_s(0.1)
        (waiters,) = rig.engine.dispatcher._host_waiters.values()
        assert len(waiters) == 3
        assert len(rig.wire.under_way) == 1

    play(story, host_cap=1)
