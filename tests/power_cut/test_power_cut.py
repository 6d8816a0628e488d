"""The power fails under load: each acknowledged event is there afterwards, whole, and delivery goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import need_loop_devices
from tests.power_cut.disk import Disk, new_disk
from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until

CUTS = int(os.environ.get("POWER_CUTS") or 6)
TRIES_OF_THE_UNSAFE = 6
SENT_BEFORE_A_CUT = (20, 600)
PADDING_BYTES = 2_000
ROOT = Path(__file__).resolve().parents[2]
TYPE = "power.cut"
POLICY = {"retry": {"base_s": 0.05, "cap_s": 0.2}, "circuit": {"enabled": False}}

HALF_STORED = """
event e WHERE fanout <>
    (SELECT count(*) FROM delivery d WHERE d.position > e.position AND d.position <= e.position + e.fanout)
    + (SELECT count(*) FROM history h WHERE h.position > e.position AND h.position <= e.position + e.fanout)
    + (SELECT count(*) FROM dead_letter l WHERE l.position > e.position AND l.position <= e.position + e.fanout)
"""


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk whose power can be cut."""
    need_loop_devices()
    with new_disk() as made:
        yield made


@pytest.fixture
def server(disk: Disk, tmp_path: Path) -> Iterator[Server]:
    """A server with its database on that disk; the test starts it."""
    server = _server(disk, tmp_path)
    yield server
    if server.running:
        server.kill()


def _server(disk: Disk, folder: Path, module: str = "ackpost") -> Server:
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return Server(folder, database=disk.mounted / "ackpost.db", module=module, environment=environment)


def _threads_stopped(pid: int) -> bool:
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return set(states) == {"T"}


def cut_power(server: Server, disk: Disk) -> None:
    """Stop the server between two instructions, keep the disk as it is now, end the server, mount what was kept."""
    pid = server.process.pid
    os.kill(pid, signal.SIGSTOP)
    until(lambda: _threads_stopped(pid), "the server stops")
    disk.cut()
    server.kill()
    disk.restore()


def _stored(server: Server) -> set[str]:
    return {uid for (uid,) in books.rows(server.database, f"SELECT uid FROM event WHERE type = '{TYPE}'")}


def _load(server: Server) -> Publishers:
    return Publishers(server, TYPE, padding_bytes=PADDING_BYTES)


@pytest.mark.timeout(60 + 12 * CUTS)
def test_a_cut_of_the_power_loses_nothing_that_was_acknowledged(disk: Disk, server: Server, receiver: Receiver) -> None:
    """After each cut all acknowledged events are in an undamaged file, none by halves, and all are delivered."""
    chance = random.Random(CUTS)
    server.start()
    for path, script in {"/steady": "200", "/flaky": "200*40,500,200"}.items():
        server.endpoint(receiver.hook(path, script), TYPE, policy=POLICY)
    resumed_s: list[float] = []
    acknowledged_at_cut: list[int] = []
    with _load(server) as publishers:
        for _ in range(CUTS):
            more = chance.randint(*SENT_BEFORE_A_CUT)
            receiver.wait("/steady", len(receiver.seen("/steady")) + more, within_s=30)
            cut_power(server, disk)
            began, sent = time.monotonic(), len(receiver.seen("/steady"))
            acknowledged = set(publishers.acknowledged)
            acknowledged_at_cut.append(len(acknowledged))
            server.start()
            assert acknowledged - _stored(server) == set()
            assert books.count(server.database, HALF_STORED) == 0
            assert books.rows(server.database, "PRAGMA integrity_check") == [("ok",)]
            receiver.wait("/steady", sent + 1)
            resumed_s.append(time.monotonic() - began)
    until(lambda: books.count(server.database, "delivery") == 0, "everything delivered", 60)

    events = books.events(server, TYPE)
    assert {uid: event["id"] for uid, event in events.items()} == publishers.acknowledged
    assert all(event["delivery_counts"] == {"delivered": 2} for event in events.values())
    requests = Counter(request.header("webhook-id") for request in receiver.seen("/steady"))
    assert requests.keys() == set(publishers.acknowledged.values())
    again = requests.total() - len(requests)
    assert again > 0, "no cut fell between an answer and its record: nothing was tried"
    assert books.rows(server.database, "PRAGMA integrity_check") == [("ok",)]
    assert server.stop() == 0
    print(
        f"\npower cuts {CUTS}, acknowledged {len(events)} ({acknowledged_at_cut} at the cuts), lost 0, "
        f"sent again {again} of {len(requests)}, resumed after {min(resumed_s):.1f} to {max(resumed_s):.1f} s"
    )


@pytest.mark.timeout(120)
def test_without_waiting_for_the_disk_a_cut_does_lose_events(disk: Disk, tmp_path: Path, receiver: Receiver) -> None:
    """The same cuts take acknowledged events from a server with ``synchronous=NORMAL``: the test above can fail."""
    lost: list[int] = []
    with _server(disk, tmp_path, "tests.power_cut.unsafe") as unsafe:
        unsafe.endpoint(receiver.hook("/unsafe"), TYPE)
        while not any(lost) and len(lost) < TRIES_OF_THE_UNSAFE:
            with _load(unsafe) as publishers:
                until(lambda: len(publishers.acknowledged) >= 300, "some acknowledged")
                cut_power(unsafe, disk)
                acknowledged = set(publishers.acknowledged)
                unsafe.start()
                lost.append(len(acknowledged - _stored(unsafe)))
                assert books.rows(unsafe.database, "PRAGMA integrity_check") == [("ok",)]
    print(f"\nsynchronous=NORMAL: lost {lost} acknowledged events")
    assert any(lost)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("pages", [0, 1, 20])
def test_a_cut_of_the_power_during_the_first_start_leaves_nothing_in_the_way(
    disk: Disk, server: Server, receiver: Receiver, pages: int
) -> None:
    """A file that was being made at the cut is taken up by the next start, which works as any other."""
    log = server.database.with_name(f"{server.database.name}-wal")
    server.launch()
    until(lambda: log.exists() and log.stat().st_size >= 4096 * pages, "the first pages")
    cut_power(server, disk)
    server.start()
    server.endpoint(receiver.hook(f"/first-{pages}"), "first.start")
    server.settled(server.publish("first.start")["id"])
    assert server.stop() == 0
