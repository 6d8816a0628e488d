"""What an owner learns of the deliveries and changes that other nodes make (rules E1, E2), with hints and without."""

from __future__ import annotations

import pytest

from ackpost.core.model import Endpoint
from ackpost.ports import operations as ops
from ackpost.service.routing import target_of
from tests.engine.nodes import Node, Nodes, play_nodes
from tests.engine.rig import Request, answer

HINTED_S = 0.05
POLLED_S = 2.0


def _lose_hints(nodes: Nodes) -> None:
    """From now on none arrives, though all nodes think that they listen."""
    nodes.database.hint_s = lambda: None


def _pooled(nodes: Nodes) -> None:
    """Behind a pooler that shares sessions nobody listens."""
    _lose_hints(nodes)
    for node in nodes.all:
        node.wakeup.is_listening = False


async def _first_sent_s(nodes: Nodes, owner: Node, publisher: Node) -> float:
    endpoint = await nodes.endpoint_of(owner)
    await publisher.publish(endpoint)
    return await nodes.until(lambda: len(owner.wire.to("/" + endpoint.url.rpartition("/")[2])) == 1)


def test_a_hint_brings_work_to_its_owner_at_once() -> None:
    """What is published on one node is sent by another within a few trips to the database."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        assert await _first_sent_s(nodes, b, a) < HINTED_S
        assert await _first_sent_s(nodes, a, b) < HINTED_S
        assert (len(a.wire.requests), len(b.wire.requests)) == (1, 1)

    play_nodes(story, first=2)


def test_the_owner_itself_needs_no_hint() -> None:
    """A node that publishes for its own endpoints tells nobody."""

    async def story(nodes: Nodes) -> None:
        a = nodes.all[0]
        endpoint = await nodes.endpoint_of(a)
        await a.pass_s(1)
        before = nodes.database.hints_told
        await a.publish(endpoint)
        assert await nodes.until(lambda: len(a.wire.requests) == 1) < HINTED_S
        assert nodes.database.hints_told == before

    play_nodes(story, first=2)


def test_without_listening_work_is_found_by_polling() -> None:
    """Within two seconds, also for an endpoint whose lane thinks that it knows all of its work."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        _pooled(nodes)
        endpoint = await nodes.endpoint_of(b)
        for number in range(1, 6):
            await a.publish(endpoint)
            taken_s = await nodes.until(lambda: len(nodes.requests(endpoint)) == number)  # noqa: B023 - ends within the turn
            assert taken_s < POLLED_S
            await a.pass_s(0.3 * number)
        assert set(nodes.senders(endpoint)) == {"b"}

    play_nodes(story, first=2)


def test_a_lost_hint_is_made_up_for_by_polling() -> None:
    """A node that thinks that it hears everything looks nevertheless."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b, max_in_flight=1)
        b.wire.reply = lambda _: None
        await a.publish(endpoint)
        await nodes.until(lambda: len(b.wire.under_way) == 1)
        _lose_hints(nodes)
        await a.publish(endpoint, count=3)
        await a.pass_s(POLLED_S)
        b.wire.reply = lambda _: (0.01, answer())
        b.wire.end(b.wire.under_way[0])
        taken_s = await nodes.until(lambda: len(nodes.requests(endpoint)) == 4)
        assert taken_s < 4 * POLLED_S

    play_nodes(story, first=2)


def test_what_others_add_behind_a_queue_that_never_runs_empty_is_found() -> None:
    """The owner has always something that is due; without a hint it looks for what it does not know nevertheless."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b, max_in_flight=1)
        b.wire.reply = lambda _: (0.1, answer())
        await b.publish(endpoint, count=20)
        _lose_hints(nodes)
        (delivery,) = await a.publish(endpoint)
        for _ in range(200):
            await b.publish(endpoint)
            await a.pass_s(0.1)
        assert nodes.state.rows[delivery].status == "delivered"

    play_nodes(story, first=2)


def test_hints_are_heard_again_soon_after_a_lost_connection() -> None:
    """The node listens anew, and looks everywhere meanwhile."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        nodes.database.lose("b")
        await a.pass_s(0.01)
        assert not b.wakeup.is_listening
        await nodes.until(lambda: b.wakeup.is_listening, within_s=POLLED_S)
        assert await _first_sent_s(nodes, b, a) < HINTED_S

    play_nodes(story, first=2)


def _later_requests(nodes: Nodes, since_ms: int, path: str) -> list[Request]:
    return [one for node in nodes.all for one in node.wire.to(path) if one.at_ms > since_ms]


@pytest.mark.parametrize("verb", ["pause", "disable"])
@pytest.mark.parametrize("hints", [True, False])
def test_what_another_node_changes_holds_within_a_second(verb: str, hints: bool) -> None:
    """The owner has more of it queued, and sends none of that later than a second after the change."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b, max_in_flight=1)
        b.wire.reply = lambda _: (0.2, answer())
        await a.publish(endpoint, count=50)
        await nodes.until(lambda: len(nodes.requests(endpoint)) == 3)
        if not hints:
            _lose_hints(nodes)
        await a.state(endpoint, verb)
        changed_ms = a.now_ms()
        await a.pass_s(20)
        late_ms = max(one.at_ms for _, one in nodes.requests(endpoint)) - changed_ms
        assert late_ms <= (HINTED_S if hints else 1.0) * 1000

    play_nodes(story, first=2)


def test_an_idle_endpoint_that_another_node_paused_gets_nothing_published_later() -> None:
    """Though the hint of the pause is lost, and the owner learns of the new delivery by a hint."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b)
        await a.publish(endpoint)
        await nodes.until(lambda: len(nodes.requests(endpoint)) == 1)
        await a.pass_s(5)
        hint_s = nodes.database.hint_s
        _lose_hints(nodes)
        await a.state(endpoint, "pause")
        await a.pass_s(5)
        nodes.database.hint_s = hint_s
        await a.publish(endpoint)
        await a.pass_s(5)
        assert len(nodes.requests(endpoint)) == 1
        await a.state(endpoint, "resume")
        await nodes.until(lambda: len(nodes.requests(endpoint)) == 2)

    play_nodes(story, first=2)


async def _publish_as_known(node: Node, endpoint: Endpoint) -> None:
    """Accept for an endpoint as it was: a change that moves no routing is not seen by publishers' nodes."""
    routing = await node.store.routing(endpoint.tenant)
    event = ops.NewEvent("order.created", b'{"n":0}', targets=(target_of(endpoint),))
    await node.submit(ops.Accept(endpoint.tenant, routing.version, [event], node.now_ms()))


def test_an_idle_endpoint_that_another_node_changed_is_read_again() -> None:
    """Of a new URL the routing of publishers knows nothing; the owner finds it though it heard nothing of it."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b)
        await a.publish(endpoint)
        await nodes.until(lambda: len(nodes.requests(endpoint)) == 1)
        await a.pass_s(5)
        _lose_hints(nodes)
        changed = await a.fresh(endpoint)
        changed.url = "https://elsewhere.example/new"
        await a.submit(ops.ReplaceEndpoint(changed, changed.rev, a.now_ms()))
        await a.pass_s(4 * POLLED_S)
        await _publish_as_known(b, endpoint)
        await nodes.until(lambda: len(b.wire.requests) == 2)
        assert len(b.wire.to("/new")) == 1
        assert len(nodes.requests(endpoint)) == 1

    play_nodes(story, first=2)


def test_a_busy_endpoint_that_another_node_changed_is_read_again() -> None:
    """It is sent to again and again, each time nothing is pending when the owner looks, and no hint arrives."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b)
        _lose_hints(nodes)
        changed = await a.fresh(endpoint)
        changed.url = "https://elsewhere.example/new"
        await b.publish(endpoint)
        await nodes.until(lambda: len(nodes.requests(endpoint)) == 1)
        await a.submit(ops.ReplaceEndpoint(changed, changed.rev, a.now_ms()))
        changed_ms = a.now_ms()
        while not b.wire.to("/new"):
            polls = b.housekeeping._polls
            await nodes.until(lambda: b.housekeeping._polls > polls)  # noqa: B023 - ends within the turn
            await _publish_as_known(b, endpoint)
            await a.pass_s(0.1)
            assert a.now_ms() - changed_ms < 4 * POLLED_S * 1000

    play_nodes(story, first=2)


def test_a_cancelled_delivery_is_not_sent_by_its_owner_later() -> None:
    """It was due in an hour, and another node cancelled it."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b, retry={"base_s": 30, "cap_s": 30, "jitter": "none"})
        b.wire.reply = lambda _: (0.01, answer(500))
        (delivery,) = await a.publish(endpoint)
        await nodes.until(lambda: nodes.state.rows[delivery].number == 1)
        _lose_hints(nodes)
        await a.submit(ops.Cancel(endpoint.tenant, a.now_ms(), delivery=delivery))
        await a.pass_s(120)
        assert len(nodes.requests(endpoint)) == 1

    play_nodes(story, first=2)


def test_who_waits_for_an_attempt_hears_of_one_that_another_node_makes() -> None:
    """The caller's node is not the owner; it asks the store now and then."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b)
        b.wire.reply = lambda _: (1.0, answer())
        (delivery,) = await a.publish(endpoint)
        assert await a.engine.wait_attempt(delivery, 5)
        b.wire.reply = lambda _: (3.0, answer())
        (delivery,) = await a.publish(endpoint)
        assert not await a.engine.wait_attempt(delivery, 1)

    play_nodes(story, first=2)


def test_jobs_of_another_node_hold_an_endpoint_back() -> None:
    """While the order of its deliveries is rebuilt the owner sends nothing of an endpoint, whoever asked for that."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b, ordering="best-effort", max_in_flight=1)
        b.wire.reply = lambda _: (0.05, answer())
        await a.publish(endpoint, count=400, key="k")
        await nodes.until(lambda: len(nodes.requests(endpoint)) >= 5)
        changed = await a.fresh(endpoint)
        rev = changed.rev
        changed.policy = {**changed.policy, "ordering": "by-key"}
        await a.submit(ops.ReplaceEndpoint(changed, rev, a.now_ms()))
        await nodes.until(lambda: all(job.state == "done" for job in nodes.state.jobs.values()))
        await nodes.until(lambda: all(row.status == "delivered" for row in nodes.state.rows.values()), within_s=120)
        numbers = [one.n for _, one in nodes.requests(endpoint)]
        assert numbers == sorted(numbers)
        assert len(numbers) == 400

    play_nodes(story, first=2)


def test_one_node_alone_does_what_one_has_to_do_for_all() -> None:
    """Retention and the sweep of waiting rows run where partition 0 is, and move with it."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        janitor = a if 0 in a.owned else b
        other = b if janitor is a else a
        assert [one.housekeeping._is_janitor() for one in (janitor, other)] == [True, False]
        janitor.kill()
        await nodes.until(other.housekeeping._is_janitor)

    play_nodes(story, first=2)
