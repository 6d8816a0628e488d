"""What leaves by age, and what never does."""

from __future__ import annotations

from typing import Any

import msgspec

from ackpost.core.model import DeliveryRef
from ackpost.ports.operations import (
    Accepted,
    Cancel,
    DeliveriesChanged,
    Idempotency,
    NewEvent,
    Redeliver,
    Repeated,
    Retain,
    Retained,
)
from ackpost.ports.store import Page
from ackpost.testing.store_contract.world import HOLD, START_MS, World


async def _retain(world: World, rows_max: int = 100, **before_ms: int) -> Retained:
    cuts: dict[str, Any] = {f"{name}_before_ms": 0 for name in ("events", "dead", "keys", "idempotency")}
    cuts |= {f"{name}_before_ms": at for name, at in before_ms.items()}
    return await world.do(Retain(rows_max=rows_max, now_ms=world.now_ms, **cuts), Retained)


async def _ended(world: World, **fields: Any) -> DeliveryRef:
    """An event of its own endpoint, delivered."""
    endpoint = await world.endpoint(event_types=("x",))
    await world.one("x", **fields)
    ref = await world.first_due(endpoint)
    await world.deliver(ref)
    return ref


async def check_old_events_leave_with_all_that_is_theirs(world: World) -> None:
    """An ended event before the cut-off goes with data, deliveries, attempts and uid; later ones stay."""
    ref = await _ended(world, uid="u")
    world.later(1)
    later = await world.one("unmatched")
    removed = await _retain(world, events=world.now_ms)
    assert (removed.removed["events"], removed.removed["deliveries"]) == (1, 1)
    assert (removed.dead_letters, removed.more) == (0, False)
    assert await world.store.event(None, ref.event) is None
    assert await world.store.delivery(None, ref.position) is None
    assert await world.attempts(ref.position) == []
    assert await world.store.event_by_uid(world.tenant, "u") is None
    assert [event.position for event in await world.all_events()] == [later.position]
    assert not (await world.one("x", uid="u")).duplicate


async def check_pending_is_never_removed(world: World) -> None:
    """An event with a pending or dead delivery stays whole, whatever its age."""
    first, second = await world.endpoint(), await world.endpoint(url="https://example.org/")
    pending, dead = (await world.publish(NewEvent("a", b"1"), NewEvent("a", b"2"))).events
    await world.deliver((await world.due(first))[0])
    await world.deliver((await world.due(first))[0])
    await world.die((await world.due(second))[1])
    far_ms = world.later(10**12)
    await _retain(world, events=far_ms)
    assert (await world.event(pending.position)).delivery_counts == {"delivered": 1, "pending": 1}
    assert (await world.event(dead.position)).delivery_counts == {"delivered": 1, "dead": 1}
    assert (await world.event(dead.position)).data == b"2"
    await _retain(world, events=far_ms, dead=far_ms)
    assert await world.store.event(None, dead.position) is None
    assert len(await world.due(second)) == 1


async def check_dead_letters_leave_by_their_own_age(world: World) -> None:
    """A dead letter goes when it has been dead too long, and is counted apart."""
    endpoint = await world.endpoint()
    await world.publish(NewEvent("a", b"1"), NewEvent("a", b"2"))
    first, second = await world.due(endpoint)
    await world.die(first)
    world.later(1000)
    await world.die(second)
    removed = await _retain(world, dead=world.now_ms)
    assert (removed.dead_letters, removed.more) == (1, False)
    assert await world.store.delivery(None, first.position) is None
    assert await world.attempts(first.position) == []
    assert (await world.delivery(second.position)).status == "dead"
    assert (await world.event(first.event)).delivery_counts == {}


async def check_dead_letter_that_leaves_releases_its_key(world: World) -> None:
    """The next of a held key goes when the holder leaves by age."""
    endpoint = await world.endpoint(policy=HOLD)
    await world.publish(*(NewEvent("a", b"1", key="k") for _ in range(2)))
    await world.die(await world.first_due(endpoint), hold=True)
    assert await world.due(endpoint) == []
    world.later(1000)
    await _retain(world, dead=world.now_ms)
    (ref,) = await world.due(endpoint)
    assert (ref.due_ms, ref.age_start_ms) == (world.now_ms, world.now_ms)


async def check_sequences_outlive_their_events(world: World) -> None:
    """A key goes on counting after its events left; only long after its last use it starts anew."""
    await world.one("unmatched", key="k")
    world.later(1000)
    await _retain(world, events=world.now_ms)
    assert await world.all_events() == []
    assert (await world.one("unmatched", key="k")).sequence == 2
    assert (await _retain(world, keys=world.now_ms)).removed["keys"] == 0
    world.later(1)
    assert (await _retain(world, keys=world.now_ms)).removed["keys"] == 1
    assert (await world.one("unmatched", key="k")).sequence == 1


async def check_idempotency_keys_leave(world: World) -> None:
    """Stored answers go after their cut-off, not before."""
    key = Idempotency(world.tenant, "k", b"d", world.now_ms)
    operation = msgspec.structs.replace(await world.accept_of(NewEvent("a", b"1")), idempotency=key)
    await world.do(operation, Accepted)
    assert (await _retain(world, idempotency=world.now_ms)).removed["idempotency"] == 0
    assert isinstance(await world.answer(operation), Repeated)
    assert (await _retain(world, idempotency=world.now_ms + 1)).removed["idempotency"] == 1
    await world.do(operation, Accepted)


async def check_finished_jobs_leave(world: World) -> None:
    """Jobs go after they ended; open ones stay."""
    ended, opened = await world.job("replay", all=True), await world.job("replay", all=True)
    await world.run_job(ended.position)
    world.later(10)
    assert (await _retain(world, events=world.now_ms)).removed["jobs"] == 1
    assert [job.position for job in await world.store.jobs(None, Page())] == [opened.position]


async def check_retention_goes_in_small_steps(world: World) -> None:
    """A step removes at most ``rows_max`` objects, oldest first, and says whether more are left to do."""
    events = [await world.one("unmatched") for _ in range(5)]
    world.later(1)
    answers = [await _retain(world, rows_max=2, events=world.now_ms) for _ in range(2)]
    assert [(answer.removed["events"], answer.more) for answer in answers] == [(2, True), (2, True)]
    assert [event.position for event in await world.all_events()] == [events[4].position]
    last = await _retain(world, rows_max=2, events=world.now_ms)
    assert (last.removed["events"], last.more) == (1, False)


async def check_retention_and_redelivery(world: World) -> None:
    """A cancelled one leaves with its event; an old one that is redelivered stays while pending."""
    assert world.now_ms == START_MS
    ref = await _ended(world)
    endpoint = await world.endpoint(event_types=("y",))
    await world.one("y")
    cancelled = await world.first_due(endpoint)
    await world.do(Cancel(world.tenant, world.now_ms, delivery=cancelled.position), DeliveriesChanged)
    await world.do(Redeliver(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    world.later(1000)
    await _retain(world, events=world.now_ms)
    assert [event.position for event in await world.all_events()] == [ref.event]
