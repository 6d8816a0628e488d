"""The benchmark runs, and counts what it sent; its figures are never judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def _bench(folder: Path, *options: str) -> dict[str, float]:
    ended = subprocess.run(
        [sys.executable, "-m", "ackpost", "bench", "--json", *options],
        cwd=folder,
        capture_output=True,
        timeout=55,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
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
