"""The benchmark runs, and counts what it sent; its figures are never judged here."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.process.server import until


def _bench(folder: Path, *options: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "ackpost", "bench", "--json", *options],
        cwd=folder,
        capture_output=True,
        timeout=55,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    figures: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def test_it_compares_with_the_bare_loop(tmp_path: Path) -> None:
    """Both are measured in one run, each event is delivered and recorded once, and the ratio is given."""
    figures = _bench(tmp_path, "--events", "1000", "--compare")
    assert figures["accepted"] == figures["received"] == 1000
    assert figures["repeated"] == 0
    assert figures["ratios"]["rate / bare loop"] > 0
    assert figures["ratios"]["CPU: bare loop / this"] > 0
    assert figures["round_trips_per_1000"] >= figures["commits_per_1000"] > 0


@pytest.mark.parametrize(
    ("options", "requests"),
    [(("--batch", "50", "--fan-out", "4"), 4000), (("--uids", "--rate", "2000"), 1000)],
)
def test_its_options_change_the_load(tmp_path: Path, options: tuple[str, ...], requests: int) -> None:
    """Batches, fan-out, a paced load with uids: all that was asked for arrives."""
    figures = _bench(tmp_path, "--events", "1000", *options)
    assert figures["accepted"] == 1000
    assert figures["received"] == requests


def test_a_backlog_and_a_history_lie_in_the_file_and_are_kept_for_the_next_run(tmp_path: Path) -> None:
    """The file is filled once; what lies in it is neither sent nor counted, and an empty file is measured beside."""
    options = (
        "--events",
        "500",
        "--backlog",
        "600",
        "--history",
        "400",
        "--uids",
        "--database-url",
        "sqlite:///kept.db",
    )
    for _ in range(2):
        figures = _bench(tmp_path, *options)
        assert (figures["accepted"], figures["received"], figures["beside"]["received"]) == (500, 500, 500)
    with closing(sqlite3.connect(tmp_path / "kept.db")) as file:
        past = "event IN (SELECT position FROM event WHERE type = 'past')"
        assert file.execute("SELECT count(*) FROM event WHERE type = 'past'").fetchone() == (1000,)
        assert file.execute("SELECT count(uid) FROM event WHERE type = 'past'").fetchone() == (400,)
        assert file.execute(f"SELECT count(*) FROM (SELECT position - event_offset AS event FROM delivery) WHERE {past}"
                            ).fetchone() == (600,)  # fmt: skip


def test_endpoints_that_hang_are_no_receivers(tmp_path: Path) -> None:
    """With one of a hundred that never answers, the others get theirs; it is told how late, with and without it."""
    figures = _bench(tmp_path, "--events", "500", "--hang", "1")
    assert (figures["accepted"], figures["received"]) == (500, 495)
    assert figures["beside"]["received"] == 500
    assert figures["ratios"]["p95 / without it"] > 0


def test_latency_is_measured_at_a_third_of_the_rate_that_was_reached(tmp_path: Path) -> None:
    """The second run is paced by the first one."""
    figures = _bench(tmp_path, "--events", "500", "--at-third")
    assert figures["at_third"]["accept_rate"] < figures["accept_rate"] / 2
    assert figures["at_third"]["received_p99_ms"] > 0


def test_ended_from_outside_it_leaves_no_process_behind(tmp_path: Path) -> None:
    """Server and receiver end with it."""
    with subprocess.Popen(
        [sys.executable, "-m", "ackpost", "bench", "--rate", "10", "--database-url", "sqlite:///ended.db"], cwd=tmp_path
    ) as bench:
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
        pids = until(
            lambda: found if len(found := children.read_text().split()) == 3 else None, "receiver, server, load"
        )
        bench.terminate()
        assert bench.wait(timeout=30) == 128 + signal.SIGTERM
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_another_database_than_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    """As the server refuses it."""
    ended = subprocess.run(
        [sys.executable, "-m", "ackpost", "bench", "--database-url", "mysql://localhost/x"],
        cwd=tmp_path,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode != 0
    (line,) = ended.stderr.decode().strip().splitlines()
    assert "database_url" in line
