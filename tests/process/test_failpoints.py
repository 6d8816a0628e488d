"""A process that dies, fails or stalls at a named step of accepting and recording (R3, R27)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process import books
from tests.process.failing import CALLS, POINTS, STALL_S, STATEMENTS
from tests.process.mixed import MixedLoad
from tests.process.receiver import Receiver
from tests.process.server import Server, until
from tests.process.test_crash_mixed import LOST, POLICY

ROOT = Path(__file__).resolve().parents[2]
TYPE = "crash.points"
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "/steady": ("200", POLICY),
    "/flaky": ("200*9,500,200", POLICY),
    "/ordered": ("200*20,500,200", {**POLICY, "ordering": "by-key"}),
    "/dying": ("200*30,410,200", {**POLICY, "on_gone": "fail", "retry": {"base_s": 0.05, "max_attempts": 1}}),
}
FIRST_START = "the schema is made"
"""A point that only the first start of a database passes."""
AT_THE_START = {"retention begins", "retention is done", "what was in flight is counted"}
"""Points that every start passes once."""


class Points:
    """One database, on which a server fails at one point after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._count = 0

    def server(self, point: str, action: str, *, after: int = 0) -> tuple[Server, Path]:
        """Make a server that fails at a point; and the file that says whether it was hit."""
        self._count += 1
        mark = self.folder / f"hit-{self._count}"
        environment = {
            "FAILPOINT": point, "FAIL_ACTION": action, "FAIL_AFTER": str(after), "FAIL_MARK": str(mark),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        }  # fmt: skip
        server = Server(self.folder, module="tests.process.failing", environment=environment)
        server.port = self.port
        return server, mark

    def sound(self) -> Server:
        """Make a server that fails nowhere."""
        server = Server(self.folder)
        server.port = self.port
        return server


@pytest.fixture(name="points")
def _points(tmp_path: Path) -> Points:
    return Points(tmp_path)


@pytest.fixture(name="own_receiver")
def _own_receiver() -> Iterator[Receiver]:
    """A receiver whose requests are all of this test."""
    with Receiver() as running:
        yield running


def _missing(points: Points, load: MixedLoad) -> set[str]:
    """Acknowledged uids that are not in the file."""
    known = load.acknowledged
    stored = {uid for (uid,) in books.rows(points.folder / "ackpost.db", "SELECT uid FROM event WHERE uid IS NOT NULL")}
    return {name for name in known if not name.startswith("call-")} - stored


def _settled(server: Server) -> bool:
    return books.count(server.database, "delivery") == 0 and books.count(server.database, "job WHERE open = 1") == 0


@pytest.mark.timeout(480)
def test_a_death_at_each_step_loses_nothing(points: Points, own_receiver: Receiver) -> None:
    """At every named step the process is gone at once; after all of them nothing is missing, halved or doubled."""
    server, mark = points.server(FIRST_START, "exit", after=5)
    server.launch()
    assert server.wait()[0] == 9
    assert mark.exists()
    sound = points.sound().start()
    points.port = sound.port
    for path, (script, policy) in PATHS.items():
        sound.endpoint(own_receiver.hook(path, script), TYPE, policy=policy)
    hit: list[str] = []
    with MixedLoad(sound, TYPE, 1) as load:
        until(lambda: len(load.acknowledged) > 50, "some acknowledged", 40)
        sound.kill()
        for number, point in enumerate(name for name in POINTS if name != FIRST_START):
            server, mark = points.server(point, "exit", after=0 if point in AT_THE_START else number % 3)
            server.launch()
            until(lambda: server.process.poll() is not None, f"the death: {point}", 45)  # noqa: B023 - used at once
            code, complaint = server.wait()
            assert (code, mark.exists()) == (9, True), f"{point}: {complaint[-5:]}"
            assert _missing(points, load) == set(), point
            hit.append(point)
        sound = points.sound().start()
        until(lambda: load.faults or len(load.acknowledged) > 200, "it goes on", 60)
    until(lambda: _settled(sound), "everything ended", 60)
    assert load.faults == []
    assert _missing(points, load) == set()
    assert books.count(sound.database, LOST) == 0
    assert books.rows(sound.database, "PRAGMA integrity_check") == [("ok",)]
    assert len(hit) + 1 == len(POINTS) == len(CALLS) + len(STATEMENTS) + 1
    assert sound.stop() == 0
    print(f"\ndeaths at {len(POINTS)} points, acknowledged {len(load.acknowledged)}, lost 0")


RAISING = (
    "a transaction begins", "uids are looked up", "events are inserted", "deliveries are inserted",
    "uids are inserted", "first results are taken out", "first results are kept", "attempts are kept",
)  # fmt: skip


@pytest.mark.timeout(400)
def test_a_failure_at_each_step_of_the_database_passes(points: Points, own_receiver: Receiver) -> None:
    """A statement that fails once refuses with 503 at most, and everything goes on in the same process."""
    url = own_receiver.hook("/hook", "200*9,500,200")
    for number, point in enumerate(RAISING):
        server, mark = points.server(point, "raise", after=40)
        server.start()
        points.port = server.port
        server.endpoint(url, TYPE, policy=POLICY)
        with MixedLoad(server, TYPE, number) as load:
            until(mark.exists, f"the failure: {point}", 40)
            before = len(load.acknowledged)
            until(lambda: len(load.acknowledged) > before + 50, f"it goes on after: {point}", 40)  # noqa: B023 - used at once
        until(lambda: _settled(server), f"everything ended after: {point}", 60)  # noqa: B023 - used at once
        assert load.faults == []
        assert _missing(points, load) == set(), point
        assert books.count(server.database, LOST) == 0
        assert server.stop() == 0, point
        for file in points.folder.glob("ackpost.db*"):
            file.unlink()
        points.port = 0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", ["a transaction ends", "first results are kept"])
def test_a_stalled_database_stalls_nobody_else(points: Points, own_receiver: Receiver, point: str) -> None:
    """While the writer hangs, liveness, readiness and reads are answered; then everything goes on."""
    server, mark = points.server(point, "stall", after=30)
    server.start()
    server.endpoint(own_receiver.hook("/hook"), TYPE, policy=POLICY)
    with MixedLoad(server, TYPE, 1) as load:
        until(mark.exists, "the stall", 40)
        began, asked = time.monotonic(), 0
        while time.monotonic() - began < STALL_S / 2:
            server.api.call("GET", "/healthz")
            server.get("/events", limit=1)
            asked += 1
            threading.Event().wait(0.01)
        assert asked > 10
        before = len(load.acknowledged)
        until(lambda: len(load.acknowledged) > before + 100, "it goes on", 40)
    until(lambda: _settled(server), "everything ended", 60)
    assert (load.faults, _missing(points, load)) == ([], set())
    assert server.stop() == 0
