"""The description of the API, and its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from litestar.routes import HTTPRoute

from ackpost import errors
from ackpost.api.problem import CODES
from tests.api.world import World, run

DOCS_FILES = {"/docs/docs.js", "/docs/docs.css"}
METHODS = {"get", "post", "put", "patch", "delete"}


async def document_of(world: World) -> dict[str, Any]:
    """Fetch the document."""
    answer = await world.get("/openapi.json", key=None)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    document: dict[str, Any] = answer.json
    return document


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref":
                yield value
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)


def test_what_is_served_is_described_and_the_reverse() -> None:
    """No route is hidden, none is promised that does not exist (S51)."""

    async def test(world: World) -> None:
        document = await document_of(world)
        described = {(path, method) for path, item in document["paths"].items() for method in item if method in METHODS}
        served = {
            (route.path_format, method.lower())
            for route in world.app.litestar.routes
            if isinstance(route, HTTPRoute)
            for method in route.methods
            if method != "OPTIONS"
        }
        served |= {("/v1/events", "post"), ("/v1/events/batch", "post")}
        assert served - {(path, "get") for path in DOCS_FILES} == described
        for path in ("/schema", "/debug", "/redoc", "/swagger", "/v1"):
            assert (await world.get(path)).status == 404

    run(test)


def test_every_reference_leads_somewhere_and_every_id_is_unique() -> None:
    """The document is whole."""

    async def test(world: World) -> None:
        document = await document_of(world)
        assert document["openapi"].startswith("3.1")
        for reference in _references(document):
            place: Any = document
            for name in reference.removeprefix("#/").split("/"):
                place = place[name]
        operations = [item[method] for item in document["paths"].values() for method in item if method in METHODS]
        names = [operation["operationId"] for operation in operations]
        assert len(names) == len(set(names))
        for operation in operations:
            assert operation["summary"]
            assert operation["tags"][0] in {tag["name"] for tag in document["tags"]}, operation["operationId"]
            assert any(status.startswith("2") for status in operation["responses"])

    run(test)


def test_every_code_is_documented() -> None:
    """The codes of the tree of errors, under their statuses, and two of the API's own: no others."""
    tree = re.sub(r"[\s│├└─]+", " ", errors.__doc__ or "")
    drawn = {
        (int(status), code)
        for status, codes in re.findall(r"(\d{3}) ([a-z_]+(?: \| [a-z_]+)*)", tree)
        for code in codes.split(" | ")
    }
    documented = {(status, code) for status, codes in CODES.items() for code in codes}
    assert documented - drawn == {(400, "bad_request"), (500, "internal_error")}
    assert drawn <= documented


def test_webhooks_show_what_consumers_get() -> None:
    """Deliveries and each kind of announcement are described."""

    async def test(world: World) -> None:
        webhooks = (await document_of(world))["webhooks"]
        assert set(webhooks) == {
            "event",
            "ackpost.endpoint.circuit_opened",
            "ackpost.endpoint.circuit_closed",
            "ackpost.endpoint.failing",
            "ackpost.endpoint.disabled",
            "ackpost.delivery.dead",
            "ackpost.test",
        }
        body = webhooks["event"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert [one["title"] for one in body["anyOf"]] == ["standard", "store", "flat", "bare"]

    run(test)


def test_the_docs_page_loads_nothing_from_elsewhere() -> None:
    """Its files come from here, its policy forbids all others, and no markup is made of text."""

    async def test(world: World) -> None:
        page = await world.get("/docs", key=None)
        assert page.status == 200
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        text = page.body
        for path in sorted(DOCS_FILES):
            assert path.removeprefix("/").encode() in page.body
            answer = await world.get(path, key=None)
            assert answer.status == 200
            assert answer.headers["x-content-type-options"] == "nosniff"
            text += answer.body
        assert not re.search(rb"https?://|//[a-z]+\.", text.replace(b"http://www.w3.org", b""))
        assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=|onclick", text)

    run(test)
