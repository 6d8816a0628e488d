"""Pausing, resuming, disabling, enabling and deleting endpoints, and recovering what they missed."""

from __future__ import annotations

from typing import Any

import pytest

from ackpost.core.model import Circuit
from tests.api.world import START_MS, World, run

BEFORE = "2020-01-01T00:00:00Z"


def test_a_paused_endpoint_keeps_its_deliveries_until_it_is_resumed() -> None:
    """They say what holds them, and promise no time."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        paused = await world.post("/v1/endpoints/e/pause")
        assert (paused.status, paused.json["state"], paused.json["state_reason"]) == (200, "paused", "requested")
        await world.event()
        held = (await world.get("/v1/deliveries?held_by=paused")).json["data"]
        assert [(one["status"], one["held_by"], one["next_attempt_at"]) for one in held] == [
            ("pending", "paused", None)
        ]
        resumed = await world.post("/v1/endpoints/e/resume")
        assert (resumed.json["state"], resumed.json["state_reason"]) == ("enabled", None)
        assert (await world.get("/v1/deliveries?held_by=paused")).json["data"] == []

    run(scenario)


@pytest.mark.parametrize("verb", ["resume", "enable"])
def test_resume_and_enable_let_the_next_request_be_a_probe(verb: str) -> None:
    """Whatever the circuit and the endpoint's Retry-After say."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.event()
        opened = Circuit(state="open", failures=10, opened_at_ms=START_MS, retry_at_ms=START_MS + 30_000)
        (delivery,) = await world.pending()
        await world.failed(delivery, "retry", circuit=opened, retry_after_until_ms=START_MS + 90_000)
        shown = (await world.get("/v1/endpoints/e")).json["circuit"]
        assert shown == {
            "state": "open", "failures": 10, "opened_at": "2027-01-15T08:00:00.000Z",
            "retry_at": "2027-01-15T08:00:30.000Z",
        }  # fmt: skip
        after = await world.post(f"/v1/endpoints/e/{verb}")
        assert (after.json["state"], after.json["circuit"]["state"]) == ("enabled", "half-open")

    run(scenario)


def test_disabling_ends_what_is_pending_and_takes_nothing_new() -> None:
    """By a job that the answer names; later events make no delivery to it."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.event()
        disabled = await world.post("/v1/endpoints/e/disable")
        assert (disabled.status, disabled.json["state"]) == (200, "disabled")
        assert (await world.get(f"/v1/jobs/{disabled.json['job_id']}")).json["kind"] == "end_endpoint"
        await world.run_jobs()
        await world.event()
        rows = (await world.get("/v1/deliveries")).json["data"]
        assert [(row["status"], row["reason"]) for row in rows] == [("dead", "endpoint_disabled")]
        again = await world.post("/v1/endpoints/e/disable")
        assert (again.status, "job_id" in again.json) == (200, False)

    run(scenario)


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_disabled_endpoint_is_neither_paused_nor_resumed(verb: str) -> None:
    """Only enabling brings it back."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.post("/v1/endpoints/e/disable")
        refused = await world.post(f"/v1/endpoints/e/{verb}")
        assert (refused.status, refused.code) == (409, "invalid_state")

    run(scenario)


def test_enabling_can_test_and_recover_in_one_call() -> None:
    """The missed and the dead come back; the answer names test and job."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", event_types=["order.*"])
        await world.event("order.dead")
        await world.post("/v1/endpoints/e/disable")
        await world.run_jobs()
        world.clock.forward(1)
        await world.event("order.missed")
        await world.event("user.unwanted")
        world.clock.forward(1)
        enabled = await world.post("/v1/endpoints/e/enable", {"test": True, "recover": {"since": BEFORE}})
        assert (enabled.status, enabled.json["state"]) == (200, "enabled")
        await world.run_jobs()
        job = (await world.get(f"/v1/jobs/{enabled.json['recover_job_id']}")).json
        assert (job["kind"], job["state"], job["done"]) == ("recover", "done", 2)
        assert sorted(row.type for row in await world.pending()) == ["ackpost.test", "order.dead", "order.missed"]
        test = (await world.get(f"/v1/deliveries/{enabled.json['test']['delivery_id']}")).json
        assert (test["type"], test["event_id"]) == ("ackpost.test", enabled.json["test"]["event_id"])

    run(scenario)


def test_a_repeated_enable_tests_and_recovers_once() -> None:
    """One key covers all that the call does."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.post("/v1/endpoints/e/disable")
        body = {"test": True, "recover": {"since": BEFORE}}
        first = await world.post("/v1/endpoints/e/enable", body, idempotency_key="k")
        again = await world.post("/v1/endpoints/e/enable", body, idempotency_key="k")
        assert (again.status, again.json) == (200, first.json)
        assert len(await world.pending()) == 1
        kinds = [job["kind"] for job in (await world.get("/v1/jobs")).json["data"]]
        assert kinds.count("recover") == 1

    run(scenario)


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"recover": {"since": "yesterday"}}, ("body", "recover", "since")),
        ({"recover": {"since": "2100-01-01T00:00:00Z"}}, ("body", "recover", "since")),
        ({"recover": {}}, ("body", "recover", "since")),
        ({"recover": {"since": BEFORE, "until": BEFORE}}, ("body", "recover", "until")),
        ({"test": 1}, ("body", "test")),
    ],
)
def test_a_wrong_wish_leaves_the_endpoint_as_it_was(body: Any, loc: tuple[str, ...]) -> None:
    """All is checked before the first step."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.post("/v1/endpoints/e/disable")
        refused = await world.post("/v1/endpoints/e/enable", body)
        assert (refused.status, refused.locs) == (422, [loc])
        assert (await world.get("/v1/endpoints/e")).json["state"] == "disabled"

    run(scenario)


def test_recover_counts_first_and_then_sends() -> None:
    """A dry run changes nothing; types and span narrow it down."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.dead(2, "order.created")
        world.clock.forward(60)
        await world.dead(1, "user.created")
        recover = "/v1/endpoints/e/recover"
        for more, count in (
            ({}, 3),
            ({"event_types": ["order.*"]}, 2),
            ({"until": "2027-01-15T08:00:30Z"}, 2),
            ({"until": "2027-01-15T08:00:30Z", "event_types": ["user.*"]}, 0),
        ):
            dry = await world.post(recover, {"since": BEFORE, "dry_run": True, **more})
            assert (dry.status, dry.json) == (200, {"count": count})
        assert await world.pending() == []
        started = await world.post(recover, {"since": BEFORE, "event_types": ["order.*"]})
        assert started.status == 202
        await world.run_jobs()
        job = (await world.get(f"/v1/jobs/{started.json['job_id']}")).json
        assert (job["done"], job["params"]["event_types"], job["params"]["since"]) == (
            2, ["order.*"], "2020-01-01T00:00:00.000Z",
        )  # fmt: skip
        assert len(await world.pending()) == 2

    run(scenario)


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ("body", "since")),
        ({"since": "x"}, ("body", "since")),
        ({"since": BEFORE, "until": "2019-01-01T00:00:00Z"}, ("body", "until")),
        ({"since": BEFORE, "event_types": []}, ("body", "event_types")),
        ({"since": BEFORE, "event_types": ["a b"]}, ("body", "event_types", 0)),
        ({"since": BEFORE, "all": True}, ("body", "all")),
    ],
)
def test_a_wrong_span_is_refused(body: Any, loc: tuple[str | int, ...]) -> None:
    """Also in a dry run."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        for dry_run in (False, True):
            refused = await world.post("/v1/endpoints/e/recover", {**body, "dry_run": dry_run})
            assert (refused.status, refused.locs) == (422, [loc])

    run(scenario)


def test_a_disabled_endpoint_is_not_recovered() -> None:
    """It would take nothing."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.post("/v1/endpoints/e/disable")
        refused = await world.post("/v1/endpoints/e/recover", {"since": BEFORE})
        assert (refused.status, refused.code) == (409, "invalid_state")

    run(scenario)


def test_a_deleted_endpoint_is_gone_and_its_deliveries_are_cancelled() -> None:
    """What it left can still be read (case A078)."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="e")
        await world.event()
        deleted = await world.delete("/v1/endpoints/e")
        assert (deleted.status, deleted.body) == (204, b"")
        for path in ("/v1/endpoints/e", f"/v1/endpoints/{made['id']}"):
            assert (await world.get(path)).status == 404
        assert (await world.delete("/v1/endpoints/e")).status == 404
        await world.event()
        await world.run_jobs()
        left = (await world.get(f"/v1/deliveries?endpoint_id={made['id']}")).json["data"]
        assert [(row["status"], row["reason"]) for row in left] == [("cancelled", "endpoint_deleted")]
        assert (await world.endpoint(uid="e"))["id"] != made["id"]

    run(scenario)


def test_a_day_of_failures_is_shown_with_the_time_of_disabling() -> None:
    """And is gone again after enabling (case A087)."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.event()
        (delivery,) = await world.pending()
        await world.failed(delivery, "retry", first_failure_ms=START_MS, last_failure_ms=START_MS)
        assert (await world.get("/v1/endpoints/e")).json["failing_since"] is None
        world.clock.forward(86_400)
        failing = (await world.get("/v1/endpoints/e")).json
        assert (failing["failing_since"], failing["disable_at"]) == (
            "2027-01-15T08:00:00.000Z", "2027-01-20T08:00:00.000Z",
        )  # fmt: skip
        enabled = (await world.post("/v1/endpoints/e/enable")).json
        assert (enabled["failing_since"], enabled["disable_at"]) == (None, None)

    run(scenario)


@pytest.mark.parametrize("verb", ["pause", "resume", "disable", "secret/rotate", "test"])
def test_calls_take_no_unknown_fields(verb: str) -> None:
    """A misspelt wish is refused instead of being left out."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        refused = await world.post(f"/v1/endpoints/e/{verb}", {"nonsense": 1})
        assert (refused.status, refused.locs) == (422, [("body", "nonsense")])
        query = await world.post(f"/v1/endpoints/e/{verb}?nonsense=1")
        assert (query.status, query.locs) == (422, [("query", "nonsense")])

    run(scenario)
