"""The receiver of the demo: each path behaves in its own way, whoever sends and however often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ackpost.cli.verifying import Verifier
from ackpost.errors import AckpostError
from ackpost.ports.clock import Clock
from ackpost.testing.faults import FaultServer, SeenRequest
from ackpost.testing.script import Step, parse_script, step_for

FINE: Final = frozenset({"/messages", "/store", "/archive", "/renewals"})
FLAKY: Final = "/flaky"
SICK: Final = "/sick"
_FLAKY_SCRIPT: Final = parse_script("500*2,200")
_REQUESTS_MAX: Final = 5_000


class Arrival(msgspec.Struct, frozen=True):
    """A request that came; ``at_ms`` on the wall clock, ``fault``: why its signature would be refused."""

    path: str
    event_id: str
    at_ms: int
    timestamp_s: int
    status: int
    body: bytes
    fault: str | None


class Receiver:
    """Answers, verifies and keeps what came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._server = FaultServer(self._answer, keep_max=1)
        self._sick_until_s = 0.0
        self._outages: set[str] = set()
        self._news = asyncio.Event()
        self.verifiers: dict[str, Verifier] = {}
        self.arrivals: list[Arrival] = []

    async def start(self) -> None:
        """Listen on a free port."""
        await self._server.start()

    async def stop(self) -> None:
        """Listen no more."""
        await self._server.stop()

    def url(self, path: str) -> str:
        """The URL of a path."""
        return self._server.url(path)

    def of(self, event_id: str, path: str | None = None) -> list[Arrival]:
        """Give all requests with one event, in order."""
        return [one for one in self.arrivals if one.event_id == event_id and path in {None, one.path}]

    async def until(self, what: str, is_so: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for requests.

        Raises: AckpostError when they do not come in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AckpostError(f"{what}: not within {timeout_s:g} s") from None

    def _answer(self, request: SeenRequest) -> Step:
        event_id = request.header("webhook-id") or request.header("x-webhook-id") or ""
        step = self._step(request, event_id)
        verifier = self.verifiers.get(request.path)
        now_ms = self._clock.now_ms()
        fault = None if verifier is None else verifier.fault(request, now_ms // 1000)
        timestamp = request.header("webhook-timestamp") or request.header("x-webhook-timestamp") or "0"
        self.arrivals.append(Arrival(request.path, event_id, now_ms, int(timestamp), step.status, request.body, fault))
        if len(self.arrivals) > _REQUESTS_MAX:
            del self.arrivals[: _REQUESTS_MAX // 2]
        self._news.set()
        return step

    def _step(self, request: SeenRequest, event_id: str) -> Step:
        if request.path in FINE:
            return Step()
        if request.path == FLAKY:
            return step_for(_FLAKY_SCRIPT, int(request.header("ackpost-attempt") or "1") - 1)
        if request.path == SICK:
            if event_id not in self._outages:
                self._outages.add(event_id)
                self._sick_until_s = max(self._sick_until_s, request.at_s + _outage_s(request.body))
            return Step(status=503 if request.at_s < self._sick_until_s else 200)
        return Step(status=404)


def _outage_s(body: bytes) -> float:
    """How long the event says that the receiver is to be sick from now on."""
    event: Any = msgspec.json.decode(body)
    data = event.get("data")
    return float(data.get("outage_s", 0)) if isinstance(data, dict) else 0.0
