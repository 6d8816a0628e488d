"""API keys: made, shown once, listed without themselves, revoked at once."""

from __future__ import annotations

from ackpost.core.times import rfc3339_ms
from tests.api.world import World, run


def test_a_key_is_shown_once_and_works() -> None:
    """Its list shows the first characters only; the store has no usable key (S31)."""

    async def test(world: World) -> None:
        made = await world.post("/v1/api-keys", {"name": "shop", "role": "publisher"})
        assert made.status == 201
        key = made.json["key"]
        assert key.startswith("apk_")
        assert len(key) == 68
        assert (made.json["prefix"], made.json["tenant"], made.json["role"]) == (key[:8], "default", "publisher")
        assert (await world.post("/v1/events", {"type": "a", "data": 1}, key=key)).status == 202
        listed = await world.get("/v1/api-keys")
        assert key.encode() not in listed.body
        assert {one["name"] for one in listed.json["data"]} == {"shop", "admin", "publisher", "reader"}
        assert key not in repr(world.store.durable.api_keys)

    run(test)


def test_a_revoked_key_is_refused_at_once() -> None:
    """Although it was used a moment ago; by its id, and by nobody else's (S29)."""

    async def test(world: World) -> None:
        made = (await world.post("/v1/api-keys", {"name": "shop", "role": "reader"})).json
        assert (await world.get("/v1/events", key=made["key"])).status == 200
        other = await world.make_tenant("b")
        await world.make_key("b-admin", "admin", other)
        assert (await world.delete(f"/v1/api-keys/{made['id']}", key="b-admin")).status == 404
        assert (await world.get("/v1/events", key=made["key"])).status == 200
        assert (await world.delete(f"/v1/api-keys/{made['id']}")).status == 204
        assert (await world.get("/v1/events", key=made["key"])).status == 401
        assert (await world.delete(f"/v1/api-keys/{made['id']}")).status == 404

    run(test)


def test_only_an_operator_makes_operators() -> None:
    """An operator's key belongs to no tenant; an operator's list without a tenant shows all keys."""

    async def test(world: World) -> None:
        answer = await world.post("/v1/api-keys", {"name": "x", "role": "operator"})
        assert (answer.status, answer.code) == (403, "forbidden")
        made = await world.post("/v1/api-keys", {"name": "x", "role": "operator"}, key="operator")
        assert (made.status, made.json["tenant"]) == (201, None)
        names = {one["name"] for one in (await world.get("/v1/api-keys", key="operator")).json["data"]}
        assert names == {"x", "operator", "admin", "publisher", "reader"}
        named = (await world.get("/v1/api-keys", key="operator", tenant="default")).json["data"]
        assert {one["name"] for one in named} == {"admin", "publisher", "reader"}
        await world.make_tenant("b")
        answer = await world.post("/v1/api-keys", {"name": "y", "role": "admin"}, key="operator")
        assert (answer.status, answer.code) == (422, "tenant_required")
        answer = await world.post("/v1/api-keys", {"name": "y", "role": "admin"}, key="operator", tenant="b")
        assert (answer.status, answer.json["tenant"]) == (201, "b")

    run(test)


def test_a_key_expires() -> None:
    """To the millisecond, also while it is in memory; a time in the past is refused."""

    async def test(world: World) -> None:
        body = {"name": "x", "role": "reader", "expires_at": rfc3339_ms(world.clock.ms + 2000)}
        key = (await world.post("/v1/api-keys", body)).json["key"]
        assert (await world.get("/v1/events", key=key)).status == 200
        world.clock.forward(1.999)
        assert (await world.get("/v1/events", key=key)).status == 200
        world.clock.forward(0.001)
        assert (await world.get("/v1/events", key=key)).status == 401
        for text in (rfc3339_ms(world.clock.ms), "soon"):
            answer = await world.post("/v1/api-keys", {"name": "x", "role": "reader", "expires_at": text})
            assert (answer.status, answer.locs) == (422, [("body", "expires_at")])

    run(test)


def test_a_repeated_post_makes_one_key_and_shows_it_once() -> None:
    """The repetition gives the same object, without the key: that is not stored."""

    async def test(world: World) -> None:
        body = {"name": "x", "role": "reader"}
        first = (await world.post("/v1/api-keys", body, idempotency_key="i")).json
        again = (await world.post("/v1/api-keys", body, idempotency_key="i")).json
        assert again == {**first, "key": None}
        assert sum(one["name"] == "x" for one in (await world.get("/v1/api-keys")).json["data"]) == 1

    run(test)


def test_the_last_use_is_noted() -> None:
    """At most once a minute."""

    async def test(world: World) -> None:
        key = (await world.post("/v1/api-keys", {"name": "x", "role": "reader"})).json["key"]
        world.clock.forward(61)
        await world.get("/v1/events", key=key)
        await world.services.auth.close()
        [shown] = [one for one in (await world.get("/v1/api-keys")).json["data"] if one["name"] == "x"]
        assert shown["last_used_at"] == rfc3339_ms(world.clock.ms)

    run(test)
