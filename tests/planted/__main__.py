"""``make ablation``: plant each fault in a copy of the tree, and fail unless the tests it names notice.

The sound tree must be green for the same tests first, so that a fault is never "noticed" by a test that fails anyway.
Nor is it noticed by a test that cannot be collected, that hangs, or that ends because the fault is no valid code.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tests.planted.plants import ROOT, Plant, planted, plants

TEST_S: Final = 300.0
SOUND_S: Final = 600.0
SHARE_TESTS: Final = 8
"""Of the sound tree so many tests, or files of tests, run at once in one process."""
_HUNG: Final = -1
_ANOTHER_REASON: Final = re.compile(
    r"^FAILED .* - (NameError|UnboundLocalError|ImportError|SyntaxError|Failed: Timeout)\b", re.MULTILINE
)
COPIED: Final = (
    "src", "tests", "docs", "examples", "pyproject.toml", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "Makefile",
)  # fmt: skip


Item = TypeVar("Item")
Done = TypeVar("Done")


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
        tests_run = subprocess.Popen(
            command, cwd=self.root, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = tests_run.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            return _HUNG, f"it did not end within {within_s:.0f} s"
        finally:
            # Servers that a failed test left behind are of its group, and would slow all that comes after them.
            with suppress(ProcessLookupError):
                os.killpg(tests_run.pid, signal.SIGKILL)
            tests_run.wait()
        return tests_run.returncode, output


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
                elif code != 1 or "FAILED " not in output or _ANOTHER_REASON.search(output):
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
        copies = Copies(Path(folder), asked.workers)
        if not _is_sound(copies, chosen):
            return 1
        failed = _plant_all(copies, chosen)
    print(f"{len(chosen) - failed} passed, {failed} failed in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


class Copies:
    """Some copies of the tree; each does one thing at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: list[Copy] = []
        for number in range(count):
            (folder / str(number)).mkdir()
            self._free.append(Copy(folder / str(number)))
        self._count = count

    def map(self, work: Callable[[Copy, Item], Done], items: Iterable[Item]) -> list[Done]:
        """Do the work for each item, in whichever copy is free."""

        def work_in_one(item: Item) -> Done:
            copy = self._free.pop()
            try:
                return work(copy, item)
            finally:
                self._free.append(copy)

        with ThreadPoolExecutor(self._count) as pool:
            return list(pool.map(work_in_one, items))


def _is_sound(copies: Copies, chosen: dict[str, Plant]) -> bool:
    """Whether all tests that must notice are green without any fault."""
    tests = sorted({test for plant in chosen.values() for test in plant.tests})
    print(f"the sound tree: {len(tests)} tests or files of tests …", flush=True)
    shares = [tests[start : start + SHARE_TESTS] for start in range(0, len(tests), SHARE_TESTS)]
    ended = copies.map(lambda copy, share: copy.run(share, SOUND_S), shares)
    for code, output in ended:
        if code != 0:
            print(f"a test fails without any fault:\n{output[-3000:]}")
    return all(code == 0 for code, _ in ended)


def _plant_all(copies: Copies, chosen: dict[str, Plant]) -> int:
    """Plant one after another; print a line each and give how many were not noticed."""

    def work(copy: Copy, name: str) -> bool:
        plant, began = chosen[name], time.monotonic()
        wrong, not_run = judge(copy, plant)
        noticed = ", ".join(f"{test} (skipped here)" if test in not_run else test for test in plant.tests)
        seen = noticed if wrong is None else f"NOT NOTICED: {wrong}"
        print(f"{plant.promise:<8} {name:<32} {time.monotonic() - began:7.1f}  {seen}", flush=True)
        return wrong is None

    print(f"{'promise':<8} {'fault':<32} {'seconds':>7}  noticed by")
    return copies.map(work, chosen).count(False)


if __name__ == "__main__":
    sys.exit(main())
