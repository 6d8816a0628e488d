"""``ackpost copy``: a server's file becomes a PostgreSQL, and all goes on as if it had always been one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ackpost.cli.client import ApiClient
from ackpost.store.portable import TABLES
from ackpost.store.postgres.connection import Place, connect_patiently
from ackpost.store.postgres.migrating import migrate
from tests.process.receiver import Receiver
from tests.process.server import Server, until
from tests.store.postgres.server import own_database

TYPE = "moved.event"
ONCE = {"retry": {"max_attempts": 1}}


@pytest.fixture(name="target")
def _target() -> Iterator[str]:
    """A PostgreSQL database of this test alone."""
    with own_database() as url:
        yield url


def copy(source: str, target: str, *, ok: bool = True) -> str:
    """Run the command; give what it printed, or the one line of its refusal."""
    done = subprocess.run(_command(source, target), capture_output=True, text=True, check=False, env=_environment())
    if ok:
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert done.returncode == 1, done
    assert done.stderr.startswith("ackpost: "), done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


def _command(source: str, target: str) -> list[str]:
    return [sys.executable, "-m", "ackpost", "copy", source, target]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ACKPOST_")}


def on(database: str, folder: Path) -> Server:
    """A server on a PostgreSQL."""
    return Server(folder, "--database-url", database)


def test_a_server_goes_on_in_postgresql(tmp_path: Path, receiver: Receiver, target: str) -> None:
    """What was pending is delivered; ids, uids, sequences, dead letters and keys are those of before."""
    file = Server(tmp_path).start()
    paused = file.endpoint(receiver.hook("/paused"), TYPE)
    file.post(f"/endpoints/{paused['id']}/pause")
    failing = file.endpoint(receiver.hook("/failing", "500"), TYPE, policy=ONCE)
    key = file.post("/api-keys", {"role": "publisher", "name": "shop"})["key"]
    first = file.publish(TYPE, b'{"total":614.0}', uid="order-1", key="k")
    until(lambda: file.get("/dead-letters", endpoint_id=failing["id"])["data"], "a dead letter")
    assert file.stop() == 0
    said = copy(f"sqlite:///{file.database}", target)
    assert "DIFFERENT" not in said
    assert "each read back and compared" in said

    server = on(target, tmp_path).start()
    try:
        repeated = server.publish(TYPE, b'{"total":614.0}', uid="order-1", key="k")
        assert repeated == {**first, "duplicate": True}
        (dead,) = server.get("/dead-letters")["data"]
        assert (dead["event_id"], dead["endpoint_id"]) == (first["id"], failing["id"])
        assert server.publish(TYPE, b"2", key="k")["sequence"] == first["sequence"] + 1
        server.post(f"/endpoints/{paused['id']}/resume")
        seen = receiver.wait("/paused", 2)
        assert seen[0].header("webhook-id") == first["id"]
        assert b'"data":{"total":614.0}' in seen[0].body
        until(lambda: not server.get("/deliveries", status="pending")["data"], "everything delivered")
        client = ApiClient(server.url, key, timeout_s=30.0)
        assert client.call("POST", "/v1/events", {"type": TYPE, "data": 3})["duplicate"] is False
    finally:
        assert server.stop() == 0


def test_a_target_that_holds_something_is_refused(tmp_path: Path, target: str) -> None:
    """Nothing is added to what another server made, and that server goes on."""
    file, server = Server(tmp_path).start(), on(target, tmp_path).start()
    server.publish(TYPE)
    assert file.stop() == 0
    source = f"sqlite:///{file.database}"
    assert copy(source, target, ok=False).startswith("ackpost: TO: The database is in use")
    assert server.stop() == 0
    assert "TO: The target is not empty, it has rows in: api_key, event" in copy(source, target, ok=False)
    with on(target, tmp_path) as again:
        assert len(again.get("/events")["data"]) == 1


def test_a_source_in_use_and_one_that_is_none_are_refused(tmp_path: Path, target: str) -> None:
    """A running server's file is not copied; what does not exist is not made; a file is no target."""
    with Server(tmp_path) as file:
        source = f"sqlite:///{file.database}"
        assert "FROM: The database" in (refusal := copy(source, target, ok=False))
        assert "is in use" in refusal
    assert "FROM: There is no database" in copy(f"sqlite:///{tmp_path}/none.db", target, ok=False)
    assert "holds nothing of Ackpost" in copy(target, target, ok=False)
    assert "A copy goes into a PostgreSQL" in copy(source, f"sqlite:///{tmp_path}/new.db", ok=False)
    assert 'FROM: "mysql://localhost/db" is refused' in copy("mysql://localhost/db", target, ok=False)
    assert "TO: The database does not exist" in copy(source, target.replace("/test_", "/none_", 1), ok=False)
    assert not (tmp_path / "none.db").exists()
    assert not (tmp_path / "new.db").exists()


def test_a_copy_that_was_killed_leaves_a_target_that_only_a_copy_takes(tmp_path: Path, target: str) -> None:
    """A server refuses it in one line; the repeated copy succeeds."""
    file = Server(tmp_path).start()
    for number in range(4):
        events = [{"type": TYPE, "data": "x" * 2000, "uid": f"{number}-{index}"} for index in range(250)]
        file.post("/events/batch", {"events": events})
    assert file.stop() == 0
    source = f"sqlite:///{file.database}"
    with _last_table_held(target) as is_waited_for:
        process = subprocess.Popen(_command(source, target), env=_environment(), stderr=subprocess.DEVNULL)
        # It gives up after two seconds; on a machine that stands still so long there is nobody left to kill.
        until(lambda: is_waited_for() or process.poll() is not None, "a copy that has come to its last table", 30)
        process.send_signal(signal.SIGKILL)
        process.wait()
    server = on(target, tmp_path)
    code, complaint = server.fail()
    assert (code, len(complaint)) == (1, 1)
    assert "target of a copy that has not ended: repeat `ackpost copy`" in complaint[0]
    assert "1,000" in until(lambda: _repeated(source, target), "a copy that succeeds", 40)
    with server as again:
        assert again.get("/events/3-249")["data"] == "x" * 2000


def _repeated(source: str, target: str) -> str | None:
    """Copy again; the lease of the one that was killed may have to run out first."""
    done = subprocess.run(_command(source, target), capture_output=True, text=True, check=False, env=_environment())
    return done.stdout if done.returncode == 0 else None


@contextmanager
def _last_table_held(target: str) -> Iterator[Callable[[], bool]]:
    """Make the tables and hold the last one that a copy writes; gives what says whether somebody waits for it."""
    with asyncio.Runner() as runner:
        session = runner.run(connect_patiently(Place(target, "ackpost")))
        runner.run(migrate(session, "ackpost"))
        runner.run(session.execute(f"BEGIN; LOCK TABLE {TABLES[-1].name} IN SHARE MODE"))
        waiting = (
            "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
            " WHERE NOT l.granted AND d.datname = current_database()"
        )
        yield lambda: bool(runner.run(session.fetchval(waiting)))
        runner.run(session.execute("ROLLBACK"))
        runner.run(session.close())
