"""What was answered on one node holds on every other from then on; what many nodes number together has no gap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from standardwebhooks import Webhook

from ackpost.cli.client import ApiClient, ApiFailed
from tests.cluster.cluster import POLICY, Cluster
from tests.process.receiver import Receiver
from tests.process.server import until
from tests.store.postgres.server import own_database

ROUNDS = 12
REVOKED_S = 5.0


@pytest.fixture(scope="module", name="cluster")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that the tests of this file share."""
    with own_database() as url, Cluster(tmp_path_factory.mktemp("cluster"), url) as running:
        yield running


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    """One that keeps bodies, to verify them."""
    with Receiver() as running:
        yield running


@pytest.mark.timeout(120)
def test_an_event_is_treated_by_the_state_that_was_answered_before(cluster: Cluster, receiver: Receiver) -> None:
    """Made, narrowed, given a new secret, paused, disabled or deleted on one node; the next event comes to another."""
    for number in range(ROUNDS):
        first, second, third = (cluster.nodes[(number + turn) % 3] for turn in range(3))
        type, path = f"exact.{number}", f"/exact/{number}"
        endpoint = first.endpoint(receiver.hook(path), type, policy=POLICY)["id"]
        assert second.publish(type)["deliveries"] == 1
        assert len(receiver.wait(path, 1, 30)) == 1

        third.patch(f"/endpoints/{endpoint}", {"event_types": ["other"]})
        assert first.publish(type)["deliveries"] == 0
        second.patch(f"/endpoints/{endpoint}", {"event_types": [type]})
        secret = third.post(f"/endpoints/{endpoint}/secret/rotate", {"overlap_s": 0})["secret"]
        first.publish(type)
        request = receiver.wait(path, 2, 30)[1]
        Webhook(secret).verify(request.body, dict(request.headers))

        second.post(f"/endpoints/{endpoint}/pause")
        held = third.publish(type)
        (delivery,) = first.deliveries(held["id"])
        assert (delivery["status"], delivery["held_by"]) == ("pending", "paused")
        assert len(receiver.seen(path)) == 2
        third.post(f"/endpoints/{endpoint}/resume")
        receiver.wait(path, 3, 30)

        first.post(f"/endpoints/{endpoint}/disable")
        assert second.publish(type)["deliveries"] == 0
        third.post(f"/endpoints/{endpoint}/enable")
        assert first.publish(type)["deliveries"] == 1
        receiver.wait(path, 4, 30)
        second.api.call("DELETE", f"/v1/endpoints/{endpoint}")
        assert third.publish(type)["deliveries"] == 0
        assert len(receiver.seen(path)) == 4


def _all_at_once(cluster: Cluster, calls: int, call: Any) -> list[Any]:
    """Make so many calls, spread over the nodes, all at the same time."""
    with ThreadPoolExecutor(calls) as pool:
        return list(pool.map(lambda number: call(cluster.nodes[number % 3], number), range(calls)))


@pytest.mark.timeout(60)
def test_one_uid_is_one_event(cluster: Cluster) -> None:
    """Published at all nodes at once, each uid is one event; the others are told that theirs is a duplicate."""
    for number in range(ROUNDS):
        answers = _all_at_once(cluster, 9, lambda node, _, uid=f"u{number}": node.publish("uid.event", uid=uid))
        assert len({answer["id"] for answer in answers}) == 1
        assert sum(not answer["duplicate"] for answer in answers) == 1


@pytest.mark.timeout(60)
def test_one_idempotency_key_is_one_effect(cluster: Cluster) -> None:
    """Copies of a request at all nodes at once have one effect, and all get its answer."""

    def make(node: Any, _: int, key: str) -> Any:
        body = {"url": "https://example.com/", "event_types": ["key.event"]}
        return node.api.call("POST", "/v1/endpoints", body, headers={"Idempotency-Key": key})["id"]

    for number in range(ROUNDS):
        made = _all_at_once(cluster, 9, lambda node, index, key=f"k{number}": make(node, index, key))
        assert len(set(made)) == 1
    assert len(cluster.nodes[0].get("/endpoints", event_type="key.event")["data"]) == ROUNDS


@pytest.mark.timeout(60)
def test_sequences_have_no_gap_and_no_repetition(cluster: Cluster) -> None:
    """Events of one key accepted by all nodes at once are numbered 1, 2, 3 …"""
    answers = _all_at_once(cluster, 30, lambda node, _: [node.publish("seq.event", key="k") for _ in range(6)])
    numbers = sorted(answer["sequence"] for some in answers for answer in some)
    assert numbers == list(range(1, 181))


@pytest.mark.timeout(60)
def test_a_revoked_key_is_refused_everywhere(cluster: Cluster) -> None:
    """Within five seconds, also by nodes that have it in memory."""
    made = cluster.nodes[0].post("/api-keys", {"role": "reader", "name": "soon gone"})
    clients = [ApiClient(node.url, made["key"], timeout_s=30.0) for node in cluster.nodes]
    for client in clients:
        client.call("GET", "/v1/events")
    cluster.nodes[1].api.call("DELETE", f"/v1/api-keys/{made['id']}")
    revoked_at = time.monotonic()

    def is_refused(client: ApiClient) -> bool:
        try:
            client.call("GET", "/v1/events")
        except ApiFailed as refusal:
            return refusal.status == 401
        return False

    until(lambda: all(is_refused(client) for client in clients), "the key to be refused by all", 4 * REVOKED_S)
    print(f"\nrevoked key refused by all nodes after {time.monotonic() - revoked_at:.1f} s")
