"""``ackpost bench``: its options, and how its figures are shown."""

from __future__ import annotations

import json
import signal
import statistics
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from ackpost.cli.app import FLAG, app
from ackpost.cli.bench.run import BareFigures, Figures, Plan, measure, measure_bare
from ackpost.config import sqlite_path

HEALTHY_BESIDE_HANGING = 99
AT_THIRD_S = 10
BARE = "bare loop"
WITHOUT = "without it"


class Run(msgspec.Struct):
    """One run with what it is compared to, measured right before it.

    ``beside`` is the same load without what makes it hard: on an empty file, without hanging endpoints.
    """

    figures: Figures
    bare: BareFigures | None = None
    beside: Figures | None = None
    beside_name: str = WITHOUT
    at_third: Figures | None = None

    def ratios(self) -> dict[str, float]:
        """Shares of what it is compared to: of its rate, and its processor time per delivery over this one's."""
        figures, ratios = self.figures, dict[str, float]()
        for name, other in ((BARE, self.bare), (self.beside_name, self.beside)):
            if other is not None:
                ratios[f"rate / {name}"] = figures.delivery_rate / other.delivery_rate
                ratios[f"CPU: {name} / this"] = other.cpu_s_per_1000 / figures.cpu_s_per_1000
        if self.beside is not None:
            ratios[f"accept rate / {self.beside_name}"] = figures.accept_rate / self.beside.accept_rate
            ratios[f"p95 / {self.beside_name}"] = figures.received_p95_ms / self.beside.received_p95_ms
        return ratios


@app.command()
def bench(
    events: Annotated[int, typer.Option(help="How many events to publish in a run.")] = 30_000,
    batch: Annotated[int, typer.Option(min=1, max=500, help="Events a request.")] = 1,
    fan_out: Annotated[int, typer.Option(min=1, max=1000, help="Endpoints that each event goes to.")] = 1,
    hang: Annotated[
        int, typer.Option(min=0, max=100, help="Endpoints that never answer, beside 99 that do; each event to one.")
    ] = 0,
    backlog: Annotated[
        int, typer.Option(min=0, help="Pending deliveries in the file, of a paused and of a dead endpoint.")
    ] = 0,
    history: Annotated[int, typer.Option(min=0, help="Finished events in the file.")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Publish at this rate a second; 0: as fast as it goes.")] = 0.0,
    at_third: Annotated[
        bool, typer.Option("--at-third", metavar=FLAG, help="Measure again at a third of the rate that was reached.")
    ] = False,
    uids: Annotated[
        bool, typer.Option("--uids", metavar=FLAG, help="Give each event, and those of --history, a random uid.")
    ] = False,
    database_url: Annotated[
        str | None,
        typer.Option(
            help="A file to keep and to use again, sqlite:///PATH, or a PostgreSQL where each run makes a database of"
            " its own and removes it; default: a file made for the run."
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=8, help="Servers that share the PostgreSQL.")] = 1,
    compare: Annotated[
        bool, typer.Option("--compare", metavar=FLAG, help="Alternate with the bare loop; give the ratio.")
    ] = False,
    pairs: Annotated[int, typer.Option(min=1, max=20, help="Runs (with --compare: pairs of runs).")] = 1,
    as_json: Annotated[bool, typer.Option("--json", metavar=FLAG, help="One JSON object a run.")] = False,
) -> None:
    """Measure accepting and delivering with real processes, real HTTP and durable commits.

    With --backlog, --history or --hang each run is preceded by one without, on an empty database, and the ratio is
    given; with several nodes by one with a single node; with one node on PostgreSQL by one on SQLite.
    """
    if hang and fan_out > 1:
        raise typer.BadParameter("goes with one endpoint an event: leave --fan-out out", param_hint="--hang")
    if nodes > 1 and (database_url is None or database_url.startswith("sqlite:")):
        raise typer.BadParameter("nodes share a PostgreSQL: name it with --database-url", param_hint="--nodes")
    signal.signal(signal.SIGTERM, _end)
    plan = Plan(
        events=events, batch=batch, fan_out=fan_out, hang=hang, types=HEALTHY_BESIDE_HANGING + hang if hang else 1,
        rate_per_s=rate, uids=uids, backlog=backlog, history=history,
        database=_database(database_url), nodes=nodes,
    )  # fmt: skip
    runs: list[Run] = []
    for number in range(1, pairs + 1):
        runs.append(_run(plan, compare=compare, at_third=at_third))
        if as_json:
            print(json.dumps(_as_json(runs[-1])), flush=True)
        else:
            _show(number, runs[-1])
    if len(runs) > 1 and not as_json:
        _show_spread(runs)


def _database(url: str | None) -> str | None:
    if url is None or url.startswith(("postgresql://", "postgres://")):
        return url
    return str(sqlite_path(url))


def _end(_number: int, _frame: object) -> None:
    """End by an exception, so that the processes of the run are ended, too."""
    sys.exit(128 + signal.SIGTERM)


def _run(plan: Plan, *, compare: bool, at_third: bool) -> Run:
    bare = measure_bare(plan) if compare else None
    beside = None
    if plan.backlog or plan.history or plan.hang:
        types = HEALTHY_BESIDE_HANGING if plan.hang else 1
        database = plan.database if plan.is_shared else None
        easy = msgspec.structs.replace(plan, backlog=0, history=0, hang=0, types=types, database=database)
        beside = measure(easy)
    elif plan.nodes > 1:
        beside = measure(msgspec.structs.replace(plan, nodes=1))
    elif plan.is_shared:
        beside = measure(msgspec.structs.replace(plan, database=None))
    run = Run(measure(plan), bare, beside, _name_beside(plan))
    if at_third:
        third = run.figures.accept_rate / 3
        events = min(plan.events, int(third * AT_THIRD_S))
        run.at_third = measure(msgspec.structs.replace(plan, rate_per_s=third, events=events))
    return run


def _name_beside(plan: Plan) -> str:
    if plan.backlog or plan.history or plan.hang:
        return WITHOUT
    return "one node" if plan.nodes > 1 else "SQLite"


def _as_json(run: Run) -> dict[str, object]:
    """The figures, with what they are compared to under ``bare``, ``beside`` and ``at_third``, and the ``ratios``."""
    shown: dict[str, object] = msgspec.to_builtins(run.figures)
    return {**shown, "ratios": run.ratios(), **{
        name: msgspec.to_builtins(getattr(run, name)) for name in ("bare", "beside", "at_third")
    }}  # fmt: skip


def _show(number: int, run: Run) -> None:
    figures = run.figures
    rows = [
        ("accepted = received", f"{figures.accepted:,} events, {figures.received:,} requests"),
        ("repeated", f"{figures.repeated:,}"),
        ("accept rate", f"{figures.accept_rate:,.0f} events/s"),
        ("delivery rate, drained", f"{figures.delivery_rate:,.0f} deliveries/s"),
        ("accept p50 / p99", f"{figures.accept_p50_ms:.1f} / {figures.accept_p99_ms:.1f} ms"),
        ("accept → received p50 / p95 / p99", _ages(figures)),
        ("CPU per 1,000 deliveries", _cpu(figures)),
        ("commits per 1,000 deliveries", f"{figures.commits_per_1000:.1f}"),
        ("round trips per 1,000 deliveries", f"{figures.round_trips_per_1000:.1f} (commits and reads, in the process)"),
        ("peak RSS", f"{figures.peak_rss_mib:.0f} MiB"),
        ("start to ready", f"{figures.start_s:.1f} s"),
        ("database file", f"{figures.file_mib:,.0f} MiB"),
        *_compared(run),
    ]
    print(f"run {number}")
    for name, value in rows:
        print(f"  {name:<34} {value}")


def _compared(run: Run) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if run.at_third is not None:
        rows.append(("at a third: rate", f"{run.at_third.accept_rate:,.0f} events/s"))
        rows.append(("at a third: p50 / p95 / p99", _ages(run.at_third)))
    if run.beside is not None:
        beside, name = run.beside, run.beside_name
        rows += [
            (f"{name}: rates", f"{beside.accept_rate:,.0f} events/s, {beside.delivery_rate:,.0f} deliveries/s"),
            (f"{name}: CPU per 1,000", _cpu(beside)),
            (f"{name}: p50 / p95 / p99", _ages(beside)),
        ]
    if run.bare is not None:
        bare = run.bare
        cpu = f"{bare.cpu_s_per_1000 * 1000:.0f} ms CPU per 1,000"
        rows.append((BARE, f"{bare.delivery_rate:,.0f} deliveries/s, {cpu}"))
    rows += [(f"ratio of {name}", f"{ratio:.2f}") for name, ratio in run.ratios().items()]
    return rows


def _show_spread(runs: Sequence[Run]) -> None:
    print(f"{len(runs)} runs: median, from, to")
    values = {
        "delivery rate": [run.figures.delivery_rate for run in runs],
        "CPU per 1,000 deliveries, ms": [run.figures.cpu_s_per_1000 * 1000 for run in runs],
    }
    for name, found in values.items():
        print(f"  {name:<34} {statistics.median(found):,.0f}, {min(found):,.0f}, {max(found):,.0f}")
    for name in runs[0].ratios():
        found = [run.ratios()[name] for run in runs]
        print(f"  ratio of {name:<25} {statistics.median(found):.2f}, {min(found):.2f}, {max(found):.2f}")


def _cpu(figures: Figures) -> str:
    loop = f"{figures.loop_cpu_s_per_1000 * 1000:.0f} ms of it the event loop"
    return f"{figures.cpu_s_per_1000 * 1000:.0f} ms, {loop}"


def _ages(figures: Figures) -> str:
    return f"{figures.received_p50_ms:.1f} / {figures.received_p95_ms:.1f} / {figures.received_p99_ms:.1f} ms"
