"""What people do to deliveries: redeliver, cancel, expire data."""

from __future__ import annotations

import msgspec

from ackpost.core.model import REPLAY
from ackpost.ports.operations import (
    Cancel,
    DeleteEndpoint,
    DeliveriesChanged,
    Done,
    EndpointSaved,
    ExpireData,
    Idempotency,
    Interrupt,
    Interrupted,
    NewEvent,
    Redeliver,
    Repeated,
    ReplaceEndpoint,
)
from ackpost.testing.store_contract.world import BY_KEY, World, mark_of


async def check_redelivery_begins_a_new_round(world: World) -> None:
    """A dead one is due again: budget and age anew, numbers go on, format and rev of now."""
    endpoint = await world.endpoint()
    event = await world.one()
    ref = await world.first_due(endpoint)
    await world.do(Interrupt([mark_of(ref)], 3, world.now_ms), Interrupted)
    await world.die(await world.first_due(endpoint))
    changed = msgspec.structs.replace(await world.endpoint_now(endpoint), format="bare")
    await world.do(ReplaceEndpoint(changed, changed.rev, world.now_ms), EndpointSaved)
    world.later(1000)
    answer = await world.do(Redeliver(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    assert (answer.deliveries, answer.touched) == ([ref.position], [endpoint.position])
    (again,) = answer.refs
    assert await world.due(endpoint) == [again]
    assert (again.round, again.number, again.round_attempts, again.crashes) == (2, 2, 0, 0)
    assert (again.klass, again.due_ms, again.age_start_ms) == (REPLAY, world.now_ms, world.now_ms)
    assert (again.trigger, again.pin, again.payload) == ("redeliver", "bare", None)
    assert again.rev == (await world.endpoint_now(endpoint)).rev == changed.rev + 2
    row = await world.delivery(ref.position)
    assert (row.status, row.reason, row.round, row.attempt_count, row.ended_at_ms) == ("pending", None, 2, 2, None)
    assert (row.last_error, row.created_at_ms) == ("status", (await world.event(event.position)).created_at_ms)
    world.later(5)
    await world.deliver(again)
    assert [(attempt.number, attempt.round) for attempt in await world.attempts(ref.position)] == [
        (1, 1),
        (2, 1),
        (3, 2),
    ]


async def check_any_ended_delivery_can_be_redelivered(world: World) -> None:
    """Delivered, cancelled and discarded ones come back too, with their attempts."""
    endpoint = await world.endpoint()
    await world.publish(*(NewEvent("a", b"1") for _ in range(3)))
    first, second, third = await world.due(endpoint)
    await world.deliver(first)
    await world.do(Cancel(world.tenant, world.now_ms, delivery=second.position), DeliveriesChanged)
    await world.die(third)
    job = await world.job("discard", ids=(third.position,))
    await world.run_job(job.position)
    for ref in (first, second, third):
        await world.do(Redeliver(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    assert [(ref.round, ref.number) for ref in await world.due(endpoint)] == [(2, 1), (2, 0), (2, 1)]
    assert len(await world.attempts(first.position)) == 1


async def check_redelivering_a_pending_one_makes_it_due(world: World) -> None:
    """A pending one is due now, in its round, with its counters."""
    endpoint = await world.endpoint()
    await world.one()
    await world.record(world.result(await world.first_due(endpoint), "retry", due_ms=world.now_ms + 99_999))
    (before,) = await world.due(endpoint)
    rev = (await world.endpoint_now(endpoint)).rev
    world.later(10)
    answer = await world.do(Redeliver(world.tenant, world.now_ms, delivery=before.position), DeliveriesChanged)
    assert answer.refs == [msgspec.structs.replace(before, due_ms=world.now_ms)]
    assert await world.due(endpoint) == answer.refs
    assert (await world.endpoint_now(endpoint)).rev == rev + 1


async def check_redelivering_a_waiting_one_keeps_the_order(world: World) -> None:
    """A waiting one stays behind the others of its key."""
    endpoint = await world.endpoint(policy=BY_KEY)
    _, second = (await world.publish(NewEvent("a", b"1", key="k"), NewEvent("a", b"2", key="k"))).events
    operation = Redeliver(world.tenant, world.now_ms, event=second.position)
    answer = await world.do(operation, DeliveriesChanged)
    assert (answer.deliveries, answer.refs) == ([second.position + 1], [])
    assert len(await world.due(endpoint)) == 1


async def check_redelivering_an_event(world: World) -> None:
    """By event all its deliveries are due; with an endpoint only that one, also one that never had it."""
    first, second = await world.endpoint(), await world.endpoint(url="https://example.org/")
    late = await world.endpoint(url="https://example.net/", event_types=("other",))
    event = await world.one()
    for endpoint in (first, second):
        await world.deliver(await world.first_due(endpoint))
    answer = await world.do(Redeliver(world.tenant, world.now_ms, event=event.position), DeliveriesChanged)
    assert answer.deliveries == [event.position + 1, event.position + 2]
    assert answer.touched == [first.position, second.position]
    operation = Redeliver(world.tenant, world.now_ms, event=event.position, endpoint=late.position)
    answer = await world.do(operation, DeliveriesChanged)
    (ref,) = answer.refs
    assert (ref.endpoint, ref.round, ref.klass, ref.trigger) == (late.position, 1, REPLAY, "redeliver")
    again = await world.do(operation, DeliveriesChanged)
    assert again.deliveries == [ref.position]
    assert (await world.event(event.position)).delivery_counts == {"pending": 3}
    operation = Redeliver(world.tenant, world.now_ms, event=event.position, endpoint=first.position)
    assert (await world.do(operation, DeliveriesChanged)).deliveries == [event.position + 1]


async def check_redelivery_needs_a_live_endpoint(world: World) -> None:
    """Disabled or deleted endpoints refuse with 409; by event they are left out while another is there."""
    disabled, deleted = await world.endpoint(), await world.endpoint(url="https://example.org/")
    event = await world.one()
    await world.set_state(disabled, "disable")
    await world.do(DeleteEndpoint(world.tenant, deleted.position, world.now_ms), Done)
    for delivery in (event.position + 1, event.position + 2):
        await world.refused(Redeliver(world.tenant, world.now_ms, delivery=delivery), 409, "invalid_state")
    await world.refused(Redeliver(world.tenant, world.now_ms, event=event.position), 409, "invalid_state")
    operation = Redeliver(world.tenant, world.now_ms, event=event.position, endpoint=disabled.position)
    await world.refused(operation, 409, "invalid_state")
    operation = Redeliver(world.tenant, world.now_ms, event=event.position, endpoint=deleted.position)
    await world.refused(operation, 404, "not_found")
    third = await world.endpoint(url="https://example.net/")
    operation = Redeliver(world.tenant, world.now_ms, event=event.position, endpoint=third.position)
    await world.do(operation, DeliveriesChanged)
    answer = await world.do(Redeliver(world.tenant, world.now_ms, event=event.position), DeliveriesChanged)
    assert answer.touched == [third.position]


async def check_event_without_deliveries_redelivers_nothing(world: World) -> None:
    """By event: those that have a delivery, here none."""
    event = await world.one()
    answer = await world.do(Redeliver(world.tenant, world.now_ms, event=event.position), DeliveriesChanged)
    assert answer == DeliveriesChanged([])


async def check_redelivery_needs_data(world: World) -> None:
    """What has no data any more cannot be sent again: 410."""
    endpoint = await world.endpoint()
    event = await world.one()
    await world.deliver(await world.first_due(endpoint))
    await world.do(ExpireData(world.tenant, event.position, world.now_ms), Done)
    for operation in (
        Redeliver(world.tenant, world.now_ms, delivery=event.position + 1),
        Redeliver(world.tenant, world.now_ms, event=event.position),
        Redeliver(world.tenant, world.now_ms, event=event.position, endpoint=endpoint.position),
    ):
        await world.refused(operation, 410, "data_expired")


async def check_redelivery_is_idempotent_by_key(world: World) -> None:
    """A repeated Idempotency-Key gives the deliveries again but changes nothing."""
    endpoint = await world.endpoint()
    event = await world.one()
    await world.deliver(await world.first_due(endpoint))
    key = Idempotency(world.tenant, "x", b"d", world.now_ms)
    operation = Redeliver(world.tenant, world.now_ms, event=event.position, idempotency=key)
    first = await world.do(operation, DeliveriesChanged)
    assert first.refs
    assert await world.answer(operation) == Repeated(DeliveriesChanged(first.deliveries))
    assert [ref.round for ref in await world.due(endpoint)] == [2]


async def check_cancelling(world: World) -> None:
    """A cancelled one ends at once; an ended one refuses with 409."""
    endpoint = await world.endpoint()
    await world.one()
    ref = await world.first_due(endpoint)
    operation = Cancel(world.tenant, world.now_ms, delivery=ref.position)
    answer = await world.do(operation, DeliveriesChanged)
    assert answer == DeliveriesChanged([ref.position], [endpoint.position])
    row = await world.delivery(ref.position)
    assert (row.status, row.reason, row.ended_at_ms) == ("cancelled", None, world.now_ms)
    assert (await world.endpoint_now(endpoint)).rev == endpoint.rev + 1
    assert await world.due(endpoint) == []
    await world.refused(operation, 409, "invalid_state")
    assert (await world.endpoint_now(endpoint)).rev == endpoint.rev + 1


async def check_cancelling_an_event(world: World) -> None:
    """By event its pending deliveries end; ended ones stay; with none pending the list is empty."""
    first, second = await world.endpoint(), await world.endpoint(url="https://example.org/")
    event = await world.one()
    await world.deliver(await world.first_due(first))
    operation = Cancel(world.tenant, world.now_ms, event=event.position)
    answer = await world.do(operation, DeliveriesChanged)
    assert answer == DeliveriesChanged([event.position + 2], [second.position])
    assert (await world.event(event.position)).delivery_counts == {"delivered": 1, "cancelled": 1}
    assert await world.do(operation, DeliveriesChanged) == DeliveriesChanged([])


async def check_expiring_data(world: World) -> None:
    """The data goes, pending deliveries die as data_expired, ended ones stay; twice is fine."""
    first, second = await world.endpoint(), await world.endpoint(url="https://example.org/")
    event = await world.one()
    await world.deliver(await world.first_due(first))
    operation = ExpireData(world.tenant, event.position, world.now_ms)
    assert await world.do(operation, Done) == Done(event.position, [second.position])
    read = await world.event(event.position)
    assert (read.data, read.data_expired) == (None, True)
    assert read.delivery_counts == {"delivered": 1, "dead": 1}
    assert (await world.delivery(event.position + 2)).reason == "data_expired"
    assert await world.store.load_payloads([event.position]) == {}
    assert (await world.endpoint_now(second)).rev == second.rev + 1
    assert await world.do(operation, Done) == Done(event.position)
    assert [shown.data_expired for shown in await world.all_events()] == [True]


async def check_changes_of_unknown_things_are_refused(world: World) -> None:
    """Unknown ids, and those of another tenant, are 404 for every verb."""
    other = await world.new_tenant("other")
    endpoint = await world.endpoint()
    event = await world.one()
    delivery = event.position + 1
    for tenant, at, row, target in (
        (world.tenant, 1, 2, 3),
        (other.position, event.position, delivery, endpoint.position),
        (world.tenant, delivery, event.position, event.position),
    ):
        for operation in (
            Redeliver(tenant, world.now_ms, event=at),
            Redeliver(tenant, world.now_ms, delivery=row),
            Redeliver(tenant, world.now_ms, event=at, endpoint=target),
            Cancel(tenant, world.now_ms, event=at),
            Cancel(tenant, world.now_ms, delivery=row),
            ExpireData(tenant, at, world.now_ms),
        ):
            await world.refused(operation, 404, "not_found")
    theirs = await world.endpoint(tenant=other.position)
    await world.refused(
        Redeliver(world.tenant, world.now_ms, event=event.position, endpoint=theirs.position), 404, "not_found"
    )
    assert [ref.number for ref in await world.due(endpoint)] == [0]
