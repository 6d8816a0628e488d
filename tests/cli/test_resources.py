"""The API from a shell: every call has its verb, and each does what it says on a real server."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ackpost.cli.resources import all_verbs
from tests.cli.shell import Shell
from tests.process.receiver import Receiver
from tests.process.server import KEY, Server

BY_HAND = {("POST", "/v1/events"), ("POST", "/v1/events/batch"), ("POST", "/v1/api-keys")}
"""``ackpost publish`` and ``ackpost api-keys create``."""


def _shape(method: str, path: str) -> tuple[str, str]:
    return method.upper(), re.sub(r"\{[^}]*\}", "{}", path)


def test_each_call_of_the_api_has_a_verb(server: Server) -> None:
    """The table of verbs and the OpenAPI document name the same calls."""
    document = server.api.call("GET", "/openapi.json")
    calls = {
        _shape(method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith("/v1/") and method in {"get", "post", "put", "patch", "delete"}
    }
    verbs = {_shape(verb.method, verb.path) for verb in all_verbs()}
    assert calls == verbs | BY_HAND


def test_each_option_is_known_to_the_api(server: Server) -> None:
    """No verb sends a query parameter or a member of the body that its call does not take."""
    document = server.api.call("GET", "/openapi.json")
    operations = {
        _shape(method, path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if isinstance(operation, dict)
    }

    def resolved(one: dict[str, str]) -> dict[str, str]:
        if "$ref" not in one:
            return one
        found: dict[str, str] = document["components"]["parameters"][one["$ref"].rpartition("/")[2]]
        return found

    unknown = []
    for verb in all_verbs():
        operation = operations[_shape(verb.method, verb.path)]
        queries = {one["name"] for one in map(resolved, operation.get("parameters", ())) if one["in"] == "query"}
        text = json.dumps(operation.get("requestBody", {}))
        schemas = [document["components"]["schemas"][name] for name in re.findall(r'/schemas/([^"]+)"', text)]
        members = {member for schema in schemas for member in schema.get("properties", ())}
        for opt in (*verb.options, *verb.extra):
            known = queries if (opt.where or verb.where) == "query" else members
            if opt.target.partition(".")[0] not in known:
                unknown.append(f"{verb.path} {opt.name}")
    assert unknown == []


def test_an_endpoints_life(ackpost: Shell, receiver: Receiver, tmp_path: Path) -> None:
    """Create, show, change, test, pause, rotate, delete: each step is seen by the next."""
    url = receiver.hook("/life")
    (tmp_path / "policy.json").write_text('{"retry": {"base_s": 0.1}, "timeout_s": 2}', encoding="utf-8")
    made = ackpost.ok(
        "endpoints", "create", url, "--uid", "life", "--event-type", "life.*", "--event-type", "a.b",
        "--policy", f"@{tmp_path / 'policy.json'}", "--headers", '{"x-own": "1"}', "--json",
    ).json  # fmt: skip
    assert (made["event_types"], made["policy"]["timeout_s"], made["headers"]) == (["life.*", "a.b"], 2, {"x-own": "1"})
    assert "whsec_" in ackpost.ok("endpoints", "secret", "life").out
    shown = ackpost.ok("endpoints", "show", "life").out
    assert url in shown
    assert "whsec_" not in shown
    changed = ackpost.ok(
        "endpoints",
        "update",
        "life",
        "--policy",
        '{"timeout_s": 3}',
        "--unset",
        "headers",
        "--description",
        "x",
        "--json",
    ).json
    assert (changed["policy"], changed["headers"]) == ({"retry": {"base_s": 0.1}, "timeout_s": 3}, {})
    assert "delivered" in ackpost.ok("endpoints", "test", "life", "--data", '{"n": 1}').out
    assert receiver.seen("/life")[-1].header("ackpost-test") == "true"
    assert ackpost.ok("endpoints", "pause", "life", "--json").json["state"] == "paused"
    assert "life" in ackpost.ok("endpoints", "list", "--state", "paused", "--state", "disabled").out
    assert ackpost.ok("endpoints", "resume", "life", "--json").json["state"] == "enabled"
    assert ackpost.ok("endpoints", "match", "life", "life.x", "--json").json["matches"] is True
    assert ackpost.ok("endpoints", "match", "life", "other", "--json").json["matches"] is False
    secret = ackpost.ok("endpoints", "rotate", "life", "--overlap-s", "0", "--json").json
    assert secret["previous"] == []
    assert secret["secret"] != made["secret"]
    assert ackpost.ok("endpoints", "delete", "life").out == "done\n"
    assert ackpost.refused("endpoints", "show", "life").startswith("404 not_found")


def test_a_failed_test_fails_the_command(ackpost: Shell, receiver: Receiver) -> None:
    """``endpoints test`` ends with code 1 and the reason, so that scripts can rely on it."""
    ackpost.ok("endpoints", "create", receiver.hook("/broken", "503"), "--uid", "broken", "--event-type", "none.*")
    assert ackpost.refused("endpoints", "test", "broken") == "the test was not delivered: 503"


def test_events_and_deliveries(ackpost: Shell, receiver: Receiver, server: Server) -> None:
    """What was published is listed, shown, explained and sent again."""
    ackpost.ok("endpoints", "create", receiver.hook("/events"), "--uid", "events", "--event-type", "seen.*")
    event_id = ackpost.ok("publish", "seen.first", '{"a": [1.0]}', "--key", "k 1/ä", "--uid", "seen-1", "--json").json[
        "id"
    ]
    delivery_id = server.settled(event_id)["id"]
    listed = ackpost.ok("events", "list", "--type", "seen.*", "--type", "x", "--status", "delivered").out
    assert event_id in listed
    assert ackpost.ok("events", "list", "--key", "k 1/ä", "--json").json["data"][0]["id"] == event_id
    assert delivery_id in ackpost.ok("events", "show", "seen-1").out
    assert ackpost.ok("events", "data", "seen-1").out == '{"a": [1.0]}\n'
    assert ackpost.ok("events", "latest", "k 1/ä", "--json").json["sequence"] == 1
    assert "has_delivery" in ackpost.ok("events", "routing", "seen-1").out
    assert ackpost.ok("events", "redeliver", "seen-1", "--json").json["deliveries"] == [delivery_id]
    receiver.wait("/events", 2)
    assert "delivered" in ackpost.ok("deliveries", "show", delivery_id).out
    server.settled(event_id)
    attempts = ackpost.ok("deliveries", "attempts", delivery_id, "--json").json["data"]
    assert [one["trigger"] for one in attempts] == ["redeliver", "schedule"]
    assert "200" in ackpost.ok("attempts", "show", attempts[0]["id"]).out
    assert ackpost.refused("deliveries", "cancel", delivery_id).startswith("409 invalid_state")
    assert ackpost.ok("events", "expire", "seen-1").out == "done\n"
    assert ackpost.refused("events", "data", "seen-1").startswith("410 data_expired")


def test_pages(ackpost: Shell) -> None:
    """A list tells how to go on, and the next page begins there."""
    ids = [ackpost.ok("publish", "paged.one", "1", "--json").json["id"] for _ in range(3)]
    first = ackpost.ok("events", "list", "--type", "paged.one", "--limit", "2").out
    assert ids[2] in first
    assert ids[0] not in first
    cursor = first.split("--after ")[1].strip()
    assert ids[0] in ackpost.ok("events", "list", "--type", "paged.one", "--after", cursor).out
    oldest = ackpost.ok("events", "list", "--type", "paged.one", "--order", "asc", "--limit", "1").out
    assert ids[0] in oldest


def test_dead_letters_are_counted_replayed_and_discarded(ackpost: Shell, receiver: Receiver, server: Server) -> None:
    """From the shell: see what died, count what a replay would take, replay and wait, discard the rest."""
    dead = '{"retry": {"base_s": 0.05, "max_attempts": 1}, "circuit": {"enabled": false}}'
    ackpost.ok("endpoints", "create", receiver.hook("/dead", "500"), "--uid", "dead", "--event-type", "dead.*",
               "--policy", dead)  # fmt: skip
    ids = [ackpost.ok("publish", "dead.one", "1", "--json").json["id"] for _ in range(3)]
    letters = [server.settled(event_id, "dead")["id"] for event_id in ids]
    assert "attempts_exhausted" in ackpost.ok("dead-letters", "list", "--endpoint-id", "dead").out
    assert "500" in ackpost.ok("dead-letters", "show", letters[0]).out
    assert ackpost.refused("dead-letters", "replay").startswith("422 selector_required")
    assert ackpost.ok("dead-letters", "replay", "--endpoint-id", "dead", "--dry-run", "--wait").out.split() == [
        "count",
        "3",
    ]
    receiver.hook("/dead", "200")
    job = ackpost.ok("dead-letters", "replay", letters[0], letters[1], "--wait", "--json").json
    assert (job["state"], job["done"]) == ("done", 2)
    assert server.settled(ids[0])["round"] == 2
    job = ackpost.ok("dead-letters", "discard", "--type", "dead.*", "--wait", "--json").json
    assert (job["state"], job["done"]) == ("done", 1)
    assert job["id"] in ackpost.ok("jobs", "list").out
    assert "done" in ackpost.ok("jobs", "show", job["id"], "--wait").out
    assert ackpost.ok("dead-letters", "list", "--endpoint-id", "dead").out == "nothing found\n"
    assert "dead.one" in ackpost.ok("stats", "type").out


def test_recovery_of_a_time_in_which_it_was_disabled(ackpost: Shell, receiver: Receiver) -> None:
    """``enable --recover --wait`` sends what a disabled endpoint missed; then nothing is left to recover."""
    made = ackpost.ok("endpoints", "create", receiver.hook("/missed"), "--uid", "missed", "--event-type", "missed.*",
                      "--json").json  # fmt: skip
    ackpost.ok("endpoints", "disable", "missed")
    ackpost.ok("publish", "missed.one", "1")
    assert receiver.seen("/missed") == []
    job = ackpost.ok("endpoints", "enable", "missed", "--recover", made["created_at"], "--wait", "--json").json
    assert job["done"] == 1
    receiver.wait("/missed")
    counted = ackpost.ok("endpoints", "recover", "missed", "--since", made["created_at"], "--dry-run", "--json").json
    assert counted == {"count": 0}


def test_tenants_and_their_keys(ackpost: Shell, server: Server) -> None:
    """An operator makes a tenant and a key; the key sees its tenant only, and is revoked at once."""
    ackpost.ok("tenants", "create", "acme", "--name", "Acme", "--rate-per-s", "50")
    try:
        assert ackpost.ok("tenants", "update", "acme", "--unset", "rate_per_s", "--json").json["rate_per_s"] is None
        assert ackpost.refused("publish", "a.b", "1").startswith("422 tenant_required")
        key = ackpost.ok("api-keys", "create", "--role", "admin", "--tenant", "acme", "--json").json
        assert key["prefix"] in ackpost.ok("api-keys", "list").out
        ackpost.use(server.url, key["key"])
        ackpost.ok("publish", "a.b", "1")
        assert ackpost.refused("tenants", "list").startswith("403 forbidden")
        ackpost.use(server.url, KEY)
        ackpost.ok("api-keys", "delete", key["id"])
        ackpost.use(server.url, key["key"])
        assert ackpost.refused("events", "list").startswith("401 unauthenticated")
    finally:
        ackpost.use(server.url, KEY)
        ackpost.ok("tenants", "delete", "acme")


def test_wrong_use_is_code_2_and_wrong_values_name_their_option(ackpost: Shell, tmp_path: Path) -> None:
    """A missing argument is a usage error; a value that is no JSON, or a file that is missing, is named."""
    assert ackpost("endpoints", "show").code == 2
    assert ackpost("endpoints", "sing").code == 2
    assert ackpost.refused("endpoints", "create", "https://a.example", "--policy", "{").startswith(
        "--policy is not JSON"
    )
    missing = tmp_path / "none"
    assert ackpost.refused("endpoints", "create", "https://a.example", "--policy", f"@{missing}") == (
        f"--policy: {missing} cannot be read: No such file or directory"
    )
    assert ackpost.refused("endpoints", "update", "x", "--body", "[]") == "--body must be a JSON object"
    assert ackpost.refused("events", "list", "--limit", "1000").startswith("422 invalid: ")
