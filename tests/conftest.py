"""What every test gets: Hypothesis profiles and the order of the tiers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A property's time says more about the machine than about the property; the whole test has pytest's timeout.
_SLOW_IS_FINE = [HealthCheck.too_slow]
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("ci", deadline=None, suppress_health_check=_SLOW_IS_FINE, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

TIERS = ("tidy", "core", "service", "store", "egress", "engine", "api", "cli", "simulation", "docs", "process")
_TESTS = Path(__file__).parent


def _tier(item: pytest.Item) -> int:
    folder = item.path.relative_to(_TESTS).parts[0]
    return TIERS.index(folder) if folder in TIERS else len(TIERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is fast and near to the cause first: a broken rule of the house must not hide behind a crash test."""
    items.sort(key=_tier)
