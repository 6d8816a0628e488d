"""Dead letters, the jobs over them, and counts."""

from __future__ import annotations

from typing import Any

import pytest

from ackpost.core.model import Job
from ackpost.ports.operations import CreateJob, JobSaved
from tests.api.world import World, run


def test_a_dead_letter_is_listed_and_shown_with_data_and_attempts() -> None:
    """With the endpoint's URL of now, so that it can be seen whether a replay would go elsewhere."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="e")
        (delivery,) = await world.dead()
        await world.patch("/v1/endpoints/e", {"url": "https://new.example/"})
        (listed,) = (await world.get("/v1/dead-letters")).json["data"]
        assert listed == {
            "delivery_id": delivery,
            "event_id": listed["event_id"],
            "endpoint_id": made["id"],
            "tenant": "default",
            "url": "https://new.example/",
            "type": "order.created",
            "key": None,
            "reason": "attempts_exhausted",
            "attempt_count": 1,
            "last_error": "status",
            "died_at": "2027-01-15T08:00:00.000Z",
        }
        whole = (await world.get(f"/v1/dead-letters/{delivery}")).json
        assert {name: whole[name] for name in listed} == listed
        assert (whole["data"], whole["data_expired"]) == ({"n": 1}, False)
        assert [(a["number"], a["status_code"]) for a in whole["attempts"]] == [(1, 500)]
        for_reader = (await world.get(f"/v1/dead-letters/{delivery}", key="reader")).json
        assert "data" not in for_reader
        await world.delete("/v1/endpoints/e")
        assert (await world.get("/v1/dead-letters")).json["data"][0]["url"] is None

    run(scenario)


def test_a_delivery_that_is_not_dead_is_no_dead_letter() -> None:
    """Nor is one that was replayed."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        (delivery,) = await world.dead()
        await world.post(f"/v1/deliveries/{delivery}/redeliver")
        assert (await world.get("/v1/dead-letters")).json["data"] == []
        gone = await world.get(f"/v1/dead-letters/{delivery}")
        assert (gone.status, gone.code) == (404, "not_found")

    run(scenario)


def test_an_expired_dead_letter_says_so() -> None:
    """Instead of showing no data without a reason."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        (delivery,) = await world.dead()
        event = (await world.get(f"/v1/dead-letters/{delivery}")).json["event_id"]
        await world.delete(f"/v1/events/{event}/data")
        whole = (await world.get(f"/v1/dead-letters/{delivery}")).json
        assert (whole["data_expired"], "data" in whole) == (True, False)

    run(scenario)


def test_dead_letters_are_filtered() -> None:
    """By endpoint, type, reason and key."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", event_types=["order.*"])
        await world.endpoint(uid="f", event_types=["user.*"])
        await world.dead(1, "order.created")
        await world.dead(1, "user.created")
        await world.event("order.paid", key="k")
        (row,) = await world.pending()
        await world.failed(row, reason="gone")

        async def found(query: str) -> list[str]:
            return [one["type"] for one in (await world.get(f"/v1/dead-letters?{query}")).json["data"]]

        assert await found("") == ["order.paid", "user.created", "order.created"]
        assert await found("endpoint_id=f") == ["user.created"]
        assert await found("type=order.*") == ["order.paid", "order.created"]
        assert await found("reason=gone,poison") == ["order.paid"]
        assert await found("key=k") == ["order.paid"]
        refused = await world.get("/v1/dead-letters?reason=none")
        assert (refused.status, refused.locs) == (422, [("query", "reason")])

    run(scenario)


def test_a_replay_needs_to_be_told_what() -> None:
    """A forgotten filter never takes all (contract §3)."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.dead(2)
        for verb in ("replay", "discard"):
            for body in (None, {}, {"dry_run": True}, {"all": False}, {"ids": None, "endpoint_id": None}):
                refused = await world.post(f"/v1/dead-letters/{verb}", body)
                assert (refused.status, refused.code) == (422, "selector_required")
        assert (await world.get("/v1/jobs")).json["data"] == []

    run(scenario)


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"ids": []}, ("body", "ids")),
        ({"ids": ["dlv_nonsense"]}, ("body", "ids", 0)),
        ({"ids": ["evt_00000000000000000000000000"]}, ("body", "ids", 0)),
        ({"all": True, "type": "x"}, ("body", "all")),
        ({"reason": "nonsense"}, ("body", "reason")),
        ({"type": "a..b"}, ("body", "type")),
        ({"since": "x"}, ("body", "since")),
        ({"since": "2027-01-01T00:00:00Z", "until": "2027-01-01T00:00:00Z"}, ("body", "until")),
        ({"all": True, "limit": 5}, ("body", "limit")),
        ({"all": "yes"}, ("body", "all")),
    ],
)
def test_a_wrong_selector_is_refused(body: Any, loc: tuple[str | int, ...]) -> None:
    """It names the field."""

    async def scenario(world: World) -> None:
        refused = await world.post("/v1/dead-letters/discard", body)
        assert (refused.status, refused.locs) == (422, [loc])

    run(scenario)


def test_more_than_a_thousand_ids_are_refused() -> None:
    """And ids together with a filter."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        (delivery,) = await world.dead()
        many = await world.post("/v1/dead-letters/replay", {"ids": [delivery] * 1001})
        assert (many.status, many.locs) == (422, [("body", "ids")])
        both = await world.post("/v1/dead-letters/replay", {"ids": [delivery], "reason": "gone"})
        assert (both.status, both.locs) == (422, [("body", "ids")])
        most = await world.post("/v1/dead-letters/replay", {"ids": [delivery] * 1000})
        assert most.status == 202
        await world.run_jobs()
        job = (await world.get(f"/v1/jobs/{most.json['job_id']}")).json
        assert (job["total"], job["done"], job["params"]) == (1, 1, {"ids": [delivery]})

    run(scenario)


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_a_job_takes_what_was_selected_and_a_dry_run_counts_it(verb: str) -> None:
    """Each selector by itself; nothing changes before the job runs."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", event_types=["order.*"])
        await world.endpoint(uid="f", event_types=["user.*"])
        orders = await world.dead(2, "order.created")
        await world.dead(1, "user.created")
        for body, count in (
            ({"all": True}, 3),
            ({"endpoint_id": "e"}, 2),
            ({"type": "user.*"}, 1),
            ({"reason": "attempts_exhausted"}, 3),
            ({"reason": "gone"}, 0),
            ({"ids": orders[:1]}, 1),
            ({"until": "2027-01-15T08:00:00Z"}, 0),
            ({"since": "2027-01-15T08:00:00Z", "endpoint_id": "f"}, 1),
        ):
            dry = await world.post(f"/v1/dead-letters/{verb}", {**body, "dry_run": True})
            assert (dry.status, dry.json) == (200, {"count": count}), body
        started = await world.post(f"/v1/dead-letters/{verb}", {"ids": orders[:1]})
        assert started.status == 202
        assert len((await world.get("/v1/dead-letters")).json["data"]) == 3
        await world.run_jobs()
        shown = (await world.get(f"/v1/deliveries/{orders[0]}")).json
        assert (shown["status"], shown["round"]) == (("pending", 2) if verb == "replay" else ("discarded", 1))
        assert len((await world.get("/v1/dead-letters")).json["data"]) == 2
        job = (await world.get(f"/v1/jobs/{started.json['job_id']}")).json
        assert (job["kind"], job["state"], job["done"], job["skipped"]) == (verb, "done", 1, 0)
        assert job["finished_at"] is not None

    run(scenario)


def test_a_repeated_replay_starts_one_job() -> None:
    """And the same key with another selector is a conflict."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.dead(2)
        first = await world.post("/v1/dead-letters/replay", {"all": True}, idempotency_key="k")
        again = await world.post("/v1/dead-letters/replay", {"all": True}, idempotency_key="k")
        assert (again.status, again.json) == (202, first.json)
        assert len((await world.get("/v1/jobs")).json["data"]) == 1
        other = await world.post("/v1/dead-letters/replay", {"reason": "gone"}, idempotency_key="k")
        assert (other.status, other.code) == (409, "idempotency_conflict")

    run(scenario)


def test_a_job_is_stopped_once() -> None:
    """What ended cannot be stopped; a change of an endpoint is not the caller's to stop."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.dead(2)
        job = (await world.post("/v1/dead-letters/replay", {"all": True})).json["job_id"]
        stopped = await world.post(f"/v1/jobs/{job}/cancel")
        assert (stopped.status, stopped.json["state"], stopped.json["params"]) == (200, "cancelled", {"all": True})
        again = await world.post(f"/v1/jobs/{job}/cancel")
        assert (again.status, again.code) == (409, "invalid_state")
        assert len((await world.get("/v1/dead-letters")).json["data"]) == 2
        own = (await world.post("/v1/endpoints/e/disable")).json["job_id"]
        assert (await world.post(f"/v1/jobs/{own}/cancel")).code == "invalid_state"
        assert (await world.post("/v1/jobs/job_x/cancel")).status == 404
        assert (await world.get("/v1/jobs/job_x")).status == 404

    run(scenario)


def test_jobs_are_listed_newest_first() -> None:
    """With what they were asked to do, in the words of the API."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="e")
        body = {"endpoint_id": "e", "type": "order.*", "reason": "gone", "since": "2026-01-01T00:00:00+01:00"}
        await world.post("/v1/dead-letters/replay", body)
        await world.post("/v1/dead-letters/discard", {"all": True})
        first, second = (await world.get("/v1/jobs", key="reader")).json["data"]
        assert (first["kind"], first["params"], first["state"]) == ("discard", {"all": True}, "queued")
        assert second["params"] == {
            "endpoint_id": made["id"],
            "type": "order.*",
            "reason": "gone",
            "since": "2025-12-31T23:00:00.000Z",
        }
        page = (await world.get("/v1/jobs?limit=1")).json
        assert [job["kind"] for job in page["data"]] == ["discard"]
        rest = (await world.get(f"/v1/jobs?limit=1&after={page['next']}")).json
        assert [job["kind"] for job in rest["data"]] == ["replay"]
        assert rest["next"] is None

    run(scenario)


def test_what_only_the_server_knows_of_a_job_is_not_shown() -> None:
    """A selector of an internal kind keeps its internals."""

    async def scenario(world: World) -> None:
        job = Job(position=0, tenant=world.default_tenant, kind="replay", params={"all": True, "secret_mark": 5})
        assert isinstance(await world.committer.submit(CreateJob(job)), JobSaved)
        (shown,) = (await world.get("/v1/jobs")).json["data"]
        assert shown["params"] == {"all": True}

    run(scenario)


def test_deliveries_are_counted_by_status() -> None:
    """For each endpoint, type, reason or error; most numerous first."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="e")
        await world.dead(2, "order.created")
        world.clock.forward(60)
        await world.event("user.created")
        by_type = (await world.get("/v1/stats?by=type", key="reader")).json
        assert by_type == {
            "by": "type",
            "since": None,
            "data": [
                {"value": "order.created", "total": 2, "counts": {"dead": 2}},
                {"value": "user.created", "total": 1, "counts": {"pending": 1}},
            ],
        }
        by_endpoint = (await world.get("/v1/stats?by=endpoint")).json["data"]
        assert by_endpoint == [{"value": made["id"], "total": 3, "counts": {"dead": 2, "pending": 1}}]
        by_reason = (await world.get("/v1/stats?by=reason")).json["data"]
        assert by_reason == [{"value": "attempts_exhausted", "total": 2, "counts": {"dead": 2}}]
        by_error = (await world.get("/v1/stats?by=error&since=2027-01-15T08:00:30Z")).json
        assert (by_error["since"], by_error["data"]) == ("2027-01-15T08:00:30.000Z", [])
        for query in ("", "by=key", "by=type&since=x"):
            assert (await world.get(f"/v1/stats?{query}")).status == 422

    run(scenario)
