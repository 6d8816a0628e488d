"""Data or an answer that ends the process each time, under a supervisor that starts it again (rule E5, R24)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.process import books
from tests.process.receiver import Receiver
from tests.process.server import Server, until

ROOT = Path(__file__).resolve().parents[2]
POLICY = {"retry": {"base_s": 0.05, "cap_s": 0.2}, "circuit": {"enabled": False}, "max_in_flight": 20}
BESIDE = 20
CRASHES_MAX = 3


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    """A receiver whose requests are all of this test."""
    with Receiver() as running:
        yield running


class Supervisor:
    """Starts a server again whenever it ends, and counts that."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.codes: list[int] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        self._server.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            if self._server.process.poll() is not None:
                code, complaint = self._server.wait()
                self.codes.append(code)
                self.complaints += complaint
                self._server.start()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("data", "script", "code"),
    [
        (b'{"deadly":"built"}', "200", -11),
        (b'{"n":1}', "200:body=deadly", -11),
        (b'{"n":1}', "200:body=wrong", 1),
    ],
)
def test_what_ends_the_process_is_taken_out_and_spares_the_rest(
    tmp_path: Path, receiver: Receiver, data: bytes, script: str, code: int
) -> None:
    """After three ends of the process the delivery is dead as poison; all others are delivered, and it runs on."""
    server = Server(tmp_path, module="tests.process.fragile", environment={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"})
    with Supervisor(server) as supervisor:
        server.endpoint(receiver.hook("/beside", "200:delay=0.3"), "poison.beside", policy=POLICY)
        server.endpoint(receiver.hook("/deadly", script), "poison.deadly", policy=POLICY)
        server.endpoint(receiver.hook("/deaths"), "ackpost.delivery.dead", policy=POLICY)
        for _ in range(BESIDE):
            server.publish("poison.beside")
        receiver.wait("/beside", 5)
        server.publish("poison.deadly", data)
        (death,) = receiver.wait("/deaths", within_s=60)
        assert b'"poison"' in death.body
        server.publish("poison.beside")
        until(lambda: books.count(server.database, "delivery") == 0, "everything else delivered", 30)
    assert supervisor.codes == [code] * CRASHES_MAX
    assert books.rows(server.database, "SELECT reason, number FROM dead_letter") == [("poison", CRASHES_MAX)]
    delivered = books.count(server.database, "history WHERE status = 1")
    assert delivered == BESIDE + 1 + 1, "all beside it, and the announcement"
    assert len({request.header("webhook-id") for request in receiver.seen("/beside")}) == BESIDE + 1
    assert server.stop() == 0
    if code == 1:
        assert [line for line in supervisor.complaints if "the server had to stop: nobody expected" in line]
    print(f"\nended by {data.decode()}, {script}: {len(supervisor.codes)} restarts")
