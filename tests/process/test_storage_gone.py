"""Files that can no longer be written, or are no longer there: one clear line, nothing acknowledged for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ackpost.cli.client import ApiFailed
from tests.needs import need_loop_devices
from tests.power_cut.disk import Disk, new_disk
from tests.process import books
from tests.process.receiver import Receiver
from tests.process.server import Server, until


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A file system of its own."""
    need_loop_devices()
    with new_disk(64) as made:
        yield made


def _answer(server: Server) -> str | None:
    """Publish; give the event's id, or None when it was refused for now."""
    try:
        return str(server.publish("gone.file")["id"])
    except ApiFailed as refused:
        assert refused.status == 503
        assert refused.retry_after_s is not None
        return None


def _refusing(server: Server) -> None:
    assert [_answer(server) for _ in range(5)] == [None] * 5
    assert server.refused("GET", "/readyz", version="").status == 503


@pytest.mark.timeout(90)
def test_a_file_system_that_becomes_read_only_refuses_and_loses_nothing(
    disk: Disk, tmp_path: Path, receiver: Receiver
) -> None:
    """As ext4 does when its disk fails: 503, reads work; started on it: one clear line; mounted anew: all is there."""
    with Server(tmp_path, database=disk.mounted / "ackpost.db") as server:
        server.endpoint(receiver.hook("/read-only"), "gone.file")
        acknowledged = [server.publish("gone.file")["id"] for _ in range(20)]
        for event in acknowledged:
            server.settled(event)
        disk.break_down()
        assert [_answer(server) for _ in range(5)] == [None] * 5
        if server.process.poll() is None:
            assert server.get(f"/events/{acknowledged[0]}")["id"] == acknowledged[0]
            server.process.terminate()
        code, complaint = server.wait()
        assert code == 1
        assert complaint[-1].startswith("ackpost: ")
        print(f"\nread-only while running: {complaint[-1]}")
        disk.repair()
        disk.mount_read_only()
        code, complaint = server.fail()
        assert code == 1
        assert [line for line in complaint if line.startswith("ackpost: ")] == complaint[-1:]
        assert "ead-only" in complaint[-1]
        print(f"read-only at the start: {complaint[-1]}")
        disk.repair()
        server.start()
        for event in acknowledged:
            assert server.settled(event)["attempt_count"] == 1
        server.settled(server.publish("gone.file")["id"])
        assert books.rows(server.database, "PRAGMA integrity_check") == [("ok",)]
        assert server.stop() == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["ackpost.db", "ackpost.db-wal"], ids=["database", "log"])
def test_a_file_taken_away_under_the_server_is_noticed_before_anything_is_acknowledged(
    own_server: Server, receiver: Receiver, tmp_path: Path, name: str
) -> None:
    """Moved: 503 until it is back, then on as before; what waited meanwhile is delivered."""
    server = own_server.start()
    server.endpoint(receiver.hook(f"/{name}"), "gone.file")
    acknowledged = [server.publish("gone.file")["id"] for _ in range(5)]
    file, away = tmp_path / name, tmp_path / "elsewhere"
    file.rename(away)
    _refusing(server)
    assert server.get(f"/events/{acknowledged[0]}")["id"] == acknowledged[0]
    away.rename(file)
    acknowledged.append(until(lambda: _answer(server), "an event accepted again", 10))
    for event in acknowledged:
        server.settled(event)
    assert server.stop() == 0
    assert books.rows(server.database, "PRAGMA integrity_check") == [("ok",)]
    assert books.count(server.database, "event") == len(acknowledged)


@pytest.mark.timeout(60)
def test_a_file_replaced_under_the_server_is_left_alone(own_server: Server, receiver: Receiver, tmp_path: Path) -> None:
    """Another database in its place: nothing is accepted, the stop says so, and the other one serves as it was."""
    server = own_server.start()
    event = server.publish("gone.file")["id"]
    assert server.stop() == 0
    other = tmp_path / "other"
    other.write_bytes(server.database.read_bytes())
    server.start()
    before = other.read_bytes()
    other.rename(server.database)
    _refusing(server)
    server.process.terminate()
    code, complaint = server.wait()
    assert code == 1
    assert complaint[-1].endswith("was removed or replaced while the server uses it: put it back.")
    assert server.database.read_bytes() == before
    assert (tmp_path / "ackpost.db-wal-of-the-replaced").exists()
    server.start()
    assert server.get(f"/events/{event}")["id"] == event
    assert server.stop() == 0
