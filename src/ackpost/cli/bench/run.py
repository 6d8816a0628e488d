"""One measured run: server, receiver and load as real processes; timed until everything is received and recorded."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from ackpost.cli.bench import filling
from ackpost.cli.bench.processes import OTHER_CORE, SERVER_CORE, START_S, Child
from ackpost.cli.client import ApiClient
from ackpost.config import sqlite_path
from ackpost.core.ids import PARTITION_COUNT
from ackpost.errors import AckpostError
from ackpost.wiring.scratch import scratch_database, transactions_committed
from ackpost.wiring.system import SystemClock

OPERATOR_KEY = "bench-operator-key-0123456789abcdef"
DRAIN_S = 120.0
WARM_UP_EVENTS = 2000
_READ_BYTES = 4 * 1024 * 1024


class Plan(msgspec.Struct):
    """What one run does (contract §10).

    ``types`` > 1 spreads the events over so many endpoints of their own (``hang`` of them never answer) instead of
    sending each to all. ``backlog`` and ``history`` are numbers of deliveries that lie in the file before.
    """

    events: int = 30_000
    batch: int = 1
    fan_out: int = 1
    types: int = 1
    hang: int = 0
    rate_per_s: float = 0.0
    uids: bool = False
    connections: int = 64
    backlog: int = 0
    history: int = 0
    database: str | None = None
    """A file to use, or the URL of a PostgreSQL where each run makes a database of its own."""
    nodes: int = 1

    @property
    def is_shared(self) -> bool:
        """Whether the run is on PostgreSQL."""
        return self.database is not None and "://" in self.database

    @property
    def answered(self) -> int:
        """How many of the events go to endpoints that answer."""
        return sum(1 for number in range(self.events) if number % self.types >= self.hang) if self.hang else self.events


class Figures(msgspec.Struct):
    """What one run showed. Rates are per second of the whole span, first publish to last delivery.

    ``loop_cpu_s_per_1000`` is the event loop's part of ``cpu_s_per_1000``; the rest is that of the threads beside it.
    """

    accepted: int
    received: int
    repeated: int
    accept_rate: float
    delivery_rate: float
    accept_p50_ms: float
    accept_p99_ms: float
    received_p50_ms: float
    received_p95_ms: float
    received_p99_ms: float
    cpu_s_per_1000: float
    loop_cpu_s_per_1000: float
    commits_per_1000: float
    round_trips_per_1000: float
    peak_rss_mib: float
    start_s: float
    file_mib: float


class BareFigures(msgspec.Struct):
    """What the bare loop showed."""

    delivery_rate: float
    cpu_s_per_1000: float


def measure(plan: Plan) -> Figures:
    """Run Ackpost with durable commits, on a fresh database unless the plan names a file."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ackpost-bench-")))
        receiver = stack.enter_context(Child("ackpost.cli.bench.receiver", core=OTHER_CORE))
        url = _database(plan, folder, stack)
        filled = _fill(url, folder, plan) if plan.backlog or plan.history else {}
        if not plan.is_shared:
            _read_whole(sqlite_path(url))
        is_last = plan.database is None or plan.is_shared
        servers = [
            stack.enter_context(Server(url, folder, number, is_last=is_last)) for number in range(plan.nodes)
        ]  # fmt: skip
        filling.note_filled(servers[0].api, filled)
        _wait_for_owners(servers)
        event_type = _make_endpoints(servers[0].api, receiver.port(), plan)
        return _measured(plan, servers, receiver.port(), event_type)


def _database(plan: Plan, folder: Path, stack: ExitStack) -> str:
    if plan.database is not None and plan.is_shared:
        name = f"ackpost_bench_{SystemClock().now_ms()}"
        return stack.enter_context(scratch_database(plan.database, name))
    return f"sqlite:///{Path(plan.database or folder / 'bench.db').absolute()}"


def _fill(url: str, folder: Path, plan: Plan) -> dict[str, int]:
    """Put backlog and history into it, but for what lies there from an earlier run; give what is new there."""
    done = filling.DONE_WITH_UIDS if plan.uids else filling.DONE
    wanted = {filling.PAUSED: plan.backlog // 2, filling.DEAD: plan.backlog - plan.backlog // 2, done: plan.history}
    with Server(url, folder, 0) as server:
        present = filling.make_past_endpoints(server.api)
    missing = {uid: count - present[uid] for uid, count in wanted.items() if count > present[uid]}
    filling.fill(url, missing)
    return {uid: wanted[uid] for uid in missing}


def _wait_for_owners(servers: list[Server]) -> None:
    """Wait until the nodes have shared the work out."""
    until = time.monotonic() + START_S
    while len(servers) > 1:
        shares = [int(_value(_metrics(server.api), "ackpost_partitions_owned")) for server in servers]
        if sum(shares) == PARTITION_COUNT and min(shares) > 0:
            return
        if time.monotonic() > until:
            raise AckpostError(f"the nodes own {shares} partitions")
        time.sleep(0.2)


def _read_whole(database: Path) -> None:
    """Bring the file into the system's cache, as it is where a server has run for a while."""
    if database.exists():
        with database.open("rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def _measured(plan: Plan, servers: list[Server], target: int, event_type: str) -> Figures:
    ports = [server.port for server in servers]
    _warm_up(ports, target, min(WARM_UP_EVENTS, plan.events), event_type)
    before = _Totals(servers)
    loaded = _load(plan, ports, event_type)
    expected = plan.answered * plan.fan_out
    stats = _drain(target, expected)
    recorded = _recorded(servers, before.delivered, expected)
    after = _Totals(servers)
    span_s = stats["last_at"] - loaded["started_at"]
    if loaded["refused"] or recorded < expected:
        raise AckpostError(f"refused {loaded['refused']}, recorded {recorded} of {expected}")
    return Figures(
        accepted=loaded["accepted"],
        received=stats["received"],
        repeated=stats["repeated"],
        accept_rate=loaded["accepted"] / (loaded["ended_at"] - loaded["started_at"]),
        delivery_rate=expected / span_s,
        accept_p50_ms=loaded["p50_ms"],
        accept_p99_ms=loaded["p99_ms"],
        received_p50_ms=stats["p50_ms"],
        received_p95_ms=stats["p95_ms"],
        received_p99_ms=stats["p99_ms"],
        cpu_s_per_1000=(after.cpu_s - before.cpu_s) / expected * 1000,
        loop_cpu_s_per_1000=(after.loop_cpu_s - before.loop_cpu_s) / expected * 1000,
        commits_per_1000=(after.commits - before.commits) / expected * 1000,
        round_trips_per_1000=(after.round_trips - before.round_trips) / expected * 1000,
        peak_rss_mib=max(server.child.peak_rss_mib() for server in servers),
        start_s=max(server.start_s for server in servers),
        file_mib=servers[0].file_mib(),
    )


class _Totals:
    """What all servers together have used and done so far; on PostgreSQL, commits are those that it counts."""

    def __init__(self, servers: list[Server]) -> None:
        metrics = [_metrics(server.api) for server in servers]
        self.cpu_s = sum(server.child.cpu_s() for server in servers)
        self.loop_cpu_s = sum(server.child.loop_cpu_s() for server in servers)
        self.delivered = sum(_delivered(one) for one in metrics)
        self.round_trips = sum(_round_trips(one) for one in metrics)
        self.commits = sum(_commits(one) for one in metrics)
        if servers[0].is_shared:
            self.commits = transactions_committed(servers[0].url)


def measure_bare(plan: Plan) -> BareFigures:
    """The bare loop under the same load of single publishes."""
    with Child("ackpost.cli.bench.receiver", core=OTHER_CORE) as receiver:
        target = receiver.port()
        orders = {"target": f"http://127.0.0.1:{target}/in"}
        with Child("ackpost.cli.bench.bare", core=SERVER_CORE, orders=orders) as bare:
            port = bare.port()
            _load(Plan(events=min(WARM_UP_EVENTS, plan.events)), [port], "bare.warm")
            _receiver(target).call("GET", "/reset")
            cpu_before = bare.cpu_s()
            loaded = _load(Plan(events=plan.events, connections=plan.connections), [port], "bare.event")
            stats = _drain(target, loaded["accepted"])
            return BareFigures(
                delivery_rate=loaded["accepted"] / (stats["last_at"] - loaded["started_at"]),
                cpu_s_per_1000=(bare.cpu_s() - cpu_before) / loaded["accepted"] * 1000,
            )


class Server:
    """A real server on a free port, ready. ``is_last``: nobody opens its file after it."""

    def __init__(self, url: str, folder: Path, number: int, *, is_last: bool = False) -> None:
        self.url = url
        self.is_shared = not url.startswith("sqlite:")
        self._folder = folder
        self._number = number
        self._is_last = is_last

    def __enter__(self) -> Self:
        started = time.monotonic()
        self.child = Child(
            "ackpost", "serve", "--dev", "--port", "0", "--database-url", self.url,
            core=SERVER_CORE + self._number,
            environment={
                "ACKPOST_OPERATOR_KEY": OPERATOR_KEY, "ACKPOST_LOG_FORMAT": "json",
                "ACKPOST_STATE_DIR": str(self._folder / "state"),
            },
            folder=self._folder,
        )  # fmt: skip
        self.child.__enter__()
        self.port = self._find_port()
        self.api = ApiClient(f"http://127.0.0.1:{self.port}", OPERATOR_KEY)
        self.api.call("GET", "/readyz")
        self.start_s = time.monotonic() - started
        return self

    def __exit__(self, *error: object) -> None:
        self.child.stop(gently=not self._is_last)

    def file_mib(self) -> float:
        """How large the database's file is now; 0 where it is not a file."""
        return 0.0 if self.is_shared else sqlite_path(self.url).stat().st_size / 2**20

    def _find_port(self) -> int:
        """The start is logged with the URL; all later lines go on being read, as a log shipper would."""
        for _ in range(100):
            found = re.search(rb'"url":"http://127\.0\.0\.1:(\d+)"', self.child.line())
            if found:
                self._drain_log()
                return int(found.group(1))
        raise self.child.failed("did not start")

    def _drain_log(self) -> None:
        stream = self.child.process.stdout
        if stream is not None:
            threading.Thread(target=lambda: [None for _ in iter(lambda: stream.read(65536), b"")], daemon=True).start()


def _make_endpoints(api: ApiClient, target: int, plan: Plan) -> str:
    """Make this run's endpoints; give the type of event that goes to them, and to none of an earlier run."""
    event_type = f"bench.{SystemClock().now_ms()}"
    policy = {"max_in_flight": 100}
    if plan.types > 1:
        for number in range(plan.types):
            path = "hang" if number < plan.hang else "in"
            url = f"http://127.0.0.1:{target}/{path}/{number}"
            api.call("POST", "/v1/endpoints", {"url": url, "event_types": [f"{event_type}.{number}"]})
    else:
        for number in range(plan.fan_out):
            url = f"http://127.0.0.1:{target}/in/{number}"
            api.call("POST", "/v1/endpoints", {"url": url, "event_types": [event_type], "policy": policy})
    api.call("POST", "/v1/endpoints", {"url": f"http://127.0.0.1:{target}/warm", "event_types": [f"{event_type}.warm"]})
    return event_type


def _warm_up(ports: list[int], target: int, events: int, event_type: str) -> None:
    _load(Plan(events=events), ports, f"{event_type}.warm")
    _drain(target, events)
    _receiver(target).call("GET", "/reset")


def _load(plan: Plan, ports: list[int], event_type: str) -> dict[str, Any]:
    orders = {
        "host": "127.0.0.1", "ports": ports, "key": OPERATOR_KEY, "events": plan.events,
        "connections": plan.connections, "batch": plan.batch, "rate_per_s": plan.rate_per_s, "uids": plan.uids,
        "event_type": event_type, "types": plan.types,
    }  # fmt: skip
    with Child("ackpost.cli.bench.load", core=OTHER_CORE, orders=orders) as load:
        result: dict[str, Any] = load.result()
        return result


def _receiver(port: int) -> ApiClient:
    return ApiClient(f"http://127.0.0.1:{port}", "none")


def _drain(port: int, expected: int) -> dict[str, Any]:
    """Wait until the receiver has seen everything."""
    receiver, until = _receiver(port), time.monotonic() + DRAIN_S
    while True:
        stats: dict[str, Any] = receiver.call("GET", "/stats")
        if stats["received"] >= expected:
            return stats
        if time.monotonic() > until:
            raise AckpostError(f"only {stats['received']} of {expected} deliveries arrived within {DRAIN_S:.0f} s")
        time.sleep(0.1)


def _recorded(servers: list[Server], before: int, expected: int) -> int:
    """Wait until the results are recorded; give how many are."""
    until = time.monotonic() + DRAIN_S
    while True:
        recorded = sum(_delivered(_metrics(server.api)) for server in servers) - before
        if recorded >= expected or time.monotonic() > until:
            return recorded
        time.sleep(0.1)


def _metrics(api: ApiClient) -> str:
    return api.call_bytes("GET", "/metrics").decode()


def _delivered(metrics: str) -> int:
    return int(_value(metrics, r'ackpost_attempts_total\{outcome="delivered"\}'))


def _commits(metrics: str) -> int:
    return int(_value(metrics, r"ackpost_commit_seconds_count"))


def _round_trips(metrics: str) -> int:
    return int(_value(metrics, r"ackpost_store_round_trips_total"))


def _value(metrics: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", metrics, re.MULTILINE)
    return float(found.group(1)) if found else 0.0
