"""Nodes that die, stop, stand still: nothing acknowledged is lost, the others go on with their work."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.cluster.cluster import LEASE_MS, Cluster, Load, name_of, told
from tests.process.receiver import Receiver
from tests.process.server import until

NODES = 3


@pytest.mark.timeout(180)
def test_a_killed_node_is_replaced(tmp_path: Path, database: str, receiver: Receiver) -> None:
    """The others take its partitions when its lease has run out; what it was sending may come twice, no more (R1)."""
    with Cluster(tmp_path, database) as cluster, Load(cluster, receiver, "killed") as load:
        load.flowing()
        cluster.nodes[2].kill()
        marked = cluster.slots_left(2)
        killed_at = time.monotonic()
        load.turn(2, to=0)
        cluster.until_balanced(2)
        load.flowing(1)
        resumed_s = time.monotonic() - killed_at
        cluster.nodes[2].start()
        cluster.until_balanced(3)
        load.flowing()
        load.__exit__(None, None, None)
        acknowledged, repeated = load.settle()
        assert repeated <= marked
        assert [line["nodes"] for node in cluster.nodes for line in node.logged("nodes.dead")] == [name_of(2)]
        told("kill -9 of a node", acknowledged=acknowledged, lost=0, repeated=repeated, resumed_s=round(resumed_s, 1))


@pytest.mark.timeout(180)
def test_a_rolling_restart_loses_and_repeats_nothing(tmp_path: Path, database: str, receiver: Receiver) -> None:
    """Each node in turn ends what it sends and hands its partitions over at once, not when its lease ends (R28)."""
    with Cluster(tmp_path, database) as cluster, Load(cluster, receiver, "rolling", script="200:delay=0.05") as load:
        load.flowing()
        handed_over_s: list[float] = []
        for number, node in enumerate(cluster.nodes):
            load.turn(number, to=(number + 1) % NODES)
            began = time.monotonic()
            node.process.send_signal(signal.SIGTERM)
            code, complaint = node.wait()
            assert code == 0, complaint
            cluster.until_balanced(NODES - 1)
            handed_over_s.append(time.monotonic() - began)
            node.start()
            cluster.until_balanced(NODES)
            load.flowing()
        load.__exit__(None, None, None)
        acknowledged, repeated = load.settle()
        assert repeated == 0
        stops = [line for node in cluster.nodes for line in node.logged_before("server.stopped")]
        assert [line["cut_off"] for line in stops] == [0] * NODES
        assert not [line for node in cluster.nodes for line in node.logged("nodes.dead")]
        told("rolling restart", acknowledged=acknowledged, lost=0, repeated=0, handed_over_s=handed_over_s)


@pytest.mark.timeout(180)
def test_a_node_that_stood_still_comes_back_owning_nothing(
    tmp_path: Path, database: str, receiver: Receiver
) -> None:
    """Stopped for two leases, it sends nothing of before when it wakes; its results change no row (R13)."""
    with Cluster(tmp_path, database) as cluster, Load(cluster, receiver, "still", script="200:delay=0.05") as load:
        load.flowing()
        sleeper = cluster.nodes[1]
        load.turn(1, to=0)
        sleeper.process.send_signal(signal.SIGSTOP)
        marked = cluster.slots_left(1)
        awake = [node for node in cluster.nodes if node is not sleeper]
        until(lambda: any(node.logged("nodes.dead") for node in awake), "the takeover", 40)
        load.flowing()
        time_of_two_leases = time.monotonic() + LEASE_MS / 1000
        until(lambda: time.monotonic() > time_of_two_leases, "a second lease", 20)
        sleeper.process.send_signal(signal.SIGCONT)
        until(lambda: sleeper.logged("node.rejoined"), "the sleeper's return", 40)
        cluster.until_balanced(NODES)
        load.flowing()
        load.__exit__(None, None, None)
        acknowledged, repeated = load.settle()
        assert repeated <= marked
        told("SIGSTOP for two leases", acknowledged=acknowledged, lost=0, repeated=repeated, under_way=marked)
