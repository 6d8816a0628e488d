"""How nodes come by partitions, give them up and lose them (rules E1, E3)."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from ackpost.core.ids import partition_of
from ackpost.engine.ownership import BALANCE_S
from ackpost.errors import StoreLocked
from tests.engine.nodes import LEASE_S, Nodes, play_nodes
from tests.engine.rig import answer

STEP_S = 0.5
MARGIN_S = LEASE_S / 8


def test_nodes_that_join_get_their_share_and_no_more_moves_than_must() -> None:
    """Each one more moves at most ⌈256/n⌉ partitions, and in the end none owns two more than another."""

    async def story(nodes: Nodes) -> None:
        for number, name in enumerate("bcdef", 2):
            before = dict(nodes.state.owners)
            await nodes.join(name)
            moved = sum(owner != before[partition] for partition, owner in nodes.state.owners.items())
            assert 0 < moved <= math.ceil(256 / number)

    play_nodes(story)


def test_a_node_that_leaves_hands_over_at_once() -> None:
    """Others have taken all of it within a fraction of a second, and nothing else has moved."""

    async def story(nodes: Nodes) -> None:
        before, b = dict(nodes.state.owners), nodes.all[1]
        stopping = nodes.loop.create_task(b.stop())
        taken_s = await nodes.until(lambda: "b" not in nodes.state.owners.values() and len(nodes.state.owners) == 256)
        assert taken_s < STEP_S
        await stopping
        await nodes.until(nodes.is_even)
        assert all(owner == before[one] for one, owner in nodes.state.owners.items() if before[one] != "b")

    play_nodes(story, first=3)


def test_a_dead_node_is_replaced_after_its_lease_and_not_before() -> None:
    """What it had not sent is sent by others then; what it had in flight, too."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b)
        b.wire.reply = lambda _: None
        (flying,) = await a.publish(endpoint)
        await nodes.until(lambda: len(b.wire.under_way) == 1)
        b.kill()
        renewed_ms = nodes.state.nodes["b"].expires_ms - LEASE_S * 1000
        (waiting,) = await a.publish(endpoint)
        await nodes.until(lambda: len(nodes.requests(endpoint)) == 3)
        assert nodes.senders(endpoint) == ["b", "a", "a"]
        after_s = (nodes.requests(endpoint)[1][1].at_ms - renewed_ms) / 1000
        assert LEASE_S <= after_s <= LEASE_S + BALANCE_S + STEP_S
        await nodes.until(nodes.is_even)
        await a.pass_s(STEP_S)
        assert [(await a.status(one))[0] for one in (flying, waiting)] == ["delivered", "delivered"]
        assert a.notes("nodes.dead") == [{"nodes": "b"}]

    play_nodes(story, first=2)


def test_a_node_that_restarts_within_its_lease_keeps_its_partitions() -> None:
    """The others take nothing meanwhile."""

    async def story(nodes: Nodes) -> None:
        b = nodes.all[1]
        before = dict(nodes.state.owners)
        b.kill()
        await b.nodes.all[0].pass_s(5)
        (again,) = await nodes.join("b")
        assert nodes.state.owners == before
        assert again.owned == nodes.partitions(again)
        endpoint = await nodes.endpoint_of(again)
        await nodes.all[0].publish(endpoint)
        await nodes.until(lambda: nodes.senders(endpoint) == ["b"])

    play_nodes(story, first=2)


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_a_node_cut_off_from_the_database_stops_sending_before_its_lease_ends(how: str) -> None:
    """At a margin before the end it aborts what is under way; only later does another node send."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b, max_in_flight=100)
        b.wire.reply = lambda _: None
        await a.publish(endpoint, count=5)
        await nodes.until(lambda: len(b.wire.under_way) == 2)
        nodes.database.away["b"] = how  # type: ignore[assignment] # one of the two
        nodes.database.lose("b")
        begun_ms = nodes.now_ms()
        await nodes.until(lambda: b.told.noted("lease.lapsed"))
        lapsed_ms, last = nodes.now_ms(), nodes.state.nodes["b"].expires_ms
        assert all(request.aborted for request in b.wire.requests)
        assert LEASE_S * 0.5 <= (lapsed_ms - begun_ms) / 1000 <= LEASE_S - MARGIN_S + STEP_S
        assert last - lapsed_ms >= (MARGIN_S - STEP_S) * 1000
        await nodes.until(lambda: nodes.senders(endpoint).count("a") == 5)
        sent = nodes.requests(endpoint)
        assert max(one.at_ms for name, one in sent if name == "b") < lapsed_ms
        assert min(one.at_ms for name, one in sent if name == "a") >= last
        assert b.engine.readiness() is not None

    play_nodes(story, first=2)


def test_a_node_that_was_declared_dead_comes_back_with_a_new_incarnation() -> None:
    """It drops all it had, joins again, and gets its share."""

    async def story(nodes: Nodes) -> None:
        b = nodes.all[1]
        before = nodes.state.nodes["b"].incarnation
        nodes.database.away["b"] = "silent"
        await nodes.until(lambda: not nodes.state.nodes["b"].alive)
        del nodes.database.away["b"]
        await nodes.until(nodes.is_even)
        assert nodes.state.nodes["b"].incarnation > before
        assert [one["incarnation"] for one in b.notes("node.rejoined")] == [nodes.state.nodes["b"].incarnation]
        assert b.lease.is_valid()
        endpoint = await nodes.endpoint_of(b)
        (delivery,) = await nodes.all[0].publish(endpoint)
        await nodes.until(lambda: nodes.state.rows[delivery].status == "delivered")
        assert nodes.senders(endpoint) == ["b"]

    play_nodes(story, first=2)


def test_a_node_that_lost_the_database_for_less_than_its_lease_goes_on() -> None:
    """Results are kept, nothing moves, nobody is declared dead."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        before, incarnation = dict(nodes.state.owners), nodes.state.nodes["b"].incarnation
        endpoint = await nodes.endpoint_of(b)
        b.wire.reply = lambda _: (3.0, answer())
        (delivery,) = await a.publish(endpoint)
        await nodes.until(lambda: len(b.wire.under_way) == 1)
        nodes.database.away["b"] = "refused"
        await a.pass_s(10)
        del nodes.database.away["b"]
        await a.pass_s(2)
        assert (await a.status(delivery))[0] == "delivered"
        assert nodes.senders(endpoint) == ["b"]
        assert (nodes.state.owners, nodes.state.nodes["b"].incarnation) == (before, incarnation)

    play_nodes(story, first=2)


def test_the_answer_that_a_stale_owner_gets_is_dropped() -> None:
    """It stood still for longer than its lease: what it hears when it wakes changes no row; the new owner's does."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b)
        b.wire.reply = lambda _: None
        a.wire.reply = lambda _: None
        (delivery,) = await a.publish(endpoint)
        await nodes.until(lambda: len(b.wire.under_way) == 1)
        b.hold()
        await nodes.until(lambda: len(a.wire.under_way) == 1)
        row = nodes.state.rows[delivery]
        stale = b.wire.under_way[0]
        nodes.loop.call_soon(b.wire.end, stale, answer(500), context=b.process.context)
        b.go_on()
        await nodes.until(lambda: b.told.noted("node.rejoined"))
        assert (row.status, row.number, nodes.state.attempts.get(delivery)) == ("pending", 0, None)
        a.wire.end(a.wire.under_way[0])
        await nodes.until(nodes.is_even)
        assert (row.status, row.number) == ("delivered", 1)
        assert [one.node for one in nodes.state.attempts[delivery]] == ["a"]
        assert b.marks.taken == {}

    play_nodes(story, first=2)


@pytest.mark.parametrize("lease_too", [True, False])
def test_who_stood_still_sends_nothing_when_it_wakes(lease_too: bool) -> None:
    """Neither a stopped process nor a hung event loop, whose lease's thread lives, sends what it had queued."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        endpoint = await nodes.endpoint_of(b, rate_per_s=1, max_in_flight=50)
        await a.publish(endpoint, count=40)
        await nodes.until(lambda: len(b.wire.requests) >= 3)
        b.hold(lease_too=lease_too)
        before = len(b.wire.requests)
        await nodes.until(lambda: len(a.wire.requests) > 3)
        b.go_on()
        await nodes.until(nodes.is_even)
        assert len(b.wire.requests) == before
        assert b.told.noted("node.rejoined")
        await nodes.until(lambda: len({one.n for _, one in nodes.requests(endpoint)}) == 40)

    play_nodes(story, first=2)


def test_what_is_given_is_drained_first() -> None:
    """A partition with a request under way stays with its owner until the result is stored; the rest moves at once."""

    async def story(nodes: Nodes) -> None:
        (a,) = nodes.all
        endpoints = [await a.endpoint(f"/{number}") for number in range(40)]
        a.wire.reply = lambda _: None
        for endpoint in endpoints:
            await a.publish(endpoint, count=2)
        await nodes.until(lambda: len(a.wire.under_way) == 80)
        busy = {partition_of(endpoint.position) for endpoint in endpoints}
        joining = nodes.loop.create_task(nodes.join("b"))
        await a.pass_s(BALANCE_S + STEP_S)
        b = nodes.all[1]
        given = nodes.partitions(b)
        assert given
        assert given.isdisjoint(busy)
        for request in list(a.wire.under_way):
            a.wire.end(request)
        await joining
        moved = [one for one in endpoints if partition_of(one.position) in nodes.partitions(b)]
        assert moved
        assert all(nodes.senders(one) == ["a", "a"] for one in endpoints)
        assert {row.status for row in nodes.state.rows.values()} == {"delivered"}

    play_nodes(story)


def test_no_two_nodes_send_for_one_endpoint_at_once() -> None:
    """Nodes come, go and die under load: an endpoint's requests of two nodes never overlap, and each arrives."""

    async def story(nodes: Nodes) -> None:
        (a,) = nodes.all
        endpoints = [await a.endpoint(f"/{number}", max_in_flight=4) for number in range(12)]
        a.wire.reply = lambda _: (0.4, answer())

        async def load() -> None:
            for _ in range(300):
                publisher = nodes.living()[0]
                await publisher.publish(*endpoints)
                await a.pass_s(0.3)

        loading = nodes.loop.create_task(load())
        for name in "bcd":
            (node,) = await nodes.join(name)
            node.wire.reply = a.wire.reply
            await node.pass_s(3)
        await nodes.all[1].stop()
        await a.pass_s(3)
        nodes.all[2].kill()
        await loading
        await nodes.until(lambda: all(row.status == "delivered" for row in nodes.state.rows.values()))
        senders: set[str] = set()
        for endpoint in endpoints:
            sent = nodes.requests(endpoint)
            senders.update(name for name, _ in sent)
            for (name, one), (later_name, later) in pairwise(sent):
                assert name == later_name or later.at_ms >= one.at_ms + 400, (endpoint, name, later_name)
        assert senders == set("abcd")

    play_nodes(story)


def test_a_node_that_only_takes_requests_owns_nothing() -> None:
    """But it, too, declares dead who has stopped renewing."""

    async def story(nodes: Nodes) -> None:
        api, b = (await nodes.join("api", role="api"))[0], nodes.all[0]
        assert api.owned == frozenset()
        b.kill()
        await nodes.until(lambda: not nodes.state.nodes["a"].alive)
        assert api.notes("nodes.dead") == [{"nodes": "a"}]
        await api.pass_s(10)
        assert (api.owned, nodes.state.owners) == (frozenset(), {})

    play_nodes(story)


def test_a_node_whose_name_another_one_has_taken_ends() -> None:
    """Two machines of one name would undo each other for ever."""

    async def story(nodes: Nodes) -> None:
        a, b = nodes.all
        nodes.database.away["b"] = "silent"
        await nodes.until(lambda: not nodes.state.nodes["b"].alive)
        nodes.state.nodes["b"].home = "elsewhere"
        nodes.database.away = {}
        await nodes.until(lambda: bool(b.fatal))
        assert isinstance(b.fatal[0], StoreLocked)
        b.kill()
        await nodes.until(nodes.is_even)
        assert a.fatal == []

    play_nodes(story, first=2)
