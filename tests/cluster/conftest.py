"""A database of its own, and a receiver, for each test of several nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process.receiver import Receiver
from tests.store.postgres.server import own_database


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of a PostgreSQL database of this test alone."""
    with own_database() as url:
        yield url


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver whose requests are all of this test."""
    with Receiver(bodies=False) as running:
        yield running
