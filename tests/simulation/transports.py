"""How a simulated process sends: to models that give outcomes, or through the real HTTP client over bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from ackpost.core.addresses import AddressPolicy
from ackpost.core.ids import parse_id
from ackpost.core.outcome import Outcome
from ackpost.core.target import Target
from ackpost.egress.client import HttpClient
from ackpost.egress.limits import Limits
from ackpost.egress.request import Request
from tests.simulation.history import Send, Violation
from tests.simulation.loop import Process
from tests.simulation.network import PORT, Network

if TYPE_CHECKING:
    from tests.simulation.world import World


def begin(world: World, process: Process, target: Target, headers: bytes, body: bytes) -> Send:
    """Note a request that the engine sends, and check it. Raises: Violation."""
    lines = [line.partition(": ") for line in headers.decode("latin-1").split("\r\n") if line]
    named = {name.lower(): value for name, _, value in lines}
    text = named.get("webhook-id") or named["x-webhook-id"]
    event = parse_id("evt", text, world.salt)
    if event is None:
        raise Violation(f"a request with a malformed id: {text}")
    endpoint = world.endpoint_at(target.path_query, event)
    delivery, round_ = world.delivery_of(event, endpoint)
    send = Send(
        at_ms=world.clock_of(process).now_ms(), true_ms=world.true_ms(), process=process, endpoint=endpoint,
        event=event, delivery=delivery, round=round_, number=int(named["ackpost-attempt"]),
        is_test="ackpost-test" in named, headers=named, body=body,
    )  # fmt: skip
    world.checks.on_send(send)
    world.history.add(send)
    return send


class Flight:
    """A request under way in the simulated network; ``request`` is the real client's."""

    def __init__(self, world: World, send: Send | None = None, request: Request | None = None) -> None:
        self._world = world
        self.aborted = False
        self.send = send
        self.request = request

    def abort(self) -> None:
        """Never call back."""
        self.aborted = True
        if self.request is not None:
            self.request.abort()
        if self.send is not None:
            self._world.aborted(self.send)


class ModelTransport:
    """Sends to the world's models, and shows each request to the checks first."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def send(
        self, target: Target, headers: bytes, body: bytes, timeout_s: float, on_done: Callable[[Outcome], None]
    ) -> Flight:
        """Start one request."""
        world, process = self._world, self._process
        flight = Flight(world)
        if not process.alive:
            return flight
        send = flight.send = begin(world, process, target, headers, body)
        answer = world.models[target.path_query].answer(world.loop.time(), timeout_s)

        def finish() -> None:
            send.code, send.status_code = answer.outcome.code, answer.outcome.status_code
            send.done_ms = world.true_ms()
            if process.alive and not flight.aborted:
                world.loop.call_soon(tell, context=process.context)

        def tell() -> None:
            if flight.aborted:
                return
            send.told = True
            world.checks.on_answer(send, answer.outcome.retry_after)
            on_done(answer.outcome)

        world.loop.call_later(answer.delay_s, finish, context=world.context)
        world.request_left(send)
        return flight

    async def close(self) -> None:
        """There are no connections."""


class WireTransport:
    """Sends through ``egress.HttpClient``, and compares what it says with the bytes that went over the wire."""

    def __init__(
        self, world: World, process: Process, network: Network, may_write: Callable[[], bool] = lambda: True
    ) -> None:
        self._world = world
        self._process = process
        self._network = network
        limits = Limits(
            connections_per_host_max=world.host_cap, connections_max=world.slots, idle_s=world.idle_s,
            connect_s=world.connect_s, tls_s=world.connect_s,
        )  # fmt: skip
        policy = AddressPolicy((), frozenset(), {PORT + 1})
        self.client = HttpClient(policy, resolver=network, ssl_context=_context(), limits=limits, may_write=may_write)

    def send(
        self, target: Target, headers: bytes, body: bytes, timeout_s: float, on_done: Callable[[Outcome], None]
    ) -> Flight:
        """Start one request."""
        if not self._process.alive:
            return Flight(self._world)
        send = begin(self._world, self._process, target, headers, body)
        self._network.expect(target.path_query, headers, send, timeout_s)
        request = self.client.send(target, headers, body, timeout_s, partial(self._done, send, on_done))
        return Flight(self._world, send, request)

    def _done(self, send: Send, on_done: Callable[[Outcome], None], outcome: Outcome) -> None:
        world = self._world
        try:
            self._network.judge(send, outcome)
        except Violation as violation:
            world.fail(violation)
        send.code, send.status_code, send.done_ms = outcome.code, outcome.status_code, world.true_ms()
        send.told = True
        world.history.seen[f"phase {outcome.code} {outcome.phase}"] += outcome.phase is not None
        world.checks.on_answer(send, outcome.retry_after)
        on_done(outcome)

    async def close(self) -> None:
        """Close all connections. Raises: Violation when one is left."""
        await self.client.close()
        for _ in range(3):
            await asyncio.sleep(0)  # what was cut off is told a turn later
        left = [end for end in self._network.wire.ends.values() if end.process is self._process]
        if left or self.client.stats().open:
            raise Violation(f"left over: {len(left)} connections, {self.client.stats()}")


@cache
def _context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
