"""An event's way through a real server over real sockets: bytes, signatures, formats."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from ackpost.testing.faults import SeenRequest
from tests.process.receiver import Receiver
from tests.process.server import KEY, Server, until
from tests.process.signatures import check_all, check_ed25519, check_hex, check_standard, is_signed

QUICK = {"retry": {"schedule_s": [0.05, 0.05, 0.05]}}
"""A policy that repeats a failure at once; jitter is its preset's."""

BODIES = {
    "large integers": b'{"n":18446744073709551616,"p":7615917337495251231,"f":0.1000000000000000055,"e":1E400}',
    "number forms": b'{"weight":614.0,"z":-0.0,"e":1e2,"E":1E+2}',
    "nul escape": rb'{"s":"a\u0000b"}',
    "order and duplicates": b'{"b":1,"a":2,"b":3,"":4}',
    "whitespace": b'{ "b" : 1,\n\t"a" : [ 1 , 2 ]\r\n}',
    "separators": '{"s":"\u2028\u2029<!--&amp;</script>"}'.encode(),
    "escapes": rb'{"s":"\/\u001B[34mbar \u2665 \\u00e9"}',
    "normal forms": '{"s":"\u00e9e\u0301"}'.encode(),
    "lone surrogates": rb'{"s":"\ud800 \udfff","\udbff":1}',
    "emoji": '{"s":"\U0001f60a\U0001fae8"}'.encode(),
    "empty string": b'""',
    "empty object": b"{}",
    "one byte": b"1",
    "null": b"null",
}


def test_published_bytes_arrive_at_first_on_retry_and_on_replay(server: Server, receiver: Receiver) -> None:
    """The bytes of ``data`` are the same on the first attempt, on retries and on a replay, and each is signed."""
    policy = {"retry": {"schedule_s": [0.05], "jitter_ratio": 0}}
    types = {name: f"bytes.{name.replace(' ', '_')}" for name in BODIES}
    secrets, events = {}, {}
    for name, type in types.items():
        url = receiver.hook(f"/{type}", "500*2,200")
        secrets[name] = server.endpoint(url, type, format="bare", policy=policy)["secret"]
        events[name] = server.publish(type, BODIES[name])["id"]
    dead = [server.settled(event, "dead")["id"] for event in events.values()]
    server.post("/dead-letters/replay", {"ids": dead})
    for event in events.values():
        server.settled(event)
    arrived = {name: [request.body for request in receiver.seen(f"/{type}")] for name, type in types.items()}
    assert arrived == {name: [data] * 3 for name, data in BODIES.items()}
    for name, type in types.items():
        check_all(receiver.seen(f"/{type}"), secrets[name])
    kept = {name: server.api.call_bytes("GET", f"/v1/events/{event}/data") for name, event in events.items()}
    assert kept == BODIES


def test_a_body_is_the_same_over_failures_and_verifies_each_time(server: Server, receiver: Receiver) -> None:
    """500, 500, 200: three attempts with one id and the same bytes, all accepted by stock verifiers."""
    endpoint = server.endpoint(receiver.hook("/three", "500*2,200"), "three.times", policy=QUICK)
    event = server.publish("three.times", b'{"order":{"total":614.0}}')
    server.settled(event["id"])
    requests = receiver.seen("/three")
    assert len(requests) == 3
    check_all(requests, endpoint["secret"])
    assert requests[0].header("webhook-id") == event["id"]
    shown = server.get(f"/events/{event['id']}")
    expected = f'{{"type":"three.times","id":"{event["id"]}","timestamp":"{shown["occurred_at"]}","data":'
    assert requests[0].body == expected.encode() + b'{"order":{"total":614.0}}}'
    attempts = server.get(f"/deliveries/{shown['deliveries'][0]['id']}/attempts", order="asc")["data"]
    assert [attempt["status_code"] for attempt in attempts] == [500, 500, 200]


@pytest.mark.parametrize("signature", ["standard", "standard-ed25519", "sha256-hex"])
@pytest.mark.parametrize("format", ["standard", "store", "flat", "bare"])
def test_every_signature_goes_with_every_format(
    server: Server, receiver: Receiver, signature: str, format: str
) -> None:
    """Each of twelve combinations delivers a body of the promised form with a signature that verifies, twice."""
    type = f"both.{signature}.{format}"
    path = f"/{type}"
    url = receiver.hook(path, "503,200")
    endpoint = server.endpoint(url, type, format=format, signature=signature, policy=QUICK, key_field="orderId")
    data = b'{"n":10000000000000000000000,"n":1.0}'
    event = server.publish(type, data, key=type)
    server.settled(event["id"])
    requests = receiver.seen(path)
    assert len(requests) == 2
    occurred_at = server.get(f"/events/{event['id']}")["occurred_at"]
    for request in requests:
        if signature == "standard":
            check_standard(request, endpoint["secret"])
        elif signature == "standard-ed25519":
            check_ed25519(request, endpoint["public_key"])
        else:
            check_hex(request, endpoint["secret"])
        assert request.body == _expected(request, format, type, event["id"], occurred_at, data)
        assert request.header("ackpost-sequence") == "1"
        assert request.header("content-type") == "application/json"


def _expected(request: SeenRequest, format: str, type: str, event_id: str, occurred_at: str, data: bytes) -> bytes:
    """What the contract (section 4) says that the body is; the attempt's time is taken from the body."""
    attempted_at = request.body.partition(b'"timestamp":"')[2].partition(b'"')[0].decode()
    key = f'"key":"{type}","sequence":1'
    head, tail = {
        "standard": (f'{{"type":"{type}","id":"{event_id}","timestamp":"{occurred_at}",{key},"data":', "}"),
        "store": (
            f'{{"id":"{event_id}","event":"{type}","timestamp":"{attempted_at}",{key},"data":', ',"apiVersion":"v1"}'
        ),
        "flat": (f'{{"event":"{type}","orderId":"{type}","sequence":1,"occurred_at":"{occurred_at}",', ""),
        "bare": ("", ""),
    }[format]  # fmt: skip
    return head.encode() + (data[1:] if format == "flat" else data) + tail.encode()


def test_an_emoji_split_over_two_segments_arrives_whole(server: Server, receiver: Receiver) -> None:
    """A request whose bytes come in two segments, split inside a character, is accepted and delivered as sent."""
    server.endpoint(receiver.hook("/split"), "split.emoji", format="bare")
    data = '{"s":"\U0001f60a"}'.encode()
    body = b'{"type":"split.emoji","data":%b}' % data
    cut = body.index("\U0001f60a".encode()) + 2
    _post_in_parts(server, [body[:cut], body[cut:]])
    assert receiver.wait("/split")[0].body == data


def _post_in_parts(server: Server, parts: Sequence[bytes]) -> None:
    """Send a request in parts; before each next one the server has answered another call, so it has read the last."""
    length = sum(map(len, parts))
    head = f"POST /v1/events HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\ncontent-length: {length}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head.encode())
        for part in parts:
            connection.sendall(part)
            server.api.call("GET", "/healthz")
        assert connection.recv(65536).startswith(b"HTTP/1.1 202 ")


def test_a_replay_after_a_rotation_is_signed_by_the_new_and_the_old_key(server: Server, receiver: Receiver) -> None:
    """During the overlap a replay verifies with both secrets; after revoking at once, with the newest."""
    policy = {"retry": {"max_attempts": 1}}
    endpoint = server.endpoint(receiver.hook("/rotated", "500,200"), "rotated.key", policy=policy)
    path = f"/endpoints/{endpoint['id']}"
    event = server.publish("rotated.key")
    delivery = server.settled(event["id"], "dead")
    new = server.post(f"{path}/secret/rotate", {"overlap_s": 3600})["secret"]
    server.patch(path, {"headers": {"X-API-KEY": "now"}})
    server.post("/dead-letters/replay", {"ids": [delivery["id"]]})
    server.settled(event["id"])
    first, second = receiver.seen("/rotated")
    check_standard(first, endpoint["secret"])
    assert not is_signed(first, new)
    check_standard(second, new, endpoint["secret"])
    signatures = (second.header("webhook-signature") or "").split(" ")
    assert len(signatures) == 2
    assert (first.header("webhook-id"), first.body) == (second.header("webhook-id"), second.body)
    assert ("X-API-KEY", "now") in second.headers
    newest = server.post(f"{path}/secret/rotate", {"overlap_s": 0})["secret"]
    server.post(f"/events/{event['id']}/redeliver")
    third = receiver.wait("/rotated", 3)[2]
    assert is_signed(third, newest)
    assert not is_signed(third, new)
    assert not is_signed(third, endpoint["secret"])
    until(lambda: server.settled(event["id"])["round"] == 3, "the third round")


def test_a_large_and_binary_answer_is_kept_in_part(server: Server, receiver: Receiver) -> None:
    """An answer of 300 kB that is no text makes one attempt with a capped body, and the attempts end at their limit."""
    url = receiver.hook("/large", "500:type=image/png:body=" + "\x89PNG" * 80_000)
    server.endpoint(url, "large.answer", policy={"retry": {"schedule_s": [0.05], "jitter_ratio": 0}})
    event = server.publish("large.answer")
    delivery = server.settled(event["id"], "dead")
    assert (delivery["reason"], len(receiver.seen("/large"))) == ("attempts_exhausted", 2)
    for attempt in server.get(f"/deliveries/{delivery['id']}/attempts")["data"]:
        whole = server.get(f"/attempts/{attempt['id']}")
        assert whole["truncated"]
        assert 0 < len(whole["response_body"].encode()) <= 3 * 16 * 1024
