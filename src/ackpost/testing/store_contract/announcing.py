"""Operational events: who gets them, in whose commit, with what data."""

from __future__ import annotations

from ackpost.core.ids import public_id
from ackpost.core.model import DeliveryRef
from ackpost.ports.operations import (
    Cancel,
    DeliveriesChanged,
    Done,
    ExpireData,
    Interrupt,
    Interrupted,
    JobSaved,
    NewEvent,
    StepJob,
)
from ackpost.testing.store_contract.world import World, mark_of

DEAD = "ackpost.delivery.dead"


async def _sent(world: World) -> DeliveryRef:
    endpoint = await world.endpoint(event_types=("order.*", "ackpost.*"))
    await world.one()
    return await world.first_due(endpoint)


async def check_announcement_goes_to_those_who_name_it(world: World) -> None:
    """Same commit, same tenant, named by ``ackpost.…`` only, not disabled, without channels, never to the one it is
    about.
    """
    ref = await _sent(world)
    other = await world.new_tenant("other")
    takes = ("ackpost.*",)
    all_of_them = await world.endpoint(event_types=takes, format="bare")
    exact = await world.endpoint(event_types=(DEAD, "x"))
    paused = await world.endpoint(event_types=takes)
    await world.set_state(paused, "pause")
    await world.endpoint(event_types=("*",))
    await world.endpoint(event_types=("ackpost.endpoint.*",))
    await world.endpoint(event_types=takes, channels=("c",))
    await world.endpoint(tenant=other.position, event_types=takes)
    disabled = await world.endpoint(event_types=takes)
    await world.set_state(disabled, "disable")
    world.later(50)
    decision = world.result(ref, "dead", reason="gone", announcements=(world.about(ref),))
    answer = await world.record(decision)
    targets = [all_of_them.position, exact.position, paused.position]
    assert [found.endpoint for found in answer.refs] == targets
    assert answer.touched == targets
    (event,) = await world.all_events(types=("ackpost.*",))
    assert (event.type, event.key, event.sequence, event.uid) == (DEAD, None, None, None)
    assert (event.occurred_at_ms, event.created_at_ms) == (world.now_ms, world.now_ms)
    assert (await world.event(event.position)).data == b'{"n":%d}' % ref.position
    first = answer.refs[0]
    assert (first.pin, first.klass, first.trigger, first.due_ms) == ("bare", 0, "schedule", world.now_ms)
    assert first.payload is not None
    assert (first.payload.type, first.payload.position) == (DEAD, event.position)
    assert answer.refs[2].age_start_ms == world.now_ms - 50
    assert await world.due(ref.endpoint) == []


async def check_nobody_listening_stores_nothing(world: World) -> None:
    """An announcement that nobody takes leaves no event."""
    ref = await _sent(world)
    await world.record(world.result(ref, "dead", reason="gone", announcements=(world.about(ref),)))
    assert len(await world.all_events()) == 1


async def check_death_is_not_announced_if_it_did_not_happen(world: World) -> None:
    """A cancelled delivery's late failure announces no death, but what it says of the endpoint."""
    ref = await _sent(world)
    listener = await world.endpoint(event_types=("ackpost.*",))
    await world.do(Cancel(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    announcements = (world.about(ref), world.about(ref, "ackpost.endpoint.circuit_opened"))
    await world.record(world.result(ref, "dead", reason="gone", announcements=announcements))
    assert [event.type for event in await world.all_events(types=("ackpost.*",))] == ["ackpost.endpoint.circuit_opened"]
    assert len(await world.due(listener)) == 1


async def check_disabling_comes_before_announcing(world: World) -> None:
    """An endpoint disabled by the same commit gets no announcement of it."""
    ref = await _sent(world)
    listener = await world.endpoint(event_types=("order.*", "ackpost.*"), url="https://example.org/")
    await world.one()
    first = next(found for found in await world.due(ref.endpoint) if found.position != ref.position)
    second = await world.first_due(listener)
    answer = await world.record(
        world.result(first, "dead", reason="gone", announcements=(world.about(first),)),
        world.result(second, "dead", reason="gone", endpoint_change=world.disabling("gone")),
    )
    assert answer.refs == []
    assert answer.touched == [listener.position]


async def check_mass_ending_makes_one_event(world: World) -> None:
    """Disabling with many pending makes one ``ackpost.delivery.dead`` with a count, when the job is done."""
    endpoint = await world.endpoint()
    await world.publish(*(NewEvent("a", b"1") for _ in range(3)))
    listener = await world.endpoint(event_types=("ackpost.*",))
    job = (await world.set_state(endpoint, "disable")).job
    assert job is not None
    assert (await world.do(StepJob(job, 2, world.now_ms), JobSaved)).refs == []
    last = await world.do(StepJob(job, 2, world.now_ms), JobSaved)
    (ref,) = last.refs
    assert (ref.endpoint, last.touched) == (listener.position, [endpoint.position, listener.position])
    assert ref.payload is not None
    name = public_id("ep", endpoint.position, world.store.salt).encode()
    assert ref.payload.data == b'{"endpoint_id":"%s","reason":"endpoint_disabled","count":3}' % name


async def check_empty_mass_ending_makes_none(world: World) -> None:
    """Disabling with nothing pending announces no death."""
    endpoint = await world.endpoint()
    await world.endpoint(event_types=("ackpost.*",))
    await world.run_job((await world.set_state(endpoint, "disable")).job)
    assert await world.all_events() == []


async def check_expiry_and_poison_are_announced(world: World) -> None:
    """What the store ends by itself is told too: one event per endpoint and operation."""
    first, second = await world.endpoint(), await world.endpoint(url="https://example.org/")
    listener = await world.endpoint(event_types=("ackpost.*",))
    event = await world.one()
    done = await world.do(ExpireData(world.tenant, event.position, world.now_ms), Done)
    assert done.touched == [first.position, second.position, listener.position]
    assert len(await world.due(listener)) == 2
    await world.publish(NewEvent("a", b"1"), NewEvent("a", b"2"))
    doomed = [mark_of(ref) for ref in await world.due(first)]
    await world.do(Interrupt(doomed, 1, world.now_ms), Interrupted)
    payloads = await world.store.load_payloads([ref.event for ref in await world.due(listener)])
    assert [payload.type for payload in payloads.values()] == [DEAD] * 3
    name = public_id("ep", first.position, world.store.salt).encode()
    last = payloads[max(payloads)]
    assert last.data == b'{"endpoint_id":"%s","reason":"poison","count":2}' % name
