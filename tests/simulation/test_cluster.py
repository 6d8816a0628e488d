"""Many small worlds with several nodes: whatever happens to them, the promises hold, I3 above all.

A failing seed is replayed with ``make simulate NODES=0 SEED=<seed>``; ``make simulate NODES=3 SEEDS=<n>`` runs n fresh
ones with three nodes, ``NODES=0`` with as many as the seed says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.cluster import ClusterWorld
from tests.simulation.runs import DRAWN, Runs

FIXED = range(60)
REGRESSIONS = (
    2,  # results of an old incarnation, in a commit that failed after the node had come back, were stored later
)
BEHAVIOURS = (
    "note partitions.taken", "note partitions.released", "note nodes.dead", "note lease.lapsed", "note lease.renewed",
    "note node.rejoined", "declared dead while it lived", "left in good order", "crash", "fault freeze", "fault hang",
    "fault away", "fault outage", "fault join", "fault leave", "fault sessions lost", "fault hint lost", "fault full",
    "fault slow store", "fault unknown_after", "refusal starting", "refusal outcome_unknown", "accepted", "duplicate",
    "delivery pending > delivered", "delivery new > waiting", "job switch_ordering done", "circuit closed > open",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """The worlds, lived in processes beside this one."""
    found = Runs(FIXED, nodes=DRAWN)
    yield found
    found.close()


@pytest.mark.parametrize("seed", [*FIXED, *(seed for seed in REGRESSIONS if seed not in FIXED)])
def test_the_promises_hold_with_several_nodes(runs: Runs, seed: int) -> None:
    """No two nodes send for one endpoint, who was declared dead changes nothing, nothing is lost, all settles."""
    lived = runs.result(seed)
    if lived.violation is not None:
        pytest.fail(f"{lived.violation}\n\nreplay: make simulate NODES=0 SEED={seed}")


def test_the_worlds_show_what_happens_to_nodes(runs: Runs) -> None:
    """Each fault of a node and each way that partitions move is there."""
    seen: Counter[str] = Counter()
    for seed in FIXED:
        seen.update(runs.result(seed).seen)
    assert [name for name in BEHAVIOURS if not seen[name]] == []


def test_a_seed_gives_the_same_cluster_again() -> None:
    """Every request is the same at the same virtual time."""
    first, second = ClusterWorld(3), ClusterWorld(3)
    first.run()
    second.run()
    assert first.fingerprint() == second.fingerprint()
