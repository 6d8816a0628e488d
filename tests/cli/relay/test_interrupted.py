"""The relay killed between its steps, several of them at once, and a wrong server."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.relay.application import Answer, Application, Between, RelayProcess, sequences
from tests.cli.shell import Shell
from tests.process.books import events
from tests.process.server import Server, until
from tests.store.postgres.server import own_database

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("step", ["before the server has them", "before the answer", "before they are deleted"])
def test_a_kill_at_any_step_loses_and_doubles_nothing(
    ackpost: Shell, server: Server, application: Application, tmp_path: Path, step: str
) -> None:
    """The next relay finds what was not deleted, and the server knows what it has."""
    kind = f"killed.t{uuid.uuid4().hex}"
    uids = application.publish(kind, 700, key=kind)
    relays: list[RelayProcess] = []
    held: list[Any] = []
    batches: list[int] = []

    def act(pass_on: Callable[[], Answer]) -> Answer | None:
        batches.append(1)
        if len(batches) == 1:  # the first batch goes through
            return pass_on()
        if step == "before the server has them":
            relays[0].process.kill()
            return None
        answer = pass_on()
        if step == "before the answer":
            relays[0].process.kill()
            return None
        held.append(application.hold_rows())
        return answer

    with Between(server, act) as between:
        relays.append(RelayProcess(application, between.url, tmp_path))
        with relays[0] as relay:
            if step == "before they are deleted":
                until(lambda: held, "the rows are held", 60)
                until(lambda: len(events(server, kind)) == 700, "the server has all", 60)
                relay.process.kill()
            relay.process.wait(60)
    for connection in held:
        connection.close()
    assert len(application.waiting()) == 200
    ackpost.ok("relay", "--outbox-url", application.url, "--once")
    assert application.waiting() == []
    assert events(server, kind).keys() == set(uids)
    assert sequences(server, uids[::50]) == list(range(1, 701, 50))


def test_several_relays_at_once_are_one(server: Server, application: Application, tmp_path: Path) -> None:
    """Three of them move rows of few keys while more are written: each once, each key in its order."""
    kind = f"several.t{uuid.uuid4().hex}"
    relays = [RelayProcess(application, server.url, tmp_path) for _ in range(3)]
    by_key: dict[str, list[str]] = {}
    try:
        for number in range(60):
            key = f"{kind}-{number % 3}"
            by_key.setdefault(key, []).extend(application.publish(kind, 20, key=key))
        until(lambda: application.waiting() == [], "all are moved", 60)
        until(lambda: all(relay.errors.lines for relay in relays), "all have begun", 60)
        assert [relay.end()[0] for relay in relays] == [0, 0, 0]
    finally:
        for relay in relays:
            relay.kill()
    assert events(server, kind).keys() == {uid for uids in by_key.values() for uid in uids}
    for uids in by_key.values():
        assert sequences(server, uids[::40]) == list(range(1, 401, 40))


def test_the_answer_of_another_server_is_no_acceptance(
    ackpost: Shell, server: Server, application: Application
) -> None:
    """Whoever answers 200 at that address, but not as Ackpost does, gets no row deleted."""
    kind = f"wrong.t{uuid.uuid4().hex}"
    uids = application.publish(kind, 2)
    for answer in (b"<html>", b'{"events":[{"id":"evt_1","deliveries":1}]}'):
        with Between(server, lambda _, answer=answer: (200, answer)) as between:  # type: ignore[misc] # a default binds
            ackpost.monkeypatch.setenv("ACKPOST_URL", between.url)
            result = ackpost("relay", "--outbox-url", application.url, "--once")
            assert (result.code, "this is no answer of Ackpost" in result.error) == (1, True)
    assert application.waiting() == uids


def test_a_lost_connection_is_made_anew(server: Server, tmp_path: Path) -> None:
    """PostgreSQL ends the relay's session: rows written later are moved all the same, and SIGTERM ends it well."""
    kind = f"cut.t{uuid.uuid4().hex}"
    with own_database() as url:
        application = Application(url)
        with RelayProcess(application, server.url, tmp_path) as relay:
            uids = application.publish(kind, 3)
            until(lambda: application.waiting() == [], "the first are moved", 60)
            application.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            uids += application.publish(kind, 3)
            until(lambda: application.waiting() == [], "the others are moved", 60)
            assert relay.end() == (0, ["6 events moved"])
    assert events(server, kind).keys() == set(uids)
