"""Liveness, readiness, metrics, and what every answer has."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ackpost.api import metrics
from ackpost.core.decision import Decision
from ackpost.core.ids import parse_id
from ackpost.core.outcome import Outcome
from tests.api.world import World, run


def test_liveness_and_readiness_need_no_key() -> None:
    """Readiness tells of the engine's trouble, liveness does not."""

    async def test(world: World) -> None:
        assert (await world.get("/healthz", key=None)).json == {"status": "ok"}
        assert (await world.get("/readyz", key=None)).json == {"status": "ok", "store": "ok", "engine": "ok"}
        world.engine.trouble = "the lease is not held"
        answer = await world.get("/readyz", key=None)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "starting", "1")
        assert (await world.get("/healthz", key=None)).status == 200
        world.engine.trouble = None
        await world.store.close()
        answer = await world.get("/readyz", key=None)
        assert (answer.status, answer.code) == (503, "overloaded")

    run(test)


def test_metrics_need_an_operators_key_but_on_loopback() -> None:
    """No other role may read them."""

    async def test(world: World) -> None:
        assert (await world.get("/metrics", key=None)).status == 401
        for role in ("admin", "publisher", "reader"):
            assert (await world.get("/metrics", key=role)).status == 403
        assert (await world.get("/metrics", key="operator")).status == 200

    async def on_loopback(world: World) -> None:
        assert (await world.get("/metrics", key=None)).status == 200

    run(test)
    run(on_loopback, metrics_are_public=True)


def test_metrics_say_what_happened() -> None:
    """The text parses; counters, histograms and figures have their values; no label names a tenant."""

    async def test(world: World) -> None:
        await world.endpoint()
        paused = await world.endpoint()
        await world.post(f"/v1/endpoints/{paused['id']}/pause")
        await world.event()
        counters = world.services.counters
        counters.accepted(3, 6)
        counters.committed(5, 0.002)
        counters.attempts([
            Decision(1, 1, 1, 1, 1, 1, "delivered", outcome=Outcome("delivered", duration_ms=12.0)),
            Decision(1, 1, 1, 1, 1, 1, "dead", reason="gone", outcome=Outcome("status", duration_ms=12.0)),
        ])  # fmt: skip
        counters.circuit(1, "open")
        world.clock.forward(30)
        answer = await world.get("/metrics", key="operator")
        assert answer.headers["content-type"].startswith("text/plain")
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.body.decode())
            for sample in family.samples
        }
        assert samples["ackpost_events_accepted_total",] == 3
        assert samples["ackpost_deliveries_made_total",] == 6
        assert samples["ackpost_attempts_total", "status"] == 1
        assert samples["ackpost_deliveries_dead_total", "gone"] == 1
        assert samples["ackpost_commit_operations_bucket", "5"] == 1
        assert samples["ackpost_commit_operations_bucket", "2"] == 0
        assert samples["ackpost_commit_seconds_count",] == 1
        assert samples["ackpost_circuit_changes_total", "open"] == 1
        assert samples["ackpost_deliveries_pending", "none"] == 2
        assert samples["ackpost_oldest_due_age_seconds",] == 30
        assert ("ackpost_store_round_trips_total",) in samples
        assert samples["ackpost_endpoints_stopped", "paused"] == 1
        assert b"tenant" not in answer.body

    run(test)


@pytest.mark.parametrize("bound", [100, 4])
def test_metrics_tell_held_deliveries_apart(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what holds them; above the bound each endpoint is counted up to its share, and held ones hide no others."""
    monkeypatch.setattr(metrics, "_ROWS_COUNTED_MAX", bound)
    monkeypatch.setattr(metrics, "_ROWS_COUNTED_IN_ALL", bound)

    async def test(world: World) -> None:
        names = ("free", "paused", "open", "open")
        endpoints = [await world.endpoint(event_types=[f"{name}.{n}"]) for n, name in enumerate(names)]
        positions = [parse_id("ep", endpoint["id"], world.store.salt) or 0 for endpoint in endpoints]
        world.engine.held = {positions[1]: "paused", positions[2]: "circuit", positions[3]: "circuit"}
        for number, name in enumerate(names):
            for _ in range(3):
                await world.event(type=f"{name}.{number}")
        body = (await world.get("/metrics", key="operator")).body.decode()
        pending = {
            sample.labels["held_by"]: sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
            if sample.name == "ackpost_deliveries_pending"
        }
        each = 3 if bound == 100 else 1
        assert pending == {"none": 3, "order": 0, "paused": each, "circuit": 2 * each}

    run(test)


def test_every_answer_has_the_security_headers() -> None:
    """Answers and refusals, of the router and of the calls before it."""

    async def test(world: World) -> None:
        answers = [
            await world.get("/healthz", key=None),
            await world.get("/v1/events"),
            await world.post("/v1/events", {"type": "a", "data": 1}),
            await world.post("/v1/events", {"type": "a"}),
            await world.get("/nothing"),
            await world.call("DELETE", "/healthz"),
            await world.get("/docs", key=None),
        ]
        for answer in answers:
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] == "no-store"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert not [name for name in answer.headers if name.startswith("access-control")]

    run(test)


def test_unknown_paths_and_methods_are_problems() -> None:
    """404 and 405 of the router look like all other refusals; 405 names the methods; OPTIONS opens nothing (S41)."""

    async def test(world: World) -> None:
        answer = await world.get("/v2/events")
        assert (answer.status, answer.code) == (404, "not_found")
        for method, path, allow in (
            ("DELETE", "/v1/events", "GET, HEAD, POST"),
            ("OPTIONS", "/v1/events", "GET, HEAD, POST"),
            ("GET", "/v1/events/batch/x", "404"),
            ("PATCH", "/healthz", "GET, HEAD"),
            ("OPTIONS", "/v1/tenants/x", "DELETE, GET, HEAD, PATCH, PUT"),
            ("TRACE", "/healthz", "GET, HEAD"),
        ):
            answer = await world.call(method, path)
            if allow == "404":
                assert answer.status == 404
                continue
            assert (answer.status, answer.code) == (405, "method_not_allowed"), (method, path)
            assert answer.headers["allow"] == allow

    run(test)


def test_a_strange_host_header_is_a_bad_request() -> None:
    """What the router refuses by itself has the same shape."""

    async def test(world: World) -> None:
        answer = await world.send("GET", "/healthz", [(b"host", b"a b<script>")], [b""])
        assert (answer.status, answer.code) == (400, "bad_request")

    run(test)


def test_unknown_and_repeated_query_parameters_are_refused() -> None:
    """By name, on every call, the hot ones too."""

    async def test(world: World) -> None:
        for method, path in (("GET", "/v1/events?limit=5&x=1"), ("POST", "/v1/events?x=1"), ("GET", "/healthz?x=1")):
            answer = await world.call(method, path, {"type": "a", "data": 1} if method == "POST" else None)
            assert (answer.status, answer.code, answer.locs) == (422, "invalid", [("query", "x")])
        answer = await world.get("/v1/events?type=a&type=b")
        assert (answer.status, answer.locs) == (422, [("query", "type")])

    run(test)
