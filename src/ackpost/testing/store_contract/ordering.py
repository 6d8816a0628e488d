"""Order by key (rule E4, invariant I4): who waits, who wakes, who holds."""

from __future__ import annotations

from ackpost.core.model import Endpoint
from ackpost.ports.operations import Cancel, DeliveriesChanged, Done, ExpireData, JobSaved, NewEvent, Redeliver, StepJob
from ackpost.testing.store_contract.world import BY_KEY, HOLD, World


async def _three(world: World, endpoint: Endpoint, key: str = "k") -> list[int]:
    """Publish three events of one key; give their deliveries."""
    accepted = await world.publish(*(NewEvent("a", str(n).encode(), key=key) for n in range(3)))
    events = {event.position for event in accepted.events}
    return [row.position for row in await world.all_deliveries(endpoint=endpoint.position) if row.event in events]


async def _waiting(world: World, rows: list[int]) -> list[bool]:
    return [(await world.delivery(row)).waiting for row in rows]


async def check_only_the_first_of_a_key_is_due(world: World) -> None:
    """Later ones of a key wait, other keys and events without key do not; best-effort endpoints never wait."""
    ordered, free = await world.endpoint(policy=BY_KEY), await world.endpoint(url="https://example.org/")
    rows = await _three(world, ordered)
    other = await world.one(key="other")
    keyless = await world.one()
    assert await _waiting(world, rows) == [False, True, True]
    due = await world.due(ordered)
    assert [ref.event for ref in due] == [rows[0] - 1, other.position, keyless.position]
    assert [ref.ordered for ref in due] == [True, True, False]
    assert [ref.ordered for ref in await world.due(free)] == [False] * 5
    assert (await world.delivery(rows[1])).due_ms is None
    assert await world.store.pending_counts() == {"due": 8, "waiting": 2}


async def check_next_is_promoted_when_one_is_delivered(world: World) -> None:
    """The result that ends a delivery makes the next of its key due, and hands it over without payload."""
    endpoint = await world.endpoint(policy=BY_KEY)
    rows = await _three(world, endpoint)
    for index, row in enumerate(rows):
        world.later(10)
        answer = await world.deliver(await world.first_due(endpoint))
        expected = rows[index + 1 : index + 2]
        assert [ref.position for ref in answer.refs] == expected
        if expected:
            assert answer.refs == await world.due(endpoint)
            assert (answer.refs[0].due_ms, answer.refs[0].age_start_ms) == (world.now_ms, world.now_ms)
            assert answer.refs[0].payload is None
        assert (await world.delivery(row)).status == "delivered"
    assert await world.due(endpoint) == []


async def check_retry_keeps_the_others_waiting(world: World) -> None:
    """A failed attempt that is repeated promotes nobody."""
    endpoint = await world.endpoint(policy=BY_KEY)
    rows = await _three(world, endpoint)
    answer = await world.record(world.result(await world.first_due(endpoint), "retry", due_ms=world.now_ms + 500))
    assert answer.refs == []
    assert await _waiting(world, rows) == [False, True, True]


async def check_dead_one_is_skipped(world: World) -> None:
    """With on_dead skip the next goes out after a death."""
    endpoint = await world.endpoint(policy=BY_KEY)
    rows = await _three(world, endpoint)
    answer = await world.die(await world.first_due(endpoint))
    assert [ref.position for ref in answer.refs] == [rows[1]]


async def check_skipped_one_replays_at_its_own_time(world: World) -> None:
    """With on_dead skip a redelivered dead one neither waits nor makes others wait."""
    endpoint = await world.endpoint(policy=BY_KEY)
    rows = await _three(world, endpoint)
    await world.die(await world.first_due(endpoint))
    changed = await world.do(Redeliver(world.tenant, world.now_ms, delivery=rows[0]), DeliveriesChanged)
    assert [ref.ordered for ref in changed.refs] == [False]
    assert await _waiting(world, rows) == [False, False, True]
    fourth = await world.one(key="k")
    assert (await world.delivery(fourth.position + 1)).waiting


async def check_ordering_survives_a_crash(world: World) -> None:
    """After a restart the next of a key still waits, and still wakes."""
    endpoint = await world.endpoint(policy=BY_KEY)
    rows = await _three(world, endpoint)
    await world.restart()
    assert await _waiting(world, rows) == [False, True, True]
    assert [ref.position for ref in (await world.deliver(await world.first_due(endpoint))).refs] == [rows[1]]


async def check_cancelled_and_expired_ones_let_the_next_go(world: World) -> None:
    """Cancelling the first, or expiring its data, promotes the next; cancelling a waiting one promotes nobody."""
    endpoint = await world.endpoint(policy=BY_KEY)
    rows = await _three(world, endpoint)
    changed = await world.do(Cancel(world.tenant, world.now_ms, delivery=rows[1]), DeliveriesChanged)
    assert changed.refs == []
    changed = await world.do(Cancel(world.tenant, world.now_ms, delivery=rows[0]), DeliveriesChanged)
    assert [ref.position for ref in changed.refs] == [rows[2]]
    fourth = await world.one(key="k")
    await world.do(ExpireData(world.tenant, rows[2] - 1, world.now_ms), Done)
    assert [ref.event for ref in await world.due(endpoint)] == [fourth.position]


async def check_age_of_a_waiting_row_begins_when_it_is_promoted(world: World) -> None:
    """Age stands still while a row waits, and runs on the endpoint's clock, which stops in a pause."""
    endpoint = await world.endpoint(policy=BY_KEY)
    await _three(world, endpoint)
    ref = await world.first_due(endpoint)
    await world.set_state(endpoint, "pause")
    world.later(5000)
    (promoted,) = (await world.deliver(ref)).refs
    assert promoted.age_start_ms == world.now_ms - 5000
    assert promoted.due_ms == world.now_ms


async def check_paused_endpoints_clock_at_accept(world: World) -> None:
    """An event accepted in a pause starts its age at the reading of the stopped clock."""
    endpoint = await world.endpoint()
    await world.set_state(endpoint, "pause")
    world.later(3000)
    await world.one()
    assert (await world.first_due(endpoint)).age_start_ms == world.now_ms - 3000
    await world.set_state(endpoint, "resume")
    world.later(1000)
    await world.one()
    assert (await world.due(endpoint))[1].age_start_ms == world.now_ms - 3000


# ---------------------------------------------------------------- on_dead: hold


async def _held(world: World) -> tuple[Endpoint, list[int]]:
    """A key whose first delivery died and holds it."""
    endpoint = await world.endpoint(policy=HOLD)
    rows = await _three(world, endpoint)
    answer = await world.die(await world.first_due(endpoint), hold=True)
    assert answer.refs == []
    return endpoint, rows


async def check_dead_one_holds_its_key(world: World) -> None:
    """With on_dead hold the others wait behind a dead one, also those published later and after a crash."""
    endpoint, rows = await _held(world)
    await world.restart()
    fourth = await world.one(key="k")
    assert await _waiting(world, [*rows[1:], fourth.position + 1]) == [True, True, True]
    assert (await world.one(key="other")).position == (await world.first_due(endpoint)).event


async def check_replay_that_is_delivered_releases_the_key(world: World) -> None:
    """The dead one is sent again alone; its delivery lets the next go."""
    endpoint, rows = await _held(world)
    changed = await world.do(Redeliver(world.tenant, world.now_ms, delivery=rows[0]), DeliveriesChanged)
    assert [(ref.position, ref.ordered) for ref in changed.refs] == [(rows[0], True)]
    assert await _waiting(world, rows) == [False, True, True]
    answer = await world.deliver(await world.first_due(endpoint))
    assert [ref.position for ref in answer.refs] == [rows[1]]


async def check_replay_that_dies_again_keeps_the_hold(world: World) -> None:
    """A second death changes nothing for those who wait."""
    endpoint, rows = await _held(world)
    await world.do(Redeliver(world.tenant, world.now_ms, delivery=rows[0]), DeliveriesChanged)
    assert (await world.die(await world.first_due(endpoint), hold=True)).refs == []
    assert await _waiting(world, rows) == [False, True, True]


async def check_discarding_releases_the_key(world: World) -> None:
    """Discarding the dead one lets the next go."""
    endpoint, rows = await _held(world)
    job = await world.job("discard", ids=(rows[0],))
    saved = await world.do(StepJob(job.position, 10, world.now_ms), JobSaved)
    assert [ref.position for ref in saved.refs] == [rows[1]]
    assert saved.touched == [endpoint.position]


async def check_cancelling_the_replay_releases_the_key(world: World) -> None:
    """Cancelling the holder's new round lets the next go."""
    _, rows = await _held(world)
    await world.do(Redeliver(world.tenant, world.now_ms, delivery=rows[0]), DeliveriesChanged)
    changed = await world.do(Cancel(world.tenant, world.now_ms, delivery=rows[0]), DeliveriesChanged)
    assert [ref.position for ref in changed.refs] == [rows[1]]


async def check_late_success_releases_the_key(world: World) -> None:
    """A success that still comes for a dead one ends its hold."""
    endpoint = await world.endpoint(policy=HOLD)
    rows = await _three(world, endpoint)
    ref = await world.first_due(endpoint)
    await world.record(world.ending(ref, "age_exceeded", hold=True))
    assert await world.due(endpoint) == []
    answer = await world.deliver(ref)
    assert [ref.position for ref in answer.refs] == [rows[1]]


async def check_several_dead_of_a_key_replay_in_order(world: World) -> None:
    """Two dead ones of a held key go out one after the other, the oldest first."""
    endpoint, rows = await _held(world)
    await world.do(ExpireData(world.tenant, rows[2] - 1, world.now_ms), Done)
    await world.do(Cancel(world.tenant, world.now_ms, delivery=rows[1]), DeliveriesChanged)
    await world.do(Redeliver(world.tenant, world.now_ms, delivery=rows[1]), DeliveriesChanged)
    assert await _waiting(world, rows) == [False, True, False]
    await world.do(Redeliver(world.tenant, world.now_ms, delivery=rows[0]), DeliveriesChanged)
    assert [ref.position for ref in await world.due(endpoint)] == [rows[0]]
    await world.deliver(await world.first_due(endpoint))
    assert [ref.position for ref in await world.due(endpoint)] == [rows[1]]
    fourth = await world.one(key="k")
    await world.deliver(await world.first_due(endpoint))
    assert (await world.delivery(fourth.position + 1)).waiting, "the expired one still holds the key"


async def check_missing_delivery_takes_its_place_in_the_key(world: World) -> None:
    """A delivery made later for an older event goes before waiting newer ones."""
    endpoint = await world.endpoint(policy=BY_KEY)
    await world.set_state(endpoint, "disable")
    missed = await world.one(key="k")
    await world.set_state(endpoint, "enable")
    rows = await _three(world, endpoint)
    operation = Redeliver(world.tenant, world.now_ms, event=missed.position, endpoint=endpoint.position)
    changed = await world.do(operation, DeliveriesChanged)
    assert [ref.event for ref in changed.refs] == [missed.position]
    first = next(ref for ref in await world.due(endpoint) if ref.position == rows[0])
    assert (await world.deliver(first)).refs == [], "the second waits for the missed one"
    answer = await world.deliver(await world.first_due(endpoint))
    assert [ref.position for ref in answer.refs] == [rows[1]]
