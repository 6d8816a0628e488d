"""``make ablation``: plant each fault in a copy of the tree, and fail unless the tests it names notice.

The sound tree must be green for the same tests first, so that a fault is never "noticed" by a test that fails anyway.
Nor is it noticed by a test that cannot be collected, that hangs, or that ends because the fault is no valid code.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.planted.plants import ROOT, Plant, planted, plants

TEST_S: Final = 300.0
SOUND_S: Final = 1800.0
_HUNG: Final = -1
_INVALID_CODE: Final = re.compile(r"^FAILED .* - (NameError|UnboundLocalError|ImportError|SyntaxError)\b", re.MULTILINE)
COPIED: Final = ("src", "tests", "docs", "pyproject.toml", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "Makefile")


class Copy:
    """A copy of the tree in which tests run and faults are planted."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.root.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self.root / name)

    @contextmanager
    def with_fault(self, plant: Plant) -> Iterator[None]:
        """Plant a fault, and take it out again."""
        texts = planted(plant, self.root)
        for file, (_, faulty) in texts.items():
            compile(faulty, file, "exec")
            file.write_text(faulty, encoding="utf-8")
        try:
            yield
        finally:
            for file, (sound, _) in texts.items():
                file.write_text(sound, encoding="utf-8")

    def run(self, tests: list[str], within_s: float = TEST_S) -> tuple[int, str]:
        """Run tests until one fails; give pytest's exit code and its output."""
        settings = {"PYTHONPATH": str(self.root / "src"), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "300"}
        environment = {**os.environ, **settings}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]
        try:
            ended = subprocess.run(
                command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=within_s, check=False
            )
        except subprocess.TimeoutExpired:
            return _HUNG, f"it did not end within {within_s:.0f} s"
        return ended.returncode, ended.stdout + ended.stderr


class Verdict(NamedTuple):
    """What came of one plant: ``wrong`` is None when each test noticed; ``not_run`` are those this machine skips."""

    wrong: str | None
    not_run: tuple[str, ...] = ()


def judge(copy: Copy, plant: Plant) -> Verdict:
    """Plant a fault and run its tests, one by one."""
    skipped: list[str] = []
    try:
        with copy.with_fault(plant):
            for test in plant.tests:
                code, output = copy.run([test])
                if code == 0 and " skipped" in output and " passed" not in output:
                    skipped.append(test)
                elif code == 0:
                    return Verdict(f"{test} stays green")
                elif code != 1 or "FAILED " not in output or _INVALID_CODE.search(output):
                    return Verdict(f"{test} fails for another reason (pytest's code {code}):\n{output[-2000:]}")
    except (ValueError, SyntaxError) as error:
        return Verdict(f"the plant does not fit: {error}")
    if len(skipped) == len(plant.tests):
        return Verdict("all of its tests are skipped here")
    return Verdict(None, tuple(skipped))


def main() -> int:
    """Run what was asked for; the last line counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="faults; all by default")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many at once")
    asked = parser.parse_args()
    known = plants()
    unknown = sorted(set(asked.names) - set(known))
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}")
    chosen = {name: known[name] for name in asked.names or known}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ackpost-planted-") as folder:
        copies = _copies(Path(folder), asked.workers)
        if not _is_sound(copies, chosen):
            return 1
        failed = _plant_all(copies, chosen)
    print(f"{len(chosen) - failed} passed, {failed} failed in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def _copies(folder: Path, count: int) -> list[Copy]:
    made: list[Copy] = []
    for number in range(count):
        (folder / str(number)).mkdir()
        made.append(Copy(folder / str(number)))
    return made


def _is_sound(copies: list[Copy], chosen: dict[str, Plant]) -> bool:
    """Whether all tests that must notice are green without any fault."""
    tests = sorted({test for plant in chosen.values() for test in plant.tests})
    print(f"the sound tree: {len(tests)} tests or files of tests …", flush=True)
    shares = [share for number in range(len(copies)) if (share := tests[number :: len(copies)])]
    with ThreadPoolExecutor(len(copies)) as pool:
        ended = list(pool.map(lambda pair: pair[0].run(pair[1], SOUND_S), zip(copies, shares, strict=False)))
    for code, output in ended:
        if code != 0:
            print(f"a test fails without any fault:\n{output[-3000:]}")
    return all(code == 0 for code, _ in ended)


def _plant_all(copies: list[Copy], chosen: dict[str, Plant]) -> int:
    """Plant one after another in each copy; print a line each and give how many were not noticed."""
    free = list(copies)

    def work(item: tuple[str, Plant]) -> bool:
        name, plant = item
        copy, began = free.pop(), time.monotonic()
        try:
            wrong, not_run = judge(copy, plant)
        finally:
            free.append(copy)
        noticed = ", ".join(f"{test} (skipped here)" if test in not_run else test for test in plant.tests)
        seen = noticed if wrong is None else f"NOT NOTICED: {wrong}"
        print(f"{plant.promise:<8} {name:<32} {time.monotonic() - began:7.1f}  {seen}", flush=True)
        return wrong is None

    print(f"{'promise':<8} {'fault':<32} {'seconds':>7}  noticed by")
    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(work, chosen.items())).count(False)


if __name__ == "__main__":
    sys.exit(main())
