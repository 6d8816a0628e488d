"""Retention and a queue that waits for longer than it: what was not delivered does not leave (R38)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from ackpost.cli.client import ApiFailed
from tests.process import books
from tests.process.clock import Clock
from tests.process.receiver import Receiver
from tests.process.server import Server, until

DAY_S: Final = 86_400
EVENTS: Final = 10


@pytest.mark.timeout(120)
def test_nothing_undelivered_leaves_by_age(tmp_path: Path, receiver: Receiver) -> None:
    """Kept for a day, paused for three: what was delivered is gone, what was not waits and is delivered at last."""
    clock = Clock(tmp_path)
    environment = {**clock.environment, "ACKPOST_RETENTION_EVENTS_DAYS": "1"}
    clock.set(-3 * DAY_S)
    with Server(tmp_path, environment=environment) as server:
        server.endpoint(receiver.hook("/prompt"), ["sent.both", "sent.one"])
        paused = server.endpoint(receiver.hook("/paused"), "sent.both")["id"]
        server.post(f"/endpoints/{paused}/pause")
        waiting = [server.publish("sent.both")["id"] for _ in range(EVENTS)]
        delivered = [server.publish("sent.one")["id"] for _ in range(EVENTS)]
        receiver.wait("/prompt", 2 * EVENTS)
        until(lambda: books.count(server.database, "delivery") == EVENTS, "the prompt ones recorded")
        assert server.stop() == 0
        clock.set(0)
        server.start()
        newest = server.publish("sent.one")["id"]
        server.restart()
        until(lambda: _gone(server, delivered), "what was delivered leaves")
        assert {event["id"] for event in server.get("/events", limit=250)["data"]} == {*waiting, newest}
        server.post(f"/endpoints/{paused}/resume")
        requests = receiver.wait("/paused", EVENTS)
        assert {request.header("webhook-id") for request in requests} == set(waiting)
        until(lambda: books.count(server.database, "delivery") == 0, "all recorded")
        assert server.stop() == 0


@pytest.mark.timeout(120)
def test_an_event_under_a_clock_ten_years_ahead_makes_no_other_old(tmp_path: Path, receiver: Receiver) -> None:
    """Kept for a day: one start with the wrong clock, one event, the clock set right: all events are still there."""
    clock = Clock(tmp_path)
    environment = {**clock.environment, "ACKPOST_RETENTION_EVENTS_DAYS": "1"}
    with Server(tmp_path, environment=environment) as server:
        server.endpoint(receiver.hook("/kept"), "kept.event")
        events = [server.publish("kept.event")["id"] for _ in range(EVENTS)]
        for ahead_s in (3650 * DAY_S, 0):
            for event in events:
                server.settled(event)
            clock.set(ahead_s)
            server.restart()
            events.append(server.publish("kept.event")["id"])
        # Retention's first step is queued at the start: what is accepted and recorded now comes after it.
        events += [server.publish("kept.event")["id"] for _ in range(3)]
        for event in events[EVENTS:]:
            server.settled(event)
        assert [event["id"] for event in server.get("/events", order="asc", limit=250)["data"]] == events
        assert server.stop() == 0


def _gone(server: Server, events: list[str]) -> bool:
    for event in events:
        try:
            server.get(f"/events/{event}")
        except ApiFailed as failed:
            assert failed.status == 404
        else:
            return False
    return True
