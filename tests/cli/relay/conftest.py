"""An application on each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.relay.application import Application
from tests.store.postgres.server import own_database


@pytest.fixture(params=["sqlite", "postgresql"])
def application(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Application]:
    if request.param == "sqlite":
        yield Application(f"sqlite:///{tmp_path / 'app.db'}")
    else:
        with own_database() as url:
            yield Application(url)
