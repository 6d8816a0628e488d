"""Accepting: all or none, uids, sequences, routing versions, idempotency keys."""

from __future__ import annotations

import msgspec

from ackpost.core.limits import SEQUENCE_MAX
from ackpost.errors import RequestError
from ackpost.ports.operations import Accept, Accepted, DeleteTenant, Done, Idempotency, NewEvent, Repeated, Stale
from ackpost.testing.store_contract.world import BY_KEY, World

DAY_MS = 24 * 3600 * 1000


async def check_event_is_stored_as_published(world: World) -> None:
    """Everything given is read back; the bytes of data and metadata are untouched."""
    await world.endpoint()
    data = b'{"b":1, "a":18446744073709551616,"b":2,"s":"\\u0000"}'
    event = await world.one(
        "order.made", uid="u-1", digest=b"d", key="k", channels=("eu", "us"), occurred_at_ms=5, metadata=b'{"m":1.0}'
    )
    plain = (await world.publish(NewEvent("x", data))).events[0]
    read = await world.event(event.position)
    assert (read.type, read.uid, read.key, read.sequence) == ("order.made", "u-1", "k", 1)
    assert (read.channels, read.metadata, read.tenant) == (("eu", "us"), b'{"m":1.0}', world.tenant)
    assert (read.occurred_at_ms, read.created_at_ms) == (5, world.now_ms)
    other = await world.event(plain.position)
    assert (other.data, other.metadata, other.uid, other.sequence) == (data, None, None, None)
    assert other.occurred_at_ms == world.now_ms
    assert not other.data_expired


async def check_accept_gives_due_rows_with_payload(world: World) -> None:
    """The answer carries a reference with payload for each due delivery, equal to what a load gives."""
    endpoint = await world.endpoint(format="flat", key_field="id")
    accepted = await world.publish(NewEvent("a", b"[1]", key="k"), NewEvent("a", b"[2]"))
    assert [event.deliveries for event in accepted.events] == [1, 1]
    assert [ref.position for ref in accepted.refs] == [accepted.events[0].position + 1, accepted.events[1].position + 1]
    payload = accepted.refs[0].payload
    assert payload is not None
    assert (payload.type, payload.data, payload.key, payload.sequence) == ("a", b"[1]", "k", 1)
    assert payload.position == accepted.events[0].position
    loaded = await world.due(endpoint)
    assert loaded == [msgspec.structs.replace(ref, payload=None) for ref in accepted.refs]
    assert (loaded[0].pin, loaded[0].klass, loaded[0].round, loaded[0].number) == ("flat:id", 0, 1, 0)
    assert (loaded[0].due_ms, loaded[0].age_start_ms, loaded[0].rev) == (world.now_ms, world.now_ms, endpoint.rev)
    assert await world.store.load_payloads([payload.position, 7]) == {payload.position: payload}


async def check_unmatched_event_is_stored(world: World) -> None:
    """An event that nobody wants is kept and readable."""
    await world.endpoint(event_types=("other",))
    event = await world.one()
    assert event.deliveries == 0
    assert (await world.event(event.position)).status == "unmatched"


async def check_batch_is_all_or_none(world: World) -> None:
    """One bad event refuses the whole batch: nothing stored, no sequence used, the index named."""
    await world.endpoint()
    await world.one(uid="taken", digest=b"1")
    batch = [NewEvent("a", b"1", key="k"), NewEvent("a", b"2", uid="new", digest=b"2"),
             NewEvent("a", b"3", uid="taken", digest=b"3")]  # fmt: skip
    refusal = await world.refused(await world.accept_of(*batch, batch=True), 409, "uid_conflict")
    assert [error.loc for error in refusal.errors] == [("body", "events", 2, "uid")]
    assert len(await world.all_events()) == 1
    assert await world.store.event_by_uid(world.tenant, "new") is None
    assert (await world.one(key="k")).sequence == 1


async def check_refusal_does_not_disturb_its_group(world: World) -> None:
    """Operations of one commit succeed or fail each by itself."""
    await world.one(uid="taken", digest=b"1")
    bad = await world.accept_of(NewEvent("a", b"2", uid="taken", digest=b"2"))
    good = await world.accept_of(NewEvent("a", b"3", uid="good"))
    answers = await world.store.commit([good, bad, await world.accept_of(NewEvent("a", b"4"))])
    assert [isinstance(answer, Accepted) for answer in answers] == [True, False, True]
    assert await world.store.event_by_uid(world.tenant, "good") is not None


async def check_uid_seen_before_is_a_duplicate(world: World) -> None:
    """The same uid with the same content gives the first answer and stores nothing."""
    endpoint = await world.endpoint()
    first = await world.one(uid="u", digest=b"d", key="k")
    await world.endpoint(url="https://example.org/")
    again = await world.one(uid="u", digest=b"d", key="k")
    assert (again.position, again.deliveries, again.sequence) == (first.position, 1, 1)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert len(await world.due(endpoint)) == 1
    assert (await world.one(key="k")).sequence == 2


async def check_uid_twice_in_a_batch(world: World) -> None:
    """The second of two equal events in a batch is a duplicate of the first; a different one is a conflict."""
    await world.endpoint()
    twin = NewEvent("a", b"1", uid="u", digest=b"d", key="k")
    first, second = (await world.publish(twin, twin)).events
    assert (second.position, second.sequence, second.deliveries) == (first.position, first.sequence, first.deliveries)
    assert second.duplicate
    assert not first.duplicate
    batch = [NewEvent("a", b"1", uid="v", digest=b"1"), NewEvent("a", b"2", uid="v", digest=b"2")]
    refusal = await world.refused(await world.accept_of(*batch, batch=True), 409, "uid_conflict")
    assert [error.loc for error in refusal.errors] == [("body", "events", 1, "uid")]
    assert await world.store.event_by_uid(world.tenant, "v") is None


async def check_uid_conflict_of_one_event(world: World) -> None:
    """A uid with other content is refused."""
    await world.one(uid="u", digest=b"1")
    refusal = await world.refused(await world.accept_of(NewEvent("a", b"2", uid="u", digest=b"2")), 409, "uid_conflict")
    assert [error.loc for error in refusal.errors] == [("body", "uid")]


async def check_uid_comes_before_sequence(world: World) -> None:
    """A repeated publish with a publisher's sequence is a duplicate, not a sequence error (rule E4)."""
    first = await world.one(uid="u", digest=b"d", key="k", sequence=7)
    again = await world.one(uid="u", digest=b"d", key="k", sequence=7)
    assert (again.position, again.sequence, again.duplicate) == (first.position, 7, True)
    batch = [NewEvent("a", b"1", key="k", sequence=1), NewEvent("a", b"2", uid="u", digest=b"other")]
    await world.refused(await world.accept_of(*batch, batch=True), 409, "uid_conflict")


async def check_sequences_have_no_gaps(world: World) -> None:
    """Keys are numbered 1, 2, 3 … each for itself, over batches, refusals, duplicates and restarts."""
    await world.one(uid="taken", digest=b"1")
    events = (
        await world.publish(NewEvent("a", b"1", key="k"), NewEvent("a", b"1", key="l"), NewEvent("a", b"1", key="k"))
    ).events
    assert [event.sequence for event in events] == [1, 1, 2]
    await world.refused(
        await world.accept_of(NewEvent("a", b"", key="k", uid="taken", digest=b"2")), 409, "uid_conflict"
    )
    twin = NewEvent("a", b"1", key="k", uid="twin", digest=b"d")
    assert [event.sequence for event in (await world.publish(twin, twin)).events] == [3, 3]
    await world.restart()
    assert (await world.one(key="k")).sequence == 4
    assert (await world.one(key="")).sequence == 1


async def check_sequences_end(world: World) -> None:
    """A key whose publisher used the largest number takes no more events: consumers could not compare what follows."""
    await world.one(key="k", sequence=SEQUENCE_MAX - 1)
    assert (await world.one(key="k")).sequence == SEQUENCE_MAX
    await world.refused(await world.accept_of(NewEvent("a", b"1", key="k")), 409, "sequence_not_rising")


async def check_publishers_sequence_must_rise(world: World) -> None:
    """A sequence given must be above the last of its key, and the service's goes on from there."""
    assert (await world.one(key="k", sequence=5)).sequence == 5
    for sequence in (5, 4):
        refusal = await world.refused(
            await world.accept_of(NewEvent("a", b"1", key="k", sequence=sequence)), 409, "sequence_not_rising"
        )
        assert [error.loc for error in refusal.errors] == [("body", "sequence")]
    assert (await world.one(key="k")).sequence == 6
    assert (await world.one(key="k", sequence=2**53 - 1)).sequence == 2**53 - 1
    batch = [NewEvent("a", b"1", key="b", sequence=2), NewEvent("a", b"1", key="b", sequence=2)]
    refusal = await world.refused(await world.accept_of(*batch, batch=True), 409, "sequence_not_rising")
    assert [error.loc for error in refusal.errors] == [("body", "events", 1, "sequence")]
    assert (await world.one(key="b")).sequence == 1
    assert len(await world.all_events()) == 4, "nothing of what was refused is stored"


async def check_uids_and_keys_belong_to_a_tenant(world: World) -> None:
    """Two tenants may use the same uid and key; neither sees the other's."""
    other = await world.new_tenant("other")
    mine = await world.one(uid="u", digest=b"1", key="k")
    theirs = await world.one(uid="u", digest=b"2", key="k", tenant=other.position)
    assert mine.position != theirs.position
    assert (mine.sequence, theirs.sequence) == (1, 1)
    assert await world.store.event_by_uid(other.position, "u") == theirs.position
    assert await world.store.event_by_uid(world.tenant, "u") == mine.position


async def check_stale_routing_stores_nothing(world: World) -> None:
    """An accept routed with an older version is answered Stale and succeeds once routed again (rule E10)."""
    operation = await world.accept_of(NewEvent("a", b"1", uid="u", key="k"))
    endpoint = await world.endpoint()
    assert await world.do(operation, Stale) == Stale()
    assert await world.all_events() == []
    assert (await world.one(key="k")).sequence == 1
    assert len(await world.due(endpoint)) == 1


async def check_unknown_tenant_cannot_publish(world: World) -> None:
    """A tenant that is gone or never was gets 404."""
    other = await world.new_tenant("other")
    operation = await world.accept_of(NewEvent("a", b"1"), tenant=other.position)
    await world.do(DeleteTenant(other.position, world.now_ms), Done)
    await world.refused(operation, 404, "unknown_tenant")
    await world.refused(Accept(12345, 1, [NewEvent("a", b"1")], world.now_ms), 404, "unknown_tenant")


async def check_accept_of_nothing(world: World) -> None:
    """An empty batch is answered with an empty list."""
    assert await world.do(await world.accept_of(batch=True), Accepted) == Accepted([])


async def check_waiting_rows_are_not_handed_over(world: World) -> None:
    """Of one key only the first delivery of a by-key endpoint is in the answer."""
    await world.endpoint(policy=BY_KEY)
    accepted = await world.publish(NewEvent("a", b"1", key="k"), NewEvent("a", b"2", key="k"), NewEvent("a", b"3"))
    assert [ref.event for ref in accepted.refs] == [accepted.events[0].position, accepted.events[2].position]


# ---------------------------------------------------------------- Idempotency-Key


def _key(world: World, digest: bytes = b"d", name: str = "key", tenant: int | None = None) -> Idempotency:
    return Idempotency(world.tenant if tenant is None else tenant, name, digest, world.now_ms)


async def _accept(world: World, idempotency: Idempotency, tenant: int | None = None) -> Accept:
    operation = await world.accept_of(NewEvent("a", b"1", key="k"), tenant=tenant)
    return msgspec.structs.replace(operation, idempotency=idempotency)


async def check_repeated_key_gives_the_first_answer(world: World) -> None:
    """The same Idempotency-Key again does nothing and gives the stored result without references."""
    endpoint = await world.endpoint()
    first = await world.do(await _accept(world, _key(world)), Accepted)
    world.later(1000)
    await world.restart()
    again = await world.answer(await _accept(world, _key(world)))
    assert again == Repeated(Accepted(first.events))
    assert len(await world.due(endpoint)) == 1


async def check_repeated_key_in_one_group(world: World) -> None:
    """Two copies in the same commit: the second gets the first one's answer."""
    operation = await _accept(world, _key(world))
    first, second = await world.store.commit([operation, operation])
    assert isinstance(first, Accepted)
    assert second == Repeated(Accepted(first.events))
    assert len(await world.all_events()) == 1


async def check_key_with_another_body_is_a_conflict(world: World) -> None:
    """The same Idempotency-Key with another digest is 409."""
    await world.do(await _accept(world, _key(world)), Accepted)
    await world.refused(await _accept(world, _key(world, b"other")), 409, "idempotency_conflict")


async def check_keys_belong_to_a_tenant(world: World) -> None:
    """Two tenants may use the same Idempotency-Key."""
    other = await world.new_tenant("other")
    await world.do(await _accept(world, _key(world)), Accepted)
    key = _key(world, b"other", tenant=other.position)
    await world.do(await _accept(world, key, tenant=other.position), Accepted)


async def check_key_is_kept_24_hours(world: World) -> None:
    """A key is remembered for 24 h, exclusive."""
    await world.do(await _accept(world, _key(world)), Accepted)
    world.later(DAY_MS - 1)
    assert isinstance(await world.answer(await _accept(world, _key(world))), Repeated)
    world.later(1)
    renewed = await world.do(await _accept(world, _key(world, b"other")), Accepted)
    world.later(1)
    assert await world.answer(await _accept(world, _key(world, b"other"))) == Repeated(Accepted(renewed.events))


async def check_refusal_is_not_remembered(world: World) -> None:
    """After a refusal or Stale the same key may be used with a corrected request."""
    await world.one(uid="u", digest=b"1")
    bad = await world.accept_of(NewEvent("a", b"2", uid="u", digest=b"2"))
    answer = await world.answer(msgspec.structs.replace(bad, idempotency=_key(world, b"bad")))
    assert isinstance(answer, RequestError)
    stale = msgspec.structs.replace(await _accept(world, _key(world, b"stale")), routing_version=0)
    assert await world.answer(stale) == Stale()
    await world.do(await _accept(world, _key(world, b"good")), Accepted)
