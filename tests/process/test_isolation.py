"""One bad endpoint, row or caller does not reach the others."""

from __future__ import annotations

import http.client
import json
import sqlite3
import threading
from contextlib import closing
from typing import Any

from tests.process import books
from tests.process.receiver import Receiver
from tests.process.server import KEY, Server, until


def _spoil(server: Server, endpoint_id: str, fields: dict[str, Any]) -> None:
    """Change a stored endpoint as no call would."""
    with closing(sqlite3.connect(server.database)) as other, other:
        for position, text in other.execute("SELECT position, document FROM endpoint").fetchall():
            document = json.loads(text)
            if document["uid"] == endpoint_id:
                other.execute(
                    "UPDATE endpoint SET document = ? WHERE position = ?", (json.dumps(document | fields), position)
                )


def test_broken_endpoint_rows_are_parked_with_a_reason(own_server: Server, receiver: Receiver) -> None:
    """Endpoints that were broken by hand in the database crash nothing; a PATCH mends one and it delivers."""
    server = own_server.start()
    spoiled: dict[str, dict[str, Any]] = {
        "bad-url": {"url": "nonsense://["},
        "bad-kind": {"signature": "rot13"},
        "bad-secret": {"secrets": [{"sealed": "v9:zzz", "created_at_ms": 0}]},
        "bad-policy": {"policy": {"timeout_s": "soon"}},
        "no-secrets": {"secrets": []},
    }
    for uid in spoiled:
        server.endpoint(receiver.hook(f"/{uid}"), "broken.row", uid=uid)
    server.endpoint(receiver.hook("/sound"), "broken.row")
    assert server.stop() == 0
    for uid, fields in spoiled.items():
        _spoil(server, uid, fields)
    server.start()
    event = server.publish("broken.row")
    receiver.wait("/sound")
    until(lambda: len(server.logged("endpoint.broken")) >= len(spoiled), "the broken ones logged")
    assert all(line["reason"] for line in server.logged("endpoint.broken"))
    assert [uid for uid in spoiled if receiver.seen(f"/{uid}")] == []
    assert len(server.get("/endpoints")["data"]) == len(spoiled) + 1
    server.patch("/endpoints/bad-url", {"url": receiver.hook("/mended-url")})
    assert receiver.wait("/mended-url")[0].header("webhook-id") == event["id"]
    assert server.stop() == 0


def test_a_slow_endpoint_does_not_hold_up_a_quick_one(server: Server, receiver: Receiver) -> None:
    """With two hundred events waiting for an endpoint that answers after seconds, another gets its own at once."""
    server.endpoint(receiver.hook("/slow", "200:delay=4"), "slow.one")
    server.endpoint(receiver.hook("/quick"), "quick.one")
    server.post("/events/batch", {"events": [{"type": "slow.one", "data": number} for number in range(200)]})
    receiver.wait("/slow", 2)
    for number in range(50):
        server.publish("quick.one", b"%d" % number)
    receiver.wait("/quick", 50, within_s=3)
    assert len(receiver.seen("/slow")) <= 10


def test_a_publisher_that_never_got_its_answer_repeats_safely(server: Server, receiver: Receiver) -> None:
    """A connection cut before the answer and five repeats at once make one event; another body is a conflict."""
    server.endpoint(receiver.hook("/once"), "publish.once")
    headers = {"Authorization": f"Bearer {KEY}", "Idempotency-Key": "order-1"}
    body = '{"type":"publish.once","data":{"n":1}}'
    cut = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    cut.request("POST", "/v1/events", body, headers)
    cut.close()
    answers: list[tuple[int, Any]] = []

    def repeat(text: str) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
            connection.request("POST", "/v1/events", text, headers)
            answer = connection.getresponse()
            answers.append((answer.status, json.loads(answer.read())))

    threads = [threading.Thread(target=repeat, args=(body,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} == {202}
    assert len({answer["id"] for _, answer in answers}) == 1
    repeat(body.replace("1", "2"))
    assert (answers[-1][0], answers[-1][1]["code"]) == (409, "idempotency_conflict")
    server.settled(answers[0][1]["id"])
    assert len(receiver.seen("/once")) == 1
    assert books.count(server.database, "event WHERE type = 'publish.once'") == 1
