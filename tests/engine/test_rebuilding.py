"""While a job rebuilds the order of an endpoint's deliveries, nothing is sent to it (rule E4)."""

from __future__ import annotations

import msgspec

from ackpost.core.model import Endpoint
from ackpost.ports import operations as ops
from tests.engine.rig import Rig, answer, play


async def _switch(rig: Rig, endpoint: Endpoint) -> int:
    """Ask for order by key; give the position of the job that rebuilds it."""
    fresh = await rig.fresh(endpoint)
    changed = msgspec.structs.replace(fresh, policy={**fresh.policy, "ordering": "by-key"})
    saved = await rig.submit(ops.ReplaceEndpoint(changed, fresh.rev, rig.now_ms()))
    assert saved.job is not None
    return int(saved.job)


def test_nothing_is_sent_until_the_order_is_rebuilt() -> None:
    """The job's steps find no request of the endpoint under way; then each key goes one after the other."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=2)
        await rig.publish(endpoint, count=40, key="k")
        await rig.until(lambda: len(rig.wire.requests) >= 5)
        job = await _switch(rig, endpoint)
        await rig.pass_s(1)
        sent = len(rig.wire.requests)
        assert rig.wire.under_way == []
        await rig.pass_s(5)
        assert len(rig.wire.requests) == sent
        most = 0

        def reply(_: object) -> tuple[float, object]:
            nonlocal most
            most = max(most, len(rig.wire.under_way))
            return 0.01, answer()

        rig.wire.reply = reply  # type: ignore[assignment]  # as loose as a test may be
        while (await rig.submit(ops.StepJob(job, 10, rig.now_ms()))).job.state != "done":
            await rig.pass_s(0.5)
            assert len(rig.wire.requests) == sent
        await rig.until(lambda: len(rig.wire.requests) == 40)
        assert most == 1
        numbers = [request.n for request in rig.wire.requests]
        assert numbers == sorted(numbers)

    play(story)


def test_a_job_that_was_open_at_the_start_holds_its_endpoint() -> None:
    """A node that starts in the middle of a rebuilding learns of it before it may send."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        await rig.publish(endpoint, count=3, key="k")
        job = await _switch(rig, endpoint)
        rig.engine.budget.rebuilding.clear()
        for open_job in await rig.store.open_jobs(100):
            rig.engine.note_job(open_job)
        await rig.state(endpoint, "resume")
        await rig.pass_s(5)
        assert rig.wire.requests == []
        await rig.submit(ops.StepJob(job, 100, rig.now_ms()))
        await rig.until(lambda: len(rig.wire.requests) == 3)

    play(story)
