"""The application's outbox in a cluster: one node looks into it for all, whichever lives."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from tests.cli.relay.application import Application, sequences
from tests.cluster.cluster import Cluster, name_of
from tests.process.books import events
from tests.process.server import Server, until

_WITHIN_S = 60.0


@pytest.mark.timeout(240)
def test_rows_are_picked_up_once_whoever_dies(tmp_path: Path, database: str) -> None:
    """The node that looks stands still beyond its lease, wakes up behind its successor, and that one is killed."""
    application = Application(database)
    uids: list[str] = []
    enough = threading.Event()

    def write() -> None:
        while not enough.is_set():
            uids.extend(application.publish("cluster.row", 10, key="cluster"))
            enough.wait(0.05)

    with Cluster(tmp_path, database, 2) as cluster:
        first = until(lambda: _looking(cluster), "one that looks", _WITHIN_S)
        other = next(node for node in cluster.nodes if node is not first)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            _grows(other, 50)
            first.process.send_signal(signal.SIGSTOP)
            until(lambda: _looking(cluster) is other, "the other node looks", _WITHIN_S)
            _grows(other, len(events(other, "cluster.row")) + 50)
            first.process.send_signal(signal.SIGCONT)
            other.kill()
            _grows(first, len(events(first, "cluster.row")) + 50)
        finally:
            enough.set()
            writer.join()
        until(lambda: application.waiting() == [], "all are picked up", _WITHIN_S)
        assert events(first, "cluster.row").keys() == set(uids)
        assert sequences(first, uids[::25]) == list(range(1, len(uids) + 1, 25))


def _looking(cluster: Cluster) -> Server | None:
    """Give the node that owns partition 0."""
    ((name,),) = cluster.ask("SELECT node FROM partition WHERE id = 0")
    return next((node for number, node in enumerate(cluster.nodes) if name_of(number) == name), None)


def _grows(node: Server, count: int) -> None:
    until(lambda: len(events(node, "cluster.row")) >= count, f"{count} events", _WITHIN_S)
