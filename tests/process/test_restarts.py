"""A new process is started while the old one still ends, again and again, under publishers that retry (R28)."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import START_S, Server, until

TYPE = "restart.load"
POLICY = {"retry": {"base_s": 0.05, "cap_s": 0.2}, "circuit": {"enabled": False}, "max_in_flight": 100}
PATHS = {"/quick": "200", "/slow": "200:delay=0.8"}
RESTARTS = 3
RETRIABLE = {
    "ConnectionRefusedError", "ConnectionResetError", "RemoteDisconnected", "BrokenPipeError",
    "503 starting retry-after=1",
}  # fmt: skip


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    """A receiver whose requests are all of this test."""
    with Receiver() as running:
        yield running


def _follow(old: Server, new: Server) -> tuple[float, list[str]]:
    """Start the new one, ask the old one to stop, and start the new one again as often as it is refused.

    Gives how long the old one took, and what the refusals said.
    """
    code, refusals = new.fail()
    assert code == 1
    old.process.send_signal(signal.SIGTERM)
    asked_at = time.monotonic()
    new.launch()

    def serves() -> bool:
        if new.process.poll() is not None:
            code, complaint = new.wait()
            assert code == 1
            refusals.extend(complaint)
            new.launch()
        return bool(new.logged("server.started"))

    ended = until(lambda: old.process.poll() is not None and time.monotonic(), "the old one's end", START_S)
    until(serves, "the new one's start", START_S)
    code, complaint = old.wait()
    assert code == 0, complaint
    return ended - asked_at, refusals


@pytest.mark.timeout(120)
def test_restarts_under_load_lose_and_repeat_nothing(tmp_path: Path, receiver: Receiver) -> None:
    """Requests under way end first, the next process takes over, and publishers see only what they may repeat."""
    server, successor = Server(tmp_path).start(), Server(tmp_path)
    successor.port = server.port
    for path, script in PATHS.items():
        server.endpoint(receiver.hook(path, script), TYPE, policy=POLICY)
    took_s: list[float] = []
    refusals: list[str] = []
    with Publishers(server, TYPE, connections=4, pace_s=0.05) as publishers:
        for _ in range(RESTARTS):
            receiver.wait("/quick", len(receiver.seen("/quick")) + 50)
            receiver.wait("/slow", len(receiver.seen("/slow")) + 10)
            seconds, said = _follow(server, successor)
            took_s.append(seconds)
            refusals += said
            server, successor = successor, server
    until(lambda: books.count(server.database, "delivery") == 0, "everything delivered", 60)
    assert [line["cut_off"] for one in (server, successor) for line in one.logged_before("server.stopped")] == [
        0
    ] * RESTARTS
    stored = books.events(server, TYPE)
    assert {uid: event["id"] for uid, event in stored.items()} == publishers.acknowledged
    for path in PATHS:
        requests = Counter(request.header("webhook-id") for request in receiver.seen(path))
        assert requests == dict.fromkeys(publishers.acknowledged.values(), 1)
    assert publishers.refusals.keys() <= RETRIABLE
    assert [text for text in refusals if "is in use: by node" not in text and "cannot listen on" not in text] == []
    assert max(took_s) < 30
    assert server.stop() == 0
    print(
        f"\nrestarts {RESTARTS}, acknowledged {len(stored)}, lost 0, sent again 0, ended within {max(took_s):.1f} s, "
        f"starts refused {len(refusals)}, publishers saw {publishers.refusals}"
    )
