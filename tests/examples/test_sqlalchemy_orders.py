"""The example's shop, killed again and again together with relay and server: events delivered are orders stored.

``OUTBOX_ORDERS`` says how many orders are tried in each database (``make outbox ORDERS=10000``).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.relay.application import Application, RelayProcess
from tests.process.books import events
from tests.process.receiver import Receiver
from tests.process.server import Server, until
from tests.store.postgres.server import own_database
from tests.tidy.tree import ROOT

_ORDERS = int(os.environ.get("OUTBOX_ORDERS", "120"))
_KILLS = max(3, _ORDERS // 400)
_SHOP = ROOT / "examples" / "sqlalchemy_orders" / "app.py"
_WITHIN_S = 60.0 + _ORDERS / 20

pytestmark = pytest.mark.timeout(4 * _WITHIN_S)


class _Shop:
    """The example as a process."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self.start()

    def start(self) -> None:
        command = [sys.executable, str(_SHOP), "--database", self._application.url, "--orders", str(_ORDERS)]
        self.process = subprocess.Popen(command)

    def stored(self) -> set[int]:
        return {number for (number,) in self._application.run("SELECT id FROM orders")}

    def last(self) -> int:
        """The number of the last order that was stored; 0 while there is no table."""
        try:
            return int(self._application.run("SELECT coalesce(max(id), 0) FROM orders")[0][0])
        except Exception as error:
            if "orders" not in str(error):
                raise
            return 0


@pytest.fixture(params=["sqlite", "postgresql", "postgresql, shared"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The shop's database, and what the server is told of its own."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shop.db'}", []
        return
    with own_database() as url:
        yield url, ["--database-url", url] if request.param == "postgresql, shared" else []


def test_events_delivered_are_orders_stored(places: tuple[str, list[str]], tmp_path: Path) -> None:
    """Each stored order's event arrives, in one event alone, and none of a declined order does."""
    url, more = places
    chance = random.Random(20)
    application = Application(url)
    with ExitStack() as stack:
        receiver = stack.enter_context(Receiver())
        server = stack.enter_context(Server(tmp_path, *more, environment={"ACKPOST_NODE_NAME": "shop"}))
        server.endpoint(receiver.hook("/orders"), "order.created", policy={"ordering": "by-key"})
        relay = None if more else RelayProcess(application, server.url, tmp_path)
        shop = _Shop(application)
        try:
            for at in sorted(chance.sample(range(1, _ORDERS), _KILLS)):
                until(lambda least=at: shop.last() >= least - 2, f"order {at}", _WITHIN_S)  # type: ignore[misc] # a default binds
                victim = chance.choice(["shop", "shop", "server", "relay"])
                if victim == "server":
                    server.restart()
                elif victim == "relay" and relay is not None:
                    relay.kill()
                    relay = RelayProcess(application, server.url, tmp_path)
                else:
                    shop.process.kill()
                    shop.process.wait()
                    shop.start()
            assert shop.process.wait(_WITHIN_S) == 0
            stored = shop.stored()
            assert stored == {number for number in range(1, _ORDERS + 1) if number % 3}
            until(lambda: application.waiting() == [], "all rows are moved", _WITHIN_S)
            until(lambda: len(_delivered(receiver)) >= len(stored), "all events are delivered", _WITHIN_S)
        finally:
            shop.process.kill()
            shop.process.wait()
            if relay is not None:
                relay.kill()
        assert _delivered(receiver) == stored
        published = events(server, "order.created")
        assert len(published) == len(stored)
        print(f"{url.partition(':')[0]}{' shared' if more else ''}: {_ORDERS} tried, {len(stored)} stored, "
              f"{len(published)} events, {len(receiver.seen('/orders'))} requests, {_KILLS} kills")  # fmt: skip
        assert server.stop() == 0


def _delivered(receiver: Receiver) -> set[int]:
    return {json.loads(request.body)["data"]["order"] for request in receiver.seen("/orders")}
