"""Runs of many worlds in processes of their own, in the order of their seeds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from tests.simulation.cluster import ClusterWorld
from tests.simulation.history import Violation
from tests.simulation.world import World

AHEAD = 8
DRAWN = 0
"""As many nodes as the seed says."""


class Lived(NamedTuple):
    """What one world came to; ``violation`` None when every promise held."""

    seed: int
    seen: Counter[str]
    violation: str | None


def live(seed: int, nodes: int | None = None) -> Lived:
    """Run one world; ``nodes``: of a cluster of so many at first."""
    world = World(seed) if nodes is None else ClusterWorld(seed, count=nodes or None)
    try:
        world.run()
    except Violation as violation:
        return Lived(seed, world.history.seen, str(violation))
    world.history.seen[f"world on {'SQLite' if world.on_sqlite else 'reference store'}"] += 1
    world.history.seen[f"world with {'bytes' if world.network else 'models'}"] += 1
    return Lived(seed, world.history.seen, None)


class Runs:
    """A pool that lives a few worlds ahead of what is asked for."""

    def __init__(self, seeds: range, *, nodes: int | None = None) -> None:
        self._nodes = nodes
        self._waiting = iter(seeds)
        self._futures: dict[int, Future[Lived]] = {}
        self._done: dict[int, Lived] = {}
        # A process that was started anew has no threads of others, and no loop.
        self._pool = ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn"))

    def result(self, seed: int) -> Lived:
        """Give what a world came to; in the order of the seeds, or it is run when asked."""
        if seed not in self._done:
            self._go_on()
            future = self._futures.pop(seed, None) or self._pool.submit(live, seed, self._nodes)
            self._done[seed] = future.result()
        return self._done[seed]

    def _go_on(self) -> None:
        while len(self._futures) < AHEAD:
            seed = next(self._waiting, None)
            if seed is None:
                return
            if seed not in self._done:
                self._futures[seed] = self._pool.submit(live, seed, self._nodes)

    def close(self) -> None:
        """Run nothing more."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def lived(seeds: range, nodes: int | None = None) -> Iterator[Lived]:
    """Give one after the other."""
    runs = Runs(seeds, nodes=nodes)
    try:
        for seed in seeds:
            yield runs.result(seed)
    finally:
        runs.close()
