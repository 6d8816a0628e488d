"""Servers and receivers for the tests of whole processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.receiver import Receiver
from tests.process.server import Server


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """A receiver for the tests of a file."""
    with Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that the tests of a file share: each keeps to event types and paths of its own."""
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server of one test alone, which starts it."""
    server = Server(tmp_path)
    try:
        yield server
    finally:
        if server.running:
            server.kill()
