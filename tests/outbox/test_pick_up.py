"""A server that shares the application's PostgreSQL picks its outbox up by itself."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest

from ackpost import outbox
from ackpost.errors import StoreError
from ackpost.store.postgres.outbox import is_there, quoted_table
from tests.cli.relay.application import Application, sequences
from tests.process.books import events
from tests.process.receiver import Receiver
from tests.process.server import Server, until
from tests.store.postgres.server import own_database

_WITHIN_S = 45.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def application() -> Iterator[Application]:
    with own_database() as url:
        yield Application(url)


@pytest.fixture(scope="module")
def server(application: Application, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {"ACKPOST_NODE_NAME": "picker", "ACKPOST_DATABASE_URL": application.url}
    with Server(tmp_path_factory.mktemp("node"), "--database-url", application.url, environment=environment) as running:
        yield running
        assert running.stop() == 0


def _taken(application: Application) -> None:
    until(lambda: application.waiting() == [], "all rows are picked up", _WITHIN_S)


def _picked_up(server: Server, type: str, count: int) -> None:
    until(lambda: len(events(server, type)) >= count, f"{count} rows are picked up", _WITHIN_S)


def test_committed_rows_are_delivered(server: Server, application: Application) -> None:
    """No relay runs: what is committed becomes an event with the row's uid and time, what is rolled back does not."""
    with Receiver() as receiver:
        server.endpoint(receiver.hook("/orders"), "picked.order")
        with application.connect() as connection:
            uid = outbox.publish(connection, "picked.order", '{ "n":1.50 }', key="k", metadata={"m": 1})
            connection.commit()
            outbox.publish(connection, "picked.order", {"n": 2})
            connection.rollback()
        (request,) = receiver.wait("/orders", within_s=_WITHIN_S)
    assert request.header("webhook-id") is not None
    assert server.api.call_bytes("GET", f"/v1/events/{uid}/data") == b'{ "n":1.50 }'
    event = server.get(f"/events/{uid}")
    assert (event["key"], event["sequence"], event["metadata"]) == ("k", 1, {"m": 1})
    _taken(application)
    assert events(server, "picked.order").keys() == {uid}


def test_rows_of_a_key_keep_their_order(server: Server, application: Application) -> None:
    """More rows than one look takes, numbered as they were written; one that commits late comes late."""
    with application.connect() as late:
        last = outbox.publish(late, "picked.many", 1, key="many")
        uids = application.publish("picked.many", 1203, key="many")
        _picked_up(server, "picked.many", 1203)
        assert sequences(server, uids[::200]) == list(range(1, 1204, 200))
        late.commit()
    _taken(application)
    assert sequences(server, [last]) == [1204]


def test_bad_rows_are_set_aside(server: Server, application: Application) -> None:
    """Each keeps its reason, none holds up another; a batch that makes too many deliveries goes in parts."""
    with Receiver() as receiver:
        made = [server.endpoint(receiver.hook(f"/many/{number}"), "picked.wide") for number in range(30)]
        good = application.publish("picked.bad", 2, key="bad")
        bad = application.publish("picked.bad", 3, key="bad")
        with psycopg.connect(application.url) as connection:
            wrong = zip(("type = 'no!type'", "data = '{'", "tenant = 'nobody'"), bad, strict=True)
            for change, uid in wrong:
                connection.execute(f"UPDATE ackpost_outbox SET {change} WHERE uid = %s".encode(), (uid,))
            taken = outbox.publish(connection, "picked.bad", 2, uid=good[0])
            wide = [outbox.publish(connection, "picked.wide", number) for number in range(400)]
        until(lambda: len(application.waiting()) == 4, "the good ones are picked up", _WITHIN_S)
        for one in made:
            server.api.call("DELETE", f"/v1/endpoints/{one['id']}")
    rows = dict(application.run("SELECT uid, refused FROM ackpost_outbox"))
    found = events(server, "picked.bad")
    reasons = {uid: reason.partition(":")[0] for uid, reason in rows.items() if uid in bad}
    assert reasons == dict(zip(bad, ("invalid", "malformed_json", "unknown_tenant"), strict=True))
    assert taken == good[0]
    assert "uid_conflict" in {reason.partition(":")[0] for reason in rows.values()}
    assert found.keys() == set(good)
    assert events(server, "picked.wide").keys() == set(wide)
    application.run("DELETE FROM ackpost_outbox")


def test_a_killed_server_picks_each_row_up_once(server: Server, application: Application) -> None:
    """Rows are written all the time while the server is killed again and again: each becomes one event, in order."""
    uids: list[str] = []
    enough = threading.Event()

    def write() -> None:
        while not enough.is_set():
            uids.extend(application.publish("picked.killed", 20, key="killed"))
            enough.wait(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for wanted in (100, 200):
            _picked_up(server, "picked.killed", wanted)
            server.restart()
    finally:
        enough.set()
        writer.join()
    _taken(application)
    assert events(server, "picked.killed").keys() == set(uids)
    assert sequences(server, uids[::50]) == list(range(1, len(uids) + 1, 50))


def test_a_table_that_may_not_be_used_is_told() -> None:
    """A missing table is none; one without the rights needed raises, so that the server says so."""

    async def look(url: str) -> bool:
        connection = await asyncpg.connect(url)
        try:
            return await is_there(connection, quoted_table("public.ackpost_outbox"))
        finally:
            await connection.close()

    with own_database() as url, psycopg.connect(url, autocommit=True) as connection:
        assert asyncio.run(look(url)) is False
        outbox.create(connection)
        assert asyncio.run(look(url)) is True
        role = f"limited_{os.getpid()}"
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        connection.execute(f"GRANT SELECT, INSERT ON ackpost_outbox TO {role}".encode())
        try:
            parts = urlsplit(url)
            limited = urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))
            with pytest.raises(StoreError, match="needs SELECT, UPDATE and DELETE"):
                asyncio.run(look(limited))
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
