"""Secrets are shown where the contract says so, and to whom it says so; nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.world import World, run

MARK = "whsec_TUFSS01BUktNQVJLTUFSS01BUktNQVJLTUFSSw=="
DAY_MS = 86_400_000


def test_rotation_puts_the_new_secret_first_and_lets_the_old_one_sign_on() -> None:
    """The default overlap is a day."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="e")
        world.clock.forward(10)
        rotated = await world.post("/v1/endpoints/e/secret/rotate")
        assert rotated.status == 200
        assert rotated.json["secret"] != made["secret"]
        assert rotated.json["created_at"] == "2027-01-15T08:00:10.000Z"
        assert rotated.json["previous"] == [{"expires_at": "2027-01-16T08:00:10.000Z"}]
        assert (await world.get("/v1/endpoints/e/secret")).json == rotated.json
        world.clock.forward(86_400)
        assert (await world.get("/v1/endpoints/e/secret")).json["previous"] == []

    run(scenario)


def test_no_overlap_revokes_the_old_secret_at_once() -> None:
    """It is gone from the endpoint, so that nothing can sign with it."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", secret=MARK)
        rotated = await world.post("/v1/endpoints/e/secret/rotate", {"overlap_s": 0})
        assert rotated.json["previous"] == []
        stored = await world.store.endpoint_by_uid(world.default_tenant, "e")
        assert stored is not None
        assert len(stored.secrets) == 1

    run(scenario)


def test_at_most_five_secrets_live_at_a_time() -> None:
    """The oldest falls off."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        for _ in range(7):
            rotated = await world.post("/v1/endpoints/e/secret/rotate")
        assert len(rotated.json["previous"]) == 4

    run(scenario)


def test_a_given_secret_must_fit_the_signature() -> None:
    """The refusal names the field and never repeats the secret."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        good = await world.post("/v1/endpoints/e/secret/rotate", {"secret": MARK})
        assert good.json["secret"] == MARK
        bad = await world.post("/v1/endpoints/e/secret/rotate", {"secret": "v1," + MARK})
        assert (bad.status, bad.locs) == (422, [("body", "secret")])
        assert b"TUFSS" not in bad.body
        for overlap_s in (-1, 31 * 86_400):
            refused = await world.post("/v1/endpoints/e/secret/rotate", {"overlap_s": overlap_s})
            assert (refused.status, refused.locs) == (422, [("body", "overlap_s")])

    run(scenario)


def test_a_repeated_rotation_rotates_once() -> None:
    """A client that lost the answer gets the same secret again."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        first = await world.post("/v1/endpoints/e/secret/rotate", idempotency_key="r")
        again = await world.post("/v1/endpoints/e/secret/rotate", idempotency_key="r")
        assert (again.status, again.json) == (200, first.json)
        assert len(first.json["previous"]) == 1

    run(scenario)


@pytest.mark.parametrize("role", ["publisher", "reader"])
def test_keys_that_only_read_or_publish_never_get_a_secret(role: str) -> None:
    """Neither by asking nor by making one (case A152)."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", secret=MARK)
        for method, path, body in (
            ("GET", "/v1/endpoints/e/secret", None),
            ("POST", "/v1/endpoints/e/secret/rotate", {}),
            ("POST", "/v1/endpoints", {"url": "https://b.example/"}),
            ("PUT", "/v1/endpoints/e", {"url": "https://b.example/"}),
            ("PATCH", "/v1/endpoints/e", {"description": "x"}),
            ("DELETE", "/v1/endpoints/e", None),
            ("POST", "/v1/endpoints/e/test", None),
            ("POST", "/v1/endpoints/e/disable", None),
        ):
            answer = await world.call(method, path, body, key=role)
            assert (answer.status, answer.code) == (403, "forbidden"), path

    run(scenario)


def test_a_marked_secret_is_in_no_answer_but_the_secret_calls() -> None:
    """Every call around an endpoint with marked secrets, for every role (cases A152, A154)."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(
            uid="e",
            secret=MARK,
            secret_headers={"X-Token": "MARKED"},
            headers={"Authorization": "Bearer OPEN"},
        )
        await world.dead()
        delivery = (await world.get("/v1/deliveries")).json["data"][0]["id"]
        attempt = (await world.get(f"/v1/deliveries/{delivery}/attempts")).json["data"][0]["id"]
        reads = [
            "/v1/endpoints", "/v1/endpoints/e", f"/v1/endpoints/{made['id']}", "/v1/endpoints/e/health",
            "/v1/endpoints/e/attempts", "/v1/deliveries", f"/v1/deliveries/{delivery}", f"/v1/attempts/{attempt}",
            f"/v1/deliveries/{delivery}/attempts", "/v1/dead-letters", f"/v1/dead-letters/{delivery}", "/v1/jobs",
        ]  # fmt: skip
        for path in reads:
            for role in ("operator", "admin", "publisher", "reader"):
                answer = await world.get(path, key=role)
                assert answer.status == 200, path
                _assert_unmarked(answer.body, path)
                if role in {"publisher", "reader"}:
                    assert b"OPEN" not in answer.body, path
        changes: list[tuple[str, str, Any]] = [
            ("PATCH", "/v1/endpoints/e", {"description": "x"}),
            ("PUT", "/v1/endpoints/e", {"url": "https://a.example/", "secret_headers": {"X-Token": "MARKED"}}),
            ("POST", "/v1/endpoints/e/pause", None),
            ("POST", "/v1/endpoints/e/resume", None),
            ("POST", "/v1/endpoints/e/test", None),
            ("POST", "/v1/endpoints/e/disable", None),
            ("POST", "/v1/endpoints/e/enable", None),
            ("PATCH", "/v1/endpoints/e", {"secret_headers": {"X-Token": "MARKED\r\n"}}),
            ("POST", "/v1/endpoints", {"url": "https://a.example/", "secret_headers": {"Host": "MARKED"}}),
            ("DELETE", "/v1/endpoints/e", None),
        ]
        for method, path, body in changes:
            answer = await world.call(method, path, body)
            _assert_unmarked(answer.body, f"{method} {path}")
        assert "TUFSS" not in repr(made_objects(world))

    run(scenario)


def _assert_unmarked(body: bytes, what: str) -> None:
    assert b"TUFSS" not in body, what
    assert b"MARKED" not in body, what


def made_objects(world: World) -> list[Any]:
    """What a log line that shows too much would show: views and inputs."""
    from ackpost.api.endpoint_actions import RotateInput
    from ackpost.api.endpoint_views import secret_view
    from ackpost.service.endpoint_input import EndpointInput, EndpointPatch
    from ackpost.service.endpoint_secrets import ShownSecret

    shown = ShownSecret(MARK, None, 0, [])
    return [
        RotateInput(secret=MARK),
        shown,
        secret_view(shown),
        EndpointInput(url="https://a.example/", secret=MARK, secret_headers={"a": MARK}),
        EndpointPatch(secret_headers={"a": MARK}),
    ]
