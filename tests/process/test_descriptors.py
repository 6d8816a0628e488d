"""File descriptors used up under a running server, and free again."""

from __future__ import annotations

import resource
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ackpost.cli.client import Unreachable
from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until

TYPE = "descriptors.load"
POLICY = {"retry": {"base_s": 0.05, "cap_s": 0.2}, "circuit": {"enabled": False}, "max_in_flight": 100}
PATHS = {"/quick": "200", "/slow": "200:delay=0.3"}


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    """A receiver whose requests are all of this test."""
    with Receiver() as running:
        yield running


def _open(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def _allow(server: Server, count: int) -> None:
    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (count, hard))


def _lines_without_descriptor(server: Server) -> int:
    attempts = server.logged("attempt.finished")
    return sum(line.get("error_detail") == "this server has no file descriptor left" for line in attempts)


@pytest.mark.timeout(120)
def test_a_server_without_descriptors_goes_on_with_those_it_has(own_server: Server, receiver: Receiver) -> None:
    """Open connections are used on, new ones fail with a reason and no attempt, and all goes out once some are free."""
    server = own_server.start()
    for path, script in PATHS.items():
        server.endpoint(receiver.hook(path, script), TYPE, policy=POLICY)
    with Publishers(server, TYPE, connections=6, pace_s=0.01) as publishers:
        receiver.wait("/quick", 50)
        _allow(server, _open(server) + 1)
        until(lambda: _lines_without_descriptor(server) > 100, "requests that found no descriptor")
        before, sent = len(publishers.acknowledged), len(receiver.seen("/quick"))
        until(lambda: len(publishers.acknowledged) > before + 100, "more is accepted on open connections")
        receiver.wait("/quick", sent + 50)
        assert _is_cut_off(server)
        free_at = time.monotonic()
        _allow(server, 4096)
        until(lambda: _is_answered(server), "an answer on a new connection")
        resumed_s = time.monotonic() - free_at
        before = len(publishers.acknowledged)
        until(lambda: len(publishers.acknowledged) > before + 100, "more is accepted")
    until(lambda: books.count(server.database, "delivery") == 0, "everything delivered", 60)
    stored = books.events(server, TYPE)
    assert {uid: event["id"] for uid, event in stored.items()} == publishers.acknowledged
    for path in PATHS:
        requests = Counter(request.header("webhook-id") for request in receiver.seen(path))
        assert requests == dict.fromkeys(publishers.acknowledged.values(), 1)
    assert books.count(server.database, "history WHERE number <> 1") == 0
    assert server.logged("store.trouble") == []
    refused = _lines_without_descriptor(server)
    assert server.stop() == 0
    print(
        f"\nno descriptors: acknowledged {len(stored)}, lost 0, sent again 0, sends put off {refused}, "
        f"answers anew after {resumed_s:.1f} s, publishers saw {publishers.refusals}"
    )


def _is_answered(server: Server) -> bool:
    """Whether a new connection is served; one that came while there were no descriptors yet may still be cut off."""
    try:
        return server.api.call("GET", "/healthz") is not None
    except Unreachable:
        return False


def _is_cut_off(server: Server) -> bool:
    """Whether one of a few new connections is closed at once."""
    for _ in range(8):
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as client:
            try:
                client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                if not client.recv(100):
                    return True
            except (ConnectionResetError, BrokenPipeError):
                return True
    return False
