"""Publishing: ``POST /v1/events`` and ``/v1/events/batch``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ackpost.errors import Unavailable
from ackpost.ports.operations import Accept, Operation
from tests.api.world import World, run


async def publish(world: World, **fields: Any) -> dict[str, Any]:
    """Publish; gives the answer."""
    answer = await world.call("POST", "/v1/events", {"type": "order.created", "data": {"n": 1}, **fields})
    assert answer.status == 202, answer
    made: dict[str, Any] = answer.json
    return made


def test_an_event_is_accepted_routed_and_readable() -> None:
    """202 with id and number of deliveries; what was published can be read back."""

    async def test(world: World) -> None:
        await world.endpoint(event_types=["order.*"])
        await world.endpoint(event_types=["other"])
        answer = await world.call("POST", "/v1/events", {"type": "order.created", "data": {"n": 1}, "key": "k"})
        assert answer.status == 202
        assert answer.json == {"id": answer.json["id"], "duplicate": False, "deliveries": 1, "sequence": 1}
        assert answer.headers["content-type"] == "application/json"
        shown = (await world.call("GET", f"/v1/events/{answer.json['id']}")).json
        assert (shown["type"], shown["key"], shown["sequence"], shown["data"]) == ("order.created", "k", 1, {"n": 1})
        assert [delivery["status"] for delivery in shown["deliveries"]] == ["pending"]

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        b'{"n":18446744073709551616,"p":7615917337495251231,"f":0.1000000000000000055,"e":1E400}',
        b'{"weight":614.0,"z":-0.0,"e":1e2}',
        b'{"s":"a\\u0000b"}',
        b'{"b":1,"a":2,"b":3}',
        '{"x":"\u2028\u2029<!--&amp;\\/ e\u0301 \u00e9"}'.encode(),
        b'"\\ud800"',
        b"null",
        b"[ 1 , 2 ]",
    ],
)
def test_data_comes_back_byte_for_byte(data: bytes) -> None:
    """Numbers, escapes, key order, duplicate keys and spaces are untouched (A024 to A035)."""

    async def test(world: World) -> None:
        answer = await world.call("POST", "/v1/events", b'{"type":"a.b","data":' + data + b"}")
        assert answer.status == 202, answer
        event_id = answer.json["id"]
        assert (await world.call("GET", f"/v1/events/{event_id}/data")).body == data
        assert b'"data":' + data in (await world.call("GET", f"/v1/events/{event_id}")).body

    run(test)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "malformed_json"),
        (b"\xef\xbb\xbf{}", 400, "malformed_json"),
        ('{"type":"a","data":1}'.encode("utf-16"), 400, "malformed_json"),
        (b'{"type":"a","data":NaN}', 400, "malformed_json"),
        (b'{"type":"a","data":1} x', 400, "malformed_json"),
        (b'{"type":"a","data":"\xff"}', 400, "malformed_json"),
        (b'{"type":"a","data":' + b"[" * 65 + b"]" * 65 + b"}", 400, "malformed_json"),
        (b'{"type":"a","data":' + b"[" * 100_000, 400, "malformed_json"),
        (b"null", 422, "invalid"),
        (b"[]", 422, "invalid"),
        (b'{"type":"a"}', 422, "invalid"),
        (b'{"type":"a","data":1,"more":1}', 422, "invalid"),
        (b'{"type":"a..b","data":1}', 422, "invalid"),
        (b'{"type":"ackpost.x","data":1}', 422, "invalid"),
        (b'{"type":"a","data":1,"sequence":1}', 422, "invalid"),
        (b'{"type":"a","data":1,"uid":"a b"}', 422, "invalid"),
        (b'{"type":"a","data":1,"occurred_at":"yesterday"}', 422, "invalid"),
        (b'{"type":"a","data":1,"metadata":[]}', 422, "invalid"),
    ],
)
def test_a_wrong_body_is_refused_with_its_place(body: bytes, status: int, code: str) -> None:
    """Each has a stable code; a 422 names the field; nothing is stored (A034)."""

    async def test(world: World) -> None:
        answer = await world.call("POST", "/v1/events", body)
        assert (answer.status, answer.code) == (status, code), answer
        if status == 422:
            assert all(error["loc"][0] == "body" and error["message"] for error in answer.json["errors"])
            assert answer.json["errors"]
        assert (await world.call("GET", "/v1/events")).json["data"] == []

    run(test)


def test_one_bad_event_refuses_its_whole_batch() -> None:
    """All or none, and the index of the bad one is named."""

    async def test(world: World) -> None:
        good = {"type": "a", "data": 1}
        answer = await world.call("POST", "/v1/events/batch", {"events": [good, good, {"type": "!", "data": 1}]})
        assert answer.status == 422
        assert answer.json["errors"][0]["loc"] == ["body", "events", 2, "type"]
        assert (await world.call("GET", "/v1/events")).json["data"] == []
        answer = await world.call("POST", "/v1/events/batch", {"events": [good] * 500})
        assert (answer.status, len(answer.json["events"])) == (202, 500)
        assert len({event["id"] for event in answer.json["events"]}) == 500
        answer = await world.call("POST", "/v1/events/batch", {"events": [good] * 501})
        assert (answer.status, answer.code) == (422, "invalid")

    run(test)


def test_a_repeated_uid_answers_as_the_first_time() -> None:
    """The same bytes: a duplicate; others: a conflict."""

    async def test(world: World) -> None:
        first = await publish(world, uid="u1", key="k")
        assert await publish(world, uid="u1", key="k") == {**first, "duplicate": True}
        answer = await world.call("POST", "/v1/events", {"type": "order.created", "data": {"n": 2}, "uid": "u1"})
        assert (answer.status, answer.code) == (409, "uid_conflict")

    run(test)


def test_a_falling_sequence_is_a_conflict() -> None:
    """A publisher's own sequence must rise."""

    async def test(world: World) -> None:
        assert (await publish(world, key="k", sequence=5))["sequence"] == 5
        answer = await world.call("POST", "/v1/events", {"type": "a", "data": 1, "key": "k", "sequence": 5})
        assert (answer.status, answer.code) == (409, "sequence_not_rising")

    run(test)


def test_an_idempotency_key_gives_the_first_answer_again() -> None:
    """The repetition changes nothing; another body is a conflict; a batch under the same key is another call."""

    async def test(world: World) -> None:
        body = {"type": "a", "data": 1}
        first = await world.call("POST", "/v1/events", body, idempotency_key="i 1")
        again = await world.call("POST", "/v1/events", body, idempotency_key="i 1")
        assert (again.status, again.body) == (202, first.body)
        assert len((await world.call("GET", "/v1/events")).json["data"]) == 1
        other = await world.call("POST", "/v1/events", {"type": "a", "data": 2}, idempotency_key="i 1")
        assert (other.status, other.code) == (409, "idempotency_conflict")
        batch = await world.call("POST", "/v1/events/batch", {"events": [body]}, idempotency_key="i 1")
        assert (batch.status, batch.code) == (409, "idempotency_conflict")
        for bad in ("", "x" * 257, "t\tb"):
            answer = await world.call("POST", "/v1/events", body, idempotency_key=bad)
            assert (answer.status, answer.code) == (422, "invalid")

    run(test)


def test_a_body_over_its_limit_is_not_read() -> None:
    """413 by the announced length before one byte is read, and by what has come when nothing was announced (S43)."""

    async def test(world: World) -> None:
        token = [(b"host", b"x"), (b"authorization", b"Bearer operator")]
        for path in ("/v1/events", "/v1/events/batch", "/v1/tenants"):
            announced = [*token, (b"content-length", b"99999999999")]
            answer = await world.send("POST", path, announced, [b"never read"])
            assert (answer.status, answer.code, answer.headers["connection"]) == (413, "too_large", "close"), path
            endless = [b"x" * 65_536] * 1000
            answer = await world.send("POST", path, token, endless)
            assert (answer.status, answer.code) == (413, "too_large"), path

    run(test)


def test_data_over_its_limit_is_refused_by_name() -> None:
    """The setting limits the data itself."""

    async def test(world: World) -> None:
        good = await world.call("POST", "/v1/events", b'{"type":"a","data":"' + b"x" * 98 + b'"}')
        assert good.status == 202
        answer = await world.call("POST", "/v1/events", b'{"type":"a","data":"' + b"x" * 99 + b'"}')
        assert (answer.status, answer.code) == (413, "too_large")

    run(test, data_bytes_max=100)


def test_too_many_deliveries_are_refused() -> None:
    """A request that would make more than 10,000 deliveries stores nothing."""

    async def test(world: World) -> None:
        for number in range(21):
            await world.endpoint(url=f"https://example.com/{number}")
        events = [{"type": "a", "data": 1}] * 477
        answer = await world.call("POST", "/v1/events/batch", {"events": events})
        assert (answer.status, answer.code) == (422, "too_many_deliveries")
        assert (await world.call("POST", "/v1/events/batch", {"events": events[:476]})).status == 202

    run(test)


def test_a_tenants_rate_is_a_429_with_seconds() -> None:
    """The bucket refills with time; the answer says when to come back."""

    async def test(world: World) -> None:
        await world.call("PATCH", "/v1/tenants/default", {"rate_per_s": 0.5}, key="operator")
        assert (await world.call("POST", "/v1/events", {"type": "a", "data": 1})).status == 202
        answer = await world.call("POST", "/v1/events", {"type": "a", "data": 1})
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "rate_limited", "2")
        world.clock.forward(2)
        assert (await world.call("POST", "/v1/events", {"type": "a", "data": 1})).status == 202

    run(test)


def test_routing_changed_in_between_is_found_out() -> None:
    """An endpoint made between routing and commit gets the event (E10)."""

    async def test(world: World) -> None:
        await publish(world)

        async def add_endpoint(_: Operation) -> None:
            await world.endpoint()

        world.committer.before = add_endpoint
        assert (await publish(world))["deliveries"] == 1
        assert sum(isinstance(operation, Accept) for operation in world.committer.seen) == 3

    run(test)


def test_paused_endpoints_get_deliveries_and_disabled_ones_do_not() -> None:
    """Paused: kept for later. Disabled: nothing."""

    async def test(world: World) -> None:
        paused, disabled = await world.endpoint(), await world.endpoint()
        assert (await world.call("POST", f"/v1/endpoints/{paused['id']}/pause")).status == 200
        assert (await world.call("POST", f"/v1/endpoints/{disabled['id']}/disable")).status == 200
        made = await publish(world)
        assert made["deliveries"] == 1
        lines = (await world.call("GET", f"/v1/events/{made['id']}/routing")).json["data"]
        reasons = {line["endpoint_id"]: line["reason"] for line in lines}
        assert reasons == {paused["id"]: "has_delivery", disabled["id"]: "endpoint_disabled"}

    run(test)


def test_a_writer_in_trouble_is_a_503_with_seconds() -> None:
    """The code says what is wrong, Retry-After when to come back."""

    async def test(world: World) -> None:
        await world.get("/v1/events")
        for code, seconds in (("outcome_unknown", 1), ("storage_full", 30), ("overloaded", None)):
            world.committer.failure = Unavailable("not now", code=code, retry_after_s=seconds)
            answer = await world.call("POST", "/v1/events", {"type": "a", "data": 1})
            assert (answer.status, answer.code) == (503, code)
            assert answer.headers["retry-after"] == str(seconds or 1)

    run(test)


def test_an_unexpected_failure_tells_nothing() -> None:
    """500 internal_error without a trace of its cause; the fact is counted."""

    async def test(world: World) -> None:
        for key in ("admin", "operator"):
            await world.get("/v1/events", key=key)
        world.committer.failure = RuntimeError("SECRET-CAUSE")
        for answer in (
            await world.call("POST", "/v1/events", {"type": "a", "data": 1}),
            await world.call("POST", "/v1/tenants", {"uid": "t"}, key="operator"),
        ):
            assert (answer.status, answer.code) == (500, "internal_error")
            assert b"SECRET-CAUSE" not in answer.body
            assert b"Traceback" not in answer.body
        assert world.services.counters.notes["api.internal_error"] == 2

    run(test)


def test_any_content_type_is_read_as_json() -> None:
    """Clients that send forms' or no types are understood."""

    async def test(world: World) -> None:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/cloudevents+json", "x"):
            headers = [(b"content-type", kind.encode())]
            body: dict[str, Any] = {"type": "a", "data": 1}
            assert (await world.call("POST", "/v1/events", body, headers=headers)).status == 202
            uid = kind.replace("/", "_").replace("+", "_")
            made = await world.call("POST", "/v1/tenants", {"uid": uid}, key="operator", headers=headers)
            assert made.status == 201
            await world.call("DELETE", f"/v1/tenants/{uid}", key="operator")

    run(test)


def test_a_trailing_slash_changes_nothing() -> None:
    """As for every other call."""

    async def test(world: World) -> None:
        body = json.dumps({"type": "a", "data": 1}).encode()
        assert (await world.call("POST", "/v1/events/", body)).status == 202
        assert (await world.call("GET", "/v1/events/")).status == 200

    run(test)
