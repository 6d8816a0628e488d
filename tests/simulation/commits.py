"""Watches every commit: who made it, what it moved, what retention took, when the engine must know of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ackpost.core.model import Endpoint
from ackpost.errors import RequestError
from ackpost.ports import operations as ops
from tests.simulation.history import Violation
from tests.simulation.loop import Process
from tests.simulation.setup import path_of

if TYPE_CHECKING:
    from tests.simulation.world import World

TOLD_MS = 100
LATE_MS = 15_000
"""How long before its commit a result may have been known, while the store was in trouble."""
_AGAIN: Final = ("pending", "waiting")
ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    "new": _AGAIN,
    "pending": ("waiting", "delivered", "dead", "cancelled", "discarded"),
    "waiting": ("pending", "delivered", "dead", "cancelled"),
    "delivered": (*_AGAIN, "removed"),
    "dead": (*_AGAIN, "delivered", "discarded", "removed"),
    "cancelled": (*_AGAIN, "delivered", "removed"),
    "discarded": (*_AGAIN, "removed"),
}
"""Of deliveries. From pending to discarded: a test that failed; from others to delivered: it was sent."""
ENDING: Final = (ops.Cancel, ops.StepJob, ops.ExpireData)
"""What may end a delivery that retention then takes in the same commit."""
QUIET_OPERATIONS: Final = (ops.RenewLease, ops.TouchApiKeys)


class Commits:
    """What is known of the commits of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._deliveries: dict[int, str] = {}
        self._endpoints: dict[int, tuple[str, str]] = {}
        self._retained: tuple[list[int], dict[int, tuple[int, str]]] | None = None
        self._accepted_ms: dict[int, int] = {}
        self._died_ms: dict[int, int] = {}
        self._holds = 0
        self._some_end = False
        self.told_events = self.told_deliveries = self.told_attempts = 0

    def told(self, operations: Sequence[ops.Operation], replies: Sequence[Any]) -> None:
        """The answer of a commit reached the process: it must act on it, and count it, at once."""
        world = self._world
        for operation, reply in zip(operations, replies, strict=True):
            self._changed(reply, world.history.known_ms, world.true_ms() + TOLD_MS)
            if isinstance(operation, ops.Record):
                self.told_attempts += len(operation.decisions)
            if isinstance(operation, ops.Accept) and isinstance(reply, ops.Accepted):
                self.told_events += sum(not event.duplicate for event in reply.events)
                self.told_deliveries += sum(event.deliveries for event in reply.events if not event.duplicate)

    def _found_ms(self) -> int:
        """When a change that nobody told of is found: at a poll, which may fail a few times, after some slow reads."""
        troubles = self._world.troubles
        polls = 8 if troubles.rates["read_fault"] else 2
        return self._world.true_ms() + 1000 * (polls + 1) + int(8000 * troubles.store_slowest_s)

    def untold(self, replies: Sequence[Any]) -> None:
        """The answer of a commit is lost: the comparison of revs finds the change, a second and some reads later."""
        for reply in replies:
            self._changed(reply, self._world.history.found_ms, self._found_ms())

    def _changed(self, reply: Any, times_ms: dict[int, int], known_ms: int) -> None:
        if isinstance(reply, ops.Recorded):
            return
        touched = list(getattr(reply, "touched", ()))
        if isinstance(reply, ops.EndpointSaved):
            touched.append(reply.endpoint.position)
        for endpoint in touched:
            times_ms[endpoint] = known_ms

    def begins(self, operations: Sequence[ops.Operation]) -> None:
        """Keep what retention may take."""
        self._retained = None
        self._some_end = any(isinstance(operation, ENDING) for operation in operations)
        state = self._world.state
        if any(isinstance(operation, ops.Retain) for operation in operations):
            rows = {row.position: (row.event, str(row.status)) for row in state.rows.values()}
            self._retained = list(state.events), rows

    def durable(self, process: Process, operations: Sequence[ops.Operation], replies: Sequence[Any]) -> None:
        """A commit became durable. Raises: Violation."""
        world = self._world
        trouble = world.writer_trouble(process, operations)
        if trouble is not None:
            raise Violation(f"I3: {process} changed the store, but {trouble}")
        for operation, reply in zip(operations, replies, strict=True):
            self._look(operation, reply)
        if not all(isinstance(operation, QUIET_OPERATIONS) for operation in operations):
            self._look_at_deliveries()
            self._look_at_endpoints()
        self._look_at_retention()

    def _look(self, operation: ops.Operation, reply: Any) -> None:
        world, seen = self._world, self._world.history.seen
        if isinstance(reply, RequestError):
            seen[f"refused {type(operation).__name__} {reply.code}"] += 1
            return
        seen[f"operation {type(operation).__name__}"] += 1
        seen[f"reply {type(reply).__name__}"] += 1
        if isinstance(operation, ops.CreateEndpoint) and isinstance(reply, ops.EndpointSaved):
            self.made(reply.endpoint)
        if isinstance(operation, ops.Interrupt) and isinstance(reply, ops.Interrupted):
            seen["code interrupted"] += reply.pending
        if isinstance(operation, ops.SetEndpointState):
            seen[f"operation SetEndpointState {operation.verb}"] += 1
            if operation.verb in ("resume", "enable"):
                world.checks.waits_ended(operation.endpoint)
        self._changed(reply, world.history.known_ms, self._found_ms())
        if isinstance(reply, ops.JobSaved):
            seen[f"job {reply.job.kind} {reply.job.state}"] += 1
            if reply.job.kind == "switch_ordering":
                world.history.reordered_ms[int(reply.job.params["endpoint"])] = world.true_ms()
        if isinstance(operation, ops.Promote) and isinstance(reply, ops.Promoted) and reply.refs:
            raise Violation(f"I4: rows waited for nothing: {reply.refs}")

    def made(self, endpoint: Endpoint) -> None:
        """An endpoint is there: requests on its path are its."""
        self._world.history.path_of_endpoint[endpoint.position] = path_of(endpoint)

    # ---- transitions

    def _look_at_deliveries(self) -> None:
        state, known, now_ms = self._world.state, self._deliveries, self._world.true_ms()
        for position, row in state.rows.items():
            now = "waiting" if row.waiting and row.status == "pending" else row.status
            before = known.get(position, "new")
            if now == before:
                continue
            self._move(position, before, now)
            known[position] = now
            if before == "new":
                self._accepted_ms.setdefault(row.event, now_ms)
            if now == "dead":
                self._world.history.seen[f"dead {row.reason}"] += 1
                self._died_ms[position] = now_ms
        if len(known) > len(state.rows):
            for position in [one for one in known if one not in state.rows]:
                self._move(position, known.pop(position), "removed")
        holds = len(state.holds)
        if holds != self._holds:
            self._world.history.seen["hold made" if holds > self._holds else "hold released"] += 1
            self._holds = holds

    def _move(self, position: int, before: str, now: str) -> None:
        self._world.history.seen[f"delivery {before} > {now}"] += 1
        if now not in ALLOWED[before] and not (now == "removed" and self._some_end):
            raise Violation(f"I6: a delivery went from {before} to {now}: {self._world.state.rows.get(position)}")

    def _look_at_endpoints(self) -> None:
        seen, known = self._world.history.seen, self._endpoints
        for position, endpoint in self._world.state.endpoints.items():
            now = endpoint.state, endpoint.circuit.state
            before = known.get(position, ("new", "closed"))
            if now == before:
                continue
            known[position] = now
            if before[0] != now[0]:
                why = f" {endpoint.state_reason}" if endpoint.state_reason else ""
                if now[0] == "disabled":
                    self._world.history.disabled_endpoints.add(position)
                seen[f"endpoint {before[0]} > {now[0]}{why}"] += 1
            if before[1] != now[1]:
                seen[f"stored circuit {before[1]} > {now[1]}"] += 1
        for position in [one for one in known if one not in self._world.state.endpoints]:
            seen[f"endpoint {known.pop(position)[0]} > deleted"] += 1

    # ---- retention

    def _look_at_retention(self) -> None:
        """Only what is old enough by true time leaves, and nothing that anybody waits for. Raises: Violation."""
        if self._retained is None:
            return
        events, rows = self._retained
        world, history = self._world, self._world.history
        keep_ms, keep_dead_ms = world.retention_ms()
        # What was stored under a clock far ahead cannot be told from a pause once a new process begins; until then
        # retention may go at twice the pace (ADR 0008).
        up_ms = int((world.loop.time() - history.began_s) * 1000)
        now_ms = world.true_ms() + LATE_MS + history.old_leaps_ms + min(history.leap_ms, up_ms)
        for event in events:
            if event not in world.state.events:
                age_ms = now_ms - self._accepted_ms.get(event, 0)
                if age_ms < keep_ms:
                    raise Violation(f"I1: an event left at the age of {age_ms} ms, {keep_ms} are promised: {event}")
                history.removed_events.add(event)
        for row, (event, status) in rows.items():
            if row in world.state.rows:
                continue
            history.removed_rows[event] += 1
            age_ms = now_ms - self._died_ms.get(row, 0)
            if (status == "pending" and not self._some_end) or (status == "dead" and age_ms < keep_dead_ms):
                raise Violation(f"I1: a {status} delivery left {age_ms} ms after it ended: {row}")
