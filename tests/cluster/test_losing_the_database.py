"""PostgreSQL restarts, or a node's way to it is cut, deaf or slow: nothing acknowledged is lost, all goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, Load, name_of, told
from tests.cluster.proxy import Proxy
from tests.process.receiver import Receiver
from tests.process.server import until
from tests.store.postgres.server import Server as Postgres

TOLD = {"503 outcome_unknown", "503 overloaded", "503 starting"}
"""What publishers may be told, whatever Retry-After says."""


@pytest.fixture(name="postgres")
def _postgres() -> Iterator[Postgres]:
    """A server of this test alone, that keeps what it reported as flushed."""
    server = Postgres(fsync=True)
    yield server
    server.stop()


def refusals(load: Load) -> set[str]:
    """What publishers were answered but 202, without the header."""
    seen = {answer for publishers in load.publishers for answer in publishers.refusals}
    return {answer.partition(" retry-after=")[0] for answer in seen}


@pytest.mark.timeout(240)
def test_nodes_outlive_restarts_of_postgresql(tmp_path: Path, postgres: Postgres, receiver: Receiver) -> None:
    """Fast, immediate and by SIGKILL: no node has to be restarted, no acknowledged event is lost (R9)."""
    ways = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
    script = "200:delay=0.02"
    with Cluster(tmp_path, postgres.dsn) as cluster, Load(cluster, receiver, "restarted", script=script) as load:
        resumed_s: dict[str, float] = {}
        for way in ways:
            load.flowing()
            postgres.stop(way)
            postgres.start()
            back_at = time.monotonic()
            load.flowing(5)
            resumed_s[way.name] = round(time.monotonic() - back_at, 1)
        load.__exit__(None, None, None)
        acknowledged, repeated = load.settle()
        assert refusals(load) <= TOLD
        assert repeated <= cluster.attempts() - cluster.count("history WHERE status = 1")
        told("PostgreSQL restarted 3 times", acknowledged=acknowledged, lost=0, repeated=repeated, resumed_s=resumed_s)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", ["cut", "questions", "answers"])
def test_a_node_without_a_way_to_postgresql_gives_up_its_work(
    tmp_path: Path, database: str, receiver: Receiver, way: str
) -> None:
    """Both ways or one: others take over when its lease has run out; healed, it comes back by itself (R11)."""
    with Proxy(database) as proxy:
        ways = {2: proxy.url}
        cluster = Cluster(tmp_path, database, urls=lambda number: ways.get(number, database))
        with cluster, Load(cluster, receiver, way, script="200:delay=0.02") as load:
            load.flowing()
            if way == "cut":
                proxy.cut()
            elif way == "questions":
                proxy.swallows_questions = True
            else:
                proxy.swallows_answers = True
            cut_at = time.monotonic()
            lost = cluster.nodes[2]
            others = cluster.nodes[:2]
            until(lambda: any(node.logged("nodes.dead") for node in others), "the takeover", 40)
            load.turn(2, to=0)
            load.flowing(5)
            resumed_s = round(time.monotonic() - cut_at, 1)
            until(lambda: lost.refused("GET", "/readyz", version="").status == 503, "the node to say so")
            assert lost.logged("lease.lapsed")
            proxy.heal()
            until(lambda: lost.logged("node.rejoined"), "the node's return", 40)
            cluster.until_balanced(3)
            load.flowing(5)
            load.__exit__(None, None, None)
            acknowledged, repeated = load.settle()
            assert refusals(load) - {"TimeoutError"} <= TOLD
            assert [line["nodes"] for node in others for line in node.logged("nodes.dead")] == [name_of(2)]
            told(f"way to PostgreSQL: {way}", acknowledged=acknowledged, lost=0, repeated=repeated, resumed_s=resumed_s)


@pytest.mark.timeout(120)
def test_a_slow_way_to_postgresql_only_slows(tmp_path: Path, database: str, receiver: Receiver) -> None:
    """Each exchange takes 50 ms longer: no node is taken for dead, and what is accepted is delivered (R12)."""
    with (
        Proxy(database) as proxy,
        Cluster(tmp_path, database, urls=lambda _: proxy.url) as cluster,
        Load(cluster, receiver, "slow") as load,
    ):
        load.flowing(5)
        proxy.delay_s = 0.025
        load.flowing(20)
        load.__exit__(None, None, None)
        acknowledged, repeated = load.settle()
        assert repeated == 0
        assert not [line for node in cluster.nodes for line in node.logged("nodes.dead")]
        told("each exchange 50 ms late", acknowledged=acknowledged, lost=0, repeated=0)
