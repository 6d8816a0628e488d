"""kill -9 and SIGTERM of a real server under load: nothing acknowledged is lost, nothing is repeated without cause."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until

KILLS = 10
SENT_BETWEEN_KILLS = 150
POLICY = {"retry": {"base_s": 0.05, "cap_s": 0.2}, "circuit": {"enabled": False}}


def _settled(server: Server) -> bool:
    return books.count(server.database, "delivery") == 0


def _check_ledger(server: Server, type: str, ledger: dict[str, str], endpoints: int) -> None:
    """Every acknowledged event is stored once and delivered everywhere, and nothing else is stored."""
    stored = books.events(server, type)
    assert {uid: event["id"] for uid, event in stored.items()} == ledger
    assert all(event["delivery_counts"] == {"delivered": endpoints} for event in stored.values())
    counted = {one["value"]: one["counts"] for one in server.get("/stats", by="type")["data"]}
    assert counted == {type: {"delivered": endpoints * len(ledger)}}
    assert books.count(server.database, "history WHERE status = 1") == endpoints * len(ledger)
    assert books.metric(server, 'ackpost_deliveries_pending{held_by="none"}') == 0


@pytest.mark.timeout(150)
def test_ten_kills_under_load_lose_nothing_that_was_acknowledged(own_server: Server, receiver: Receiver) -> None:
    """After ten times kill -9 every acknowledged event is delivered, and repeats are at most what was in flight."""
    server = own_server.start()
    paths = {"/steady": "200", "/flaky": "200*40,500,200"}
    names = {}
    for path, script in paths.items():
        names[server.endpoint(receiver.hook(path, script), "crash.load", policy=POLICY)["id"]] = path
    in_flight: list[int] = []
    resumed_s: list[float] = []
    with Publishers(server, "crash.load") as publishers:
        for _ in range(KILLS):
            receiver.wait("/steady", len(receiver.seen("/steady")) + SENT_BETWEEN_KILLS, within_s=20)
            server.kill()
            killed_at, sent = time.monotonic(), len(receiver.seen("/steady"))
            in_flight.append(books.in_flight(server.database))
            server.start()
            receiver.wait("/steady", sent + 1)
            resumed_s.append(time.monotonic() - killed_at)
    until(lambda: _settled(server), "everything delivered", 30)

    _check_ledger(server, "crash.load", publishers.acknowledged, endpoints=2)
    requests = Counter((request.header("webhook-id"), path) for path in paths for request in receiver.seen(path))
    attempts = {
        (event["id"], names[one["endpoint_id"]]): one["attempt_count"]
        for event in books.events(server, "crash.load").values()
        for one in event["deliveries"]
    }
    assert requests.keys() == attempts.keys()
    assert [one for one in requests if requests[one] > attempts[one]] == []
    interrupted = books.count(server.database, "attempt WHERE code = 'interrupted'")
    assert sum(line["pending"] for line in _told(server)) == interrupted <= sum(in_flight)
    repeats = sum(requests.values()) - (sum(attempts.values()) - interrupted)
    assert repeats <= interrupted
    print(
        f"\nkills {KILLS}, acknowledged {len(publishers.acknowledged)}, lost 0, in flight at the kills {in_flight}, "
        f"interrupted {interrupted}, sent again {repeats}, resumed after "
        f"{min(resumed_s):.1f} to {max(resumed_s):.1f} s"
    )


def _told(server: Server) -> list[dict[str, int]]:
    return server.logged_before("deliveries.interrupted") + server.logged("deliveries.interrupted")


@pytest.mark.timeout(90)
def test_sigterm_under_load_loses_nothing_and_repeats_nothing(own_server: Server, receiver: Receiver) -> None:
    """SIGTERM ends a loaded server with 0 in time; each answer it waited for is recorded, and nothing is sent twice."""
    server = own_server.start()
    paths = {"/quick": "200", "/slow": "200:delay=0.4"}
    for path, script in paths.items():
        server.endpoint(receiver.hook(path, script), "term.load", policy={**POLICY, "max_in_flight": 50})
    stopped_s = []
    with Publishers(server, "term.load", pace_s=0.01) as publishers:
        for _ in range(2):
            receiver.wait("/quick", len(receiver.seen("/quick")) + 300, within_s=20)
            asked_at = time.monotonic()
            assert server.stop() == 0
            stopped_s.append(time.monotonic() - asked_at)
            assert books.in_flight(server.database) == 0
            requests = sum(len(receiver.seen(path)) for path in paths)
            assert books.count(server.database, "history") == requests
            server.start()
    assert [line["cut_off"] for line in server.logged_before("server.stopped")] == [0, 0]
    until(lambda: _settled(server), "everything delivered", 30)
    _check_ledger(server, "term.load", publishers.acknowledged, endpoints=2)
    for path in paths:
        requests_of = Counter(request.header("webhook-id") for request in receiver.seen(path))
        assert requests_of == dict.fromkeys(publishers.acknowledged.values(), 1)
    assert books.count(server.database, "attempt WHERE code = 'interrupted'") == 0
    print(
        f"\nSIGTERM twice under load: acknowledged {len(publishers.acknowledged)}, lost 0, sent again 0, "
        f"exit 0 after {max(stopped_s):.1f} s"
    )


def test_sigterm_waits_for_a_request_that_gets_no_answer(own_server: Server, receiver: Receiver) -> None:
    """A request under way at SIGTERM ends by its own timeout, and the failed attempt is recorded before the exit."""
    server = own_server.start()
    server.endpoint(receiver.hook("/mute", "hang,200"), "term.mute", policy={"timeout_s": 2})
    event = server.publish("term.mute")
    receiver.wait("/mute")
    assert server.stop() == 0
    assert books.rows(server.database, "SELECT number, code FROM attempt") == [(1, "timeout")]
    server.start()
    assert server.settled(event["id"])["attempt_count"] == 2


def test_a_delivery_that_is_in_flight_at_three_crashes_is_poison(own_server: Server, receiver: Receiver) -> None:
    """What was in flight at three kills is dead as poison; what was beside it twice goes out alone and is delivered."""
    server = own_server.start()
    deaths = receiver.hook("/deaths")
    server.endpoint(deaths, "ackpost.delivery.dead")
    server.endpoint(receiver.hook("/killer", "hang"), "poison.killer", policy={"timeout_s": 30})
    server.endpoint(receiver.hook("/beside", "hang*2,200"), "poison.beside", policy={"timeout_s": 30})
    killer, beside = server.publish("poison.killer"), server.publish("poison.beside")
    for crashes in range(1, 4):
        receiver.wait("/beside", min(crashes, 2))
        receiver.wait("/killer", crashes)
        server.restart()
    dead = server.settled(killer["id"], "dead")
    assert (dead["reason"], dead["attempt_count"], dead["last_error"]) == ("poison", 3, "interrupted")
    attempts = server.get(f"/deliveries/{dead['id']}/attempts")["data"]
    assert [(attempt["number"], attempt["error"]) for attempt in attempts] == [
        (3, "interrupted"), (2, "interrupted"), (1, "interrupted"),
    ]  # fmt: skip
    assert server.settled(beside["id"])["attempt_count"] == 3
    assert len(receiver.seen("/killer")) == 3
    (announced,) = receiver.wait("/deaths")
    assert announced.body.count(b'"poison"') == 1
    server.publish("poison.beside")
    receiver.wait("/beside", 4)
