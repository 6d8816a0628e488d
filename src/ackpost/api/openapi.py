"""The OpenAPI 3.1 document, made from the code: Litestar describes the handlers, here come what it cannot see.

That is: the two hot calls, headers that every call takes, refusals, and the requests that Ackpost itself sends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Litestar
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute
from litestar.types import ControllerRouterHandler

import ackpost
from ackpost.api import openapi_parts as parts
from ackpost.api.dependencies import DEPENDENCIES
from ackpost.api.openapi_webhooks import WEBHOOKS
from ackpost.api.problem import CODES, Problem
from ackpost.api.request import StrictRequest
from ackpost.api.views import AcceptedView

JsonObject = dict[str, Any]

_LISTING: Final = re.compile(r"Listing_(?:\w+\.)*(\w+?)(?:View)?_")
_NOISE: Final = ("deprecated", "allowEmptyValue", "allowReserved")
_LITESTARS_WORDS: Final = frozenset(status.description for status in HTTPStatus)
_WRITES: Final = frozenset({"post", "put", "patch", "delete"})
_METHODS: Final = ("get", "post", "put", "patch", "delete")

class Document:
    """The document of these routes; made when it is first asked for."""

    def __init__(self, routes: Sequence[ControllerRouterHandler]) -> None:
        self._routes = routes

    @cached_property
    def content(self) -> JsonObject:
        """The document as plain values."""
        described = _described_by_litestar(self._routes)
        # By JSON, so that it holds nothing but plain values of its own.
        document: JsonObject = msgspec.json.decode(msgspec.json.encode(described.openapi_schema.to_schema()))
        document = _simplified(_renamed(document))
        document["info"] = {
            "title": "Ackpost",
            "version": ackpost.__version__,
            "description": parts.DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        }
        document["servers"] = [{"url": "/", "description": "This server"}]
        document["tags"] = parts.TAGS
        for path, method, options in _handlers(described):
            _complete(document["paths"][path][method], path, method, options)
        for path, operation in parts.HOT_CALLS.items():
            document["paths"].setdefault(path, {})["post"] = {**operation, "responses": dict(operation["responses"])}
            _complete(document["paths"][path]["post"], path, "post", {"roles": parts.HOT_ROLES})
        document["webhooks"] = WEBHOOKS
        _add_components(document["components"])
        return document

    @cached_property
    def encoded(self) -> bytes:
        """The document as JSON."""
        return msgspec.json.encode(self.content)


def _described_by_litestar(routes: Sequence[ControllerRouterHandler]) -> Litestar:
    """Make an app only for its description: the one that serves has no routes of Litestar's own for documents."""
    return Litestar(
        route_handlers=routes,
        request_class=StrictRequest,
        dependencies=DEPENDENCIES,
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="Ackpost",
            version=ackpost.__version__,
            render_plugins=[],
            use_handler_docstrings=True,
            operation_id_creator=lambda handler, _method, _path: handler.handler_name,
        ),
    )


def _handlers(app: Litestar) -> Iterator[tuple[str, str, JsonObject]]:
    """Give path, method and options of each handler that is described."""
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for method, (handler, _) in route.route_handler_map.items():
                if method != "OPTIONS" and handler.resolve_include_in_schema():
                    yield route.path_format, method.lower(), handler.opt


def _complete(operation: JsonObject, path: str, method: str, options: JsonObject) -> None:
    """Add key, headers, refusals and examples to an operation."""
    public = bool(options.get("public"))
    roles = sorted(options.get("roles", ()), key=("operator", "admin", "publisher", "reader").index)
    operation["security"] = [] if public else [{"key": []}]
    if options.get("open_on_loopback"):
        operation["security"] = [{"key": []}, {}]
    if roles:
        operation["description"] = f"{operation.get('description', '')}\n\nRoles: {', '.join(roles)}.".strip()
    parameters = operation.setdefault("parameters", [])
    if not public and options.get("tenants", "one") is not None:
        parameters.append({"$ref": "#/components/parameters/Tenant"})
    if method == "post":
        parameters.append({"$ref": "#/components/parameters/IdempotencyKey"})
    responses = operation["responses"]
    responses.pop("400", None)
    for status, answer in responses.items():
        if answer.get("description") in _LITESTARS_WORDS:
            answer["description"] = parts.WHEN_DONE[status]
    if operation["operationId"] in parts.ANY_JSON:
        responses["200"]["content"] = {"application/json": {"schema": {}}}
    for status in _refusals(method, path, public=public):
        responses[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    example = parts.EXAMPLES.get(operation["operationId"])
    body = operation.get("requestBody")
    if body is not None:
        content = body["content"]["application/json"]
        if {"type": "null"} in content["schema"].get("oneOf", ()):
            body["required"] = False
        if example is not None:
            content["example"] = example


def _refusals(method: str, path: str, *, public: bool) -> list[int]:
    if public:
        return [422, 500, 503]
    statuses = [401, 403, 404, 422, 500, 503]
    if method in _WRITES:
        statuses += [400, 409, 413]
    if method == "post":
        statuses.append(429)
    if "/events/" in path or "/deliveries/" in path:
        statuses.append(410)
    return sorted(statuses)


def _add_components(components: JsonObject) -> None:
    schemas = components["schemas"]
    _, ours = msgspec.json.schema_components([Problem, AcceptedView], ref_template="#/components/schemas/{name}")
    schemas.update(ours)
    schemas.update(parts.PUBLISH_SCHEMAS)
    docs = {one.__name__: one.__doc__ or "" for one in _structs(msgspec.Struct)}
    for name, schema in schemas.items():
        schema.pop("title", None)
        text = docs.get(name, "")
        if text and "description" not in schema:
            schema["description"] = text
        if "description" in schema:
            schema["description"] = _for_readers(schema["description"])
    schemas["Problem"]["properties"]["code"] = {
        "type": "string",
        "enum": [code for codes in CODES.values() for code in codes],
        "description": "Stable: programs decide by it.",
    }
    components["schemas"] = dict(sorted(schemas.items()))
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}}
    components["parameters"] = parts.HEADERS
    components["responses"] = {f"Problem{status}": _refusal(status, codes) for status, codes in CODES.items()}


def _refusal(status: int, codes: Sequence[str]) -> JsonObject:
    """Describe the refusals of one status."""
    answer: JsonObject = {
        "description": f"Codes: {', '.join(f'`{code}`' for code in codes)}. {parts.WHEN_REFUSED[status]}",
        "content": {
            "application/problem+json": {
                "schema": {
                    "allOf": [
                        {"$ref": "#/components/schemas/Problem"},
                        {"properties": {"status": {"const": status}, "code": {"enum": list(codes)}}},
                    ]
                }
            }
        },
    }
    if status in {429, 503}:
        seconds = {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds after which to try again."}
        answer["headers"] = {"Retry-After": seconds}
    if status == 405:
        answer["headers"] = {"Allow": {"schema": {"type": "string"}, "description": "The methods of this path."}}
    return answer


def _structs(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for one in base.__subclasses__():
        if one.__module__.startswith("ackpost."):
            yield one
        yield from _structs(one)


def _for_readers(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _renamed(document: JsonObject) -> JsonObject:
    """Give lists short names, and paths without the types of their parameters."""
    text = _LISTING.sub(lambda match: f"{match[1]}List", msgspec.json.encode(document).decode())
    renamed: JsonObject = msgspec.json.decode(text)
    return renamed


def _simplified(node: Any) -> Any:
    """Write unions shortly: null as one more type, a union of one thing as that thing; leave out what says nothing."""
    if isinstance(node, list):
        return [_simplified(item) for item in node]
    if not isinstance(node, dict):
        return int(node) if isinstance(node, float) and node.is_integer() else node
    if node.get("in") in {"query", "path"} and "schema" in node:
        return _simplified_parameter(node)
    shown = {name: _simplified(value) for name, value in node.items()}
    choices = shown.get("oneOf")
    if not isinstance(choices, list):
        return shown
    others = [choice for choice in choices if choice != {"type": "null"}]
    if len(others) == 1 and len(choices) == 1:
        return {**shown.pop("oneOf")[0], **{name: value for name, value in shown.items() if name != "oneOf"}}
    if len(others) == 1 and isinstance(others[0].get("type"), str) and "enum" not in others[0]:
        del shown["oneOf"]
        return {**others[0], "type": [others[0]["type"], "null"], **shown}
    return shown


def _simplified_parameter(node: JsonObject) -> JsonObject:
    """A parameter is given or not, but never null; its description stands beside the schema."""
    schema = dict(node["schema"])
    schema.pop("description", None)
    others = [choice for choice in schema.pop("oneOf", ()) if choice != {"type": "null"}]
    if others:
        schema = {**others[0], **schema}
    shown = {name: value for name, value in node.items() if name not in _NOISE and name != "schema"}
    return {**shown, "schema": _simplified(schema)}
