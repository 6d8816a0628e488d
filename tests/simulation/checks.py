"""What must hold at each request, judged by what is durable and by what the receivers saw (I2–I6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackpost.core.model import Endpoint
from ackpost.core.policy import Policy, effective_policy
from ackpost.testing.reference.state import Row
from tests.simulation.history import Send, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

AGE_LATE_MS = 61_000
REORDERED_MS = 5000


class Checks:
    """Watches every request and answer of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: set[tuple[int, int, int, int]] = set()
        self._failures: dict[int, int] = {}
        self._last_sent_ms: dict[int, int] = {}
        self._bodies: dict[int, bytes] = {}
        self._wait_until_ms: dict[int, int] = {}
        self._circuits: dict[int, str] = {}

    def forget_endpoint(self, endpoint: int) -> None:
        """Another node owns it now, or this one anew: what was counted in memory is gone."""
        rows = self._world.state.pending.get(endpoint, ())
        self._sent = {mark for mark in self._sent if mark[0] not in rows}
        for known in (self._failures, self._wait_until_ms, self._circuits):
            known.pop(endpoint, None)

    def forget_send(self, delivery: int) -> None:
        """A request came to nothing that counts: the same attempt is made again."""
        self._sent = {mark for mark in self._sent if mark[0] != delivery}

    def forget(self) -> None:
        """Another process begins: what was counted in memory is gone."""
        self._sent.clear()
        self._failures.clear()
        self._wait_until_ms.clear()
        self._circuits.clear()

    def on_send(self, send: Send) -> None:
        """Raises: Violation."""
        world = self._world
        row = world.state.rows[send.delivery]
        trouble = world.owner_trouble(send.process, send.endpoint)
        if trouble is not None:
            raise Violation(f"I3: {send.process} sends, but {trouble}: {send}")
        self._check_row(send, row)
        self._check_body(send)
        endpoint = world.state.endpoints.get(send.endpoint)
        if endpoint is None:
            if self._is_late(send):
                raise Violation(f"I6: sent to a deleted endpoint: {row}")
            return
        if send.is_test:
            return
        self._look_at_circuit(send.endpoint)
        policy = effective_policy(endpoint.policy)
        others = [one for one in world.history.under_way(send.endpoint) if not one.is_test]
        self._check_state(send, endpoint)
        self._check_circuit(send, endpoint, policy, others)
        self._check_order(send, row, policy)
        self._check_age(send, row, endpoint, policy)
        if len(others) + 1 > policy.max_in_flight and self._is_late(send):
            raise Violation(f"I6: {len(others) + 1} in flight, allowed are {policy.max_in_flight}")
        self._last_sent_ms[send.endpoint] = send.true_ms

    def circuit_is(self, endpoint: int, state: str) -> None:
        """Count transitions of the circuit as the engine has it in memory."""
        before = self._circuits.get(endpoint)
        if before != state:
            self._circuits[endpoint] = state
            self._world.history.seen[f"circuit {before or 'begins'} > {state}"] += 1

    def waits_ended(self, endpoint: int) -> None:
        """A person let the endpoint go on at once."""
        self._wait_until_ms.pop(endpoint, None)

    def on_answer(self, send: Send, retry_after: str | None) -> None:
        """Count failures in a row, and remember told waits, as the contract does, from the outside."""
        if send.is_test:
            return
        if send.status_code in (429, 503):
            # Whether it counts for the row depends on Retry-After's text: it neither counts nor resets here.
            if retry_after is not None and retry_after.isdigit() and int(retry_after):
                self._wait_until_ms[send.endpoint] = self._world.true_ms() + int(retry_after) * 1000
            return
        endpoint = self._world.state.endpoints.get(send.endpoint)
        if send.code in ("blocked_target", "local_error", "interrupted") or endpoint is None:
            return
        if endpoint.circuit.state != "closed" and send.at_ms <= endpoint.circuit.opened_at_ms:
            return
        good = send.code == "delivered"
        self._failures[send.endpoint] = 0 if good else self._failures.get(send.endpoint, 0) + 1

    def _look_at_circuit(self, endpoint: int) -> None:
        node = self._world.node_for(endpoint)
        lane = None if node is None else node.engine.lanes.get(endpoint)
        if lane is not None and lane.view is not None:
            self.circuit_is(endpoint, lane.view.circuit.state)

    # ---- the delivery

    def _check_row(self, send: Send, row: Row) -> None:
        if row.status in ("delivered", "discarded"):
            raise Violation(f"I2: a {row.status} delivery is sent again: {row}")
        if row.status != "pending":
            if self._is_late(send):
                raise Violation(f"I6: sent {send.at_ms - (row.ended_at_ms or 0)} ms after it ended: {row}")
            return
        if row.round == 1 and send.number != row.number + 1:
            raise Violation(f"I2: attempt {send.number} sent while {row.number} are recorded: {row}")
        if row.waiting and not self._reordered(send):
            raise Violation(f"I4: a waiting delivery is sent: {row}")
        if row.due_ms > send.at_ms:
            raise Violation(f"I6: sent {row.due_ms - send.at_ms} ms before it is due: {row}")
        before = [one for one in self._world.history.by_delivery.get(send.delivery, ()) if one.under_way]
        if before and row.round == 1:
            raise Violation(f"I2: sent while its attempt {before[-1].number} is under way: {row}")
        mark = (send.delivery, row.round, row.number, row.due_ms)
        if mark in self._sent and row.round == 1:
            raise Violation(f"I2: attempt {send.number} sent twice: {row}")
        self._sent.add(mark)

    def _check_body(self, send: Send) -> None:
        endpoint = self._world.state.endpoints.get(send.endpoint)
        if endpoint is None or endpoint.format == "store":
            return
        known = self._bodies.setdefault(send.delivery, send.body)
        if known != send.body:
            raise Violation(f"I5: the body changed: {known!r} became {send.body!r}")

    def _check_order(self, send: Send, row: Row, policy: Policy) -> None:
        if not row.ordered or row.status != "pending" or policy.ordering != "by-key":
            return
        assert row.key is not None
        state, place = self._world.state, (row.endpoint, row.key)
        # One that was cancelled has let later ones go, and is not in order with them any more when it is redelivered.
        let_go = self._world.history.touched_by_people
        # Nor is one that was made later, by hand.
        pending = [one.position for one in state.ordered.get(place, {}).values() if one.trigger == "schedule"]
        held = [one for one in state.holds.get(place, {}) if state.rows[one].trigger == "schedule"]
        before = [*pending, *held]
        before = [one for one in before if state.rows[one].event < row.event and one not in let_go]
        if before and not self._reordered(send):
            raise Violation(f"I4: {row} is sent before another of its key has ended: {before}")

    def _check_age(self, send: Send, row: Row, endpoint: Endpoint, policy: Policy) -> None:
        limit_s = policy.retry.max_age_s
        if limit_s is None or row.status != "pending" or send.delivery in self._world.history.touched_by_people:
            return  # who asks for one now gets it, whatever its age
        age_ms = endpoint.clock_ms(send.at_ms) - row.age_start_ms
        if age_ms > limit_s * 1000 + AGE_LATE_MS:
            raise Violation(f"I6: sent at the age of {age_ms} ms, allowed are {limit_s} s: {row}")

    def _is_late(self, send: Send) -> bool:
        """The engine knows by now what was last changed of the endpoint or its deliveries."""
        history = self._world.history
        return send.true_ms > max(history.known_ms.get(send.endpoint, 0), history.found_ms.get(send.endpoint, 0))

    def _reordered(self, send: Send) -> bool:
        """The ordering of the endpoint was switched just now, and the engine may not have heard of it yet."""
        return send.true_ms - self._world.history.reordered_ms.get(send.endpoint, 0) < REORDERED_MS

    # ---- the endpoint

    def _check_state(self, send: Send, endpoint: Endpoint) -> None:
        if endpoint.state != "enabled" and self._is_late(send):
            late_ms = send.at_ms - endpoint.updated_at_ms
            raise Violation(f"I6: sent {late_ms} ms after the endpoint was {endpoint.state}")
        early_ms = max(
            endpoint.retry_after_until_ms - send.at_ms, self._wait_until_ms.get(send.endpoint, 0) - send.true_ms
        )
        if early_ms > self._world.clocks_differ_ms:
            raise Violation(f"I6: sent {early_ms} ms before Retry-After")

    def _check_circuit(self, send: Send, endpoint: Endpoint, policy: Policy, others: list[Send]) -> None:
        circuit, now_ms = endpoint.circuit, send.at_ms
        if not policy.circuit.enabled:
            return
        newer = [one for one in others if one.at_ms > circuit.opened_at_ms]
        if circuit.state == "open" and now_ms < circuit.retry_at_ms:
            raise Violation(f"I6: sent {circuit.retry_at_ms - now_ms} ms before the open circuit's probe")
        node = self._world.node_for(send.endpoint)
        if node is None or node.engine.unrecorded() > 1:  # this request is one
            return  # what is durable of the circuit is behind what the engine knows already
        if circuit.state == "open" and newer:
            raise Violation(f"I6: a second probe while one is under way: {newer[-1]}")
        if circuit.state == "ramping":
            # A process may begin a few seconds behind the one before, and so before the step.
            steps = 0 if circuit.ramp_step_ms == 0 else max(0, now_ms - circuit.ramp_step_ms) // 5000
            allowed = min(policy.max_in_flight, 2 ** min(steps, 20))
            if len(newer) + 1 > allowed:
                raise Violation(f"I6: {len(newer) + 1} in flight while ramping, allowed are {allowed}")
        if circuit.state in ("closed", "ramping") and self._failures.get(send.endpoint, 0) >= 3:
            since_ms = send.true_ms - self._last_sent_ms.get(send.endpoint, 0)
            if since_ms < 500 - self._world.clocks_differ_ms:
                raise Violation(f"I6: {since_ms} ms after the last one, in a row of failures")
