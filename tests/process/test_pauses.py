"""A server that is stopped longer than its lease and goes on, with and without a successor meanwhile (R13)."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until

ROOT = Path(__file__).resolve().parents[2]
LEASE_MS = 1500
TYPE = "pause.load"
POLICY = {"retry": {"base_s": 0.05, "cap_s": 0.2}, "circuit": {"enabled": False}, "timeout_s": 2, "max_in_flight": 50}
PATHS = {"/quick": "200", "/slow": "200:delay=0.3"}
PAUSES = 2


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    """A receiver whose requests are all of this test."""
    with Receiver() as running:
        yield running


@pytest.fixture(name="holder")
def _holder(tmp_path: Path) -> Iterator[Server]:
    """A server with a short lease, not yet started."""
    server = _leased(tmp_path)
    yield server
    if server.running:
        server.process.send_signal(signal.SIGCONT)
        server.kill()


def _leased(folder: Path) -> Server:
    environment = {"LEASE_MS": str(LEASE_MS), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    return Server(folder, module="tests.process.short_lease", environment=environment)


def _outwait_lease(server: Server) -> float:
    """Stop the process and wait until its lease has been over for as long as it lasts; give how long that was."""
    server.process.send_signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    ((expires_ms,),) = books.rows(server.database, "SELECT lease_expires_ms FROM meta")
    until(lambda: time.time() * 1000 > expires_ms + LEASE_MS, "twice the lease")
    return time.monotonic() - stopped_s


def _stop_between_transactions(server: Server) -> None:
    """Stop the process at a moment when it holds no lock of the database, so that another one can write."""

    def stopped() -> bool:
        server.process.send_signal(signal.SIGSTOP)
        with closing(sqlite3.connect(server.database, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                server.process.send_signal(signal.SIGCONT)
                return False
        return True

    until(stopped, "a stop between two transactions")


def _settled(server: Server) -> bool:
    return books.count(server.database, "delivery") == 0


def _requests(receiver: Receiver) -> Counter[tuple[str | None, str]]:
    return Counter((request.header("webhook-id"), path) for path in PATHS for request in receiver.seen(path))


@pytest.mark.timeout(180)
def test_a_pause_longer_than_the_lease_repeats_nothing(holder: Server, receiver: Receiver) -> None:
    """A process that stood still goes on: answers that came meanwhile count, nothing is sent twice or lost."""
    server = holder.start()
    for path, script in PATHS.items():
        server.endpoint(receiver.hook(path, script), TYPE, policy=POLICY)
    resumed_s, paused_s = [], []
    with Publishers(server, TYPE, pace_s=0.005) as publishers:
        for _ in range(PAUSES):
            receiver.wait("/slow", len(receiver.seen("/slow")) + 50)
            paused_s.append(_outwait_lease(server))
            sent = len(receiver.seen("/quick"))
            server.process.send_signal(signal.SIGCONT)
            going_on_at = time.monotonic()
            receiver.wait("/quick", sent + 1)
            resumed_s.append(time.monotonic() - going_on_at)
    until(lambda: _settled(server), "everything delivered", 30)
    stored = books.events(server, TYPE)
    assert {uid: event["id"] for uid, event in stored.items()} == publishers.acknowledged
    assert books.count(server.database, "history WHERE status = 1") == 2 * len(stored)
    repeated = _requests(receiver).total() - 2 * len(stored)
    unsent = "code NOT IN ('delivered', 'connect_timeout')"  # a connection that was being opened carried no request yet
    failed = books.count(server.database, f"attempt WHERE {unsent}")
    assert repeated == failed, "what was sent again had failed, and says so"
    # One whose answer truly came late on a busy machine; without reading what came in time it would be dozens.
    assert failed <= PAUSES
    assert server.stop() == 0
    print(
        f"\nstopped {PAUSES} times for {min(paused_s):.1f} s and more, acknowledged {len(stored)}, lost 0, "
        f"sent again {repeated}, resumed after ≤ {max(resumed_s):.1f} s"
    )


@pytest.mark.timeout(180)
def test_a_holder_that_wakes_behind_its_successor_changes_nothing(
    holder: Server, receiver: Receiver, tmp_path: Path
) -> None:
    """Whoever slept through a takeover sends and stores nothing any more, and ends; the successor goes on unharmed."""
    first = holder.start()
    for path, script in PATHS.items():
        first.endpoint(receiver.hook(path, script), TYPE, policy=POLICY)
    with Publishers(first, TYPE, pace_s=0.005) as publishers:
        receiver.wait("/slow", 50)
        _stop_between_transactions(first)
        _outwait_lease(first)
        marked = books.in_flight(first.database)
        # The system's lock would keep any successor out; here it is lost, as with a file system that has none.
        first.database.with_name("ackpost.db.lock").unlink()
        second = _leased(tmp_path)
        second.start()
        until(lambda: _settled(second), "all that was accepted is delivered", 30)
        before = _books(second)
        requests = _requests(receiver)
        first.process.send_signal(signal.SIGCONT)
        code, complaint = first.wait()
        assert _requests(receiver) - requests == Counter()
        assert _books(second) == before
        publishers.turn_to(second)
    assert code == 1, complaint
    assert "does not own the database any more" in complaint[-1]
    until(lambda: _settled(second), "everything delivered", 30)
    stored = books.events(second, TYPE)
    assert {uid: event["id"] for uid, event in stored.items()} == publishers.acknowledged
    interrupted = books.count(second.database, "attempt WHERE code = 'interrupted'")
    assert interrupted <= marked
    assert _requests(receiver).total() - 2 * len(stored) <= interrupted
    assert second.stop() == 0
    print(
        f"\nwoke behind its successor: acknowledged {len(publishers.acknowledged)}, lost 0, interrupted {interrupted}"
    )


def _books(server: Server) -> list[int]:
    return [books.count(server.database, table) for table in ("event", "delivery", "history", "attempt", "dead_letter")]
