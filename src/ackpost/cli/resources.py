"""Every call of the API as a command: one verb for each (contract §3)."""

from __future__ import annotations

from typing import Any, Final

import typer

from ackpost.cli.app import app
from ackpost.cli.verbs import Opt, Verb, add

_PAGE: Final = (
    Opt("limit", "How many rows (1 to 250).", "whole"),
    Opt("after", "The cursor that the last page named."),
    Opt("order", "asc: oldest first."),
)
_SPAN: Final = (
    Opt("since", "From this time on (RFC 3339)."),
    Opt("until", "Before this time (RFC 3339)."),
)
_TYPE: Final = Opt("type", "An event type, or a pattern like order.* (repeatable in lists).", "many")
_KEY: Final = Opt("key", "Exactly this key.")
_OF_ENDPOINT: Final = Opt("endpoint-id", "The endpoint's id or uid.")
_REASONS: Final = Opt("reason", "Any of these reasons (repeatable).", "many")

_ENDPOINT_FIELDS: Final = (
    Opt("event-type", "Types or patterns it takes (repeatable; default *).", "many", "event_types"),
    Opt("channel", "Channels it takes (repeatable).", "many", "channels"),
    Opt("description", "For people."),
    Opt("format", "standard, store, flat or bare."),
    Opt("key-field", "Format flat: the member that holds the key."),
    Opt("signature", "standard, standard-ed25519 or sha256-hex."),
    Opt("signature-header", "sha256-hex: another header than X-Webhook-Signature."),
    Opt("headers", "Own headers: JSON, @FILE or -.", "json"),
    Opt("secret-headers", "Own headers that are never shown: JSON, @FILE or -.", "json"),
    Opt("policy", "Retry, circuit, limits: JSON, @FILE or -.", "json"),
    Opt("metadata", "Anything of yours: JSON, @FILE or -.", "json"),
)
_SELECTOR: Final = (
    _OF_ENDPOINT,
    Opt("type", "An event type or pattern."),
    Opt("reason", "The reason they died of."),
    *_SPAN,
    Opt("all", "All dead letters of the tenant.", "flag"),
    Opt("dry-run", "Only count them.", "flag"),
)
_IDS: Final = Opt("ids", "Ids of deliveries (dlv_…).", "many")
_TENANT_FIELDS: Final = (
    Opt("name", "For people."),
    Opt("rate-per-s", "The most events it may publish in a second.", "number"),
    Opt("default-format", "The format of endpoints that name none."),
    Opt("metadata", "Anything of yours: JSON, @FILE or -.", "json"),
)

_ENDPOINT_COLUMNS: Final = ("id", "uid", "state", "circuit.state", "event_types", "url")
_EVENT_COLUMNS: Final = ("id", "type", "key", "sequence", "status", "created_at")
_DELIVERY_COLUMNS: Final = (
    "id", "type", "status", "reason", "held_by", "attempt_count", "next_attempt_at", "last_error",
)  # fmt: skip
_ATTEMPT_COLUMNS: Final = (
    "id", "number", "started_at", "trigger", "outcome", "status_code", "error", "duration_ms",
)  # fmt: skip
_LETTER_COLUMNS: Final = ("delivery_id", "type", "reason", "attempt_count", "last_error", "died_at", "url")
_JOB_COLUMNS: Final = ("id", "kind", "state", "total", "done", "skipped", "failed", "created_at")
_ROUTING_COLUMNS: Final = ("endpoint_id", "reason", "delivery_id", "status")


def _test_failed(answer: Any) -> str | None:
    attempt = answer.get("attempt")
    if attempt is None or attempt["outcome"] == "delivered":
        return None
    return f"the test was not delivered: {attempt['error_detail'] or attempt['status_code'] or attempt['error']}"


_GROUPS: Final[dict[str, tuple[str, tuple[Verb, ...]]]] = {
    "endpoints": (
        "Where events go: URLs with filters, policy and health.",
        (
            Verb("list", "GET", "/v1/endpoints", "List endpoints, newest first.", (
                Opt("state", "enabled, paused, disabled (repeatable).", "many"),
                Opt("circuit", "closed, open, half-open, ramping (repeatable).", "many"),
                Opt("url", "Exactly this URL."),
                Opt("event-type", "Those that take these types (repeatable).", "many"),
                *_PAGE,
            ), columns=_ENDPOINT_COLUMNS),
            Verb("show", "GET", "/v1/endpoints/{endpoint}", "Show one endpoint."),
            Verb("create", "POST", "/v1/endpoints", "Make an endpoint; the answer has its secret.", (
                Opt("uid", "Your own name for it."),
                *_ENDPOINT_FIELDS,
                Opt("secret", "A secret of yours: TEXT, @FILE or -.", "file"),
            ), (Opt("url", "Where to send."),), whole_body=True),
            Verb("put", "PUT", "/v1/endpoints/{endpoint}", "Make the endpoint of this uid, or replace it.", (
                *_ENDPOINT_FIELDS,
                Opt("secret", "A secret of yours: TEXT, @FILE or -.", "file"),
            ), (Opt("url", "Where to send."),), whole_body=True),
            Verb("update", "PATCH", "/v1/endpoints/{endpoint}", "Change what is named; objects merge.", (
                Opt("url", "Where to send."),
                *_ENDPOINT_FIELDS,
            ), whole_body=True, patch=True),
            Verb("delete", "DELETE", "/v1/endpoints/{endpoint}", "Delete it; what is pending ends as cancelled."),
            Verb("pause", "POST", "/v1/endpoints/{endpoint}/pause", "Keep its deliveries until it is resumed."),
            Verb("resume", "POST", "/v1/endpoints/{endpoint}/resume", "Send what was kept."),
            Verb("enable", "POST", "/v1/endpoints/{endpoint}/enable", "Enable it again.", (
                Opt("test", "Send a test event at once.", "flag"),
                Opt("recover", "Send what it missed since this time (RFC 3339).", field="recover.since"),
            ), job="recover_job_id"),
            Verb("disable", "POST", "/v1/endpoints/{endpoint}/disable", "Stop sending; what is pending dies."),
            Verb("secret", "GET", "/v1/endpoints/{endpoint}/secret", "Show its signing secret."),
            Verb("rotate", "POST", "/v1/endpoints/{endpoint}/secret/rotate", "Give it a new signing secret.", (
                Opt("secret", "A secret of yours: TEXT, @FILE or - (default: a generated one).", "file"),
                Opt("overlap-s", "How long the old one signs too; 0 revokes it at once.", "number"),
            )),
            Verb("test", "POST", "/v1/endpoints/{endpoint}/test", "Send a test event by the real path.", (
                Opt("type", "Its type."),
                Opt("data", "Its data: JSON, @FILE or -.", "json"),
                Opt("wait-s", "How long to wait for the attempt.", "number", where="query", default=10.0),
            ), failed=_test_failed),
            Verb("match", "POST", "/v1/endpoints/{endpoint}/match", "Say whether it would get such an event.", (
                Opt("channel", "Channels of the event (repeatable).", "many", "channels"),
            ), (Opt("type", "The event's type."),)),
            Verb("health", "GET", "/v1/endpoints/{endpoint}/health", "Circuit, backlog, success rate, latency."),
            Verb("attempts", "GET", "/v1/endpoints/{endpoint}/attempts", "List the attempts of all its deliveries.",
                 (*_PAGE, *_SPAN), columns=_ATTEMPT_COLUMNS),
            Verb("recover", "POST", "/v1/endpoints/{endpoint}/recover", "Send again what it missed in a span.", (
                *_SPAN,
                Opt("event-type", "Only these types (repeatable).", "many", "event_types"),
                Opt("dry-run", "Only count.", "flag"),
            ), job="job_id"),
        ),
    ),
    "events": (
        "What was published.",
        (
            Verb("list", "GET", "/v1/events", "List events, newest first.", (
                _TYPE, _KEY, _OF_ENDPOINT,
                Opt("uid", "The event of this uid."),
                Opt("status", "pending, delivered, dead, unmatched (repeatable).", "many"),
                Opt("channel", "Events of this channel."),
                *_SPAN, *_PAGE,
            ), columns=_EVENT_COLUMNS),
            Verb("show", "GET", "/v1/events/{event}", "Show one event with its deliveries."),
            Verb("data", "GET", "/v1/events/{event}/data", "Print the bytes that were published.", verbatim=True),
            Verb("latest", "GET", "/v1/events/latest", "Show the newest event of a key.", (_TYPE,),
                 (Opt("key", "The key."),)),
            Verb("routing", "GET", "/v1/events/{event}/routing", "Say for each endpoint whether it got it, or why not.",
                 columns=_ROUTING_COLUMNS),
            Verb("redeliver", "POST", "/v1/events/{event}/redeliver", "Send it again now.", (_OF_ENDPOINT,)),
            Verb("cancel", "POST", "/v1/events/{event}/cancel", "End its pending deliveries."),
            Verb("expire", "DELETE", "/v1/events/{event}/data", "Remove its data for good."),
        ),
    ),
    "deliveries": (
        "Events on their way to endpoints.",
        (
            Verb("list", "GET", "/v1/deliveries", "List deliveries, newest first.", (
                _OF_ENDPOINT, _TYPE, _KEY, _REASONS,
                Opt("event-id", "The event's id or uid."),
                Opt("status", "pending, delivered, dead, cancelled, discarded (repeatable).", "many"),
                Opt("error", "The last attempt's error (repeatable).", "many"),
                Opt("status-code", "The last answer's status (repeatable).", "many"),
                Opt("held-by", "circuit, paused, order, rate, retry_after, busy (repeatable).", "many"),
                *_SPAN, *_PAGE,
            ), columns=_DELIVERY_COLUMNS),
            Verb("show", "GET", "/v1/deliveries/{delivery}", "Show one with its newest attempts."),
            Verb("attempts", "GET", "/v1/deliveries/{delivery}/attempts", "List its attempts.", (*_PAGE, *_SPAN),
                 columns=_ATTEMPT_COLUMNS),
            Verb("redeliver", "POST", "/v1/deliveries/{delivery}/redeliver", "Start a new round now."),
            Verb("cancel", "POST", "/v1/deliveries/{delivery}/cancel", "End it."),
        ),
    ),
    "attempts": (
        "Single requests and their answers.",
        (Verb("show", "GET", "/v1/attempts/{attempt}", "Show request and answer of one attempt."),),
    ),
    "dead-letters": (
        "What could not be delivered.",
        (
            Verb("list", "GET", "/v1/dead-letters", "List dead letters, newest first.",
                 (_OF_ENDPOINT, _TYPE, _REASONS, _KEY, *_SPAN, *_PAGE), columns=_LETTER_COLUMNS),
            Verb("show", "GET", "/v1/dead-letters/{delivery}", "Show one with its data and attempts."),
            Verb("replay", "POST", "/v1/dead-letters/replay", "Send them again: ids, a filter, or --all.", _SELECTOR,
                 (_IDS,), job="job_id"),
            Verb("discard", "POST", "/v1/dead-letters/discard", "Give them up: ids, a filter, or --all.", _SELECTOR,
                 (_IDS,), job="job_id"),
        ),
    ),
    "jobs": (
        "Long work: replays, recoveries.",
        (
            Verb("list", "GET", "/v1/jobs", "List jobs, newest first.", (*_PAGE, *_SPAN), columns=_JOB_COLUMNS),
            Verb("show", "GET", "/v1/jobs/{job}", "Show how far one is.", job="id"),
            Verb("cancel", "POST", "/v1/jobs/{job}/cancel", "Stop it; what it has done stays done."),
        ),
    ),
    "tenants": (
        "Whose events they are (operators only).",
        (
            Verb("list", "GET", "/v1/tenants", "List tenants.", _PAGE,
                 columns=("id", "uid", "name", "rate_per_s", "created_at")),
            Verb("show", "GET", "/v1/tenants/{tenant_id}", "Show one tenant."),
            Verb("create", "POST", "/v1/tenants", "Make a tenant.", _TENANT_FIELDS,
                 (Opt("uid", "Its name in calls; never changes."),), whole_body=True),
            Verb("put", "PUT", "/v1/tenants/{tenant_id}", "Make the tenant of this uid, or replace it.",
                 _TENANT_FIELDS, whole_body=True),
            Verb("update", "PATCH", "/v1/tenants/{tenant_id}", "Change what is named.", _TENANT_FIELDS,
                 whole_body=True, patch=True),
            Verb("delete", "DELETE", "/v1/tenants/{tenant_id}", "Delete it, its keys and pending deliveries."),
        ),
    ),
    "api-keys": (
        "Keys for the API.",
        (
            Verb("list", "GET", "/v1/api-keys", "List keys.", _PAGE,
                 columns=("id", "name", "prefix", "role", "tenant", "expires_at", "last_used_at")),
            Verb("delete", "DELETE", "/v1/api-keys/{key}", "Revoke a key at once."),
        ),
    ),
}  # fmt: skip

_STATS: Final = Verb(
    "stats", "GET", "/v1/stats", "Count deliveries by endpoint, type, reason or error.", _SPAN[:1],
    (Opt("by", "endpoint, type, reason or error."),), columns=("value", "total", "counts"),
)  # fmt: skip
_NODES: Final = Verb(
    "nodes", "GET", "/v1/nodes", "List the servers that deliver together, what each owns and how far it is behind.",
    columns=("id", "role", "state", "partitions", "oldest_due_at", "since", "version"),
)  # fmt: skip


def all_verbs() -> list[Verb]:
    """Give the whole table."""
    return [verb for _, verbs in _GROUPS.values() for verb in verbs] + [_STATS, _NODES]


GROUPS: Final[dict[str, typer.Typer]] = {}
for _name, (_help, _verbs) in _GROUPS.items():
    GROUPS[_name] = typer.Typer(no_args_is_help=True, help=_help)
    for _verb in _verbs:
        add(GROUPS[_name], _verb)
    app.add_typer(GROUPS[_name], name=_name)
add(app, _STATS)
add(app, _NODES)
