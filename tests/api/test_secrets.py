"""Planted secrets (S28): what nobody may read is looked for in everything that anybody can read."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any

from ackpost.service.telemetry import Counters
from tests.api.world import World, run

SIGNING = "whsec_" + b64encode(b"CANARY-SIGNING-SECRET-0123456789").decode()
HEADER = "CANARY-HEADER-VALUE"
DATA = "CANARY-EVENT-DATA"
SHOWS_THE_SIGNING_SECRET = {"/v1/endpoints/{endpoint}/secret"}
SHOWS_DATA = {"/v1/events/{event_id}", "/v1/events/{event_id}/data", "/v1/events/latest", "/v1/dead-letters/{delivery}"}


async def _plant(world: World) -> dict[str, str]:
    endpoint = await world.endpoint(secret=SIGNING, secret_headers={"x-token": HEADER}, headers={"x-open": "open"})
    assert endpoint["secret"] == SIGNING
    event = await world.event(data={"x": DATA}, key="k")
    [row] = await world.pending()
    await world.failed(row)
    delivery = (await world.get(f"/v1/events/{event}")).json["deliveries"][0]["id"]
    attempt = (await world.get(f"/v1/deliveries/{delivery}/attempts")).json["data"][0]["id"]
    job = (await world.post("/v1/dead-letters/replay", {"all": True, "dry_run": False})).json["job_id"]
    return {
        "endpoint": endpoint["id"], "event_id": event, "delivery": delivery, "attempt": attempt, "job": job,
        "tenant_id": "default", "key_id": "nothing",
    }  # fmt: skip


async def _reads(world: World, made: dict[str, str]) -> list[tuple[str, str]]:
    document = (await world.get("/openapi.json")).json
    needed = {"/v1/events/latest": "?key=k", "/v1/stats": "?by=endpoint"}
    reads = []
    for path, item in document["paths"].items():
        if "get" in item:
            target = re.sub(r"\{(\w+)\}", lambda match: made[match[1]], path)
            reads.append((path, target + needed.get(path, "")))
    return reads


def test_planted_secrets_are_shown_only_where_they_belong() -> None:
    """Every GET as every role: signing secrets and data to managers by their own calls, secret headers to nobody."""

    async def test(world: World) -> None:
        made = await _plant(world)
        shown: dict[str, set[str]] = {SIGNING: set(), DATA: set(), HEADER: set()}
        for path, target in await _reads(world, made):
            for role in ("operator", "admin", "publisher", "reader"):
                answer = await world.get(target, key=role)
                assert answer.status in {200, 403, 404}, (path, role, answer)
                for canary, places in shown.items():
                    if canary.encode() in answer.body:
                        assert role in {"operator", "admin"}, (path, role)
                        places.add(path)
        assert shown == {SIGNING: SHOWS_THE_SIGNING_SECRET, DATA: SHOWS_DATA, HEADER: set()}

    run(test)


def test_refusals_and_changes_do_not_repeat_secrets() -> None:
    """An endpoint's answers to changes have no secret; a refused body is not quoted."""

    async def test(world: World) -> None:
        made = await _plant(world)
        endpoint = f"/v1/endpoints/{made['endpoint']}"
        answers = [
            await world.patch(endpoint, {"description": "x"}),
            await world.put(endpoint, {"url": "https://a.example/other"}),
            await world.post(f"{endpoint}/pause"),
            await world.post(f"{endpoint}/resume"),
            await world.post("/v1/endpoints", {"url": "https://a.example/", "secret": f"bad {SIGNING}"}),
            await world.post("/v1/endpoints", {"url": "https://a.example/", "secret_headers": {"a b": HEADER}}),
            await world.post("/v1/endpoints", {"url": "https://a.example/", "secret_headers": {"a": f"{HEADER}\n"}}),
            await world.post("/v1/endpoints", {"url": f"https://a.example/?{HEADER}#x"}),
            await world.post("/v1/endpoints", {"url": f"https://u:{HEADER}@a.example/"}),
            await world.post("/v1/events", {"type": "a b", "data": DATA}),
            await world.post("/v1/events", b'{"type":"a","data":"' + DATA.encode() + b'"'),
            await world.get("/v1/events", key=SIGNING),
        ]
        for answer in answers:
            for canary in (SIGNING, HEADER, DATA):
                assert canary.encode() not in answer.body, answer

    run(test)


def test_what_may_be_printed_has_no_secret() -> None:
    """Representations of what holds secrets, and what is told to the log, leave them out (A154, S38)."""

    class Log(Counters):
        text = ""

        def note(self, name: str, **fields: Any) -> None:
            self.text += f"{name} {fields!r}"

    async def test(world: World) -> None:
        await _plant(world)
        log = world.services.counters = Log()
        await world.get("/v1/events", key="operator")
        world.committer.failure = RuntimeError(f"{SIGNING} {HEADER} {DATA}")
        assert (await world.post("/v1/events", {"type": "a", "data": DATA})).status == 500
        assert (await world.post("/v1/tenants", {"uid": "x", "name": HEADER}, key="operator")).status == 500
        assert log.text.count("RuntimeError") == 2
        [endpoint] = list(world.store.durable.endpoints.values())
        printed = log.text + repr(endpoint.secrets)
        for canary in (SIGNING, HEADER, DATA):
            assert canary not in printed
            assert "CANARY" not in printed

    run(test)
