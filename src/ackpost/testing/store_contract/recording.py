"""Results of attempts: guards, attempts, dead letters, endpoint changes, interruptions."""

from __future__ import annotations

from typing import Any

from ackpost.core.decision import EndpointChange
from ackpost.core.model import CLOSED, REPLAY, RETRY, Circuit, DeliveryRef
from ackpost.core.outcome import Outcome
from ackpost.ports.operations import (
    Cancel,
    DeliveriesChanged,
    Interrupt,
    Interrupted,
    Mark,
    NewEvent,
    Recorded,
    Redeliver,
)
from ackpost.testing.store_contract.world import HOLD, World, mark_of, target_of


async def _sent(world: World, **fields: Any) -> DeliveryRef:
    endpoint = await world.endpoint(**fields)
    await world.one(key="k")
    return await world.first_due(endpoint)


def _failure(body: bytes = b"", code: int = 500) -> Outcome:
    return Outcome("status", code, response_body=body)


async def check_success_ends_a_delivery(world: World) -> None:
    """A delivered one leaves the backlog and shows when and how it ended."""
    ref = await _sent(world)
    world.later(70)
    assert await world.deliver(ref) == Recorded([True])
    row = await world.delivery(ref.position)
    assert (row.status, row.reason, row.attempt_count, row.ended_at_ms) == ("delivered", None, 1, world.now_ms)
    assert (row.last_error, row.last_status_code, row.due_ms) == (None, 200, None)
    assert await world.due(ref.endpoint) == []
    assert (await world.event(ref.event)).status == "delivered"


async def check_attempt_is_stored_whole(world: World) -> None:
    """Everything known of an attempt is read back, by delivery, by endpoint and by itself."""
    ref = await _sent(world)
    outcome = Outcome(
        "timeout", None, phase="wait", detail="no answer", duration_ms=12.5, phases_ms=(1.0, 2.0, 3.0, 4.0, 5.0),
        remote_ip="192.0.2.1", response_headers=(("a", "b"), ("a", "c")), response_body=b"\xff\x00", truncated=True,
    )  # fmt: skip
    started_ms = world.now_ms
    decision = world.result(ref, "retry", outcome=outcome, due_ms=world.now_ms + 2000, version=3)
    world.later(13)
    await world.record(decision)
    (attempt,) = await world.attempts(ref.position)
    assert (attempt.delivery, attempt.event, attempt.endpoint, attempt.tenant) == (
        ref.position, ref.event, ref.endpoint, world.tenant,
    )  # fmt: skip
    assert (attempt.number, attempt.round, attempt.trigger, attempt.version) == (1, 1, "schedule", 3)
    assert (attempt.code, attempt.status_code, attempt.phase, attempt.detail) == ("timeout", None, "wait", "no answer")
    assert (attempt.started_at_ms, attempt.duration_ms, attempt.phases_ms) == (started_ms, 12.5, outcome.phases_ms)
    assert (attempt.remote_ip, attempt.response_headers) == ("192.0.2.1", outcome.response_headers)
    assert (attempt.response_body, attempt.truncated, attempt.node) == (b"\xff\x00", True, "a")
    assert attempt.next_due_ms == started_ms + 2000
    assert await world.store.attempt(world.tenant, ref.position, attempt.position) == attempt


async def check_failed_attempt_is_due_later(world: World) -> None:
    """A failure to be repeated moves to class retry at its new due time and counts."""
    ref = await _sent(world)
    await world.record(world.result(ref, "retry", due_ms=world.now_ms + 2000, crashes=0))
    (again,) = await world.due(ref.endpoint)
    assert (again.klass, again.due_ms, again.number, again.round_attempts) == (RETRY, world.now_ms + 2000, 1, 1)
    assert (again.age_start_ms, again.pin, again.round) == (ref.age_start_ms, ref.pin, 1)
    row = await world.delivery(ref.position)
    assert (row.status, row.last_error, row.last_status_code) == ("pending", "status", 500)
    assert row.due_ms == world.now_ms + 2000


async def check_nothing_judged_uses_no_attempt(world: World) -> None:
    """``again`` moves the due time only: no attempt is stored or counted."""
    ref = await _sent(world)
    outcome = Outcome("local_error")
    await world.record(world.result(ref, "again", outcome=outcome, due_ms=world.now_ms + 1000))
    (again,) = await world.due(ref.endpoint)
    assert (again.klass, again.due_ms, again.number, again.round_attempts) == (ref.klass, world.now_ms + 1000, 0, 0)
    assert await world.attempts(ref.position) == []
    assert (await world.delivery(ref.position)).last_error is None


async def check_death_makes_a_dead_letter(world: World) -> None:
    """A last failure is a dead letter with its reason and attempts."""
    ref = await _sent(world)
    await world.die(ref)
    row = await world.delivery(ref.position)
    assert (row.status, row.reason, row.attempt_count, row.last_error) == ("dead", "permanent_failure", 1, "status")
    assert [dead.position for dead in await world.all_deliveries(statuses=("dead",))] == [ref.position]
    assert (await world.event(ref.event)).status == "dead"
    assert await world.due(ref.endpoint) == []


async def check_ending_without_attempt(world: World) -> None:
    """A delivery can die without an attempt; its counters and last answer stay."""
    ref = await _sent(world)
    await world.record(world.result(ref, "retry", due_ms=world.now_ms, outcome=_failure(code=503)))
    (again,) = await world.due(ref.endpoint)
    assert await world.record(world.ending(again, "age_exceeded")) == Recorded([True])
    row = await world.delivery(ref.position)
    assert (row.status, row.reason, row.attempt_count, row.last_status_code) == ("dead", "age_exceeded", 1, 503)
    assert row.ended_at_ms == world.now_ms
    assert len(await world.attempts(ref.position)) == 1


async def check_duplicate_result_changes_nothing(world: World) -> None:
    """The same result twice is one attempt and one change (rule E6)."""
    ref = await _sent(world)
    decision = world.result(ref, "retry", due_ms=world.now_ms + 500, announcements=(world.about(ref, "ackpost.x"),))
    listener = await world.endpoint(url="https://example.org/", event_types=("ackpost.*",))
    assert (await world.record(decision)).applied == [True]
    assert (await world.record(decision)).applied == [False]
    assert (await world.delivery(ref.position)).attempt_count == 1
    assert len(await world.due(listener)) == 1


async def check_result_of_an_old_round_changes_no_row(world: World) -> None:
    """A late result of the round before is kept as attempt, but the new round goes on untouched."""
    ref = await _sent(world)
    await world.do(Cancel(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    changed = await world.do(Redeliver(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    assert (await world.deliver(ref)).applied == [False]
    assert await world.due(ref.endpoint) == changed.refs
    assert [attempt.round for attempt in await world.attempts(ref.position)] == [1]
    await world.deliver(changed.refs[0])
    assert [(attempt.round, attempt.number) for attempt in await world.attempts(ref.position)] == [(1, 1), (2, 1)]
    assert (await world.delivery(ref.position)).status == "delivered"
    world.is_over = True


async def check_result_with_a_wrong_number_changes_no_row(world: World) -> None:
    """A result must continue the attempts that are stored."""
    ref = await _sent(world)
    await world.record(world.result(ref, "retry", due_ms=world.now_ms + 500))
    assert (await world.record(world.ending(ref, "age_exceeded"))).applied == [False]
    assert (await world.delivery(ref.position)).status == "pending"


async def check_cancel_during_a_failing_attempt(world: World) -> None:
    """A failure that comes after a cancel is kept as attempt; the delivery stays cancelled and is not repeated."""
    ref = await _sent(world)
    await world.do(Cancel(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    assert (await world.record(world.result(ref, "retry", due_ms=world.now_ms + 5))).applied == [False]
    row = await world.delivery(ref.position)
    assert (row.status, row.attempt_count, row.last_error) == ("cancelled", 1, "status")
    assert await world.due(ref.endpoint) == []


async def check_success_after_a_cancel_counts(world: World) -> None:
    """A 2xx that still comes turns cancelled into delivered."""
    ref = await _sent(world)
    await world.do(Cancel(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    assert (await world.deliver(ref)).applied == [True]
    row = await world.delivery(ref.position)
    assert (row.status, row.attempt_count, row.last_status_code) == ("delivered", 1, 200)


async def check_success_after_death_counts(world: World) -> None:
    """A 2xx that still comes for one ended meanwhile by the service makes it delivered, no dead letter."""
    ref = await _sent(world)
    await world.record(world.ending(ref, "endpoint_disabled"))
    assert (await world.deliver(ref)).applied == [True]
    assert (await world.delivery(ref.position)).status == "delivered"
    assert (await world.delivery(ref.position)).reason is None
    assert await world.all_deliveries(statuses=("dead",)) == []


async def check_many_results_in_one_commit(world: World) -> None:
    """Results of many deliveries, also two of one delivery, are applied one after the other."""
    endpoint = await world.endpoint()
    await world.publish(*(NewEvent("a", b"1") for _ in range(5)))
    refs = await world.due(endpoint)
    second = DeliveryRef(**{name: getattr(refs[0], name) for name in refs[0].__struct_fields__})
    second.number = second.round_attempts = 1
    answer = await world.record(
        world.result(refs[0], "retry", due_ms=world.now_ms + 5),
        world.result(refs[1], "delivered"),
        world.result(second, "delivered"),
        world.result(refs[2], "dead", reason="gone"),
        world.result(refs[3], "again", due_ms=world.now_ms + 9),
    )
    assert answer.applied == [True] * 5
    rows = await world.all_deliveries()
    assert [row.status for row in rows] == ["delivered", "delivered", "dead", "pending", "pending"]
    assert [row.attempt_count for row in rows] == [2, 1, 1, 0, 0]
    positions = [attempt.position for row in rows for attempt in await world.attempts(row.position)]
    assert sorted(positions) == list(range(min(positions), min(positions) + 4))


async def check_test_delivery_that_fails_is_discarded(world: World) -> None:
    """A failed test ends as discarded, with its attempt, and leaves no dead letter."""
    endpoint = await world.endpoint(policy=HOLD)
    event = await world.one("ackpost.test", targets=(target_of(endpoint),), trigger="test", key="k")
    await world.one(key="k")
    assert len(await world.due(endpoint)) == 2, "a test neither waits nor lets others wait"
    ref = next(ref for ref in await world.due(endpoint) if ref.event == event.position)
    assert (ref.trigger, ref.ordered) == ("test", False)
    await world.record(world.result(ref, "discarded", reason="test_failed"))
    row = await world.delivery(ref.position)
    assert (row.status, row.reason, row.attempt_count) == ("discarded", "test_failed", 1)
    assert [attempt.trigger for attempt in await world.attempts(ref.position)] == ["test"]


# ---------------------------------------------------------------- bodies


async def check_bodies_of_successes_are_cut(world: World) -> None:
    """Of a success 1 KiB of the body is kept."""
    ref = await _sent(world)
    await world.record(world.result(ref, "delivered", outcome=Outcome("delivered", 200, response_body=b"x" * 1025)))
    (attempt,) = await world.attempts(ref.position)
    assert (len(attempt.response_body), attempt.truncated) == (1024, True)


async def check_bodies_of_middle_failures_go(world: World) -> None:
    """The first and the newest three failures keep their bodies whole."""
    ref = await _sent(world)
    for _ in range(6):
        await world.record(world.result(ref, "retry", due_ms=world.now_ms, outcome=_failure(b"y" * 2000)))
        (ref,) = await world.due(ref.endpoint)
    attempts = await world.attempts(ref.position)
    assert [len(attempt.response_body) for attempt in attempts] == [2000, 0, 0, 2000, 2000, 2000]
    assert [attempt.truncated for attempt in attempts] == [False, True, True, False, False, False]


# ---------------------------------------------------------------- endpoint changes (rule E17)


async def check_endpoint_change_is_stored_with_the_result(world: World) -> None:
    """Circuit, Retry-After and failing marks are stored, survive a crash, and leave rev alone."""
    ref = await _sent(world)
    before = await world.endpoint_now(ref.endpoint)
    circuit = Circuit("open", failures=10, opened_at_ms=5, retry_at_ms=9, openings=1, window=((1, 2, 3),))
    change = EndpointChange(
        circuit=circuit, retry_after_until_ms=77, first_failure_ms=3, last_failure_ms=4, failing_announced=True
    )
    answer = await world.record(world.result(ref, "retry", due_ms=world.now_ms, endpoint_change=change))
    assert answer.touched == [ref.endpoint]
    await world.restart()
    endpoint = await world.endpoint_now(ref.endpoint)
    assert (endpoint.circuit, endpoint.retry_after_until_ms) == (circuit, 77)
    assert (endpoint.first_failure_ms, endpoint.last_failure_ms, endpoint.failing_announced) == (3, 4, True)
    assert (endpoint.rev, endpoint.updated_at_ms) == (before.rev, before.updated_at_ms)
    (again,) = await world.due(ref.endpoint)
    change = EndpointChange(circuit=CLOSED, clear_failing=True)
    await world.record(world.result(again, "delivered", endpoint_change=change))
    endpoint = await world.endpoint_now(ref.endpoint)
    assert (endpoint.circuit, endpoint.first_failure_ms, endpoint.failing_announced) == (CLOSED, None, False)
    assert endpoint.retry_after_until_ms == 77


async def check_endpoint_change_holds_though_the_row_is_gone(world: World) -> None:
    """What a late attempt says of the endpoint is stored, once."""
    ref = await _sent(world)
    await world.do(Cancel(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    late = world.result(ref, "retry", due_ms=world.now_ms, endpoint_change=EndpointChange(retry_after_until_ms=5))
    assert (await world.record(late)).touched == [ref.endpoint]
    assert (await world.endpoint_now(ref.endpoint)).retry_after_until_ms == 5
    assert (await world.record(late)).touched == []


# ---------------------------------------------------------------- interruptions (rule E5)


async def check_interruption_counts(world: World) -> None:
    """What was in flight at a crash gets an attempt ``interrupted`` and is due now; ended ones are left alone."""
    endpoint = await world.endpoint()
    await world.publish(NewEvent("a", b"1"), NewEvent("a", b"2"), NewEvent("a", b"3"))
    first, second, third = await world.due(endpoint)
    await world.deliver(second)
    await world.restart()
    world.later(1000)
    marks = [mark_of(ref) for ref in (third, first, second, first)]
    operation = Interrupt([*marks, Mark(99, 1, 0)], 3, world.now_ms, "a")
    assert await world.do(operation, Interrupted) == Interrupted(2, 0, [first.position, third.position])
    assert await world.do(operation, Interrupted) == Interrupted(0, 0, []), "one crash is counted once"
    (again, _) = await world.due(endpoint)
    assert (again.klass, again.due_ms, again.number, again.round_attempts) == (RETRY, world.now_ms, 1, 1)
    assert again.crashes == 1
    (attempt,) = await world.attempts(first.position)
    assert (attempt.code, attempt.number, attempt.trigger, attempt.node) == ("interrupted", 1, "schedule", "a")
    assert (attempt.started_at_ms, attempt.next_due_ms) == (world.now_ms, world.now_ms)
    assert (await world.delivery(first.position)).last_error == "interrupted"
    assert (await world.delivery(second.position)).attempt_count == 1


async def check_poison_dies_at_the_third_crash(world: World) -> None:
    """Three crashes while sending make a dead letter ``poison``; a finished attempt sets the count back."""
    ref = await _sent(world)


    async def crash() -> Interrupted:
        (sent,) = await world.due(ref.endpoint)
        return await world.do(Interrupt([mark_of(sent)], 3, world.now_ms), Interrupted)

    for _ in range(2):
        assert (await crash()).dead == 0
    (again,) = await world.due(ref.endpoint)
    await world.record(world.result(again, "retry", due_ms=world.now_ms, crashes=0))
    for _ in range(2):
        assert (await crash()).dead == 0
    assert await crash() == Interrupted(1, 1, [])
    row = await world.delivery(ref.position)
    assert (row.status, row.reason, row.attempt_count) == ("dead", "poison", 6)


async def check_what_was_recorded_before_a_crash_is_not_interrupted(world: World) -> None:
    """A mark of an attempt whose result is durable, or of an earlier round, counts nothing."""
    ref = await _sent(world)
    await world.record(world.result(ref, "retry", due_ms=world.now_ms))
    assert await world.do(Interrupt([mark_of(ref)], 3, world.now_ms), Interrupted) == Interrupted(0, 0, [])
    (again,) = await world.due(ref.endpoint)
    await world.die(again)
    await world.do(Redeliver(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    assert await world.do(Interrupt([mark_of(again)], 3, world.now_ms), Interrupted) == Interrupted(0, 0, [])
    assert (await world.first_due(ref.endpoint)).crashes == 0


async def check_class_of_a_later_round_stays(world: World) -> None:
    """Retries of a redelivered one stay in the low-priority lane."""
    ref = await _sent(world)
    await world.die(ref)
    await world.do(Redeliver(world.tenant, world.now_ms, delivery=ref.position), DeliveriesChanged)
    (again,) = await world.due(ref.endpoint)
    assert again.klass == REPLAY
    await world.record(world.result(again, "retry", due_ms=world.now_ms + 5))
    (again,) = await world.due(ref.endpoint)
    assert (again.klass, again.round, again.number, again.round_attempts) == (REPLAY, 2, 2, 1)
