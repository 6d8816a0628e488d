"""The largest data, 500 slots, slow receivers and a backlog: memory stays under 256 MiB (R26)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until

TYPE = "memory.load"
PEAK_MIB_MAX = 256
SLOTS = 500
POLICY = {"retry": {"base_s": 0.05, "cap_s": 0.2}, "circuit": {"enabled": False}, "max_in_flight": 100, "timeout_s": 15}
PADDING_BYTES = 261_900
PATHS = {
    "/0": "200:delay=1",
    "/1": "200:delay=1",
    "/2": "200*9,500:delay=1,200",
    "/3": "200:delay=1",
    "/4": "200:delay=1",
}
EVENTS = 400
IN_FLIGHT_MIN = 200
"""Of 500 slots 250 may be taken by data of this size."""


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    """A receiver whose requests are all of this test."""
    with Receiver(bodies=False) as running:
        yield running


def _peak_mib(server: Server) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@pytest.mark.timeout(300)
def test_large_data_to_slow_receivers_stays_in_bounded_memory(tmp_path: Path, receiver: Receiver) -> None:
    """A backlog of half a gigabyte goes out through many slots, and the process never holds 256 MiB."""
    many = {"ACKPOST_SLOTS": str(SLOTS), "ACKPOST_CONNECTIONS_PER_HOST": str(SLOTS)}
    with Server(tmp_path, environment=many) as server:
        for path, script in PATHS.items():
            server.endpoint(receiver.hook(path, script), TYPE, policy=POLICY)
        with Publishers(server, TYPE, connections=16, padding_bytes=PADDING_BYTES) as publishers:
            until(lambda: len(publishers.acknowledged) >= EVENTS, "enough accepted", 100)
        began, sent = time.monotonic(), receiver.received
        most = 0

        def ended() -> bool:
            nonlocal most
            most = max(most, receiver.open_connections)
            return books.count(server.database, "delivery") == 0

        until(ended, "everything delivered", 200)
        rate = (receiver.received - sent) / (time.monotonic() - began)
        stored = books.events(server, TYPE)
        assert {uid: event["id"] for uid, event in stored.items()} == publishers.acknowledged
        for path in PATHS:
            requests = Counter(request.header("webhook-id") for request in receiver.seen(path))
            assert requests.keys() == set(publishers.acknowledged.values())
            assert len({(request.header("webhook-id"), request.body) for request in receiver.seen(path)}) == len(
                requests
            )
        assert books.count(server.database, "history WHERE status = 1") == len(PATHS) * len(stored)
        peak_mib = _peak_mib(server)
        assert peak_mib < PEAK_MIB_MAX
        assert most >= IN_FLIGHT_MIN
        assert server.stop() == 0
    print(
        f"\n256 KiB of data: acknowledged {len(stored)}, lost 0, {receiver.received} requests, {rate:.0f} a second,"
        f" at most {most} at once, peak {peak_mib:.0f} MiB"
    )
