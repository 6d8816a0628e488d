"""A shell, and a server and a receiver that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.shell import Shell
from tests.process.receiver import Receiver
from tests.process.server import KEY, Server


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)


@pytest.fixture
def ackpost(shell: Shell, server: Server) -> Shell:
    return shell.use(server.url, KEY)
