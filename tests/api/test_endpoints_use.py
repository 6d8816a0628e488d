"""Trying an endpoint out, and seeing how it does: test, match, health, attempts, lists."""

from __future__ import annotations

from typing import Any

import pytest

from ackpost.core import ids
from ackpost.core.model import Circuit
from ackpost.core.outcome import Outcome
from tests.api.world import START_MS, World, run


def test_a_test_goes_to_exactly_this_endpoint_whatever_filters_and_state_say() -> None:
    """Neither another endpoint nor a disabled state changes where it goes."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="e", event_types=["nothing.else"])
        await world.endpoint(uid="other", event_types=["*", "ackpost.*"])
        await world.post("/v1/endpoints/e/disable")
        sent = await world.post("/v1/endpoints/e/test", {"type": "order.created", "data": {"b": 1, "a": "é"}})
        assert sent.status == 202
        (row,) = await world.pending()
        assert ids.public_id(ids.ENDPOINT, row.endpoint, world.store.salt) == made["id"]
        assert sent.json == {
            "event_id": ids.public_id(ids.EVENT, row.event, world.store.salt),
            "delivery_id": ids.public_id(ids.DELIVERY, row.position, world.store.salt),
        }
        windows = await world.store.load_window(row.endpoint, 0, after=None, limit=10)
        assert [ref.trigger for ref in windows] == ["test"]

    run(scenario)


def test_the_data_of_a_test_is_sent_as_its_bytes() -> None:
    """Also null; left out there is a default."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        for body, data in (
            (b'{"data": {"b":1,  "a":1.0e2}}', b'{"b":1,  "a":1.0e2}'),
            (b'{"data": null}', b"null"),
            (b"{}", b'{"message":"This is a test."}'),
            (b"", b'{"message":"This is a test."}'),
        ):
            sent = await world.post("/v1/endpoints/e/test", body)
            assert sent.status == 202, sent.body
            answer = await world.get(f"/v1/events/{sent.json['event_id']}/data")
            assert answer.body == data

    run(scenario)


@pytest.mark.parametrize(
    ("body", "status", "loc"),
    [
        ({"type": "no blanks"}, 422, ("body", "type")),
        ({"type": "ackpost.delivery.dead"}, 422, ("body", "type")),
        ({"data": "x" * 300}, 413, ("body", "data")),
    ],
)
def test_a_test_obeys_the_limits_of_events(body: Any, status: int, loc: tuple[str, ...]) -> None:
    """And cannot pretend to be one of Ackpost's own events."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        refused = await world.post("/v1/endpoints/e/test", body)
        assert (refused.status, refused.locs) == (status, [loc])
        assert await world.pending() == []

    run(scenario, data_bytes_max=256)


def test_a_test_that_is_waited_for_answers_with_its_attempt() -> None:
    """200 with the attempt, as it was recorded meanwhile."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")

        async def sent_meanwhile(position: int) -> bool:
            (row,) = await world.pending()
            assert row.position == position
            outcome = Outcome("status", status_code=500, response_body=b"oops", response_headers=(("x-a", "1"),))
            await world.attempted(row, "discarded", outcome, reason="test_failed")
            return True

        world.engine.on_wait = sent_meanwhile
        answer = await world.post("/v1/endpoints/e/test?wait_s=5")
        assert answer.status == 200
        attempt = answer.json["attempt"]
        assert (attempt["trigger"], attempt["outcome"], attempt["status_code"], attempt["error"]) == (
            "test", "failed", 500, "status",
        )  # fmt: skip
        assert (attempt["response_body"], attempt["response_headers"]) == ("oops", [["x-a", "1"]])
        assert ["ackpost-test", "true"] in attempt["request_headers"]

    run(scenario)


def test_an_attempt_that_comes_as_the_time_ends_is_not_missed() -> None:
    """What is recorded counts, not who noticed it."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")

        async def never(_: int) -> bool:
            (row,) = await world.pending()
            await world.attempted(row)
            return False

        world.engine.on_wait = never
        answer = await world.post("/v1/endpoints/e/test?wait_s=5")
        assert (answer.status, answer.json["attempt"]["outcome"]) == (200, "delivered")

    run(scenario)


def test_a_test_that_takes_too_long_answers_202() -> None:
    """With the ids, so that it can be looked up later."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        answer = await world.post("/v1/endpoints/e/test?wait_s=1")
        assert (answer.status, sorted(answer.json)) == (202, ["delivery_id", "event_id"])
        for wait_s in ("-1", "31", "soon"):
            refused = await world.post(f"/v1/endpoints/e/test?wait_s={wait_s}")
            assert (refused.status, refused.locs) == (422, [("query", "wait_s")])

    run(scenario)


def test_more_than_ten_tests_a_minute_are_refused() -> None:
    """For each endpoint by itself; Retry-After says when the next may go."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.endpoint(uid="other")
        for _ in range(10):
            assert (await world.post("/v1/endpoints/e/test")).status == 202
            world.clock.forward(1)
        refused = await world.post("/v1/endpoints/e/test")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "rate_limited", "50")
        enabling = await world.post("/v1/endpoints/e/enable", {"test": True})
        assert enabling.status == 429
        assert (await world.post("/v1/endpoints/other/test")).status == 202
        world.clock.forward(50)
        assert (await world.post("/v1/endpoints/e/test")).status == 202
        assert (await world.post("/v1/endpoints/e/test")).status == 429

    run(scenario)


def test_a_repeated_test_sends_once_and_names_the_same_delivery() -> None:
    """The first answer is given again."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        first = await world.post("/v1/endpoints/e/test", idempotency_key="t")
        again = await world.post("/v1/endpoints/e/test", idempotency_key="t")
        assert (again.status, again.json) == (202, first.json)
        assert len(await world.pending()) == 1

    run(scenario)


def test_a_test_follows_a_routing_that_changes_meanwhile() -> None:
    """The accept that came too late is repeated with the new version."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.event()

        async def other(_: object) -> None:
            assert (await world.patch("/v1/endpoints/e", {"channels": ["x"]})).status == 200
            await world.services.router.routes(world.default_tenant)

        routes = await world.services.router.routes(world.default_tenant)
        world.committer.before = other
        assert (await world.post("/v1/endpoints/e/test")).status == 202
        assert (await world.services.router.routes(world.default_tenant)).version > routes.version

    run(scenario)


@pytest.mark.parametrize(
    ("patterns", "matching"),
    [
        (["user"], ["user"]),
        (["user.*"], ["user.created", "user.profile.changed"]),
        (["order.*"], []),
        (
            ["*"],
            ["user", "user_deleted", "user.created", "user.profile.changed", "users.created", "orders.x", "ORDER.x"],
        ),
        (["ackpost.*"], ["ackpost.delivery.dead"]),
    ],
)
def test_filters_can_be_tried_without_sending(patterns: list[str], matching: list[str]) -> None:
    """No prefix, other case or neighbouring name matches by accident (case A149)."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", event_types=patterns)
        types = [
            "user", "user_deleted", "user.created", "user.profile.changed", "users.created", "orders.x", "ORDER.x",
            "ackpost.delivery.dead",
        ]  # fmt: skip
        for event_type in types:
            answer = await world.post("/v1/endpoints/e/match", {"type": event_type}, key="reader")
            assert answer.json["matches"] == (event_type in matching), event_type
        wrong = await world.post("/v1/endpoints/e/match", {"type": "order."})
        assert (wrong.status, wrong.locs) == (422, [("body", "type")])
        assert await world.pending() == []

    run(scenario)


def test_a_match_says_why_not() -> None:
    """Type, channel, reserved name or state."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", event_types=["order.*"], channels=["a"])
        await world.endpoint(uid="all")
        for name, body, reason in (
            ("e", {"type": "order.x", "channels": ["a", "b"]}, "matches"),
            ("e", {"type": "order.x", "channels": ["b"]}, "channel_not_shared"),
            ("e", {"type": "order.x"}, "channel_not_shared"),
            ("e", {"type": "user.x", "channels": ["a"]}, "type_not_matched"),
            ("all", {"type": "ackpost.delivery.dead"}, "type_reserved"),
        ):
            answer = await world.post(f"/v1/endpoints/{name}/match", body)
            assert (answer.status, answer.json) == (200, {"matches": reason == "matches", "reason": reason})
        await world.post("/v1/endpoints/all/disable")
        off = await world.post("/v1/endpoints/all/match", {"type": "x"})
        assert off.json == {"matches": False, "reason": "endpoint_disabled"}

    run(scenario)


def test_health_tells_backlog_success_and_latency() -> None:
    """Of the last hour; with the last failure, and without anything when nothing was sent."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="e")
        empty = (await world.get("/v1/endpoints/e/health")).json
        assert (empty["success_rate_1h"], empty["latency_ms"], empty["last_failure"]) == (
            None, {"p50": None, "p99": None}, None,
        )  # fmt: skip
        for _ in range(4):
            await world.event()
        rows = await world.pending()
        for row, duration_ms in zip(rows[:2], (10.0, 30.0), strict=True):
            await world.attempted(row, outcome=Outcome("delivered", status_code=200, duration_ms=duration_ms))
        await world.failed(rows[2], "retry", status_code=503)
        world.engine.flying[rows[0].endpoint] = 7
        health = (await world.get("/v1/endpoints/e/health")).json
        assert (health["backlog"], health["in_flight"], health["oldest_due_at"]) == (2, 7, "2027-01-15T08:00:00.000Z")
        assert health["success_rate_1h"] == pytest.approx(2 / 3)
        assert health["latency_ms"] == {"p50": 10.0, "p99": 30.0}
        assert health["circuit"]["state"] == "closed"
        assert health["last_success_at"] == "2027-01-15T08:00:00.000Z"
        assert (health["last_failure"]["status_code"], health["last_failure"]["url"]) == (503, made["url"])

    run(scenario)


def test_attempts_of_an_endpoint_are_listed_page_by_page() -> None:
    """Newest first, nothing skipped or repeated."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.endpoint(uid="other", event_types=["none"])
        for n in range(5):
            await world.event(key="k", metadata={"n": n})
        for row in await world.pending():
            await world.attempted(row)
        seen: list[str] = []
        path = "/v1/endpoints/e/attempts?limit=2"
        after = ""
        while True:
            page = (await world.get(path + after)).json
            seen += [one["id"] for one in page["data"]]
            assert [dict(one["request_headers"])["ackpost-sequence"] for one in page["data"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert len(seen) == len(set(seen)) == 5
        assert seen == sorted(seen, reverse=True)
        assert (await world.get("/v1/endpoints/other/attempts")).json["data"] == []

    run(scenario)


def test_endpoints_are_filtered_by_what_is_shown() -> None:
    """The values of a filter together give the whole list (case A146)."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="a", event_types=["order.*"])
        await world.endpoint(uid="b", url="https://b.example/", event_types=["order.created", "user.*"])
        await world.endpoint(uid="c", url="https://b.example/")
        await world.post("/v1/endpoints/b/pause")
        await world.post("/v1/endpoints/c/disable")
        await world.event("order.created")
        row = next(row for row in await world.pending())
        opened = Circuit(state="open", failures=1, opened_at_ms=START_MS, retry_at_ms=START_MS + 1)
        await world.failed(row, "retry", circuit=opened)

        async def found(query: str) -> list[str]:
            answer = await world.get(f"/v1/endpoints?{query}")
            assert answer.status == 200, answer.body
            return [one["uid"] for one in answer.json["data"]]

        assert await found("") == ["c", "b", "a"]
        assert await found("order=asc") == ["a", "b", "c"]
        assert [await found(f"state={state}") for state in ("enabled", "paused", "disabled")] == [["a"], ["b"], ["c"]]
        assert await found("state=paused,disabled") == ["c", "b"]
        assert [await found(f"circuit={name}") for name in ("open", "closed")] == [["a"], ["c", "b"]]
        assert await found("url=https://b.example/") == ["c", "b"]
        assert await found("event_type=order.created") == ["c", "b", "a"]
        assert await found("event_type=user.created") == ["c", "b"]
        assert await found("event_type=order.*") == ["c", "a"]
        assert await found("event_type=nothing") == ["c"]

    run(scenario)


def test_a_filtered_list_pages_without_gaps() -> None:
    """Rows that the filter leaves out cost no place on a page."""

    async def scenario(world: World) -> None:
        for n in range(9):
            await world.endpoint(uid=f"e{n}", event_types=["a"] if n % 3 else ["b"])
        seen: list[str] = []
        after = ""
        while True:
            page = (await world.get(f"/v1/endpoints?event_type=b&limit=2{after}")).json
            seen += [one["uid"] for one in page["data"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert seen == ["e6", "e3", "e0"]

    run(scenario)
