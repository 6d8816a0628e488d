"""``ackpost bench``: its options, and how its figures are shown."""

from __future__ import annotations

import json
import statistics
from typing import Annotated

import msgspec
import typer

from ackpost.cli.app import FLAG, app
from ackpost.cli.bench.run import BareFigures, Figures, Plan, measure, measure_bare


@app.command()
def bench(
    events: Annotated[int, typer.Option(help="How many events to publish in a run.")] = 30_000,
    batch: Annotated[int, typer.Option(min=1, max=500, help="Events a request.")] = 1,
    fan_out: Annotated[int, typer.Option(min=1, max=1000, help="Endpoints that each event goes to.")] = 1,
    hang: Annotated[int, typer.Option(min=0, max=100, help="Endpoints beside them that never answer.")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Publish at this rate a second; 0: as fast as it goes.")] = 0.0,
    uids: Annotated[bool, typer.Option("--uids", metavar=FLAG, help="Give each event a random uid.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", metavar=FLAG, help="Alternate with the bare loop; give the ratio.")
    ] = False,
    pairs: Annotated[int, typer.Option(min=1, max=20, help="Runs (with --compare: pairs of runs).")] = 1,
    as_json: Annotated[bool, typer.Option("--json", metavar=FLAG, help="One JSON object a run.")] = False,
) -> None:
    """Measure accepting and delivering with real processes, real HTTP and durable commits."""
    plan = Plan(events=events, batch=batch, fan_out=fan_out, hang=hang, rate_per_s=rate, uids=uids)
    ratios: list[float] = []
    for number in range(1, pairs + 1):
        bare = measure_bare(plan) if compare else None
        figures = measure(plan)
        ratio = None if bare is None else figures.delivery_rate / bare.delivery_rate
        if ratio is not None:
            ratios.append(ratio)
        if as_json:
            shown = {**msgspec.to_builtins(figures), "bare": bare and msgspec.to_builtins(bare), "ratio": ratio}
            print(json.dumps(shown), flush=True)
        else:
            _show(number, figures, bare, ratio)
    if len(ratios) > 1 and not as_json:
        print(f"ratio: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


def _show(number: int, figures: Figures, bare: BareFigures | None, ratio: float | None) -> None:
    rows = [
        ("accepted = received", f"{figures.accepted:,} events, {figures.received:,} requests"),
        ("repeated", f"{figures.repeated:,}"),
        ("accept rate", f"{figures.accept_rate:,.0f} events/s"),
        ("delivery rate, drained", f"{figures.delivery_rate:,.0f} deliveries/s"),
        ("accept p50 / p99", f"{figures.accept_p50_ms:.1f} / {figures.accept_p99_ms:.1f} ms"),
        (
            "accept → received p50 / p95 / p99",
            f"{figures.received_p50_ms:.1f} / {figures.received_p95_ms:.1f} / {figures.received_p99_ms:.1f} ms",
        ),
        ("CPU per 1,000 deliveries", f"{figures.cpu_s_per_1000 * 1000:.0f} ms"),
        ("commits per 1,000 deliveries", f"{figures.commits_per_1000:.1f}"),
        ("peak RSS", f"{figures.peak_rss_mib:.0f} MiB"),
    ]
    if bare is not None and ratio is not None:
        rows += [
            ("bare loop", f"{bare.delivery_rate:,.0f} deliveries/s, {bare.cpu_s_per_1000 * 1000:.0f} ms CPU per 1,000"),
            ("ratio of rates", f"{ratio:.2f}"),
            ("ratio of CPU", f"{bare.cpu_s_per_1000 / figures.cpu_s_per_1000:.2f}"),
        ]
    print(f"run {number}")
    for name, value in rows:
        print(f"  {name:<34} {value}")
