"""Each safeguard, switched off, is missed by the simulation: so it is there for a reason, and the simulation sees."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ackpost.core import circuit as circuits
from ackpost.core.decision import Decision
from ackpost.core.model import DeliveryRef
from ackpost.egress import connection
from ackpost.engine import engine, lane, loader, writer
from ackpost.ports.operations import Accepted, Done, RenewLease
from ackpost.testing.reference import ReferenceStore, record, state
from tests.simulation.history import Violation
from tests.simulation.world import World

SEEDS_MAX = 200

Patch = pytest.MonkeyPatch


def _acknowledge_before_the_commit(patch: Patch) -> None:
    """Publishers are answered with what the commit will say."""
    commit_group = writer.Writer._commit_group

    async def eager(self: Any) -> None:
        shadow = ReferenceStore(copy.deepcopy(self._store._world.state))
        shadow._incarnation = shadow.durable.incarnation
        replies = await shadow.commit([operation for operation, _ in self._queue])
        for (_, future), reply in zip(self._queue, replies, strict=True):
            if isinstance(reply, Accepted) and not future.done():
                future.set_result(reply)
        await commit_group(self)

    patch.setattr(writer.Writer, "_commit_group", eager)


def _repeat_what_may_be_durable(patch: Patch) -> None:
    """A commit of unknown outcome is taken for one that failed."""

    class Never(Exception):
        pass

    patch.setattr(writer, "StoreOutcomeUnknown", Never)


def _record_without_guard(patch: Patch) -> None:
    """Results are applied to whatever the delivery is now."""
    apply = record._apply

    def unguarded(known: Any, decision: Decision, change: Any) -> bool:
        row = known.row_of(decision.tenant, decision.delivery)
        if row is not None and decision.verdict != "again":
            decision = copy.copy(decision)
            decision.round, decision.number = row.round, row.number + (decision.outcome is not None)
        return apply(known, decision, change)

    patch.setattr(record, "_apply", unguarded)


def _bring_back_what_ended_during_a_load(patch: Patch) -> None:
    """A window is taken as it was read, though it is older than what happened since."""
    loaded = lane.Lane.loaded

    def unsubtracted(self: lane.Lane, klass: int, refs: list[DeliveryRef], *, complete: bool) -> list[DeliveryRef]:
        self.ended_during_load.clear()
        return loaded(self, klass, refs, complete=complete)

    patch.setattr(lane.Lane, "loaded", unsubtracted)


def _promote_nobody(patch: Patch) -> None:
    """What waits for its key's turn is not woken when the turn comes."""
    patch.setattr(state.State, "promote", lambda *_: False)


def _let_all_of_a_key_go(patch: Patch) -> None:
    """Nothing waits for another of its key."""
    patch.setattr(state.State, "is_blocked", lambda *_: False)


def _send_through_an_open_circuit(patch: Patch) -> None:
    """The circuit is counted and shown, and holds nothing."""
    patch.setattr(circuits, "limit", lambda _, __, max_in_flight: max_in_flight)
    patch.setattr(circuits, "wake", lambda circuit, _: circuits.half_open(circuit))


def _probe_with_all_at_once(patch: Patch) -> None:
    """A half-open or ramping circuit is given the full limit."""
    limit = circuits.limit

    def generous(circuit: Any, policy: Any, max_in_flight: int) -> int:
        return limit(circuit, policy, max_in_flight) and max_in_flight

    patch.setattr(circuits, "limit", generous)


def _hurry_after_failures(patch: Patch) -> None:
    """A row of failures does not slow an endpoint down."""
    patch.setattr(circuits, "spacing_ms", lambda *_: 0)


def _ignore_retry_after(patch: Patch) -> None:
    """An endpoint that asks to wait is sent the next delivery at once."""
    blocked_until_ms = lane.Lane._blocked_until_ms

    def impatient(self: lane.Lane, view: Any, policy: Any, now_ms: int) -> int:
        until_ms, view.endpoint.retry_after_until_ms = view.endpoint.retry_after_until_ms, 0
        try:
            return blocked_until_ms(self, view, policy, now_ms)
        finally:
            view.endpoint.retry_after_until_ms = until_ms

    patch.setattr(lane.Lane, "_blocked_until_ms", impatient)


def _do_not_mark_what_is_in_flight(patch: Patch) -> None:
    """A crash leaves no trace of the requests it cut off."""
    start = engine.Engine._start

    def unmarked(self: Any, *given: Any) -> None:
        blank = {"take": lambda *_: -1, "free": lambda *_: None}
        self._slots.__class__ = type("Unmarking", (type(self._slots),), blank)
        start(self, *given)

    patch.setattr(engine.Engine, "_start", unmarked)


def _forget_what_changed_during_a_reload(patch: Patch) -> None:
    """A load that was overtaken by a change counts as fresh."""
    load_lane = loader.Loader._load_lane

    async def blind(self: Any, one: lane.Lane) -> None:
        await load_lane(self, one)
        one.reload = one.dirty = False

    patch.setattr(loader.Loader, "_load_lane", blind)


def _retry_at_once(patch: Patch) -> None:
    """A failed delivery is sent again without its delay."""
    settled = lane.Lane.settled

    def hasty(self: lane.Lane, decision: Decision, applied: bool) -> None:
        if decision.due_ms is not None:
            decision.due_ms = decision.ended_at_ms
        settled(self, decision, applied)

    patch.setattr(lane.Lane, "settled", hasty)


def _send_without_a_lease(patch: Patch) -> None:
    """A process that was frozen for longer than its lease sends when it wakes."""
    patch.setattr(engine.Engine, "_may_send", lambda self: not self._draining)


def _poll_nothing(patch: Patch) -> None:
    """What no hint told of is never looked for."""
    patch.setattr(engine.Engine, "found_work", lambda *_: None)


def _let_a_stale_owner_write(patch: Patch) -> None:
    """The store takes commits of whoever comes (the reference store's fence, rule E3)."""
    commit = ReferenceStore.commit

    async def unfenced(self: ReferenceStore, operations: Any) -> Any:
        self._incarnation = self.durable.incarnation
        kept = [one for one in operations if not isinstance(one, RenewLease)]
        replies = iter(await commit(self, kept))
        return [Done() if isinstance(one, RenewLease) else next(replies) for one in operations]

    patch.setattr(ReferenceStore, "commit", unfenced)


def _use_connections_again_without_a_look(patch: Patch) -> None:
    """An idle connection is taken though its end lies there unread."""
    patch.setattr(connection.Connection, "is_fresh", lambda self, _: not self.transport.is_closing())


def _send_again_in_silence(patch: Patch) -> None:
    """A request whose connection was reset is written a second time within the same attempt."""
    fail = connection.Connection._fail

    def again(self: Any, failure: Any) -> None:
        request = self._request
        if failure.code != "reset" or self._loop.time() >= request.deadline:
            fail(self, failure)
            return
        self.abort()
        host = self._owner._hosts[self.key]
        host.waiting.append(request)
        self._owner._pump(host)

    patch.setattr(connection.Connection, "_fail", again)


def _take_an_interim_answer_for_the_answer(patch: Patch) -> None:
    """A header that only says that there will be one counts."""
    complete = connection.Connection.on_headers_complete

    def eager(self: Any) -> None:
        complete(self)
        self._status = self._status or 200

    patch.setattr(connection.Connection, "on_headers_complete", eager)


ABLATIONS: list[Callable[[Patch], None]] = [
    _acknowledge_before_the_commit,
    _repeat_what_may_be_durable,
    _record_without_guard,
    _bring_back_what_ended_during_a_load,
    _promote_nobody,
    _let_all_of_a_key_go,
    _send_through_an_open_circuit,
    _probe_with_all_at_once,
    _hurry_after_failures,
    _ignore_retry_after,
    _do_not_mark_what_is_in_flight,
    _forget_what_changed_during_a_reload,
    _retry_at_once,
    _send_without_a_lease,
    _poll_nothing,
    _let_a_stale_owner_write,
    _use_connections_again_without_a_look,
    _send_again_in_silence,
    _take_an_interim_answer_for_the_answer,
]


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.__name__.strip("_"))
def test_a_safeguard_that_is_missing_is_noticed(ablation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Within a bounded number of seeds a promise breaks."""
    ablation(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            World(seed, sqlite=False).run()
        except Violation as violation:
            print(f"noticed at seed {seed}: {str(violation)[:120]}")
            return
    pytest.fail(f"{SEEDS_MAX} worlds did not miss it")
