"""Every store tells the same story as the plain one in memory."""

from __future__ import annotations

import asyncio

import pytest

from ackpost.testing.store_contract import StoreHarness
from tests.store.differential.race import Race
from tests.store.harnesses import InlineSqliteHarness

OTHERS: tuple[type[StoreHarness], ...] = (InlineSqliteHarness,)
SEEDS = 200
SEEDS_A_TEST = 10
STEPS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
def test_same_history(kind: type[StoreHarness], first: int) -> None:
    """The same random operations give the same answers and the same readable state after every step."""
    harness = kind()
    for seed in range(first, first + SEEDS_A_TEST):
        asyncio.run(Race(seed, harness).run(STEPS))
