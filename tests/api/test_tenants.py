"""Tenants: the operator's work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.world import Answer, World, run


async def _call(world: World, method: str, path: str, body: Any = None, **more: Any) -> Answer:
    return await world.call(method, f"/v1/tenants{path}", body, key="operator", **more)


def test_a_tenant_is_made_read_and_listed() -> None:
    """By id and by uid; the second of the same uid is a conflict."""

    async def test(world: World) -> None:
        body = {"uid": "acme", "name": "ACME", "rate_per_s": 5, "default_format": "store", "metadata": {"a": 1}}
        made = await _call(world, "POST", "", body)
        assert made.status == 201
        assert {name: made.json[name] for name in body} == body
        assert made.json["id"].startswith("ten_")
        for name in ("acme", made.json["id"]):
            assert (await _call(world, "GET", f"/{name}")).json == made.json
        assert [one["uid"] for one in (await _call(world, "GET", "")).json["data"]] == ["acme", "default"]
        answer = await _call(world, "POST", "", {"uid": "acme"})
        assert (answer.status, answer.code) == (409, "already_exists")
        assert (await _call(world, "GET", "/nobody")).code == "unknown_tenant"

    run(test)


def test_put_makes_or_replaces() -> None:
    """201 and 200; what is left out has its default again; the uid never changes."""

    async def test(world: World) -> None:
        made = await _call(world, "PUT", "/acme", {"name": "ACME", "rate_per_s": 5})
        assert (made.status, made.json["uid"]) == (201, "acme")
        replaced = await _call(world, "PUT", "/acme", {"uid": "acme", "metadata": {"a": 1}})
        assert replaced.status == 200
        assert (replaced.json["name"], replaced.json["rate_per_s"], replaced.json["metadata"]) == ("", None, {"a": 1})
        assert replaced.json["id"] == made.json["id"]
        answer = await _call(world, "PUT", "/acme", {"uid": "other"})
        assert (answer.status, answer.locs) == (422, [("body", "uid")])
        answer = await _call(world, "PUT", f"/ten_{'0' * 26}", {})
        assert answer.status == 422

    run(test)


def test_patch_merges() -> None:
    """Objects merge, null resets, what is not named stays (RFC 7396)."""

    async def test(world: World) -> None:
        body = {"uid": "acme", "name": "ACME", "rate_per_s": 5, "metadata": {"a": {"b": 1, "c": 2}, "d": [1, 2]}}
        await _call(world, "POST", "", body)
        changed = await _call(world, "PATCH", "/acme", {"rate_per_s": None, "metadata": {"a": {"b": None}, "d": [3]}})
        assert changed.status == 200
        assert changed.json["metadata"] == {"a": {"c": 2}, "d": [3]}
        assert (changed.json["name"], changed.json["rate_per_s"]) == ("ACME", None)
        assert (await _call(world, "GET", "/acme")).json == changed.json
        answer = await _call(world, "PATCH", "/acme", {"uid": "other"})
        assert (answer.status, answer.locs) == (422, [("body", "uid")])

    run(test)


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, "uid"),
        ({"uid": ""}, "uid"),
        ({"uid": "a b"}, "uid"),
        ({"uid": "*"}, "uid"),
        ({"uid": "x" * 257}, "uid"),
        ({"uid": "ten_01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "uid"),
        ({"uid": "a", "rate_per_s": 0}, "rate_per_s"),
        ({"uid": "a", "rate_per_s": "5"}, "rate_per_s"),
        ({"uid": "a", "default_format": "xml"}, "default_format"),
        ({"uid": "a", "metadata": {"x": "y" * 5000}}, "metadata"),
        ({"uid": "a", "name": "\u0000"}, "name"),
        ({"uid": "a", "more": 1}, "more"),
    ],
)
def test_a_wrong_tenant_is_refused_by_field(body: dict[str, Any], loc: str) -> None:
    """422 names the field; a number written as text is no number."""

    async def test(world: World) -> None:
        answer = await _call(world, "POST", "", body)
        assert (answer.status, answer.code, answer.locs) == (422, "invalid", [("body", loc)]), answer

    run(test)


def test_a_deleted_tenant_is_unknown_and_its_keys_end() -> None:
    """At once, although both were in memory a moment ago (S29)."""

    async def test(world: World) -> None:
        tenant = await world.make_tenant("acme")
        await world.make_key("acme-admin", "admin", tenant)
        body = {"type": "a", "data": 1}
        assert (await world.post("/v1/events", body, key="acme-admin")).status == 202
        assert (await world.post("/v1/events", body, key="operator", tenant="acme")).status == 202
        assert (await _call(world, "DELETE", "/acme")).status == 204
        assert (await world.post("/v1/events", body, key="acme-admin")).status == 401
        assert (await world.post("/v1/events", body, key="operator", tenant="acme")).code == "unknown_tenant"
        assert (await _call(world, "DELETE", "/acme")).code == "unknown_tenant"
        assert (await world.post("/v1/events", body, key="operator")).status == 202

    run(test)


def test_a_repeated_post_makes_one_tenant() -> None:
    """An Idempotency-Key works for calls that belong to no tenant too."""

    async def test(world: World) -> None:
        first = await _call(world, "POST", "", {"uid": "acme"}, idempotency_key="i")
        again = await _call(world, "POST", "", {"uid": "acme"}, idempotency_key="i")
        assert (again.status, again.body) == (201, first.body)
        other = await _call(world, "POST", "", {"uid": "other"}, idempotency_key="i")
        assert (other.status, other.code) == (409, "idempotency_conflict")

    run(test)
