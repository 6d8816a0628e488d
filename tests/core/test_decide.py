"""From an answer to a verdict: a test for each row of the contract's table (§5), then what holds for all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ackpost.core.decide import decide_ending
from ackpost.core.ids import public_id
from ackpost.core.outcome import ERROR_CODES, Outcome
from tests.core.deciding import DAY_MS, HOUR_MS, NOW_MS, SALT, announced, answer, decide, ref, view

STORE = {"preset": "store"}
LOCAL = Outcome("local_error", detail="no free port")


@pytest.mark.parametrize("status_code", [200, 201, 204, 299])
def test_any_2xx_is_delivered(status_code: int) -> None:
    """A complete header of any 2xx ends the delivery and uses an attempt; nothing else changes."""
    decision = decide(ref(number=4, round_attempts=4), view(), answer(status_code))
    assert (decision.verdict, decision.reason, decision.number, decision.due_ms) == ("delivered", None, 5, None)
    assert (decision.endpoint_change, decision.announcements, decision.version) == (None, (), 3)
    assert (decision.started_at_ms, decision.ended_at_ms) == (NOW_MS - 40, NOW_MS)


def test_410_disables_by_default() -> None:
    """Gone: the delivery is dead, the endpoint disabled, both told; it counts as a failure."""
    decision = decide(ref(), view(), answer(410))
    assert (decision.verdict, decision.reason) == ("dead", "gone")
    assert decision.endpoint_change is not None
    assert decision.endpoint_change.disable_reason == "gone"
    assert decision.circuit.failures == 1
    assert announced(decision) == ["ackpost.endpoint.disabled", "ackpost.delivery.dead"]


def test_410_can_be_any_other_status() -> None:
    """With ``on_gone: fail`` it is repeated or not like other 4xx."""
    assert decide(ref(), view({"on_gone": "fail"}), answer(410)).verdict == "retry"
    decision = decide(ref(), view({"preset": "store", "on_gone": "fail"}), answer(410))
    assert (decision.verdict, decision.reason) == ("dead", "permanent_failure")


@pytest.mark.parametrize("status_code", [429, 503])
@pytest.mark.parametrize("policy", [{}, STORE])
def test_told_to_wait(status_code: int, policy: dict[str, Any]) -> None:
    """Retry-After: an attempt is used, the circuit does not count it, delivery and endpoint wait that long."""
    decision = decide(ref(), view(policy), answer(status_code, "120"))
    assert (decision.verdict, decision.number, decision.due_ms) == ("retry", 1, NOW_MS + 120_000)
    assert decision.endpoint_change is not None
    assert decision.endpoint_change.retry_after_until_ms == NOW_MS + 120_000
    assert (decision.circuit.failures, decision.circuit.window) == (0, ())


def test_told_to_wait_less_than_the_policys_own_delay() -> None:
    """The policy's delay is the least: a server cannot ask to be called more often."""
    decision = decide(ref(round_attempts=8, number=8), view(STORE), answer(503, "1"))
    assert decision.due_ms == NOW_MS + 256_000
    assert decision.endpoint_change is not None
    assert decision.endpoint_change.retry_after_until_ms == NOW_MS + 256_000


def test_told_to_wait_for_a_year() -> None:
    """At most 24 hours."""
    decision = decide(ref(), view(), answer(429, "31536000"))
    assert decision.due_ms == NOW_MS + DAY_MS


def test_an_own_delay_above_a_day_holds_the_delivery_alone() -> None:
    """The endpoint never waits more than 24 hours, though this delivery's next attempt comes later."""
    late = ref(round_attempts=8, number=8)
    decision = decide(late, view({"preset": "standard-webhooks"}), answer(503, "60"), unit=0.75)
    assert decision.due_ms == NOW_MS + 95_040_000
    assert decision.endpoint_change is not None
    assert decision.endpoint_change.retry_after_until_ms == NOW_MS + DAY_MS


def test_a_longer_wait_is_not_shortened() -> None:
    """An endpoint that waits longer already goes on waiting; nothing is stored of the shorter one."""
    waiting = view(retry_after_until_ms=NOW_MS + HOUR_MS)
    assert decide(ref(), waiting, answer(429, "60")).endpoint_change is None


@pytest.mark.parametrize("text", ["0", "-5", "soon", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_garbage_in_retry_after_is_ignored(text: str) -> None:
    """Then the answer is a status like any other: it counts, and ``retry_on`` decides."""
    decision = decide(ref(), view(), answer(503, text))
    assert (decision.verdict, decision.circuit.failures) == ("retry", 1)
    assert decision.due_ms == NOW_MS + 1000
    assert decide(ref(), view(STORE), answer(429, text)).reason == "permanent_failure"


def test_told_to_wait_beyond_the_age() -> None:
    """A wait that ends after the delivery's age ends it now; the endpoint waits all the same."""
    old = ref(age_start_ms=NOW_MS - 72 * HOUR_MS + 60_000, round_attempts=3)
    decision = decide(old, view(), answer(429, "61"))
    assert (decision.verdict, decision.reason) == ("dead", "age_exceeded")
    assert decision.endpoint_change is not None
    assert decision.endpoint_change.retry_after_until_ms == NOW_MS + 61_000
    assert decide(old, view(), answer(429, "60")).due_ms == NOW_MS + 60_000


def test_told_to_wait_at_the_last_attempt() -> None:
    """The last attempt is used up; the endpoint waits as told."""
    decision = decide(ref(round_attempts=10, number=10), view(STORE), answer(503, "60"))
    assert (decision.verdict, decision.reason) == ("dead", "attempts_exhausted")
    assert decision.endpoint_change is not None
    assert decision.endpoint_change.retry_after_until_ms == NOW_MS + 60_000


@pytest.mark.parametrize("code", [code for code in ERROR_CODES if code not in ("status", "redirect", "local_error")])
def test_each_error_is_a_failed_attempt(code: str) -> None:
    """Default policy: repeated after its delay; blocked targets and interruptions do not count for the circuit."""
    decision = decide(ref(), view(), Outcome(code))
    assert (decision.verdict, decision.number, decision.due_ms) == ("retry", 1, NOW_MS + 1000)
    assert decision.circuit.failures == (0 if code in ("blocked_target", "interrupted") else 1)


def test_a_local_error_uses_no_attempt() -> None:
    """Our own fault: the same attempt again a second later, with the crashes it had; nothing counted."""
    decision = decide(ref(number=2, crashes=1), view(), LOCAL)
    assert (decision.verdict, decision.number, decision.due_ms, decision.crashes) == ("again", 2, NOW_MS + 1000, 1)
    assert (decision.endpoint_change, decision.circuit.failures) == (None, 0)
    assert decide(ref(number=2, crashes=1), view(), answer(500)).crashes == 0


@pytest.mark.parametrize(("status_code", "verdict"), [(500, "retry"), (404, "dead"), (302, "dead"), (429, "dead")])
def test_what_retry_on_does_not_name_is_permanent(status_code: int, verdict: str) -> None:
    """The store preset repeats 5xx, not 4xx or redirects; the failure counts for the circuit all the same."""
    policy = {"preset": "store", "circuit": {"enabled": True}}
    decision = decide(ref(), view(policy), answer(status_code))
    assert decision.verdict == verdict
    assert decision.reason == (None if verdict == "retry" else "permanent_failure")
    assert decision.circuit.failures == 1


def test_the_eleventh_failure_of_the_store_preset_is_the_last() -> None:
    """Ten retries, then dead: attempts_exhausted, counted in the round, not over all rounds."""
    assert decide(ref(round_attempts=9, number=9), view(STORE), answer(500)).due_ms == NOW_MS + 512_000
    decision = decide(ref(round_attempts=10, number=10), view(STORE), answer(500))
    assert (decision.verdict, decision.reason, decision.number) == ("dead", "attempts_exhausted", 11)
    again = decide(ref(round=2, klass=2, round_attempts=0, number=11), view(STORE), answer(500))
    assert (again.verdict, again.number, again.due_ms) == ("retry", 12, NOW_MS + 1000)


def test_the_last_attempt_falls_on_the_age_limit() -> None:
    """72 hours: the delay is shortened to end there, and the failure there is the end."""
    almost = ref(age_start_ms=NOW_MS - 72 * HOUR_MS + 1, round_attempts=100)
    assert decide(almost, view(), answer(500)).due_ms == NOW_MS + 1
    decision = decide(ref(age_start_ms=NOW_MS - 72 * HOUR_MS, round_attempts=100), view(), answer(500))
    assert (decision.verdict, decision.reason) == ("dead", "age_exceeded")


def test_age_stands_still_while_paused() -> None:
    """Time paused before is no age; an answer that comes during a pause is judged by the clock that stands still."""
    young = ref(age_start_ms=NOW_MS - 72 * HOUR_MS - 5000, round_attempts=50)
    assert decide(young, view(), answer(500)).reason == "age_exceeded"
    resumed = ref(age_start_ms=NOW_MS - 73 * HOUR_MS - 5000, round_attempts=50)
    assert decide(resumed, view(paused_total_ms=HOUR_MS), answer(500)).verdict == "dead"
    assert decide(resumed, view(paused_total_ms=2 * HOUR_MS), answer(500)).verdict == "retry"
    assert decide(young, view(paused_since_ms=NOW_MS - HOUR_MS), answer(500)).verdict == "retry"


def test_a_test_delivery_changes_nothing_else() -> None:
    """A failed test is discarded after one attempt, whatever the answer; no circuit, no marks, no announcement."""
    test = ref(trigger="test")
    for outcome in (answer(500), answer(410), answer(503, "60"), Outcome("timeout")):
        decision = decide(test, view(), outcome, event_type="ackpost.test")
        assert (decision.verdict, decision.reason, decision.number) == ("discarded", "test_failed", 1)
        assert (decision.endpoint_change, decision.announcements, decision.circuit.failures) == (None, (), 0)
    assert decide(test, view(first_failure_ms=NOW_MS - 9), answer(204)).endpoint_change is None
    assert decide(test, view(), LOCAL).verdict == "again"


def test_a_death_is_told_with_its_facts() -> None:
    """The announcement names delivery, event, type, reason and the last error by their public ids."""
    decision = decide(ref(round_attempts=10, number=10), view(STORE, uid="shop"), answer(502))
    (announcement,) = decision.announcements
    assert (announcement.type, announcement.about) == ("ackpost.delivery.dead", 2)
    assert announcement.data == {
        "endpoint_id": public_id("ep", 2, SALT), "uid": "shop", "delivery_id": public_id("dlv", 9, SALT),
        "event_id": public_id("evt", 8, SALT), "type": "order.created", "reason": "attempts_exhausted",
        "attempt_count": 11, "last_error": "status",
    }  # fmt: skip


def test_the_death_of_an_announcement_is_not_announced() -> None:
    """Nothing is told of ``ackpost.*`` events, so that they cannot make each other."""
    decision = decide(ref(round_attempts=10), view(STORE), answer(500), event_type="ackpost.delivery.dead")
    assert (decision.verdict, decision.announcements) == ("dead", ())


@pytest.mark.parametrize(
    ("on_dead", "ordered", "hold"), [("hold", True, True), ("skip", True, False), ("hold", False, False)]
)
def test_a_death_holds_its_key_only_when_asked(on_dead: str, ordered: bool, hold: bool) -> None:
    """``on_dead: hold`` makes later ones of the key wait; never for a delivery that is not in order."""
    policy = {"preset": "store", "ordering": "by-key", "on_dead": on_dead}
    assert decide(ref(ordered=ordered, round_attempts=10), view(policy), answer(500)).hold is hold
    assert decide_ending(ref(ordered=ordered), view(policy), "data_expired", now_ms=NOW_MS, event_type="a").hold is hold
    assert not decide(ref(ordered=ordered), view(policy), answer(200)).hold


@pytest.mark.parametrize("reason", ["age_exceeded", "circuit_open", "format_conflict", "data_expired"])
def test_an_ending_without_an_attempt(reason: str) -> None:
    """Dead at once: no attempt is used or shown, no circuit moves, the death is told with no error."""
    decision = decide_ending(ref(number=3), view(), reason, now_ms=NOW_MS, event_type="order.created")
    assert (decision.verdict, decision.reason, decision.number, decision.outcome) == ("dead", reason, 3, None)
    assert (decision.endpoint_change, announced(decision)) == (None, ["ackpost.delivery.dead"])
    assert decision.announcements[0].data["last_error"] is None
    assert msgspec.json.encode(decision.announcements[0].data)
