"""A lane: one endpoint's work in its owner's memory (rules E1, E12): window, limits, circuit.

The window holds references by class; what does not fit stays in the store, and the class is then not ``complete``.
A lane decides *whether and what* may be sent next; ``engine.sender`` builds and sends it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from ackpost.core import circuit as circuits
from ackpost.core.decide import EndpointView
from ackpost.core.decision import Decision
from ackpost.core.model import CLASSES, CLOSED, FIRST, REPLAY, RETRY, DeliveryRef, Endpoint, EventPayload
from ackpost.core.outcome import Outcome
from ackpost.core.policy import Policy, effective_policy
from ackpost.engine.budget import Budget
from ackpost.engine.request import RequestBuilder

WINDOW_REFS: Final = 256
"""References loaded a class at a time."""
HANDED_REFS_MAX: Final = 1024
"""References a class may grow to by hand-off."""
SLOW_MS: Final = 1000
GROWTH_START: Final = 2
_PREFERENCE: Final = (
    (FIRST, RETRY, REPLAY), (FIRST, RETRY, REPLAY), (RETRY, FIRST, REPLAY), (FIRST, RETRY, REPLAY),
    (FIRST, RETRY, REPLAY), (RETRY, FIRST, REPLAY), (FIRST, RETRY, REPLAY), (REPLAY, RETRY, FIRST),
)  # fmt: skip
"""Which class goes first at each turn: old retries and replays get a share, never the whole."""

REFS_MAX: Final = 20_000
REFS_A_CLASS_MIN: Final = 8
"""What a class may hold even when the node's references are used up, so that no endpoint starves."""

Entry = tuple[int, int, DeliveryRef]
_NO_BOUND: Final = (1 << 62, 0)


class Lane:
    """One endpoint's window and limits. All times are process milliseconds."""

    __slots__ = (
        "bounds", "budget", "builder", "changes", "complete", "deleted", "dirty", "ended_during_load", "endpoint",
        "fresh", "growth", "heaps", "host_waiting", "in_flight", "known", "last_start_ms", "leaving", "loading",
        "policy", "queued", "rate_at_ms", "rate_held", "rate_tokens", "reload", "slot_waiting", "tenant", "tests",
        "timer_ms", "trouble_waiting", "troubled", "turn", "unproven", "unfetched", "view", "wake_ms",
    )  # fmt: skip

    def __init__(self, endpoint: int, tenant: int, budget: Budget) -> None:
        self.budget = budget
        self.endpoint = endpoint
        self.tenant = tenant
        self.view: EndpointView | None = None
        self.policy: Policy | None = None
        self.builder: RequestBuilder | None = None
        self.fresh = False
        self.deleted = False
        self.leaving = False
        """Another node is about to own it: nothing more is queued or sent, what is under way ends here."""
        self.heaps: tuple[list[Entry], ...] = ([], [], [])
        self.tests: list[Entry] = []
        self.known: dict[int, DeliveryRef] = {}
        self.complete = [False, False, False]
        self.bounds = [_NO_BOUND, _NO_BOUND, _NO_BOUND]
        self.loading = False
        self.reload = False
        self.dirty = False
        self.changes: list[Decision] = []
        self.unfetched: dict[int, DeliveryRef] = {}
        self.ended_during_load: set[int] = set()
        self.in_flight = 0
        self.growth = GROWTH_START
        self.last_start_ms = 0
        self.turn = 0
        self.unproven = True
        """No request has ended yet: it counts as in trouble, but for its first request."""
        self.troubled = True
        self.trouble_waiting = False
        self.queued = False
        self.host_waiting = False
        self.slot_waiting = False
        self.wake_ms = 0
        self.timer_ms = 0
        self.rate_tokens = 1.0
        self.rate_at_ms = 0
        self.rate_held = False

    # ------------------------------------------------------------ configuration

    def configure(self, endpoint: Endpoint, builder: RequestBuilder, salt: int) -> None:
        """Take over a stored endpoint, with what decided attempts change of it and is not stored yet.

        The circuit in memory is the newer one, unless a person asked for a probe since it opened.
        """
        policy = effective_policy(endpoint.policy)
        circuit = circuits.owned_anew(endpoint.circuit) if self.view is None else self.view.circuit
        stored = endpoint.circuit
        if circuit.state == "open" and stored.state == "half-open" and stored.opened_at_ms >= circuit.opened_at_ms:
            circuit = circuits.half_open(circuit)
        if not policy.circuit.enabled:
            circuit = CLOSED
        for decision in self.changes:
            _apply_change(endpoint, decision)
        self.view = EndpointView(endpoint, policy, frozenset(policy.retry.retry_on), circuit, salt)
        self.policy = policy
        self.builder = builder
        self.fresh = True

    def park(self) -> None:
        """The endpoint as stored cannot be sent to: send nothing until it is changed."""
        self.builder = None
        self.fresh = True

    def forget_queued(self) -> None:
        """Drop what is queued (not what is under way, nor tests) so that it is loaded anew."""
        dropped = [entry[2] for heap in self.heaps for entry in heap]
        for heap in self.heaps:
            heap.clear()
        unfetched = [ref for ref in self.unfetched.values() if ref.trigger != "test"]
        for ref in unfetched:
            del self.unfetched[ref.position]
        for ref in (*dropped, *unfetched):
            self._forget(ref)
        self.complete[:] = (False, False, False)
        self.bounds[:] = (_NO_BOUND, _NO_BOUND, _NO_BOUND)

    def forget_all(self) -> None:
        """Count nothing of this lane any more: its endpoint is gone, and what ends is told to no lane."""
        for ref in list(self.known.values()):
            self._forget(ref)

    def tests_held(self) -> list[DeliveryRef]:
        """Test deliveries that are not sent yet: they are kept over reloads, as they go whatever the state."""
        unfetched = [ref for ref in self.unfetched.values() if ref.trigger == "test"]
        return [*(entry[2] for entry in self.tests), *unfetched]

    def leave(self) -> None:
        """Send nothing more: what is queued is the next owner's."""
        self.leaving = True
        self.forget_queued()
        for ref in self.tests_held():
            self.drop_test(ref)

    @property
    def is_left(self) -> bool:
        """Nothing of it is in flight, unrecorded or being read."""
        return self.leaving and not (self.known or self.in_flight or self.loading)

    def drop_test(self, ref: DeliveryRef) -> None:
        """Somebody ended it before it was sent."""
        self.tests = [entry for entry in self.tests if entry[2] is not ref]
        heapify(self.tests)
        if self.unfetched.get(ref.position) is ref:
            del self.unfetched[ref.position]
        self._forget(ref)

    def give_payload(self, ref: DeliveryRef, payload: EventPayload) -> None:
        """Keep a payload with its reference, if that is still known."""
        if ref.payload is None and self.known.get(ref.position) is ref:
            ref.payload = payload
            self.budget.payload_bytes += len(payload.data)
            self.budget.was_read(len(payload.data))

    def drop_payload(self, ref: DeliveryRef) -> None:
        """Hold the data no longer; it is read again should it be needed."""
        if ref.payload is not None and self.known.get(ref.position) is ref:
            self.budget.payload_bytes -= len(ref.payload.data)
            ref.payload = None

    def _drop_queued_data(self) -> None:
        for heap in self.heaps:
            for _, _, ref in heap:
                self.drop_payload(ref)

    def keep(self, ref: DeliveryRef) -> None:
        """Remember a reference that is neither queued nor sent until its ending is durable."""
        self._know(ref)

    def _know(self, ref: DeliveryRef) -> None:
        if ref.position not in self.known:
            self.known[ref.position] = ref
            self.budget.refs += 1
            if ref.payload is not None:
                self.budget.payload_bytes += len(ref.payload.data)

    def _forget(self, ref: DeliveryRef) -> None:
        known = self.known.pop(ref.position, None)
        if known is not None:
            self.budget.refs -= 1
            if known.payload is not None:
                self.budget.payload_bytes -= len(known.payload.data)

    # ------------------------------------------------------------ window

    def push(self, ref: DeliveryRef, *, handed: bool) -> bool:
        """Queue a reference; False when it does not fit and stays in the store alone (the class is then partial).

        A partial class takes only what sorts before its bound: what lies behind it is not all in memory.
        """
        if ref.trigger == "test":
            self._know(ref)
            heappush(self.tests, (ref.due_ms, ref.position, ref))
            return True
        klass, heap = ref.klass, self.heaps[ref.klass]
        if handed and not self._fits(ref, len(heap)):
            self.complete[klass] = False
            self.bounds[klass] = min(self.bounds[klass], (ref.due_ms, ref.position))
            self._forget(ref)
            if self.loading:
                self.ended_during_load.add(ref.position)
            return False
        self._know(ref)
        heappush(heap, (ref.due_ms, ref.position, ref))
        return True

    def _fits(self, ref: DeliveryRef, held: int) -> bool:
        if (ref.due_ms, ref.position) > self.bounds[ref.klass] or held >= HANDED_REFS_MAX:
            return False
        return held < REFS_A_CLASS_MIN or self.budget.refs < REFS_MAX

    def loaded(self, klass: int, refs: list[DeliveryRef], *, complete: bool) -> list[DeliveryRef]:
        """Take over a window that was loaded; give the references that were new here."""
        if self.leaving:
            return []
        fresh = [ref for ref in refs if ref.position not in self.known and ref.position not in self.ended_during_load]
        for ref in fresh:
            self.push(ref, handed=False)
        if complete:
            self.complete[klass] = True
            self.bounds[klass] = _NO_BOUND
        elif refs:
            self.bounds[klass] = (refs[-1].due_ms, refs[-1].position)
        return fresh

    def wants_load(self) -> bool:
        """Whether a partial class runs low, or configuration or window are out of date."""
        if self.deleted or self.leaving or (self.fresh and not self.reload and False not in self.complete):
            return False
        if not self.fresh or self.reload:
            return True
        if self.view is None or self.builder is None or self.view.endpoint.state != "enabled":
            return False
        return any(self.runs_low(klass) for klass in CLASSES)

    def runs_low(self, klass: int) -> bool:
        """Whether more of a partial class should be loaded: sooner while the node has references left."""
        if self.complete[klass]:
            return False
        least = WINDOW_REFS // 4 if self.budget.refs < REFS_MAX else REFS_A_CLASS_MIN // 2
        return len(self.heaps[klass]) < least

    def misses(self, klass: int, due_ms: int) -> bool:
        """Memory claims to know all of a class, and knows nothing due as early as the store's first row of it."""
        if not self.complete[klass]:
            return False
        heap = self.heaps[klass]
        if heap and heap[0][0] <= due_ms:
            return False
        return all(ref.klass != klass or ref.due_ms > due_ms for ref in self.known.values())

    def is_idle(self) -> bool:
        """Nothing in memory and nothing to remember: the lane may be dropped."""
        view = self.view
        if self.known or self.loading or self.in_flight or self.queued or view is None:
            return False
        if view.endpoint.state == "enabled" and not all(self.complete):
            return False
        return view.circuit.state == "closed" and view.circuit.failures == 0

    def withdraw(self, chosen: Callable[[DeliveryRef], bool]) -> list[DeliveryRef]:
        """Take some first attempts out of the queue; they stay known."""
        heap = self.heaps[FIRST]
        taken = [entry for entry in heap if chosen(entry[2])]
        if taken:
            heap[:] = [entry for entry in heap if not chosen(entry[2])]
            heapify(heap)
        return [ref for _, _, ref in taken]

    def held_by(self, now_ms: int) -> str | None:
        """What keeps all of this endpoint's work back now, if anything does."""
        view = self.view
        if view is None or not self.fresh:
            return None
        if view.endpoint.state == "paused":
            return "paused"
        if view.circuit.state == "open":
            return "circuit"
        if view.endpoint.retry_after_until_ms > now_ms:
            return "retry_after"
        return "rate" if self.rate_held else None

    def due_unsent(self, now_ms: int) -> int:
        """References in the window that are due."""
        return sum(1 for heap in self.heaps for entry in heap if entry[0] <= now_ms)

    # ------------------------------------------------------------ what next

    def take(self, now_ms: int) -> DeliveryRef | None:
        """Take the next reference that may be sent now; None sets ``wake_ms`` (0: an event will wake the lane)."""
        self.wake_ms = 0
        view, policy = self.view, self.policy
        if not self.fresh or self.reload or view is None or policy is None or self.builder is None or self.leaving:
            return None
        if self.tests:
            if self.tests[0][0] <= now_ms:
                return heappop(self.tests)[2]
            self.wake_ms = self.tests[0][0]
        if view.endpoint.state != "enabled" or self.endpoint in self.budget.rebuilding:
            return None
        blocked_ms = self._blocked_until_ms(view, policy, now_ms)
        if blocked_ms < 0:
            return None
        klass = self._choose(view.circuit.state == "half-open", now_ms)
        if klass < 0 or blocked_ms > now_ms:
            self._plan_wake(blocked_ms, now_ms)
            if self.wake_ms > now_ms + SLOW_MS and not self.budget.has_room(0):
                self._drop_queued_data()  # others need the room now
            return None
        if self.heaps[klass][0][2].payload is not None:
            if self.unfetched:
                return None  # it would overtake those whose payload is being read; they wake the lane
        elif (self.unfetched or self.in_flight) and not self.budget.may_read():
            return None  # those wake the lane
        return heappop(self.heaps[klass])[2]

    def _blocked_until_ms(self, view: EndpointView, policy: Policy, now_ms: int) -> int:
        """When limits allow the next request: ≤ now at once, -1 when only an answer can free the lane."""
        circuit = view.circuit
        if circuit.state == "closed" and circuit.failures < circuits.SUSPICION_FAILURES:
            if self.in_flight >= min(self.growth, policy.max_in_flight):
                return -1
            until_ms = 0
        else:
            if circuit.state == "open":
                circuit = view.circuit = circuits.wake(circuit, now_ms)
                if circuit.state == "open":
                    return circuit.retry_at_ms
            if self.in_flight >= circuits.limit(circuit, policy.circuit, policy.max_in_flight):
                return -1
            until_ms = self.last_start_ms + circuits.spacing_ms(circuit, policy.circuit)
        until_ms = max(until_ms, view.endpoint.retry_after_until_ms)
        if policy.rate_per_s is not None:
            until_ms = max(until_ms, self._rate_until_ms(policy.rate_per_s, now_ms))
        return until_ms

    def _rate_until_ms(self, rate_per_s: float, now_ms: int) -> int:
        """A token bucket of one second's worth (at least one)."""
        self.rate_tokens = min(
            max(1.0, rate_per_s), self.rate_tokens + max(0, now_ms - self.rate_at_ms) * rate_per_s / 1000.0
        )
        self.rate_at_ms = now_ms
        self.rate_held = self.rate_tokens < 1.0
        return now_ms + 1 + int((1.0 - self.rate_tokens) * 1000.0 / rate_per_s) if self.rate_held else 0

    def _choose(self, oldest: bool, now_ms: int) -> int:
        """The class whose head is due: by turns, or the oldest of all for a probe."""
        heaps = self.heaps
        if oldest:
            due = [klass for klass in CLASSES if heaps[klass] and heaps[klass][0][0] <= now_ms]
            return min(due, key=lambda klass: heaps[klass][0][:2]) if due else -1
        if heaps[FIRST] and not heaps[RETRY] and not heaps[REPLAY]:
            return FIRST if heaps[FIRST][0][0] <= now_ms else -1
        for klass in _PREFERENCE[self.turn]:
            if heaps[klass] and heaps[klass][0][0] <= now_ms:
                self.turn = (self.turn + 1) % len(_PREFERENCE)
                return klass
        return -1

    def _plan_wake(self, blocked_ms: int, now_ms: int) -> None:
        heads = [heap[0][0] for heap in self.heaps if heap]
        if heads:
            wake_ms = max(blocked_ms, min(heads), now_ms + 1)
            self.wake_ms = min(self.wake_ms or wake_ms, wake_ms)

    # ------------------------------------------------------------ what happened

    def started(self, now_ms: int) -> None:
        """A request of this lane began."""
        self.in_flight += 1
        self.last_start_ms = now_ms
        if self.policy is not None and self.policy.rate_per_s is not None:
            self.rate_tokens -= 1.0

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Take over what a decision changes here: circuit, growth, marks of the endpoint's document."""
        self.in_flight -= 1
        view, good = self.view, decision.verdict == "delivered"
        if view is None or self.policy is None:
            return
        self.unproven = False
        self.troubled = not good or outcome.duration_ms > SLOW_MS
        if good:
            if self.growth < self.policy.max_in_flight:
                self.growth += 1
        else:
            self.growth = max(GROWTH_START, self.growth // 2)
        if decision.trigger == "test":
            return
        view.circuit = decision.circuit
        if decision.endpoint_change is not None:
            self.changes.append(decision)
            _apply_change(view.endpoint, decision)

    def settled(self, decision: Decision, applied: bool) -> None:
        """A result is durable: forget the delivery, or queue it again for its next attempt.

        One that did not apply met a row that others had changed, or that an earlier commit had changed already: what
        is in the store now must be loaded.
        """
        if decision.endpoint_change is not None:
            self.changes = [other for other in self.changes if other is not decision]
            if self.loading:  # what is being read may be older than this change, and it is no longer kept here
                self.reload = self.dirty = True
        ref = self.known.get(decision.delivery)
        if ref is None:
            return
        if applied and decision.verdict in ("retry", "again") and decision.due_ms is not None:
            ref.due_ms = decision.due_ms
            ref.crashes = decision.crashes
            if decision.verdict == "retry":
                ref.number = decision.number
                ref.round_attempts += 1
                if ref.klass == FIRST:
                    ref.klass = RETRY
            if not self.budget.has_room(0):
                self.drop_payload(ref)
            self.push(ref, handed=True)
            return
        self._forget(ref)
        if self.loading:
            self.ended_during_load.add(decision.delivery)


def _apply_change(endpoint: Endpoint, decision: Decision) -> None:
    change = decision.endpoint_change
    if change is None:
        return
    if change.retry_after_until_ms is not None:
        endpoint.retry_after_until_ms = change.retry_after_until_ms
    if change.clear_failing:
        endpoint.first_failure_ms = endpoint.last_failure_ms = None
        endpoint.failing_announced = False
    if change.first_failure_ms is not None:
        endpoint.first_failure_ms = change.first_failure_ms
    if change.last_failure_ms is not None:
        endpoint.last_failure_ms = change.last_failure_ms
    if change.failing_announced is not None:
        endpoint.failing_announced = change.failing_announced
    if change.disable_reason is not None:
        endpoint.state = "disabled"
        endpoint.state_reason = change.disable_reason
