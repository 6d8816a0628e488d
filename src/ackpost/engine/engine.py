"""The delivery engine of one node: lanes, dispatcher, loader and writer put together.

accept (writer) → ``on_result`` → lane → dispatcher → ``_send`` → transport → ``_on_outcome`` → ``core.decide`` →
writer → ``on_recorded`` → lane. Everything here runs on the event loop and does no I/O of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from ackpost.core import retry as retries
from ackpost.core.decide import EndpointView, decide_after_attempt, decide_ending
from ackpost.core.decision import Decision
from ackpost.core.ids import PARTITION_COUNT
from ackpost.core.model import FIRST, DeliveryRef, Endpoint, Job
from ackpost.core.outcome import Outcome
from ackpost.core.target import Target
from ackpost.engine.budget import Budget
from ackpost.engine.dispatcher import Dispatcher
from ackpost.engine.flights import Flight, Flights
from ackpost.engine.lane import Lane
from ackpost.engine.loader import Loader
from ackpost.engine.partitions import Cluster, Partitions
from ackpost.engine.request import RequestBuilder
from ackpost.engine.slots import Slots
from ackpost.engine.waiters import AttemptWaiters
from ackpost.engine.writer import Writer
from ackpost.errors import FormatConflict, StoreLocked
from ackpost.ports.clock import Clock, Entropy
from ackpost.ports.operations import (
    Accepted,
    DeliveriesChanged,
    Done,
    EndpointSaved,
    JobSaved,
    Promoted,
    Recorded,
    Repeated,
    Result,
)  # fmt: skip
from ackpost.ports.store import Store, Work
from ackpost.ports.telemetry import Telemetry
from ackpost.ports.transport import Transport

UNRECORDED_MAX: Final = 2000
LANES_KEPT: Final = 2000
AGE_CHECK_MS: Final = 1000
SUSPECT_CRASHES: Final = 2
"""What was in flight at so many crashes goes out alone, the last one's result being durable: one that kills the process
takes no other with it a third time (rule E5). After one crash all go on at full speed: it may be anybody's."""
NO_LEASE: Final = 1 << 62
"""A lease that never ends, for an engine without housekeeping."""


class EngineLimits(msgspec.Struct):
    """Bounds of one node."""

    slots: int = 1000
    host_cap: int = 100


class Engine:
    """Owns endpoints and delivers to them. Create, ``start``, later ``drain`` and ``close``."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        transport: Transport,
        clock: Clock,
        entropy: Entropy,
        telemetry: Telemetry,
        slots: Slots,
        *,
        make_builder: Callable[[Endpoint], RequestBuilder],
        limits: EngineLimits,
        on_fatal: Callable[[BaseException], None],
        cluster: Cluster | None = None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._transport = transport
        self._clock = clock
        self._entropy = entropy
        self._telemetry = telemetry
        self._on_fatal = on_fatal
        self._cluster = cluster
        self._loader = Loader(store, self, make_builder, learns_of_jobs=cluster is not None)
        self.dispatcher = Dispatcher(
            clock, self._send, slots=limits.slots, host_cap=limits.host_cap, may_send=self._may_send
        )
        self.lanes: dict[int, Lane] = {}
        self.parts = Partitions(self.lanes, cluster)
        self.flights = Flights(slots)
        self.waiters = AttemptWaiters(store, clock, shared=cluster is not None)
        self.budget = Budget()
        self._draining = False
        self._drained: asyncio.Event = asyncio.Event()
        self._suspects: set[int] = set()
        self._fatal: str | None = None
        self._lanes_kept = LANES_KEPT
        self.lease_until_ms = NO_LEASE
        writer.observer = self

    # ------------------------------------------------------------ ports.engine.EngineView

    async def wait_attempt(self, delivery: int, timeout_s: float) -> bool:
        """Wait until an attempt of this delivery has been recorded; False when the time is over first."""
        return await self.waiters.wait(delivery, timeout_s)

    def in_flight(self, endpoint: int) -> int:
        """Requests under way to an endpoint."""
        lane = self.lanes.get(endpoint)
        return 0 if lane is None else lane.in_flight

    def is_rate_held(self, endpoint: int) -> bool:
        """Whether the endpoint's rate limit holds something back now."""
        lane = self.lanes.get(endpoint)
        return lane is not None and lane.rate_held

    def held_back(self) -> dict[int, str]:
        """Endpoints with work that is held back now, and by what: paused, circuit, retry_after or rate."""
        now_ms = self._clock.now_ms()
        named = ((lane.endpoint, lane.held_by(now_ms)) for lane in self.lanes.values())
        return {endpoint: held for endpoint, held in named if held is not None}

    def due_unsent(self) -> int:
        """Deliveries in memory that are due, held back by nothing and not under way."""
        now_ms = self._clock.now_ms()
        return sum(lane.due_unsent(now_ms) for lane in self.lanes.values() if lane.held_by(now_ms) is None)

    def requests_in_flight(self) -> int:
        """Requests under way, to all endpoints."""
        return self.dispatcher.in_flight

    def partitions_owned(self) -> int:
        """Partitions whose endpoints this engine delivers to."""
        return PARTITION_COUNT if self.parts.owned is None else len(self.parts.owned)

    def readiness(self) -> str | None:
        """None when delivering; else one line why not."""
        if self._fatal is not None:
            return self._fatal
        if self._draining:
            return "The server is stopping."
        return (None if self._cluster is None else self._cluster.trouble()) or self._writer.trouble

    # ------------------------------------------------------------ work comes in

    def hand_off(self, refs: Iterable[DeliveryRef]) -> None:
        """Take due deliveries into their lanes, as far as memory allows; the store keeps them all."""
        for ref in refs:
            lane = self.lanes.get(ref.endpoint)
            if lane is None or lane.leaving:
                if not self.parts.owns(ref.endpoint):
                    self.parts.tell_work(ref.endpoint, ref.tenant)
                    continue
                lane = self._new_lane(ref.endpoint, ref.tenant)
            self._hand_to(lane, ref)

    def _hand_to(self, lane: Lane, ref: DeliveryRef) -> None:
        if ref.position in lane.known:
            return
        view = lane.view
        if view is not None and ref.rev > view.endpoint.rev:
            lane.reload = True
        if view is not None and ref.trigger != "test":
            if view.endpoint.state != "enabled":
                return
            if self._fails_fast(view, ref):
                self._end(lane, ref, "circuit_open")
                return
        if ref.payload is not None and not self.budget.has_room(len(ref.payload.data)):
            ref.payload = None
        lane.push(ref, handed=True)
        if lane.wants_load():
            self._loader.want(lane)
        self.dispatcher.activate(lane)

    def _fails_fast(self, view: EndpointView, ref: DeliveryRef) -> bool:
        """Accepted while its circuit is open (the position tells when), and the policy does not let it wait."""
        circuit = view.circuit
        if circuit.state != "open" or view.policy.circuit.on_open != "fail-fast" or ref.klass != FIRST:
            return False
        return ref.position >> 20 >= circuit.opened_at_ms and self._clock.now_ms() < circuit.retry_at_ms

    def found_work(self, work: Sequence[Work], *, by_others: bool = False) -> None:
        """The poll's truth (rule E1): endpoints with rows in the store, whether or not a hint came.

        ``by_others``: nodes whose hints may not have arrived may have added rows behind those that are known.
        """
        now_ms = self._clock.now_ms()
        for item in work:
            lane = self.lanes.get(item.endpoint)
            if lane is None or lane.leaving:
                if not self.parts.owns(item.endpoint):
                    continue
                lane = self._new_lane(item.endpoint, item.tenant)
            elif by_others or (item.due_ms <= now_ms and lane.misses(item.klass, item.due_ms)):
                lane.complete[item.klass] = False
            if lane.wants_load():
                self._loader.want(lane)
            self.dispatcher.activate(lane)

    def touch(self, endpoints: Iterable[int]) -> None:
        """These endpoints or their deliveries were changed by others: reload before sending (rule E2)."""
        for endpoint in endpoints:
            lane = self.lanes.get(endpoint)
            if lane is not None:
                lane.reload = lane.dirty = True
                self._loader.want(lane)
            else:
                self.parts.tell_change(endpoint)

    def heard_work(self, found: Iterable[tuple[int, int]]) -> None:
        """Another node accepted deliveries for these endpoints (with their tenants)."""
        now_ms = self._clock.now_ms()
        work = [Work(endpoint, tenant, FIRST, now_ms) for endpoint, tenant in found if self.parts.owns(endpoint)]
        self.found_work(work, by_others=True)

    def heard_change(self, endpoints: Iterable[int]) -> None:
        """Another node changed these endpoints or their deliveries."""
        self.touch(endpoint for endpoint in endpoints if endpoint in self.lanes)

    def abandon(self) -> None:
        """Own nothing any more, at once: others may have taken all. What is under way is aborted and not recorded."""
        flights = self.flights.forget_all()
        for position in flights:
            self.budget.recorded(position)
        self.parts.drop_all()
        for flight in flights.values():
            self.dispatcher.finished(flight.lane, flight.host, troubled=flight.troubled)
        self._suspects.clear()
        self.budget.rebuilding.clear()
        if self._draining:
            self._drained.set()

    def on_fenced(self) -> None:
        """The store no longer takes this node's results: it was declared dead."""
        if self._cluster is None:
            self.on_fatal(StoreLocked("This server does not own the database any more."))
        else:
            self._cluster.on_fenced()

    def _new_lane(self, endpoint: int, tenant: int) -> Lane:
        if len(self.lanes) >= self._lanes_kept:
            for idle in [lane for lane in self.lanes.values() if lane.is_idle()]:
                del self.lanes[idle.endpoint]
            self._lanes_kept = max(LANES_KEPT, 2 * len(self.lanes))
        lane = self.lanes[endpoint] = Lane(endpoint, tenant, self.budget)
        self._loader.want(lane)
        return lane

    def lane_filled(self, lane: Lane) -> None:
        """A lane has new configuration or references."""
        if lane.leaving:
            lane.leave()
            return
        if lane.view is not None and lane.view.circuit.state == "open":
            for ref in lane.withdraw(partial(self._fails_fast, lane.view)):
                self._end(lane, ref, "circuit_open")
        if lane.wants_load():
            self._loader.want(lane)
        self.dispatcher.activate(lane)

    def lane_gone(self, lane: Lane) -> None:
        """The endpoint was deleted: what is under way ends, nothing more is sent."""
        lane.forget_queued()
        self.lanes.pop(lane.endpoint, None)

    def lane_broken(self, lane: Lane, reason: str) -> None:
        """The endpoint as stored cannot be sent to; its deliveries wait until it is changed."""
        self._telemetry.note("endpoint.broken", endpoint=lane.endpoint, reason=reason)

    def payload_loaded(self, lane: Lane, ref: DeliveryRef) -> None:
        """Go on with a delivery that waited for its payload; without data it is dead."""
        if lane.unfetched.get(ref.position) is not ref:
            return  # the lane was loaded anew meanwhile
        del lane.unfetched[ref.position]
        if ref.payload is None:
            self._end(lane, ref, "data_expired")
        else:
            lane.push(ref, handed=False)
        self.dispatcher.activate(lane)

    # ------------------------------------------------------------ sending

    def _may_send(self) -> bool:
        if self._draining or self.unrecorded() >= UNRECORDED_MAX or not self.budget.may_send():
            return False
        return self.holds_lease()

    def holds_lease(self) -> bool:
        """Say whether nobody else may deliver now what this node owns (rule E3)."""
        if self._cluster is not None:
            return self._cluster.lease.is_valid()
        return self._clock.now_ms() < self.lease_until_ms

    def renewed(self, lease_until_ms: int) -> None:
        """Nobody else may own the store before that time; after it nothing is sent (rule E3)."""
        self.lease_until_ms = lease_until_ms
        self.dispatcher.kick()

    def unrecorded(self) -> int:
        """Answers whose results are not durable yet (bounded, rule E6)."""
        return self.flights.unrecorded()

    def _send(self, lane: Lane, ref: DeliveryRef, now_ms: int) -> None:
        """Start one attempt, or do what the delivery needs first."""
        view, builder = lane.view, lane.builder
        if view is None or builder is None:
            return
        payload = ref.payload
        if payload is None:
            self._loader.want_payload(lane, ref)
            return
        overdue_ms = now_ms - ref.due_ms
        if (ref.round_attempts or overdue_ms > AGE_CHECK_MS) and ref.trigger != "test":
            age_ms = view.endpoint.clock_ms(now_ms) - ref.age_start_ms
            if retries.aged_out(view.policy.retry, age_ms, overdue_ms):
                self._end(lane, ref, "age_exceeded")
                return
        if ref.crashes >= SUSPECT_CRASHES and self._suspects:
            ref.due_ms = now_ms + 100
            lane.push(ref, handed=False)
            return
        # Marked before its data is touched: a delivery that ends the process at any step from here on is counted.
        self.flights.mark(ref)
        try:
            wire = builder.build(ref, payload, wall_s=self._clock.wall_s(), now_ms=now_ms)
        except FormatConflict:
            self.flights.unmark(ref.position)
            self._end(lane, ref, "format_conflict")
            return
        except Exception as error:
            self.on_fatal(error)
            raise
        self.budget.started(ref.position, len(payload.data))
        if not self.budget.is_kept(len(payload.data)):
            lane.drop_payload(ref)
        self._start(lane, ref, builder.target, payload.type, wire, now_ms)

    def _start(
        self, lane: Lane, ref: DeliveryRef, target: Target, event_type: str, wire: tuple[bytes, bytes], now_ms: int
    ) -> None:
        host, troubled = target.pool_key, lane.troubled
        lane.started(now_ms)
        self.dispatcher.started(host, troubled=troubled)
        if ref.crashes >= SUSPECT_CRASHES:
            self._suspects.add(ref.position)
        timeout_s = 5.0 if lane.policy is None else lane.policy.timeout_s
        done = partial(self._on_outcome, lane, ref, event_type, host, troubled, now_ms)
        request = self._transport.send(target, *wire, timeout_s, done)
        self.flights.began(ref.position, Flight(request, lane, host, troubled, done))

    def _on_outcome(
        self,
        lane: Lane,
        ref: DeliveryRef,
        event_type: str,
        host: str,
        troubled: bool,
        started_ms: int,
        outcome: Outcome,
    ) -> None:
        """An attempt ended: judge it. Should that fail, the node ends, and what was in flight is counted (rule E5)."""
        self.flights.ended(ref.position)
        try:
            self._judge(lane, ref, event_type, started_ms, outcome)
        except Exception as error:
            self.on_fatal(error)
            raise
        self.dispatcher.finished(lane, host, troubled=troubled)
        if self._draining and not self.flights:
            self._drained.set()

    def _judge(self, lane: Lane, ref: DeliveryRef, event_type: str, started_ms: int, outcome: Outcome) -> None:
        """Decide and hand the result to the writer."""
        view = lane.view
        if view is None:
            raise RuntimeError("an attempt ended in a lane that was never configured")
        before = view.circuit.state
        decision = decide_after_attempt(
            ref,
            view,
            outcome,
            started_ms=started_ms,
            now_ms=self._clock.now_ms(),
            unit=0.0 if outcome.code == "delivered" and before == "closed" else self._entropy.unit(),
            event_type=event_type,
        )
        lane.finished(decision, outcome)
        if view.circuit.state != before:
            self._telemetry.circuit(lane.endpoint, view.circuit.state)
        waited_for = ref.ordered or ref.trigger == "test" or ref.crashes >= SUSPECT_CRASHES
        self._writer.record(decision, urgent=waited_for)

    def _end(self, lane: Lane, ref: DeliveryRef, reason: str) -> None:
        """End a delivery as dead without an attempt."""
        if lane.view is None:
            return
        lane.keep(ref)
        event_type = "" if ref.payload is None else ref.payload.type
        self._writer.record(decide_ending(ref, lane.view, reason, now_ms=self._clock.now_ms(), event_type=event_type))

    # ------------------------------------------------------------ engine.writer.CommitObserver

    def on_result(self, result: Result | Repeated) -> None:
        """An operation of a service was stored: take what is due, reload what was touched."""
        if type(result) is Accepted:
            if result.refs:
                self.hand_off(result.refs)
        elif isinstance(result, EndpointSaved):
            if result.job is not None and result.endpoint.state != "disabled":
                self.budget.rebuilding[result.endpoint.position] = result.job
            self.touch((result.endpoint.position,))
        elif isinstance(result, DeliveriesChanged | JobSaved):
            if isinstance(result, JobSaved):
                self.note_job(result.job)
            self.touch(result.touched)
            self.hand_off(result.refs)
        elif isinstance(result, Done):
            self.touch(result.touched)
        elif isinstance(result, Promoted):
            self.hand_off(result.refs)

    def note_job(self, job: Job) -> None:
        """Hold an endpoint back while a job rebuilds the order of its deliveries (rule E4)."""
        if job.kind != "switch_ordering":
            return
        endpoint = int(job.params["endpoint"])
        if job.state in ("queued", "running"):
            self.budget.rebuilding[endpoint] = job.position
        elif self.budget.rebuilding.get(endpoint) == job.position:
            del self.budget.rebuilding[endpoint]
            self.touch((endpoint,))

    def jobs_ended(self, rebuilding: dict[int, int], open_jobs: Container[int]) -> None:
        """Let go what was held back for jobs that are no longer open, though nobody told of their end."""
        for endpoint, job in rebuilding.items():
            if job not in open_jobs and self.budget.rebuilding.get(endpoint) == job:
                del self.budget.rebuilding[endpoint]
                self.touch((endpoint,))

    def on_recorded(self, decisions: Sequence[Decision], recorded: Recorded) -> None:
        """Results are durable: free their marks, queue the next attempts."""
        for decision, applied in zip(decisions, recorded.applied, strict=True):
            self.flights.unmark(decision.delivery)
            self._suspects.discard(decision.delivery)
            self.budget.recorded(decision.delivery)
            lane = self.lanes.get(decision.endpoint)
            if lane is not None:
                lane.settled(decision, applied)
                if not applied:
                    lane.reload = lane.dirty = True
                if lane.leaving:
                    lane.forget_queued()
                self.dispatcher.activate(lane)
                if lane.wants_load():
                    self._loader.want(lane)
            self.waiters.recorded(decision.delivery)
        # What else an attempt changes of its endpoint is in memory already; disabling made a job and raised the rev.
        self.touch(decision.endpoint for decision in decisions if _disables(decision))
        self.hand_off(recorded.refs)
        self.dispatcher.kick()

    def on_fatal(self, error: BaseException) -> None:
        """The writer has stopped: stop sending, let the process end."""
        self._fatal = f"The delivery engine has stopped: {error}"
        self._draining = True
        self._on_fatal(error)

    def stop_sending(self) -> None:
        """Start no request any more."""
        self._draining = True

    async def drain(self, grace_s: float) -> int:
        """Send nothing more, wait for what is in flight; give the number of requests that had to be cut off."""
        self.stop_sending()
        if self.flights:
            self._drained.clear()
            try:
                async with asyncio.timeout(grace_s):
                    await self._drained.wait()
            except TimeoutError:
                self.flights.abort_all()
        cut_off = len(self.flights)
        await self._loader.close()
        self.dispatcher.close()
        return cut_off


def _disables(decision: Decision) -> bool:
    return decision.endpoint_change is not None and decision.endpoint_change.disable_reason is not None
