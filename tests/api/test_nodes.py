"""``GET /v1/nodes``: the servers that deliver together."""

from __future__ import annotations

from ackpost.core.times import rfc3339_ms
from tests.api.world import World, run


def test_the_only_node_owns_everything() -> None:
    """Embedded, there is one; it tells since when the delivery that waits longest is due."""

    async def test(world: World) -> None:
        listed = (await world.get("/v1/nodes", key="operator")).json
        assert (listed["next"], listed["previous"]) == (None, None)
        (node,) = listed["data"]
        assert (node["id"], node["role"], node["state"], node["version"]) == ("n", "all", "alive", "1.2.3")
        assert (node["partitions"], node["oldest_due_at"]) == (256, None)
        assert node["lease_expires_at"] == rfc3339_ms(world.clock.now_ms() + 20_000)
        await world.endpoint()
        due_ms = world.clock.now_ms()
        await world.event()
        (node,) = (await world.get("/v1/nodes", key="operator")).json["data"]
        assert node["oldest_due_at"] == rfc3339_ms(due_ms)

    run(test)


def test_only_operators_see_nodes() -> None:
    """A tenant's key may not."""

    async def test(world: World) -> None:
        for role in ("admin", "publisher", "reader"):
            answer = await world.get("/v1/nodes", key=role)
            assert (answer.status, answer.json["code"]) == (403, "forbidden")
        answer = await world.get("/v1/nodes?limit=1", key="operator")
        assert (answer.status, answer.json["code"]) == (422, "invalid")

    run(test)
