"""Many small worlds, each from a seed: whatever happens in them, the promises of design §6 hold.

A failing seed is replayed with ``make simulate SEED=<seed>``; ``make simulate SEEDS=<n>`` runs n fresh ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.coverage import missing, table
from tests.simulation.history import Violation
from tests.simulation.runs import Runs
from tests.simulation.world import World

FIXED = range(520)
FIXED_ON_SQLITE = range(1000, 1040)


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """The worlds, lived in processes beside this one."""
    found = Runs(FIXED)
    yield found
    found.close()


@pytest.mark.parametrize("seed", FIXED)
def test_the_promises_hold_in_a_world(runs: Runs, seed: int) -> None:
    """Nothing acknowledged is lost, nothing is sent that must not be, and in the end all settles."""
    lived = runs.result(seed)
    if lived.violation is not None:
        pytest.fail(f"{lived.violation}\n\nreplay: make simulate SEED={seed}")


@pytest.mark.parametrize("seed", FIXED_ON_SQLITE)
def test_the_promises_hold_on_sqlite(seed: int) -> None:
    """The same on a SQLite file, which in every read and commit says what the reference store says."""
    try:
        World(seed, sqlite=True).run()
    except Violation as violation:
        pytest.fail(str(violation))


@pytest.mark.timeout(300)
def test_the_worlds_show_every_behaviour(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """Each verdict, state, transition, error code, fault, operation and deed of people is there."""
    seen: Counter[str] = Counter()
    for seed in FIXED:
        seen.update(runs.result(seed).seen)
    with capsys.disabled():
        print(f"\n{len(FIXED)} worlds showed:\n{table(seen)}")
    assert missing(seen) == []


_RUN = "from tests.simulation.world import World; world = World({seed}); world.run(); print(world.fingerprint())"


@pytest.mark.parametrize("seed", [3, 17])
def test_a_seed_gives_the_same_world_again(seed: int) -> None:
    """Here and in processes with other hash seeds, every request is the same at the same virtual time."""
    world = World(seed)
    world.run()
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", _RUN.format(seed=seed)],
            check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )  # fmt: skip
        assert told.stdout.strip() == world.fingerprint()
