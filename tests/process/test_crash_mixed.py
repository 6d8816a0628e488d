"""kill -9 at random under every kind of call at once; ``make crash KILLS=200`` for more of it (R1, R2)."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process import books
from tests.process.mixed import MixedLoad
from tests.process.receiver import Receiver
from tests.process.server import Server, until
from tests.process.signatures import is_signed

KILLS = int(os.environ.get("CRASH_KILLS") or 30)
SENT_BEFORE_A_KILL = (1, 250)
TYPE = "crash.mixed"
POLICY = {"retry": {"base_s": 0.05, "cap_s": 0.2}, "circuit": {"enabled": False}}
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "/steady": ("200", {}),
    "/flaky": ("200*40,500,200", {}),
    "/slow": ("200:delay=0.05", {"max_in_flight": 50}),
    "/ordered": ("200*90,500,200", {"ordering": "by-key", "max_in_flight": 50}),
}
_OF_EVENT = "position > e.position AND position <= e.position + e.fanout"
LOST = (
    f"event e WHERE (SELECT count(*) FROM delivery WHERE {_OF_EVENT})"
    f" + (SELECT count(*) FROM history WHERE {_OF_EVENT})"
    f" + (SELECT count(*) FROM dead_letter WHERE {_OF_EVENT}) <> e.fanout"
)
"""Events that do not have all their deliveries, or one twice."""


@pytest.fixture(name="own_receiver")
def _own_receiver() -> Iterator[Receiver]:
    """A receiver whose requests are all of this test."""
    with Receiver() as running:
        yield running


def _settled(server: Server) -> bool:
    return books.count(server.database, "delivery") == 0 and books.count(server.database, "job WHERE open = 1") == 0


def _identities(database: Path) -> dict[str, str]:
    return {uid: str(position) for uid, position in books.rows(database, "SELECT uid, position FROM event")}


@pytest.mark.timeout(180 + 5 * KILLS)
def test_kills_at_random_under_mixed_load(own_server: Server, own_receiver: Receiver) -> None:
    """Nothing acknowledged is lost or doubled, keys stay in order, and repeats are at most what was in flight."""
    server, receiver, chance = own_server.start(), own_receiver, random.Random(KILLS)
    secrets = {
        path: server.endpoint(receiver.hook(path, script), TYPE, policy={**POLICY, **more})["secret"]
        for path, (script, more) in PATHS.items()
    }
    in_flight: list[int] = []
    resumed_s: list[float] = []
    with MixedLoad(server, TYPE, KILLS) as load:
        for _ in range(KILLS):
            receiver.wait("/steady", len(receiver.seen("/steady")) + chance.randint(*SENT_BEFORE_A_KILL), within_s=30)
            server.kill()
            killed_at, sent = time.monotonic(), len(receiver.seen("/steady"))
            in_flight.append(books.in_flight(server.database))
            server.start()
            receiver.wait("/steady", sent + 1)
            resumed_s.append(time.monotonic() - killed_at)
    # What was in flight at two kills goes out alone, one after the other: with so many kills that takes its time.
    until(lambda: _settled(server), "everything ended", 60 + KILLS)

    assert load.faults == []
    assert books.rows(server.database, "PRAGMA integrity_check") == [("ok",)]
    _check_books(server, load)
    _check_requests(server, receiver, secrets)
    interrupted = books.count(server.database, "attempt WHERE code = 'interrupted'")
    assert interrupted <= sum(in_flight)
    assert server.stop() == 0
    print(
        f"\nkills {KILLS}, acknowledged {len(load.acknowledged)}, lost 0, in flight at the kills {sum(in_flight)},"
        f" interrupted {interrupted}, resumed after {min(resumed_s):.1f} to {max(resumed_s):.1f} s, {load.deeds}"
    )


def _check_books(server: Server, load: MixedLoad) -> None:
    """Each acknowledged event is stored once under its id, whole, and has ended everywhere as it may."""
    stored = {event["id"]: event for event in _all_events(server)}
    uids = {event["uid"]: identity for identity, event in stored.items() if event["uid"] is not None}
    assert {uid: uids.get(uid) for uid in load.by_uid} == load.by_uid
    assert set(uids) == set(load.by_uid), "what was not acknowledged was repeated until it was"
    keyless = {identity for identity, event in stored.items() if event["uid"] is None}
    assert keyless == set(load.by_key.values())
    assert len(load.by_key) == len(keyless)
    assert books.count(server.database, LOST) == 0
    dead = books.rows(server.database, "SELECT DISTINCT reason FROM dead_letter")
    assert dead in ([], [("poison",)])


def _all_events(server: Server) -> Iterator[dict[str, object]]:
    after: str | None = None
    while True:
        page = server.get("/events", type=TYPE, limit=250, after=after)
        yield from page["data"]
        after = page["next"]
        if after is None:
            return


def _check_requests(server: Server, receiver: Receiver, secrets: dict[str, str]) -> None:
    """Every request is signed; no delivery saw more than its attempts; first rounds of a key went in order."""
    attempts: Counter[int] = Counter()
    for table in ("history", "dead_letter"):
        attempts.update(dict(books.rows(server.database, f"SELECT position, number FROM {table}")))
    seen = sum(len(receiver.seen(path)) for path in PATHS)
    assert seen <= attempts.total()
    for path, secret in secrets.items():
        requests = receiver.seen(path)
        # The newest: a verifier refuses what is older than five minutes, as a long run's first ones are by now.
        assert [one for one in requests[-500:] if not is_signed(one, secret)] == []
    last: dict[str, int] = {}
    known: set[str | None] = set()
    for request in receiver.seen("/ordered"):
        if request.header("webhook-id") in known:
            continue  # a repetition, a later round
        known.add(request.header("webhook-id"))
        text = request.body
        if b'"key":"' in text:
            key = text.partition(b'"key":"')[2].partition(b'"')[0].decode()
            sequence = int(request.header("ackpost-sequence") or 0)
            assert sequence > last.get(key, 0), f"{key}: {sequence} after {last.get(key)}"
            last[key] = sequence
