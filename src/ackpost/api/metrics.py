"""``GET /metrics`` in the text format of Prometheus; no label names a tenant or an endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from litestar import get
from litestar.datastructures import State
from litestar.response import Response
from litestar.types import ControllerRouterHandler
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ackpost.ports.store import Page, Store
from ackpost.service.auth import OPERATOR
from ackpost.service.context import Services
from ackpost.service.telemetry import Counters, Histogram

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_CIRCUITS: Final = ("open", "half-open", "ramping")
_STATES: Final = ("paused", "disabled")
_COUNTED_MAX: Final = 10_000
_ROWS_COUNTED_MAX: Final = 100_000
_ROWS_COUNTED_IN_ALL: Final = 1_000_000
_HELD_ENDPOINTS_MAX: Final = 500
_OTHER_ENDPOINTS_MAX: Final = 1000


class Figures(msgspec.Struct):
    """What the store tells of the present; counts of endpoints stop at 10,000, of deliveries at 100,000 an endpoint."""

    held: Mapping[str, int]
    due_unsent: int
    in_flight: int
    oldest_due_age_s: float
    round_trips: int
    circuits: Mapping[str, int]
    states: Mapping[str, int]
    ready: bool
    owned: int


class AckpostCollector(Collector):
    """Turns counters and figures into metrics at the moment they are asked for."""

    def __init__(self, counters: Counters, figures: Figures) -> None:
        self._counters = counters
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Give all metrics."""
        yield from self._flow()
        yield from self._work()
        yield from self._present()

    def _flow(self) -> Iterator[Metric]:
        counters = self._counters
        yield CounterMetricFamily("ackpost_events_accepted", "Events accepted.", value=counters.events_accepted)
        yield CounterMetricFamily("ackpost_deliveries_made", "Deliveries made.", value=counters.deliveries_made)
        yield _counter(
            "ackpost_attempts", "Attempts by outcome (delivered, or the error's code).", "outcome",
            counters.attempts_by_outcome,
        )  # fmt: skip
        yield _counter("ackpost_deliveries_ended", "Deliveries that ended by an attempt.", "status", counters.endings)
        yield _counter("ackpost_deliveries_dead", "Deliveries that died, by reason.", "reason", counters.dead_by_reason)
        yield _counter("ackpost_circuit_changes", "Changes of circuits by state.", "state", counters.circuit_changes)
        yield _counter("ackpost_notes", "Rare operational facts; the log says more.", "name", counters.notes)

    def _work(self) -> Iterator[Metric]:
        counters = self._counters
        yield _histogram("ackpost_commit_operations", "Operations in one commit.", counters.commit_size)
        yield _histogram("ackpost_commit_seconds", "Time of one commit.", counters.commit_s)
        yield _histogram("ackpost_attempt_seconds", "Time of one attempt.", counters.attempt_s)
        yield GaugeMetricFamily("ackpost_loop_lag_seconds", "How late the event loop ran lately.", counters.loop_lag_s)
        yield GaugeMetricFamily(
            "ackpost_loop_lag_max_seconds", "How late it ever ran since the start.", counters.loop_lag_max_s
        )

        yield CounterMetricFamily(
            "ackpost_log_batches_dropped", "Batches of log lines dropped: the output is read too slowly.",
            value=counters.log_batches_dropped,
        )  # fmt: skip

    def _present(self) -> Iterator[Metric]:
        figures = self._figures
        yield CounterMetricFamily(
            "ackpost_store_round_trips",
            "Exchanges with the database: statements of PostgreSQL, commits and reads of SQLite.",
            value=figures.round_trips,
        )
        yield GaugeMetricFamily(
            "ackpost_partitions_owned", "Partitions (of 256) whose endpoints this server delivers to.", figures.owned
        )
        yield GaugeMetricFamily("ackpost_ready", "1 when store and engine work.", int(figures.ready))
        yield _gauge(
            "ackpost_deliveries_pending",
            "Pending deliveries by what holds them back, counted to 100,000 an endpoint;"
            " those of at most 500 held endpoints are told apart.",
            "held_by",
            figures.held,
        )
        yield GaugeMetricFamily(
            "ackpost_deliveries_due_unsent", "Deliveries that are due, held back by nothing and not under way.",
            figures.due_unsent,
        )  # fmt: skip
        yield GaugeMetricFamily("ackpost_requests_in_flight", "Requests to endpoints under way.", figures.in_flight)
        yield GaugeMetricFamily(
            "ackpost_oldest_due_age_seconds", "Age of the delivery that is due the longest.", figures.oldest_due_age_s
        )
        yield _gauge("ackpost_circuits", "Endpoints whose circuit is not closed.", "state", figures.circuits)
        yield _gauge("ackpost_endpoints_stopped", "Endpoints that do not send.", "state", figures.states)


async def figures_of(services: Services) -> Figures:
    """Ask the store."""
    store = services.store
    oldest_ms = await store.oldest_due_ms()
    page = Page(limit=_COUNTED_MAX)
    return Figures(
        held=await _held(services),
        due_unsent=services.engine.due_unsent(),
        in_flight=services.engine.requests_in_flight(),
        oldest_due_age_s=0.0 if oldest_ms is None else max(0, services.clock.now_ms() - oldest_ms) / 1000,
        round_trips=store.round_trips,
        circuits={state: len(await store.endpoints(None, page, circuits=(state,))) for state in _CIRCUITS},
        states={state: len(await store.endpoints(None, page, states=(state,))) for state in _STATES},
        ready=services.engine.readiness() is None,
        owned=services.engine.partitions_owned(),
    )


async def _held(services: Services) -> dict[str, int]:
    """Count pending deliveries by what holds them; ``none``: due, or waiting for the time of their next attempt.

    Never by walking a large backlog: each endpoint is counted up to 100,000, and to its share of a million.
    """
    store = services.store
    counts = await store.pending_counts()
    due = counts.get("due", 0)
    holders = dict(list(services.engine.held_back().items())[:_HELD_ENDPOINTS_MAX])
    held = Counter({"order": counts.get("waiting", 0)})
    apart = await _due_of(store, list(holders), is_many=due >= _ROWS_COUNTED_MAX)
    for endpoint, count in apart.items():
        held[holders[endpoint]] += count
    if due < _ROWS_COUNTED_MAX:
        held["none"] = max(0, due - sum(apart.values()))
    else:
        work = await store.scan_work(after_endpoint=0, limit=_OTHER_ENDPOINTS_MAX)
        others = {item.endpoint for item in work} - holders.keys()
        held["none"] = sum((await _due_of(store, sorted(others), is_many=True)).values())
    return held


async def _due_of(store: Store, endpoints: list[int], *, is_many: bool) -> dict[int, int]:
    share = _ROWS_COUNTED_IN_ALL // max(1, len(endpoints))
    return await store.due_counts(endpoints, rows_max=min(share, _ROWS_COUNTED_MAX) if is_many else _ROWS_COUNTED_MAX)


@get(
    "/metrics",
    roles=OPERATOR,
    tenants=None,
    open_on_loopback=True,
    tags=["System"],
    summary="Metrics",
    media_type="text/plain",
)
async def metrics(state: State) -> Response[bytes]:
    """Metrics for Prometheus. Needs an operator's key, unless the server listens on loopback only."""
    services: Services = state.services
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AckpostCollector(services.counters, await figures_of(services)))
    return Response(generate_latest(registry), media_type=MEDIA_TYPE)


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text)
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", below))
    family.add_metric([], buckets, histogram.total)
    return family


ROUTES: Final[list[ControllerRouterHandler]] = [metrics]
