"""The receiver of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process.receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of one test."""
    with Receiver() as running:
        yield running
