"""How partitions are spread over nodes: evenly, with few moves, and the same plan on every node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.ids import PARTITION_COUNT
from ackpost.core.partitions import Moves, moves_of

ALL = frozenset(range(PARTITION_COUNT))

Owned = dict[str, set[int]]


def settle(owned: Owned, free: set[int]) -> tuple[Owned, int]:
    """Carry out everybody's plan, givers first as the nodes do; also says how many partitions changed hands."""
    before = {partition: node for node, parts in owned.items() for partition in parts}
    for node, plan in {name: moves_of(name, owned, free) for name in owned}.items():
        owned[node] -= set(plan.give)
        free |= set(plan.give)
    for node, plan in {name: moves_of(name, owned, free) for name in owned}.items():
        assert free >= set(plan.take), "two nodes that see the same state take the same partition"
        owned[node] |= set(plan.take)
        free -= set(plan.take)
    assert not free, "a partition is left without an owner"
    moved = sum(1 for node, parts in owned.items() for partition in parts if before.get(partition) != node)
    return owned, moved


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Owned, set[int]]:
    """Any state a cluster can be in: one to sixteen nodes, each partition owned by one of them or by none."""
    names = [f"node-{number}" for number in range(draw(st.integers(1, 16)))]
    chance = draw(st.randoms())
    crowded = draw(st.integers(0, len(names)))
    places = [chance.randint(-1, crowded) if crowded < len(names) else -1 for _ in ALL]
    owned = {name: {part for part, place in enumerate(places) if place == index} for index, name in enumerate(names)}
    return owned, {part for part, place in enumerate(places) if place < 0}


def test_a_node_alone_takes_everything() -> None:
    """One node that delivers takes all partitions, in order, and gives none."""
    assert moves_of("a", {"a": ()}, ALL) == Moves(take=tuple(range(PARTITION_COUNT)))


def test_an_even_cluster_moves_nothing() -> None:
    """Nodes that own their share keep it."""
    halves = {"a": range(128), "b": range(128, 256)}
    assert moves_of("a", halves, ()) == moves_of("b", halves, ()) == Moves()


def test_a_node_that_does_not_deliver_has_no_plan() -> None:
    """Asking for a node that is not among those that deliver is a mistake of the caller."""
    with pytest.raises(ValueError, match="stranger"):
        moves_of("stranger", {"a": ALL}, ())


@given(clusters())
def test_any_cluster_becomes_even_at_once(cluster: tuple[Owned, set[int]]) -> None:
    """When each has done its plan, all partitions are owned once and no node owns two more than another."""
    owned, _ = settle(*cluster)
    sizes = [len(parts) for parts in owned.values()]
    assert max(sizes) - min(sizes) <= 1
    assert set().union(*owned.values()) == ALL
    assert sum(sizes) == PARTITION_COUNT
    assert settle(owned, set())[1] == 0, "an even cluster is left alone"


@given(st.integers(1, 40))
def test_a_join_moves_a_share_and_a_leave_only_its_own(nodes: int) -> None:
    """Joining moves at most ⌈256/n⌉ partitions, leaving only what the node that left owned."""
    owned, _ = settle({f"node-{number:02}": set() for number in range(nodes)}, set(ALL))
    owned["joined"] = set()
    owned, moved = settle(owned, set())
    assert moved <= -(-PARTITION_COUNT // (nodes + 1))
    orphaned = owned.pop("node-00")
    if owned:
        assert settle(owned, set(orphaned))[1] <= len(orphaned) + 1
