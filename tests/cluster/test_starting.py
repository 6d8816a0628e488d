"""Nodes that start at the same moment on an empty database, and what each of them does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ackpost.ports.operations import DeleteApiKey
from ackpost.ports.store import Page
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.sharing import Sharing
from ackpost.wiring.keys import ensure_operator_key
from ackpost.wiring.system import SystemClock, SystemEntropy
from tests.cluster.cluster import Cluster
from tests.process.receiver import Receiver
from tests.process.server import START_S, Server, until


def _started(node: Server) -> bool:
    assert node.process.poll() is None, node.complaint()
    return bool(node.logged("server.started"))


@pytest.mark.timeout(120)
def test_nodes_that_start_together_share_one_key_and_all_partitions(tmp_path: Path, database: str) -> None:
    """Given the same operator key they store it once; each partition is owned once, evenly."""
    cluster = Cluster(tmp_path, database)
    try:
        for node in cluster.nodes:
            node.launch()
        for node in cluster.nodes:
            until(lambda node=node: _started(node), "the start", START_S)  # type: ignore[misc] # a bound argument
            node.port = int(node.logged("server.started")[0]["url"].rpartition(":")[2])
        (stored,) = cluster.ask("SELECT document FROM api_key")
        assert json.loads(stored[0])["role"] == "operator"
        cluster.until_balanced(3)
        assert sorted(cluster.owned()) == [85, 85, 86]
    finally:
        cluster.__exit__(None, None, None)


def test_one_operator_key_is_made_by_nodes_that_start_together(database: str) -> None:
    """Only one of them has a key to show, and that one holds; when it is revoked, the next start makes another."""

    async def run() -> None:
        clock, entropy = SystemClock(), SystemEntropy()
        stores = [PostgresStore(database, sharing=Sharing("all", "here", "1", 20_000)) for _ in range(4)]
        for number, store in enumerate(stores):
            await store.open(node=f"n{number}", now_ms=clock.now_ms(), lease_ms=20_000)
        try:
            made = await asyncio.gather(*(ensure_operator_key(store, clock, entropy, None) for store in stores))
            assert sum(key is not None for key in made) == 1
            (stored,) = await stores[0].api_keys(None, Page())
            (done,) = await stores[0].commit([DeleteApiKey(stored.position, None)])
            assert not isinstance(done, Exception), done
            assert await ensure_operator_key(stores[1], clock, entropy, None) is not None
            assert await ensure_operator_key(stores[2], clock, entropy, None) is None
        finally:
            for store in stores:
                await store.close()

    asyncio.run(run())


@pytest.mark.timeout(120)
def test_roles_divide_the_work(tmp_path: Path, database: str, receiver: Receiver) -> None:
    """A node with role api accepts and owns nothing; one with role engine delivers, and serves no call of the API."""
    roles = ("api", "engine")
    cluster = Cluster(tmp_path, database, 2, environments=lambda number: {"ACKPOST_NODE_ROLE": roles[number]})
    try:
        for node in cluster.nodes:
            node.start()
        cluster.until_balanced(1)
        assert cluster.owned() == [0, 256]
        api, engine = cluster.nodes
        receiver_path = "/role"
        endpoint = api.endpoint(receiver.hook(receiver_path), "role.event")
        assert endpoint["state"] == "enabled"
        api.publish("role.event")
        receiver.wait(receiver_path, 1, 30)
        for method, path in (("GET", "/v1/endpoints"), ("POST", "/v1/events"), ("GET", "/docs"), ("GET", "/nothing")):
            refusal = engine.refused(method, path, version="")
            assert (refusal.status, refusal.problem["code"]) == (404, "not_found")
            assert "This server only delivers" in str(refusal)
        assert engine.api.call("GET", "/readyz")["engine"] == "ok"
        assert api.api.call("GET", "/readyz")["store"] == "ok"
    finally:
        cluster.__exit__(None, None, None)
