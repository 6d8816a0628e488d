"""``ackpost relay``: what it moves, what it sets aside, what it says."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ackpost import outbox
from tests.cli.relay.application import Application, RelayProcess, sequences
from tests.cli.shell import Shell
from tests.process.books import events
from tests.process.server import KEY, Server, until
from tests.store.postgres.server import own_database

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server of one test alone, which starts it."""
    server = Server(tmp_path)
    try:
        yield server
    finally:
        if server.running:
            server.kill()


@pytest.fixture
def kind() -> str:
    """An event type of one test alone."""
    return f"relay.t{uuid.uuid4().hex}"


def test_what_is_committed_is_moved_once_and_in_order(
    ackpost: Shell, server: Server, application: Application, kind: str
) -> None:
    """Each row becomes an event with the row's uid, a key's rows are numbered as written, and the table is empty."""
    uids = application.publish(kind, 1203, key=kind)
    with application.connect() as connection:
        outbox.publish(connection, kind, {"n": -1})
        connection.rollback()
    assert ackpost.ok("relay", "--outbox-url", application.url, "--once").out == "1,203 events moved\n"
    assert events(server, kind).keys() == set(uids)
    assert sequences(server, uids[::100]) == list(range(1, 1204, 100))
    assert application.waiting() == []
    assert ackpost.ok("relay", "--outbox-url", application.url, "--once").out == "0 events moved\n"


def test_the_data_arrive_byte_for_byte(ackpost: Shell, server: Server, application: Application, kind: str) -> None:
    """Spaces, escapes and long numbers stay; the event occurred when its row was written."""
    odd = '{ "n" : 1.50e0,"big":123456789012345678901234567890, "t":"\\u0061 🐾 \\ud800" }'
    with application.connect() as connection:
        uid = outbox.publish(connection, kind, odd, channels=["a"], metadata={"m": 1})
        connection.commit()
    ((created_ms,),) = application.run("SELECT created_ms FROM ackpost_outbox")
    ackpost.ok("relay", "--outbox-url", application.url, "--once")
    assert server.api.call_bytes("GET", f"/v1/events/{uid}/data") == odd.encode()
    event = server.get(f"/events/{uid}")
    assert (event["channels"], event["metadata"]) == (["a"], {"m": 1})
    assert event["occurred_at"].endswith(f".{created_ms % 1000:03}Z")


def test_what_the_server_refuses_is_set_aside(
    ackpost: Shell, server: Server, application: Application, kind: str
) -> None:
    """Bad rows keep their reason and hold up nobody; they are listed, and wait again when asked to."""
    first = application.publish(kind, 3, key=kind)
    large = application.publish(kind, 2, key=kind)
    application.run(f"UPDATE ackpost_outbox SET data = '\"{'x' * 300_000}\"' WHERE uid IN {tuple(large)}")
    taken = application.publish(kind, uid=first[0], key="other")
    (foreign,) = application.publish(kind)
    application.run(f"UPDATE ackpost_outbox SET type = 'no!type' WHERE uid = '{foreign}'")
    (lost,) = application.publish(kind, tenant="nobody")
    last = application.publish(kind, 2, key=kind)
    result = ackpost.ok("relay", "--outbox-url", application.url, "--once")
    assert result.out == "5 events moved, 5 set aside (--refused lists them)\n"
    assert "was set aside: " in result.error
    assert sequences(server, [*first, *last]) == [1, 2, 3, 4, 5]
    assert application.waiting() == [*large, *taken, foreign, lost]
    listed = ackpost.ok("relay", "--outbox-url", application.url, "--refused").out.splitlines()
    reasons = [line.split(maxsplit=3)[3] for line in listed]
    assert [one.partition(":")[0] for one in reasons] == [
        "too_large", "too_large", "uid_conflict", "invalid", "unknown_tenant",
    ]  # fmt: skip
    server.post("/tenants", {"uid": "nobody"})
    number = listed[-1].split()[0]
    assert ackpost.ok("relay", "--outbox-url", application.url, "--again", number).out == "1 row will be tried again\n"
    ackpost.ok("relay", "--outbox-url", application.url, "--once")
    server.api.call("DELETE", "/v1/tenants/nobody")
    assert application.waiting() == [*large, *taken, foreign]


def test_a_row_that_waited_too_long_is_not_sent_by_itself(
    ackpost: Shell, server: Server, application: Application, kind: str
) -> None:
    """Perhaps it was sent, and the server has forgotten that: a person decides. It keeps its time."""
    (old,) = application.publish(kind)
    application.run(f"UPDATE ackpost_outbox SET created_ms = created_ms - {30 * 86_400_000}")
    (young,) = application.publish(kind)
    application.run(f"UPDATE ackpost_outbox SET created_ms = created_ms - {29 * 86_400_000} WHERE uid = '{young}'")
    arguments = ("relay", "--outbox-url", application.url)
    assert "too_old: " in ackpost.ok(*arguments, "--once").error
    assert events(server, kind).keys() == {young}
    assert application.waiting() == [old]
    ackpost.ok(*arguments, "--again", "all")
    ackpost.ok(*arguments, "--once")
    found = events(server, kind)
    assert found.keys() == {young, old}
    assert found[old]["occurred_at"] < found[young]["occurred_at"]


def test_a_row_whose_transaction_commits_late_is_not_lost(
    ackpost: Shell, server: Server, tmp_path: Path, kind: str
) -> None:
    """Rows written after it were moved before: it is found all the same."""
    with own_database() as url:
        application = Application(url)
        with application.connect() as late:
            missed = outbox.publish(late, kind, 1)
            uids = application.publish(kind, 3)
            ackpost.ok("relay", "--outbox-url", url, "--once")
            assert events(server, kind).keys() == set(uids)
            late.commit()
        ackpost.ok("relay", "--outbox-url", url, "--once")
        assert events(server, kind).keys() == {*uids, missed}


def test_rows_wait_for_the_server(own_server: Server, tmp_path: Path, kind: str) -> None:
    """While the server is away nothing is lost and one line is written; then the rows go, and SIGTERM ends it well."""
    application = Application(f"sqlite:///{tmp_path / 'app.db'}")
    own_server.start()
    own_server.stop()
    uids = application.publish(kind, 3)
    with RelayProcess(application, own_server.url, tmp_path) as relay:
        until(lambda: relay.errors.lines[1:], "the line about the server", 60)
        own_server.start()
        until(lambda: application.waiting() == [], "the rows are moved", 60)
        uids += application.publish(kind, 2)
        until(lambda: application.waiting() == [], "the new rows are moved", 60)
        assert relay.end() == (0, ["5 events moved"])
        begun, waits, *more = relay.errors.join()
        assert begun.startswith("ackpost: moving rows of ")
        assert waits.startswith("ackpost: rows wait, and are tried again: no answer from")
        assert more == ["ackpost: rows are moved again"]
    assert events(own_server, kind).keys() == set(uids)
    assert own_server.stop() == 0


def test_what_is_wrong_is_one_line(
    ackpost: Shell, server: Server, application: Application, tmp_path: Path, kind: str
) -> None:
    """Each mistake ends the command with a line that names it."""
    application.publish(kind)
    arguments = ("relay", "--outbox-url", application.url, "--once")
    ackpost.monkeypatch.setenv("ACKPOST_API_KEY", "wrong-key")
    assert ackpost.refused(*arguments).startswith("rows still wait: 401 unauthenticated: ")
    ackpost.monkeypatch.setenv("ACKPOST_API_KEY", KEY)
    ackpost.monkeypatch.setenv("ACKPOST_URL", f"{server.url}/elsewhere")
    assert ackpost.refused(*arguments).startswith("rows still wait: 404")
    assert len(application.waiting()) == 1
    application.run("DROP TABLE ackpost_outbox")
    assert "there is no table ackpost_outbox" in ackpost.refused(*arguments)
    missing = f"sqlite:///{tmp_path / 'missing.db'}"
    assert "missing.db cannot be opened" in ackpost.refused("relay", "--outbox-url", missing, "--once")
    assert "--outbox-url" in ackpost.refused("relay", "--outbox-url", "mysql://x/y")
    assert "no row 7 is set aside" in ackpost.refused("relay", "--outbox-url", _fresh(tmp_path), "--again", "7")


def _fresh(folder: Path) -> str:
    return Application(f"sqlite:///{folder / 'fresh.db'}").url


def test_the_schema_is_printed(ackpost: Shell) -> None:
    """The command gives the statement for the application's migrations."""
    assert ackpost.ok("outbox", "schema").out == outbox.schema("postgresql")
    assert ackpost.ok("outbox", "schema", "--dialect", "sqlite").out == outbox.schema("sqlite")
    assert "use postgresql or sqlite" in ackpost.refused("outbox", "schema", "--dialect", "mysql")
