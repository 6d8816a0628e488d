"""What the OpenAPI document says in words: texts, headers, examples, and the two calls that stand before the router."""

from __future__ import annotations

from typing import Any, Final

from ackpost.service.auth import PUBLISHERS

HOT_ROLES: Final = PUBLISHERS

DESCRIPTION: Final = """\
Ackpost sends events to other people's servers until they acknowledge them.

Publish with `POST /v1/events`; an answer of 202 means that the event is stored durably and will be delivered to each \
endpoint whose filter matches. Consumers find the requests they get under *webhooks*.

**Keys.** `Authorization: Bearer KEY`. A key has a role: `operator` (all tenants), `admin` (one tenant), `publisher` \
(publish, read status), `reader` (no secrets, no event data).

**Tenants.** A tenant's key acts for its tenant. An operator names one by the header `Ackpost-Tenant`; without it \
`default` is meant while that is the only one; afterwards a write without it is refused (`tenant_required`), and a \
read sees all tenants.

**Lists** are newest first. `next` and `previous` of an answer are cursors for `after`. A list in a parameter is \
separated by commas and means any of its values.

**Repeating.** `Idempotency-Key` works on every POST and is kept 24 hours: a repetition gets the first answer.

**Refusals** are `application/problem+json` (RFC 9457) with a stable `code`. Unknown fields and unknown query \
parameters are refused.
"""

TAGS: Final[list[dict[str, str]]] = [
    {"name": "Events", "description": "Publish, read, send again, stop."},
    {"name": "Endpoints", "description": "The URLs that get events, with filters, secrets, policy and health."},
    {"name": "Deliveries", "description": "An event on its way to an endpoint, and its attempts."},
    {"name": "Dead letters", "description": "Deliveries that ended unacknowledged; kept, and replayed on request."},
    {"name": "Jobs", "description": "Mass changes, done in steps."},
    {"name": "Statistics", "description": "Counts."},
    {"name": "Tenants", "description": "Whose endpoints get events."},
    {"name": "API keys", "description": "Who may call."},
    {"name": "System", "description": "For machines that watch this server."},
]

WHEN_DONE: Final = {
    "200": "Done.",
    "201": "Made.",
    "202": "Accepted.",
    "204": "Done; there is no body.",
}

WHEN_REFUSED: Final[dict[int, str]] = {
    400: "The body is not JSON (syntax, UTF-8, NaN, nested deeper than 64), or the request is no proper HTTP.",
    401: "There is no key, or it is unknown, expired or revoked.",
    403: "The key may not do this, or belongs to another tenant than the one named.",
    404: "There is no such object for this tenant, or no such tenant.",
    405: "The path exists, but not with this method.",
    409: "The call contradicts what is stored.",
    410: "The event's data was removed.",
    413: "The body, or an event's data, is larger than allowed; the body was not read whole.",
    422: "`errors` names each refused input and what would be right.",
    429: "Too fast: try again after `Retry-After` seconds.",
    500: "A fault of the server; its log says more.",
    503: "Not now: try again after `Retry-After` seconds. After `outcome_unknown` repeat with the same `uid` or "
    "`Idempotency-Key`: the event may have been stored.",
}

ANY_JSON: Final = frozenset({"openapi_json", "get_event_data"})
"""Calls that answer with JSON as it is."""

HEADERS: Final[dict[str, Any]] = {
    "Tenant": {
        "name": "Ackpost-Tenant",
        "in": "header",
        "required": False,
        "description": "The tenant that an operator means, by uid or id; `*` means all, on lists only.",
        "schema": {"type": "string", "pattern": r"^(\*|[a-zA-Z0-9_.\-]{1,256})$"},
    },
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Repeats of this call with the same key get the first answer; kept 24 hours.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]+$"},
    },
}

EXAMPLES: Final[dict[str, Any]] = {
    "publish_event": {
        "type": "order.created",
        "data": {"order_id": "A-1001", "total": "12.50"},
        "uid": "order-A-1001-created",
        "key": "A-1001",
    },
    "publish_batch": {
        "events": [
            {"type": "order.created", "data": {"order_id": "A-1001"}},
            {"type": "order.paid", "data": {"order_id": "A-1001"}},
        ]
    },
    "create_endpoint": {"url": "https://example.com/webhooks", "event_types": ["order.*"]},
    "create_tenant": {"uid": "acme", "name": "ACME Ltd.", "rate_per_s": 100},
    "create_api_key": {"name": "shop server", "role": "publisher"},
}

_TYPE: Final = {
    "type": "string",
    "maxLength": 256,
    "pattern": r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
    "description": "A dotted name. The prefix `ackpost.` is reserved.",
}

PUBLISH_SCHEMAS: Final[dict[str, Any]] = {
    "EventInput": {
        "type": "object",
        "description": "An event to publish.",
        "required": ["type", "data"],
        "additionalProperties": False,
        "properties": {
            "type": _TYPE,
            "data": {"description": "Any JSON value. Consumers get exactly these bytes."},
            "uid": {
                "type": ["string", "null"],
                "pattern": r"^[a-zA-Z0-9\-_.]{1,256}$",
                "description": "Your own id; a repetition is recognised by it. Rising ids (UUIDv7, ULID) are fastest.",
            },
            "key": {
                "type": ["string", "null"],
                "minLength": 1,
                "maxLength": 256,
                "description": "What must stay in order: events of one key are numbered by `sequence`.",
            },
            "sequence": {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": 9007199254740991,
                "description": "Your own rising number of this key; left out, the service counts 1, 2, 3 …",
            },
            "channels": {
                "type": ["array", "null"],
                "items": {"type": "string", "pattern": r"^[A-Za-z0-9_\-.:]{1,128}$"},
                "maxItems": 5,
                "description": "Endpoints with channels get events that share one.",
            },
            "occurred_at": {
                "type": ["string", "null"],
                "format": "date-time",
                "description": "When it happened; now, if left out.",
            },
            "metadata": {"type": ["object", "null"], "description": "Kept, not sent; at most 4,096 bytes."},
        },
    },
    "BatchInput": {
        "type": "object",
        "description": "Events to publish, all or none.",
        "required": ["events"],
        "additionalProperties": False,
        "properties": {
            "events": {
                "type": "array",
                "minItems": 1,
                "maxItems": 500,
                "items": {"$ref": "#/components/schemas/EventInput"},
            }
        },
    },
    "AcceptedBatch": {
        "type": "object",
        "description": "One answer for each event, in the order of the request.",
        "required": ["events"],
        "properties": {"events": {"type": "array", "items": {"$ref": "#/components/schemas/AcceptedView"}}},
    },
}


def _call(operation_id: str, summary: str, text: str, takes: str, gives: str) -> dict[str, Any]:
    return {
        "operationId": operation_id,
        "tags": ["Events"],
        "summary": summary,
        "description": text,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{takes}"}}},
        },
        "responses": {
            "202": {
                "description": "Stored durably.",
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{gives}"}}},
            }
        },
    }


HOT_CALLS: Final[dict[str, dict[str, Any]]] = {
    "/v1/events": _call(
        "publish_event",
        "Publish an event",
        "Store an event and deliver it to each endpoint whose filter matches. With a `uid` seen before, the first "
        "event's answer comes with `duplicate: true`; with other bytes it is a conflict.",
        "EventInput",
        "AcceptedView",
    ),
    "/v1/events/batch": _call(
        "publish_batch",
        "Publish many events",
        "Store up to 500 events (4 MiB), all or none.",
        "BatchInput",
        "AcceptedBatch",
    ),
}
