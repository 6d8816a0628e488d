"""``make simulate``: many fresh worlds, or one again. Ends with the table of what they showed."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter

from tests.simulation.coverage import missing, table
from tests.simulation.runs import lived

COVERED_FROM = 500
"""So many worlds must show every behaviour."""


def main() -> int:
    """Give the exit code."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--nodes", type=int, help="worlds with so many nodes at one store; 0: as each seed says")
    parser.add_argument("--seed", type=int, help="replay this world alone")
    parser.add_argument("--seeds", type=int, default=COVERED_FROM, help="how many worlds")
    parser.add_argument("--first", type=int, help="the first seed (default: by chance)")
    asked = parser.parse_args()
    first = int.from_bytes(os.urandom(4), "big") if asked.first is None else asked.first
    seeds = range(asked.seed, asked.seed + 1) if asked.seed is not None else range(first, first + asked.seeds)
    seen: Counter[str] = Counter()
    broken = []
    again = "make simulate" if asked.nodes is None else f"make simulate NODES={asked.nodes}"
    for number, one in enumerate(lived(seeds, asked.nodes), 1):
        seen.update(one.seen)
        if one.violation is not None:
            broken.append(one.seed)
            print(f"{one.violation}\n  replay: {again} SEED={one.seed}   (commit {_commit()})", flush=True)
        if number % 100 == 0:
            print(f"{number} of {len(seeds)} worlds, {len(broken)} broke a promise", flush=True)
    print(table(seen))
    unseen = missing(seen) if len(seeds) >= COVERED_FROM and asked.nodes is None else []
    if unseen:
        print(f"never seen: {', '.join(unseen)}")
    print(f"{len(seeds)} worlds from seed {seeds.start}, {len(broken)} broke a promise: {broken}")
    return 1 if broken or unseen else 0


def _commit() -> str:
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
