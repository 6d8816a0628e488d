"""A million ended deliveries leave in small steps while others are accepted and delivered (rule E14)."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from ackpost import config
from ackpost.core.jsondata import PublishBody
from ackpost.engine import housekeeping
from ackpost.errors import RequestError
from ackpost.ports.operations import Operation, Repeated, Result, Retain, Retained
from ackpost.wiring.lines import LineSink
from ackpost.wiring.logs import NodeTelemetry
from ackpost.wiring.node import Node
from ackpost.wiring.system import SystemClock
from tests.process import books
from tests.process.receiver import Receiver
from tests.process.server import Server

DAY_MS = 24 * 3600 * 1000
EVENTS = 250_000
FANOUT = 4
DELIVERIES_A_STEP_MAX = 5_000 + FANOUT

FILL = """
WITH RECURSIVE old (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM old WHERE n + 1 < ?1)
INSERT INTO event (position, tenant, type, fanout, data)
SELECT (?2 + n) << 20, ?3, 'old.event', ?4, CAST('{"n":' || n || '}' AS BLOB) FROM old
"""
FILL_ENDED = """
INSERT INTO history (position, event_offset, tenant, endpoint, ended_ms, status_code, attempt_position, started_ms,
    duration_ms, detail)
SELECT e.position + ?1, ?1, e.tenant, ?2, (e.position >> 20) + 5, 200, e.position + 10 + ?1, e.position >> 20,
    1.5, x'80'
FROM event e WHERE e.type = 'old.event'
"""


class Steps:
    """Stands between writer and store, and notes each commit that has a step of retention in it."""

    def __init__(self, node: Node) -> None:
        self._commit = node.store.commit
        node.store.commit = self.commit  # type: ignore[method-assign]  # the hook of this test
        self.taken_ms: list[float] = []
        self.retained: list[Retained] = []
        self.all_gone = asyncio.Event()

    async def commit(self, operations: Sequence[Operation]) -> list[Result | Repeated | RequestError]:
        """Commit, and look at the step's result."""
        began = time.perf_counter()
        replies = await self._commit(operations)
        took_ms = (time.perf_counter() - began) * 1000
        for operation, reply in zip(operations, replies, strict=True):
            if isinstance(operation, Retain) and isinstance(reply, Retained):
                self.taken_ms.append(took_ms)
                self.retained.append(reply)
                if not reply.more:
                    self.all_gone.set()
        return replies


def _fail(error: BaseException) -> None:
    raise error


def _fill(server: Server) -> None:
    """Write old events and their ended deliveries beside the server's own rows."""
    with closing(apsw.Connection(str(server.database))) as filler:
        filler.pragma("synchronous", "off")
        sql = "SELECT position, tenant FROM endpoint"
        endpoint, tenant = filler.execute(sql).get
        old_ms = int(time.time() * 1000) - 40 * DAY_MS
        with filler:
            filler.execute(FILL, (EVENTS, old_ms, tenant, FANOUT))
            for offset in range(1, FANOUT + 1):
                filler.execute(FILL_ENDED, (offset, endpoint))


async def _publish_until(node: Node, done: asyncio.Event) -> int:
    """Publish an event about every ten milliseconds; each says when."""
    tenant = await node.store.tenant_by_uid("default")
    assert tenant is not None
    published = 0
    while not done.is_set():
        data = msgspec.Raw(b"%.6f" % time.monotonic())
        await node.services.publisher.publish(tenant.position, PublishBody("new.event", data), None)
        published += 1
        try:
            await asyncio.wait_for(done.wait(), 0.01)
        except TimeoutError:
            continue
    return published


def _shown(name: str, values_ms: list[float]) -> str:
    ordered = sorted(values_ms)
    p99 = ordered[int(len(ordered) * 0.99)]
    return f"{name}: median {statistics.median(ordered):.1f} ms, p99 {p99:.1f} ms, longest {ordered[-1]:.1f} ms"


@pytest.mark.timeout(150)
def test_a_million_ended_deliveries_leave_while_others_are_delivered(tmp_path: Path, receiver: Receiver) -> None:
    """All old rows are removed, no step takes more rows than its bound, and new events are delivered meanwhile."""
    with Server(tmp_path) as server:
        server.endpoint(receiver.hook("/new"), "new.event", format="bare")
        server.settled(server.publish("new.event", b"0")["id"])
        assert server.stop() == 0
    _fill(server)
    assert books.count(server.database, "history") == EVENTS * FANOUT + 1
    settings = config.load({"database_url": f"sqlite:///{server.database}", "dev": True}, {}, tmp_path)

    async def scenario(log: int) -> tuple[Steps, int, float]:
        sink = LineSink(log)
        node = Node(settings, NodeTelemetry(sink, SystemClock(), log_format="json", log_level="error"), port=1)
        steps = Steps(node)
        began = time.monotonic()
        await node.start(_fail)
        published = await _publish_until(node, steps.all_gone)
        took_s = time.monotonic() - began
        assert await node.stop() == 0
        sink.close()
        return steps, published, took_s

    with Path(os.devnull).open("wb") as nowhere:
        steps, published, took_s = asyncio.run(scenario(nowhere.fileno()))
    requests = receiver.wait("/new", published + 1)
    assert len(requests) == published + 1
    assert books.count(server.database, "event WHERE type = 'old.event'") == 0
    assert books.count(server.database, "event") == books.count(server.database, "history") == published + 1
    assert sum(step.removed["deliveries"] for step in steps.retained) == EVENTS * FANOUT
    assert max(step.removed["events"] for step in steps.retained) <= housekeeping.RETENTION_ROWS
    assert max(step.removed["deliveries"] for step in steps.retained) <= DELIVERIES_A_STEP_MAX
    waits_ms = [(request.at_s - float(request.body)) * 1000 for request in requests[1:]]
    over = sum(taken > 100 for taken in steps.taken_ms)
    print(
        f"\nretention: {EVENTS * FANOUT:,} ended deliveries of {EVENTS:,} events in {took_s:.0f} s and "
        f"{len(steps.taken_ms)} steps, {over} over 100 ms; {_shown('step', steps.taken_ms)}; meanwhile {published} "
        f"events, {_shown('accept to received', waits_ms)}"
    )
