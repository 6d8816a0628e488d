"""Every store does what the port promises."""

from __future__ import annotations

import asyncio

import pytest

from ackpost.testing.store_contract import Case, StoreHarness, cases, run
from tests.store.harnesses import HARNESSES


@pytest.mark.parametrize("harness", [kind() for kind in HARNESSES], ids=lambda harness: harness.name)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.__name__.removeprefix("check_"))
def test_contract(harness: StoreHarness, case: Case) -> None:
    """The behaviour named by the check holds."""
    asyncio.run(run(harness, case))
