"""Starting ``child.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]


@contextmanager
def child(path: Path, node: str, verb: str) -> Iterator[subprocess.Popen[str]]:
    """Run a child; it is killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.sqlite.child", str(path), node, verb],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def hear(process: subprocess.Popen[str]) -> str:
    """Wait for the next line of a child."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the child ended with {process.wait()}"
    return line.strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Give a child a line."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
