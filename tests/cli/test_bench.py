"""The benchmark runs, and counts what it sent; its figures are never judged here."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest


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
    assert figures["ratio"] > 0


@pytest.mark.parametrize(
    ("options", "requests"),
    [(("--batch", "50"), 1000), (("--fan-out", "4"), 4000), (("--uids", "--rate", "2000"), 1000)],
)
def test_its_options_change_the_load(tmp_path: Path, options: tuple[str, ...], requests: int) -> None:
    """Batches, fan-out, a paced load with uids: all that was asked for arrives."""
    figures = _bench(tmp_path, "--events", "1000", *options)
    assert figures["accepted"] == 1000
    assert figures["received"] == requests


def test_a_backlog_and_a_history_lie_in_the_file_and_are_kept_for_the_next_run(tmp_path: Path) -> None:
    """The file is filled once; what lies in it is neither sent nor counted, and an empty file is measured beside."""
    options = ("--events", "500", "--backlog", "600", "--history", "400", "--database-url", "sqlite:///kept.db")
    for _ in range(2):
        figures = _bench(tmp_path, *options)
        assert (figures["accepted"], figures["received"], figures["beside"]["received"]) == (500, 500, 500)
    with closing(sqlite3.connect(tmp_path / "kept.db")) as file:
        past = "event IN (SELECT position FROM event WHERE type = 'past')"
        assert file.execute("SELECT count(*) FROM event WHERE type = 'past'").fetchone() == (1000,)
        assert file.execute(f"SELECT count(*) FROM (SELECT position - event_offset AS event FROM delivery) WHERE {past}"
                            ).fetchone() == (600,)  # fmt: skip


def test_endpoints_that_hang_are_no_receivers(tmp_path: Path) -> None:
    """With some of a hundred that never answer, the others get theirs; latency at a third of the rate is told too."""
    figures = _bench(tmp_path, "--events", "1000", "--hang", "1", "--at-third")
    assert (figures["accepted"], figures["received"]) == (1000, 990)
    assert figures["beside"]["received"] == 1000
    assert figures["at_third"]["received_p99_ms"] > 0
