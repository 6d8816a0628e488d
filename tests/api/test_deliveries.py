"""Deliveries and attempts: what is shown of them, and moving them by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ackpost.core import ids
from ackpost.core.model import Circuit
from ackpost.core.outcome import Outcome
from tests.api.world import START_MS, World, run


async def one(world: World, **endpoint: Any) -> str:
    """Make an endpoint and an event; gives the delivery's id."""
    await world.endpoint(uid="e", **endpoint)
    await world.event(key="k1")
    (row,) = await world.pending()
    return ids.public_id(ids.DELIVERY, row.position, world.store.salt)


def test_a_delivery_is_shown_with_its_newest_attempts() -> None:
    """Numbers, rounds and triggers as they happened, newest first, without bodies (cases A174, A177)."""

    async def scenario(world: World) -> None:
        delivery = await one(world)
        for status_code in (500, 503):
            (row,) = await world.pending()
            await world.failed(row, "retry", status_code=status_code, due_in_ms=4000)
            world.clock.forward(5)
        shown = (await world.get(f"/v1/deliveries/{delivery}")).json
        assert (shown["status"], shown["attempt_count"], shown["round"], shown["last_error"]) == (
            "pending", 2, 1, "status",
        )  # fmt: skip
        assert (shown["type"], shown["key"], shown["next_attempt_at"], shown["held_by"]) == (
            "order.created", "k1", "2027-01-15T08:00:09.000Z", "busy",
        )  # fmt: skip
        assert [(a["number"], a["status_code"], a["trigger"]) for a in shown["attempts"]] == [
            (2, 503, "schedule"), (1, 500, "schedule"),
        ]  # fmt: skip
        assert "response_body" not in shown["attempts"][0]
        assert shown["event_id"].startswith("evt_")

    run(scenario)


def test_an_attempt_shows_its_request_as_it_was_sent_then() -> None:
    """URL and headers of that time, even after a change; signature and secrets masked."""

    async def scenario(world: World) -> None:
        delivery = await one(world, headers={"X-Team": "blue"}, secret_headers={"X-Token": "MARK"})
        (row,) = await world.pending()
        outcome = Outcome(
            "timeout",
            phase="wait",
            detail="no answer within 5 s",
            duration_ms=5000.5,
            phases_ms=(1.0, 2.0, 3.0, 4990.0, 0.0),
            remote_ip="192.0.2.7",
            response_headers=(("set-cookie", "MARK"), ("x-a", "1")),
            response_body=b"\xff partial",
            truncated=True,
        )
        await world.attempted(row, "retry", outcome)
        await world.patch("/v1/endpoints/e", {"url": "https://new.example/", "headers": {"X-Team": "red"}})
        (listed,) = (await world.get(f"/v1/deliveries/{delivery}/attempts")).json["data"]
        attempt = (await world.get(f"/v1/attempts/{listed['id']}")).json
        assert attempt == listed
        assert (attempt["url"], attempt["remote_ip"], attempt["node"]) == ("https://a.example/hook", "192.0.2.7", "n")
        assert (attempt["outcome"], attempt["error"], attempt["error_detail"]) == (
            "failed", "timeout", "wait: no answer within 5 s",
        )  # fmt: skip
        assert attempt["phases_ms"] == {"dns": 1.0, "connect": 2.0, "tls": 3.0, "wait": 4990.0, "read": 0.0}
        sent = dict(attempt["request_headers"])
        assert (sent["X-Team"], sent["X-Token"], sent["webhook-signature"]) == ("blue", "***", "v1,***")
        assert (sent["webhook-id"], sent["webhook-timestamp"]) == (attempt_event(row, world), str(START_MS // 1000))
        assert (sent["ackpost-attempt"], sent["ackpost-sequence"]) == ("1", "1")
        assert attempt["response_headers"] == [["set-cookie", "***"], ["x-a", "1"]]
        assert (attempt["response_body"], attempt["truncated"]) == ("\ufffd partial", True)
        assert attempt["next_attempt_at"] == "2027-01-15T08:01:00.000Z"

    run(scenario)


def attempt_event(row: Any, world: World) -> str:
    """The public id of a row's event."""
    return ids.public_id(ids.EVENT, row.event, world.store.salt)


def test_keys_without_sight_of_data_get_no_response_bodies() -> None:
    """An endpoint may answer with what it was sent."""

    async def scenario(world: World) -> None:
        delivery = await one(world)
        (row,) = await world.pending()
        await world.attempted(row, outcome=Outcome("delivered", status_code=200, response_body=b"MARK"))
        path = f"/v1/deliveries/{delivery}/attempts"
        assert (await world.get(path)).json["data"][0]["response_body"] == "MARK"
        assert (await world.get(path)).json["data"][0]["error"] is None
        for role in ("reader", "publisher"):
            (attempt,) = (await world.get(path, key=role)).json["data"]
            assert attempt["response_body"] is None

    run(scenario)


def test_a_blocked_target_tells_tenants_nothing_of_the_network() -> None:
    """The same words whatever the address is; the operator sees rule and address (case S24)."""

    async def scenario(world: World) -> None:
        delivery = await one(world)
        (row,) = await world.pending()
        detail = "10.1.2.3 is private (10.0.0.0/8); the operator opens a range with --allow-target"
        await world.attempted(row, "retry", Outcome("blocked_target", detail=detail, remote_ip="10.1.2.3"))
        paths = [f"/v1/deliveries/{delivery}", f"/v1/deliveries/{delivery}/attempts", "/v1/endpoints/e/attempts"]
        for path in [*paths, "/v1/endpoints/e/health"]:
            for role in ("admin", "reader", "publisher"):
                answer = await world.get(path, key=role)
                assert b"blocked_target" in answer.body, path
                assert b"10.1.2.3" not in answer.body, path
                assert b"private" not in answer.body, path
            seen = await world.get(path, key="operator")
            assert detail.encode() in seen.body, path

    run(scenario)


def test_a_redelivery_starts_a_new_round_and_numbers_go_on() -> None:
    """With its own trigger; the automatic budget begins anew (case A081)."""

    async def scenario(world: World) -> None:
        delivery = await one(world)
        (row,) = await world.pending()
        await world.failed(row)
        again = await world.post(f"/v1/deliveries/{delivery}/redeliver")
        assert (again.status, again.json) == (202, {"deliveries": [delivery]})
        (row,) = await world.pending()
        assert (row.round, row.attempt_count) == (2, 1)
        await world.attempted(row)
        shown = (await world.get(f"/v1/deliveries/{delivery}")).json
        assert (shown["status"], shown["reason"]) == ("delivered", None)
        assert [(a["number"], a["round"], a["trigger"]) for a in shown["attempts"]] == [
            (2, 2, "redeliver"), (1, 1, "schedule"),
        ]  # fmt: skip

    run(scenario)


def test_redelivering_a_pending_one_makes_it_due_now() -> None:
    """In the same round."""

    async def scenario(world: World) -> None:
        delivery = await one(world)
        (row,) = await world.pending()
        await world.failed(row, "retry", due_in_ms=3_600_000)
        await world.post(f"/v1/deliveries/{delivery}/redeliver")
        (row,) = await world.pending()
        assert (row.round, row.due_ms) == (1, START_MS)

    run(scenario)


def test_a_repeated_redelivery_starts_one_round() -> None:
    """Also when the first answer was lost."""

    async def scenario(world: World) -> None:
        delivery = await one(world)
        (row,) = await world.pending()
        await world.attempted(row)
        first = await world.post(f"/v1/deliveries/{delivery}/redeliver", idempotency_key="k")
        (row,) = await world.pending()
        await world.attempted(row)
        again = await world.post(f"/v1/deliveries/{delivery}/redeliver", idempotency_key="k")
        assert (again.status, again.json) == (202, first.json)
        assert await world.pending() == []

    run(scenario)


def test_a_redelivery_that_cannot_go_is_refused() -> None:
    """Data that expired, an endpoint that is disabled, a delivery that is not there."""

    async def scenario(world: World) -> None:
        delivery = await one(world)
        await world.post("/v1/endpoints/e/disable")
        await world.run_jobs()
        off = await world.post(f"/v1/deliveries/{delivery}/redeliver")
        assert (off.status, off.code) == (409, "invalid_state")
        await world.post("/v1/endpoints/e/enable")
        event = (await world.get(f"/v1/deliveries/{delivery}")).json["event_id"]
        await world.delete(f"/v1/events/{event}/data")
        expired = await world.post(f"/v1/deliveries/{delivery}/redeliver")
        assert (expired.status, expired.code) == (410, "data_expired")
        missing = await world.post(f"/v1/deliveries/{event}/redeliver")
        assert (missing.status, missing.code) == (404, "not_found")

    run(scenario)


def test_a_cancelled_delivery_is_over() -> None:
    """Once; an ended one cannot be cancelled."""

    async def scenario(world: World) -> None:
        delivery = await one(world)
        done = await world.post(f"/v1/deliveries/{delivery}/cancel")
        assert (done.status, done.json) == (202, {"deliveries": [delivery]})
        shown = (await world.get(f"/v1/deliveries/{delivery}")).json
        assert (shown["status"], shown["next_attempt_at"], shown["held_by"]) == ("cancelled", None, None)
        assert shown["ended_at"] == "2027-01-15T08:00:00.000Z"
        again = await world.post(f"/v1/deliveries/{delivery}/cancel")
        assert (again.status, again.code) == (409, "invalid_state")

    run(scenario)


def test_each_reason_to_wait_is_shown_and_can_be_asked_for() -> None:
    """The values of ``held_by`` do not overlap (case A146)."""

    async def scenario(world: World) -> None:
        later = START_MS + 600_000
        opened = Circuit(state="open", failures=1, opened_at_ms=START_MS, retry_at_ms=later)
        marks: dict[str, dict[str, Any]] = {
            "circuit": {"circuit": opened},
            "retry_after": {"retry_after_until_ms": later},
        }
        for name in ("circuit", "paused", "rate", "retry_after", "busy", "free"):
            await world.endpoint(uid=name, event_types=[name])
            await world.event(name)
        await world.endpoint(uid="order", event_types=["order"], policy={"ordering": "by-key"})
        await world.event("order", key="k")
        await world.event("order", key="k")
        rows = {row.type: row for row in await world.pending()}
        for name, more in marks.items():
            await world.failed(rows[name], "retry", due_in_ms=1000, **more)
        await world.failed(rows["free"], "retry", due_in_ms=1000)
        await world.post("/v1/endpoints/paused/pause")
        world.engine.rate_held.add(rows["rate"].endpoint)
        everything = (await world.get("/v1/deliveries")).json["data"]
        shown = {(row["type"], row["held_by"]) for row in everything}
        assert shown == {
            ("circuit", "circuit"), ("paused", "paused"), ("rate", "rate"), ("retry_after", "retry_after"),
            ("busy", "busy"), ("free", None), ("order", "busy"), ("order", "order"),
        }  # fmt: skip
        times = {row["type"]: row["next_attempt_at"] for row in everything if row["held_by"] in marks}
        assert set(times.values()) == {"2027-01-15T08:10:00.000Z"}
        for held in ("circuit", "paused", "order", "rate", "retry_after", "busy"):
            answer = (await world.get(f"/v1/deliveries?held_by={held}")).json["data"]
            assert sorted(row["id"] for row in answer) == sorted(r["id"] for r in everything if r["held_by"] == held)
        both = (await world.get("/v1/deliveries?held_by=circuit,paused&status=pending,dead")).json["data"]
        assert [row["type"] for row in both] == ["paused", "circuit"]
        assert (await world.get("/v1/deliveries?held_by=circuit&status=dead")).json["data"] == []

    run(scenario)


def test_held_deliveries_are_listed_page_by_page() -> None:
    """Over many that are not held."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="p", event_types=["p"])
        await world.endpoint(uid="q", event_types=["q"])
        await world.post("/v1/endpoints/p/pause")
        for n in range(30):
            await world.event("p" if n % 5 == 0 else "q")
        seen: list[str] = []
        after = ""
        while True:
            page = (await world.get(f"/v1/deliveries?held_by=paused&limit=2{after}")).json
            seen += [row["id"] for row in page["data"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert len(seen) == len(set(seen)) == 6
        back = (await world.get(f"/v1/deliveries?held_by=paused&limit=2&after={page['previous']}")).json
        assert [row["id"] for row in back["data"]] == seen[2:4]

    run(scenario)


def test_deliveries_are_filtered_by_each_of_their_fields() -> None:
    """Ids or uids, comma lists, patterns and times."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", event_types=["order.*", "user.*"])
        event = await world.event("order.created", uid="ev-1", key="k")
        await world.event("user.created")
        rows = await world.pending()
        await world.failed(rows[0], status_code=503)
        await world.failed(rows[1], "dead", status_code=400, reason="permanent_failure")
        world.clock.forward(60)
        await world.event("order.paid")

        async def found(query: str) -> list[str]:
            answer = await world.get(f"/v1/deliveries?{query}")
            assert answer.status == 200, answer.body
            return [row["type"] for row in answer.json["data"]]

        assert await found("endpoint_id=e") == ["order.paid", "user.created", "order.created"]
        assert await found(f"event_id={event}") == await found("event_id=ev-1") == ["order.created"]
        assert await found("status=dead") == ["user.created", "order.created"]
        assert await found("status=pending,delivered") == ["order.paid"]
        assert await found("reason=permanent_failure,gone") == ["user.created"]
        assert await found("error=status") == ["user.created", "order.created"]
        assert await found("error=timeout") == []
        assert await found("status_code=503,504") == ["order.created"]
        assert await found("key=k") == ["order.created"]
        assert await found("type=order.*") == ["order.paid", "order.created"]
        assert await found("since=2027-01-15T08:00:30Z") == ["order.paid"]
        assert await found("until=2027-01-15T08:00:30Z&order=asc") == ["order.created", "user.created"]

    run(scenario)


@pytest.mark.parametrize(
    "query",
    [
        "status=failed", "error=nonsense", "status_code=5xx", "held_by=nobody", "endpoint_id=none", "event_id=none",
        "type=a..b", "since=now", "limit=0", "limit=251", "after=x", "order=up", "status=dead&status=pending",
    ],
)  # fmt: skip
def test_a_filter_that_means_nothing_is_refused(query: str) -> None:
    """It names the parameter instead of giving an empty list."""

    async def scenario(world: World) -> None:
        answer = await world.get(f"/v1/deliveries?{query}")
        assert (answer.status, answer.locs) == (422, [("query", query.partition("=")[0])])

    run(scenario)


@pytest.mark.parametrize(
    "path", ["/v1/deliveries/x", "/v1/deliveries/x/attempts", "/v1/attempts/x", "/v1/attempts/att_" + "0" * 26]
)
def test_what_is_not_there_is_404(path: str) -> None:
    """Malformed ids too."""

    async def scenario(world: World) -> None:
        answer = await world.get(path)
        assert (answer.status, answer.code) == (404, "not_found")

    run(scenario)
