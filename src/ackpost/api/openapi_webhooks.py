"""The requests that Ackpost itself sends, as the ``webhooks`` of the OpenAPI document (contract §4, §5)."""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final = {"type": "string"}
_TIME: Final = {"type": "string", "format": "date-time"}
_NUMBER: Final = {"type": "integer"}
_ANY: Final = {"description": "The published value, byte for byte."}

_ENDPOINT: Final[dict[str, Any]] = {
    "endpoint_id": {"type": "string", "description": "The endpoint that this tells of."},
    "uid": {"type": ["string", "null"]},
}


def _header(name: str, text: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, "description": text, "schema": _TEXT}


_HEADERS: Final = [
    _header("webhook-id", "The event's id, the same on every attempt: discard what you have seen."),
    _header("webhook-timestamp", "Unix seconds of this attempt: refuse what is older than 5 minutes."),
    _header(
        "webhook-signature",
        "`v1,<base64 HMAC-SHA256 of id.timestamp.body>` (or `v1a,<base64 ed25519>`), several separated by blanks. With "
        "signature `sha256-hex`: `X-Webhook-Id`, `X-Webhook-Timestamp` and `X-Webhook-Signature: sha256=<hex HMAC of "
        "the body>` instead.",
    ),
    _header("ackpost-attempt", "The number of this attempt.", required=True),
    _header("ackpost-sequence", "The event's number among those of its key."),
    _header("ackpost-test", "`true` on test deliveries."),
]

_ANSWERS: Final[dict[str, Any]] = {
    "2XX": {"description": "Delivered. Answer quickly and work later."},
    "410": {"description": "The endpoint is gone: it is disabled (policy `on_gone`)."},
    "429": {"description": "Later: `Retry-After` is kept to."},
    "503": {"description": "Later: `Retry-After` is kept to."},
    "default": {"description": "A failed attempt, repeated as the policy says. Redirects are never followed."},
}

_ORDER: Final[dict[str, Any]] = {
    "key": {"type": "string", "description": "Only events with a key."},
    "sequence": {"type": "integer", "description": "Only events with a key: discard what is not above the last one."},
}


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ("key", "sequence")) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _request(summary: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "post": {
            "summary": summary,
            "description": text,
            "tags": ["Events"],
            "security": [],
            "parameters": _HEADERS,
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": _ANSWERS,
        }
    }


def _announcement(event_type: str, text: str, facts: dict[str, Any]) -> dict[str, Any]:
    """An event of Ackpost's own, shown in format ``standard``."""
    data = _object({**_ENDPOINT, **facts}, optional=(*facts, "uid"))
    schema = _object({"type": {"const": event_type}, "id": _TEXT, "timestamp": _TIME, "data": data})
    return _request(event_type, f"{text} Goes to endpoints that name `{event_type}` or `ackpost.*`.", schema)


_STANDARD: Final = {
    "title": "standard",
    **_object({
        "type": _TEXT,
        "id": _TEXT,
        "timestamp": {**_TIME, "description": "Of the event."},
        **_ORDER,
        "data": _ANY,
    }),
}
_STORE: Final = {
    "title": "store",
    **_object({
        "id": _TEXT,
        "event": _TEXT,
        "timestamp": {**_TIME, "description": "Of the attempt."},
        **_ORDER,
        "data": _ANY,
        "apiVersion": {"const": "v1"},
    }),
}
_FLAT: Final = {
    "title": "flat",
    "description": "Then come the members of the published object; the key under the endpoint's `key_field`.",
    **_object({"event": _TEXT, "sequence": _NUMBER, "occurred_at": _TIME}),
}
_BARE: Final = {"title": "bare", "description": "The published value alone."}

WEBHOOKS: Final[dict[str, Any]] = {
    "event": _request(
        "An event",
        "What an endpoint gets for each event that its filter matches. The body has the endpoint's `format`.",
        {"anyOf": [_STANDARD, _STORE, _FLAT, _BARE]},
    ),
    "ackpost.endpoint.circuit_opened": _announcement(
        "ackpost.endpoint.circuit_opened",
        "An endpoint failed too often: nothing is sent to it until `retry_at`.",
        {"failures": _NUMBER, "retry_at": _TIME},
    ),
    "ackpost.endpoint.circuit_closed": _announcement(
        "ackpost.endpoint.circuit_closed", "An endpoint works again at its full rate.", {}
    ),
    "ackpost.endpoint.failing": _announcement(
        "ackpost.endpoint.failing",
        "An endpoint has failed for 24 hours without one success; it will be disabled at `disable_at`.",
        {"failing_since": _TIME, "disable_at": _TIME},
    ),
    "ackpost.endpoint.disabled": _announcement(
        "ackpost.endpoint.disabled",
        "An endpoint was disabled: it answered 410 (`gone`) or failed for too long (`failing`).",
        {"reason": {"enum": ["gone", "failing"]}},
    ),
    "ackpost.delivery.dead": _announcement(
        "ackpost.delivery.dead",
        "A delivery ended unacknowledged and is kept as a dead letter; a mass ending is told once, with a `count`.",
        {
            "delivery_id": _TEXT,
            "event_id": _TEXT,
            "type": _TEXT,
            "reason": _TEXT,
            "attempt_count": _NUMBER,
            "last_error": {"type": ["string", "null"]},
            "count": _NUMBER,
        },
    ),
    "ackpost.test": _request(
        "ackpost.test",
        "A test that somebody asked for by `POST /v1/endpoints/{id}/test`; it has the header `ackpost-test: true`.",
        {"anyOf": [_STANDARD, _STORE, _FLAT, _BARE]},
    ),
}
