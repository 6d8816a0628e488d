"""Every store tells the same story as the plain one in memory."""

from __future__ import annotations

import asyncio

import pytest

from ackpost.testing.store_contract import StoreHarness
from tests.store.differential.race import Race
from tests.store.harnesses import InlineSqliteHarness, PostgresHarness

STEPS = 60
RACES: tuple[tuple[type[StoreHarness], int, int], ...] = (
    *((InlineSqliteHarness, first, 10) for first in range(0, 200, 10)),
    # Each question is a round trip there: fewer histories, of the same kind.
    *((PostgresHarness, first, 5) for first in range(0, 20, 5)),
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("kind", "first", "seeds"), RACES, ids=lambda value: getattr(value, "name", str(value)))
def test_same_history(kind: type[StoreHarness], first: int, seeds: int) -> None:
    """The same random operations give the same answers and the same readable state after every step."""
    harness = kind()
    for seed in range(first, first + seeds):
        asyncio.run(Race(seed, harness).run(STEPS))
