"""Trouble with the file while a server runs: held by others, full; nothing acknowledged is lost, and it resumes."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ackpost.cli.client import ApiFailed
from tests.needs import need_root
from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until
from tests.process.space import Space, small_space

LARGE = b'"' + b"x" * 100_000 + b'"'


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    """A place that can be made full."""
    with small_space(tmp_path) as made:
        yield made


def test_a_file_that_another_process_writes_to_is_waited_for(own_server: Server, receiver: Receiver) -> None:
    """While another process holds the write lock for 2 s nothing is refused; everything is delivered once."""
    server = own_server.start()
    server.endpoint(receiver.hook("/busy"), "busy.file")
    with Publishers(server, "busy.file", connections=8, pace_s=0.01) as publishers:
        receiver.wait("/busy", 50)
        with closing(sqlite3.connect(server.database, timeout=10, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            held_until = time.monotonic() + 2.0
            until(lambda: time.monotonic() >= held_until, "two seconds")
            before = len(publishers.acknowledged)
            assert server.get("/events", limit=1)["data"]
            other.execute("ROLLBACK")
        until(lambda: len(publishers.acknowledged) > before + 50, "publishing goes on")
    assert publishers.refusals == {}
    until(lambda: books.count(server.database, "delivery") == 0, "everything delivered")
    requests = Counter(request.header("webhook-id") for request in receiver.seen("/busy"))
    assert requests == dict.fromkeys(publishers.acknowledged.values(), 1)
    assert server.stop() == 0


def _publish_until_full(server: Server, type: str) -> tuple[list[str], ApiFailed]:
    """Publish large events until one is refused; give what was acknowledged, and the refusal."""
    acknowledged: list[str] = []
    for _ in range(1000):
        try:
            acknowledged.append(server.publish(type, LARGE)["id"])
        except ApiFailed as refused:
            return acknowledged, refused
    raise AssertionError("it never became full")


@pytest.mark.timeout(120)
def test_a_full_disk_refuses_events_and_loses_none(space: Space, receiver: Receiver) -> None:
    """A full disk: 503 with Retry-After, reads work; with room again it resumes within 10 s, each event sent once."""
    with Server(space.folder) as server:
        server.endpoint(receiver.hook("/full", "200:delay=0.7"), "full.disk")
        acknowledged = [server.publish("full.disk", LARGE)["id"] for _ in range(5)]
        receiver.wait("/full", 5)
        space.fill(server)
        more, refused = _publish_until_full(server, "full.disk")
        acknowledged += more
        assert (refused.status, refused.problem["code"]) == (503, "storage_full")
        assert refused.retry_after_s is not None
        assert refused.retry_after_s >= 1
        until(lambda: server.refused("GET", "/readyz", version="").status == 503, "not ready")
        assert server.get(f"/events/{acknowledged[0]}")["id"] == acknowledged[0]
        assert server.api.call_bytes("GET", f"/v1/events/{acknowledged[-1]}/data") == LARGE
        assert server.refused("POST", "/events", {"type": "full.disk", "data": "x" * 100_000}).status == 503
        space.free(server)
        freed_at = time.monotonic()
        acknowledged.append(until(lambda: _accepted(server), "an event accepted again", 10))
        resumed_s = time.monotonic() - freed_at
        for event in acknowledged:
            server.settled(event)
        requests = Counter(request.header("webhook-id") for request in receiver.seen("/full"))
        assert requests == dict.fromkeys(acknowledged, 1)
        assert len(server.get("/events", limit=250)["data"]) == len(acknowledged)
        assert server.api.call("GET", "/readyz") is not None
        assert server.stop() == 0
        assert books.rows(server.database, "PRAGMA integrity_check") == [("ok",)]
        print(f"\nfull disk: acknowledged {len(acknowledged)}, lost 0, sent again 0, resumed after {resumed_s:.2f} s")


def _accepted(server: Server) -> str | None:
    try:
        return str(server.publish("full.disk", LARGE)["id"])
    except ApiFailed as refused:
        assert refused.problem["code"] == "storage_full"
        return None


@pytest.mark.timeout(120)
def test_a_full_disk_stops_neither_deliveries_nor_deletes(space: Space, receiver: Receiver) -> None:
    """What was accepted before is delivered and recorded, data and endpoints can be deleted, a stop is a clean one."""
    need_root()
    with Server(space.folder) as server:
        other = server.endpoint(receiver.hook("/other"), "other.type")["id"]
        server.endpoint(receiver.hook("/slow", "200:delay=0.5"), "slow.type", policy={"max_in_flight": 5})
        acknowledged = [server.publish("slow.type")["id"] for _ in range(40)]
        space.fill(server)
        more, refused = _publish_until_full(server, "other.type")
        assert refused.problem["code"] == "storage_full"
        before = len(receiver.seen("/slow"))
        assert before < len(acknowledged), "nothing waited when the disk was full"
        for event in more[:5]:
            server.api.call_bytes("DELETE", f"/v1/events/{event}/data")
            assert server.refused("GET", f"/events/{event}/data").status == 410
        server.api.call_bytes("DELETE", f"/v1/endpoints/{other}")
        assert server.refused("GET", f"/endpoints/{other}").status == 404
        for event in acknowledged:
            server.settled(event)
        assert server.refused("POST", "/events", {"type": "slow.type", "data": "x" * 100_000}).status == 503
        assert server.refused("GET", "/readyz", version="").status == 503
        assert server.stop() == 0
        requests = Counter(request.header("webhook-id") for request in receiver.seen("/slow"))
        assert requests == dict.fromkeys(acknowledged, 1)
        space.free(server)
        server.start()
        server.settled(server.publish("slow.type")["id"])
        assert server.stop() == 0


@pytest.mark.timeout(120)
def test_a_server_on_a_full_disk_can_be_stopped(space: Space, receiver: Receiver) -> None:
    """SIGTERM on a full disk ends the server in time with one clear line; what it could not record is sent again."""
    with Server(space.folder) as server:
        server.endpoint(receiver.hook("/stuck", "200:delay=1"), "stuck.disk")
        event = server.publish("stuck.disk")
        receiver.wait("/stuck")
        space.fill(server)
        _publish_until_full(server, "other.type")
        space.fill(server)
        server.process.terminate()
        code, lines = server.wait()
        assert code == 1
        assert [line for line in lines if line.startswith("ackpost: ")] == lines[-1:]
        assert "No space is left" in lines[-1]
        space.free(server)
        server.start()
        assert server.settled(event["id"])["attempt_count"] == len(receiver.seen("/stuck"))
        assert server.stop() == 0
