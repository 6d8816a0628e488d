"""What people do to endpoints and deliveries holds at once."""

from __future__ import annotations

import pytest

from ackpost.core.model import EndpointSecret
from ackpost.core.outcome import Outcome
from ackpost.core.signing import new_secret, seal
from ackpost.ports import operations as ops
from tests.engine.rig import Rig, answer, play


@pytest.mark.parametrize("verb", ["pause", "disable"])
def test_pausing_or_disabling_stops_a_backlog_at_once(verb: str) -> None:
    """No request begins after the answer, though many are due; what is under way may end."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=5)
        await rig.publish(endpoint, count=500)
        await rig.until(lambda: len(rig.wire.requests) > 50)
        await rig.state(endpoint, verb)
        sent = len(rig.wire.requests)
        await rig.pass_s(5)
        assert len(rig.wire.requests) == sent
        assert rig.wire.under_way == []

    play(story)


def test_resuming_sends_the_rest() -> None:
    """What was kept during a pause goes out at once, in order, and what was accepted meanwhile too."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        await rig.publish(endpoint, count=30)
        await rig.pass_s(5)
        assert rig.wire.requests == []
        await rig.state(endpoint, "resume")
        await rig.until(lambda: len(rig.wire.requests) == 30, within_s=1)

    play(story)


def test_resuming_and_enabling_send_a_probe_whatever_the_circuit() -> None:
    """An open circuit is half-open at once: one request goes, and the next only when that went well."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.01, answer(500))
        circuit = {"failures": 2, "span_min_s": 0, "open_s": 600, "open_max_s": 600}
        endpoint = await rig.endpoint(circuit=circuit, retry={"base_s": 0.05, "cap_s": 0.05})
        await rig.publish(endpoint, count=5)
        await rig.until(lambda: ("open" in [state for _, state in rig.told.circuits]))
        await rig.pass_s(1)
        for verb in ("resume", "enable"):
            sent = len(rig.wire.requests)
            await rig.state(endpoint, verb)
            await rig.pass_s(0.3)
            assert len(rig.wire.requests) == sent + 1, "one probe, which fails"
        rig.wire.reply = lambda _: (0.01, answer())
        await rig.state(endpoint, "resume")
        await rig.until(lambda: len([one for one in rig.told.decisions if one.verdict == "delivered"]) == 5, within_s=5)

    play(story)


def test_a_probe_asked_for_is_not_given_twice() -> None:
    """A reload that still shows the half-open circuit of a failed probe does not open it once more."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.01, answer(500))
        circuit = {"failures": 2, "span_min_s": 0, "open_s": 600, "open_max_s": 600}
        endpoint = await rig.endpoint(circuit=circuit, retry={"base_s": 0.05, "cap_s": 0.05})
        await rig.publish(endpoint, count=5)
        await rig.until(lambda: ("open" in [state for _, state in rig.told.circuits]))
        await rig.pass_s(1)
        await rig.state(endpoint, "resume")
        stored = await rig.fresh(endpoint)
        await rig.pass_s(0.5)
        sent = len(rig.wire.requests)
        lane = rig.engine.lanes[endpoint.position]
        assert lane.builder is not None
        lane.configure(stored, lane.builder, rig.store.salt)
        rig.engine.dispatcher.activate(lane)
        await rig.pass_s(1)
        assert len(rig.wire.requests) == sent

    play(story)


def test_a_cancelled_delivery_is_not_sent() -> None:
    """One that waits in memory for its turn is gone with the answer."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint(max_in_flight=1)
        first, second, third = await rig.publish(endpoint, count=3)
        await rig.until(lambda: len(rig.wire.requests) == 1)
        await rig.submit(ops.Cancel(endpoint.tenant, rig.now_ms(), delivery=second))
        rig.wire.reply = lambda _: (0.01, answer())
        rig.wire.end(rig.wire.requests[0])
        await rig.pass_s(3)
        assert [one.n for one in rig.wire.requests] == [0, 2]
        assert [(await rig.status(one))[0] for one in (first, second, third)] == ["delivered", "cancelled", "delivered"]

    play(story)


def test_a_2xx_after_a_cancel_counts() -> None:
    """The request that was under way at the cancel ends well: delivered; no further attempt else."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint()
        good, bad = await rig.publish(endpoint, count=2)
        await rig.until(lambda: len(rig.wire.requests) == 2)
        for delivery in (good, bad):
            await rig.submit(ops.Cancel(endpoint.tenant, rig.now_ms(), delivery=delivery))
        for request in rig.wire.requests[:2]:
            rig.wire.end(request, answer(200 if request.n == 0 else 500))
        await rig.pass_s(30)
        assert [(await rig.status(one))[0] for one in (good, bad)] == ["delivered", "cancelled"]
        assert len(rig.wire.requests) == 2

    play(story)


def test_a_redelivery_during_an_attempt_is_sent_after_it() -> None:
    """Cancelled and begun anew while a request is under way: the new round goes out after the late result."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: None
        endpoint = await rig.endpoint()
        (delivery,) = await rig.publish(endpoint)
        await rig.until(lambda: len(rig.wire.requests) == 1)
        await rig.submit(ops.Cancel(endpoint.tenant, rig.now_ms(), delivery=delivery))
        await rig.submit(ops.Redeliver(endpoint.tenant, rig.now_ms(), delivery=delivery))
        rig.wire.end(rig.wire.requests[0], answer(500))
        await rig.until(lambda: len(rig.wire.requests) == 2, within_s=1)
        rig.wire.end(rig.wire.requests[1])
        await rig.pass_s(1)
        assert await rig.status(delivery) == ("delivered", None)

    play(story)


def test_a_new_secret_signs_the_next_request() -> None:
    """Revoking at once means at once: nothing is signed by the old secret after the answer."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=1)
        await rig.publish(endpoint, count=100)
        await rig.until(lambda: len(rig.wire.requests) == 10)
        secret = EndpointSecret(seal(new_secret("standard", bytes(range(32)))), rig.now_ms())
        await rig.submit(ops.RotateSecret(endpoint.tenant, endpoint.position, secret, 0, rig.now_ms()))
        built = rig.build(await rig.fresh(endpoint))
        sent = len(rig.wire.requests)
        await rig.until(lambda: len(rig.wire.requests) > sent + 20)
        for request in rig.wire.requests[sent:]:
            event_id, timestamp = request.headers["webhook-id"], int(request.headers["webhook-timestamp"])
            expected = built._signer.headers(event_id, timestamp, request.body, rig.now_ms()).decode()
            assert request.headers["webhook-signature"] in expected

    play(story)


@pytest.mark.parametrize("verb", ["pause", "disable"])
def test_a_test_delivery_goes_whatever_the_state(verb: str) -> None:
    """Once, marked, past state, circuit and limits; its failure is no dead letter and changes nothing."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.01, answer(500))
        endpoint = await rig.endpoint()
        await rig.state(endpoint, verb)
        (delivery,) = await rig.publish(endpoint, trigger="test", type="ackpost.test")
        assert await rig.engine.wait_attempt(delivery, 5)
        await rig.pass_s(30)
        (request,) = rig.wire.requests
        assert request.headers["ackpost-test"] == "true"
        assert await rig.status(delivery) == ("discarded", "test_failed")
        assert (await rig.fresh(endpoint)).first_failure_ms is None

    play(story)


def test_a_test_that_met_our_own_error_waits_its_second() -> None:
    """No loop of tests that fail at once for want of a local port."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.001, Outcome("local_error"))
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        await rig.publish(endpoint, trigger="test", type="ackpost.test")
        await rig.pass_s(3.5)
        assert 3 <= len(rig.wire.requests) <= 4

    play(story)


def test_waiting_for_an_attempt_ends_with_it_or_with_the_time() -> None:
    """True when the attempt is recorded, False after the time; nobody is remembered afterwards."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (3, answer())
        endpoint = await rig.endpoint()
        (delivery,) = await rig.publish(endpoint)
        assert not await rig.engine.wait_attempt(delivery, 1)
        assert await rig.engine.wait_attempt(delivery, 5)
        assert len(rig.engine.waiters) == 0

    play(story)


def test_an_answer_410_stops_sending_before_it_is_stored() -> None:
    """The endpoint is disabled in memory with the answer: no other delivery goes out meanwhile."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.01, answer(410))
        endpoint = await rig.endpoint(max_in_flight=1)
        await rig.publish(endpoint, count=20)
        await rig.pass_s(3)
        assert len(rig.wire.requests) == 1
        stored = await rig.fresh(endpoint)
        assert (stored.state, stored.state_reason) == ("disabled", "gone")

    play(story)


def test_a_deleted_endpoint_gets_nothing_more() -> None:
    """Its lane goes; what is under way ends and is recorded."""

    async def story(rig: Rig) -> None:
        endpoint = await rig.endpoint(max_in_flight=1)
        await rig.publish(endpoint, count=50)
        await rig.until(lambda: len(rig.wire.requests) == 5)
        await rig.submit(ops.DeleteEndpoint(endpoint.tenant, endpoint.position, rig.now_ms()))
        sent = len(rig.wire.requests)
        await rig.pass_s(5)
        assert len(rig.wire.requests) == sent
        assert rig.engine.lanes == {}
        assert rig.marks.taken == {}

    play(story)


def test_a_test_that_was_cancelled_in_time_is_not_sent() -> None:
    """Tests are kept when the endpoint is loaded anew, but not those that somebody ended."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.001, Outcome("local_error"))
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        kept, cancelled = await rig.publish(endpoint, count=2, trigger="test", type="ackpost.test")
        await rig.until(lambda: len(rig.wire.requests) == 2)
        rig.wire.reply = lambda _: (0.001, answer())
        await rig.submit(ops.Cancel(endpoint.tenant, rig.now_ms(), delivery=cancelled))
        await rig.pass_s(5)
        assert [request.n for request in rig.wire.requests] == [0, 1, 0]
        assert [await rig.status(one) for one in (kept, cancelled)] == [("delivered", None), ("cancelled", None)]
        assert rig.engine.budget.refs == 0

    play(story)
