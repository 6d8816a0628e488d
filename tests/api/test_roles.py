"""Who may do what (S26, S27): every call with every role, and with the ids of another tenant."""

from __future__ import annotations

import re
from typing import Any

from tests.api.world import World, run

METHODS = ("get", "post", "put", "patch", "delete")

OPERATORS_ONLY = {
    "list_tenants", "create_tenant", "get_tenant", "put_tenant", "patch_tenant", "delete_tenant", "metrics",
    "list_nodes",
}  # fmt: skip
EVERYBODY = {"healthz", "readyz", "openapi_json", "docs_page"}
MANAGERS_ONLY = {
    "create_endpoint", "put_endpoint", "patch_endpoint", "delete_endpoint", "pause", "resume", "enable", "disable",
    "get_secret", "rotate_secret", "send_test", "recover_endpoint", "get_event_data", "delete_event_data", "replay",
    "discard", "cancel_job", "list_api_keys", "create_api_key", "delete_api_key", "redeliver_event", "cancel_event",
    "redeliver", "cancel",
}  # fmt: skip
# A publisher publishes and reads status (contract §2): sending again and stopping are a manager's.
NOT_FOR_READERS = {"publish_event", "publish_batch"}
FOR_READERS = {
    "list_endpoints", "get_endpoint", "match_endpoint", "endpoint_health", "endpoint_attempts", "list_events",
    "get_latest_event", "get_event", "get_event_routing", "list_deliveries", "get_delivery", "delivery_attempts",
    "get_attempt", "list_dead_letters", "get_dead_letter", "list_jobs", "get_job", "stats",
}  # fmt: skip


async def operations_of(world: World) -> list[tuple[str, str, dict[str, Any]]]:
    """Give method, path and operation of every call."""
    document = (await world.get("/openapi.json", key=None)).json
    return [
        (method.upper(), path, item[method])
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    ]


def _may(name: str, role: str) -> bool:
    if name in OPERATORS_ONLY:
        return role == "operator"
    if name in MANAGERS_ONLY:
        return role in {"operator", "admin"}
    return role != "reader" or name not in NOT_FOR_READERS


def test_every_call_is_open_to_its_roles_only() -> None:
    """A known key without the right is 403, no key 401, on every route; a new route must be put into a list."""

    async def test(world: World) -> None:
        for method, path, operation in await operations_of(world):
            name = operation["operationId"]
            target = re.sub(r"\{\w+\}", "nothing", path)
            if name in EVERYBODY:
                assert (await world.call(method, target, key=None)).status in {200, 503}, name
                continue
            lists = [OPERATORS_ONLY, MANAGERS_ONLY, NOT_FOR_READERS, FOR_READERS]
            assert [name in one for one in lists].count(True) == 1, f"in which list does {name} belong?"
            assert (await world.call(method, target, {}, key=None)).status == 401, name
            assert (await world.call(method, target, {}, key="x" * 40)).status == 401, name
            for role in ("operator", "admin", "publisher", "reader"):
                status = (await world.call(method, target, {}, key=role)).status
                assert (status == 403) is not _may(name, role), (name, role, status)
                assert status != 401, (name, role)

    run(test)


async def objects_of(world: World, key: str) -> dict[str, str]:
    """Make one of each kind of object by a tenant's admin; gives their ids by kind."""
    endpoint = (await world.post("/v1/endpoints", {"url": "https://example.com/"}, key=key)).json["id"]
    event = (await world.post("/v1/events", {"type": "a.b", "data": {"n": 1}, "key": "k"}, key=key)).json["id"]
    delivery = (await world.get(f"/v1/events/{event}", key=key)).json["deliveries"][0]["id"]
    for row in await world.pending():
        await world.failed(row)
    attempt = (await world.get(f"/v1/deliveries/{delivery}/attempts", key=key)).json["data"][0]["id"]
    job = (await world.post("/v1/dead-letters/replay", {"all": True}, key=key)).json["job_id"]
    made = await world.post("/v1/api-keys", {"name": "x", "role": "reader"}, key=key)
    return {
        "endpoint": endpoint, "event_id": event, "delivery": delivery, "attempt": attempt, "job": job,
        "key_id": made.json["id"],
    }  # fmt: skip


def test_another_tenants_objects_do_not_exist() -> None:
    """Each call with an id of another tenant is 404 (a valid body included), and lists show nothing of it (S26)."""
    bodies: dict[str, Any] = {
        "patch_endpoint": {"description": "x"},
        "put_endpoint": {"url": "https://example.com/"},
        "match_endpoint": {"type": "a"},
        "recover_endpoint": {"since": "2026-01-01T00:00:00Z"},
    }

    async def test(world: World) -> None:
        other = await world.make_tenant("b")
        await world.make_key("b-admin", "admin", other)
        foreign = await objects_of(world, "b-admin")
        own = await objects_of(world, "admin")
        seen = set()
        for method, path, operation in await operations_of(world):
            name = operation["operationId"]
            kinds = re.findall(r"\{(\w+)\}", path)
            if not kinds or name in OPERATORS_ONLY:
                continue
            target = path
            for kind in kinds:
                target = target.replace(f"{{{kind}}}", foreign[kind])
            answer = await world.call(method, target, bodies.get(name), key="admin")
            if name == "put_endpoint":
                # A path that is no endpoint of the tenant would name a new one; an id cannot.
                assert answer.status in {404, 422}, (name, answer)
            else:
                assert (answer.status, answer.code) == (404, "not_found"), (name, answer)
            assert (await world.call(method, target, bodies.get(name), key="admin", tenant="b")).status == 403, name
            seen.add(name)
        assert len(seen) > 25
        for body in ({"endpoint_id": foreign["endpoint"]},):
            answer = await world.post(f"/v1/events/{own['event_id']}/redeliver", body)
            assert answer.status == 404
        text = b""
        for path in ("endpoints", "events", "deliveries", "dead-letters", "jobs", "api-keys"):
            for query in ("", f"?endpoint_id={foreign['endpoint']}"):
                if query and path in {"endpoints", "jobs", "api-keys"}:
                    continue
                answer = await world.get(f"/v1/{path}{query}")
                assert answer.status == 200, answer
                assert not query or answer.json["data"] == []
                text += answer.body
        for shown in foreign.values():
            assert shown.encode() not in text

    run(test)


def test_an_operator_names_tenants_by_the_header() -> None:
    """Default while it is the only one; then writes must name one, reads see all, ``*`` is for lists."""

    async def test(world: World) -> None:
        assert (await world.post("/v1/events", {"type": "a", "data": 1}, key="operator")).status == 202
        assert (await world.get("/v1/events", key="operator")).json["data"][0]["tenant"] == "default"
        made = await world.post("/v1/tenants", {"uid": "b"}, key="operator")
        for path, body in (("/v1/events", {"type": "a", "data": 1}), ("/v1/endpoints", {"url": "https://example.com/"})):
            answer = await world.post(path, body, key="operator")
            assert (answer.status, answer.code) == (422, "tenant_required")
            assert (await world.post(path, body, key="operator", tenant="nobody")).code == "unknown_tenant"
            assert (await world.post(path, body, key="operator", tenant="*")).code == "tenant_required"
            for name in ("b", made.json["id"]):
                assert (await world.post(path, body, key="operator", tenant=name)).status in {201, 202}
        events = (await world.get("/v1/events", key="operator", tenant="*")).json["data"]
        assert [event["tenant"] for event in events] == ["b", "b", "default"]
        assert (await world.get("/v1/events", key="operator")).json["data"] == events
        assert len((await world.get("/v1/events", key="operator", tenant="b")).json["data"]) == 2
        one = f"/v1/events/{events[2]['id']}"
        assert (await world.get(one, key="operator")).json["tenant"] == "default"
        assert (await world.get(one, key="operator", tenant="b")).status == 404
        assert (await world.get(one, key="operator", tenant="*")).code == "tenant_required"
        assert (await world.get("/v1/events/latest?key=k", key="operator")).code == "tenant_required"

    run(test)


def test_a_tenants_key_may_name_only_its_own_tenant() -> None:
    """By uid or id; any other name is forbidden, existing or not."""

    async def test(world: World) -> None:
        await world.make_tenant("b")
        own = (await world.get("/v1/tenants/default", key="operator")).json["id"]
        for name, status in ((None, 202), ("default", 202), (own, 202), ("b", 403), ("nobody", 403), ("*", 403)):
            answer = await world.post("/v1/events", {"type": "a", "data": 1}, tenant=name)
            assert answer.status == status, name

    run(test)
