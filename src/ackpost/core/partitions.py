"""Who delivers to which endpoints: how partitions are spread over nodes, and how few of them move (rule E3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from ackpost.core.ids import PARTITION_COUNT


class Moves(msgspec.Struct, frozen=True):
    """What one node does next: partitions to ``give`` up once they are drained, and free ones to ``take``."""

    give: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


def moves_of(node: str, owned: Mapping[str, Collection[int]], free: Collection[int]) -> Moves:
    """Plan for ``node``; ``owned`` has an entry for each node that delivers, this one included.

    All nodes that see the same state plan the same moves, so that none takes what another is about to take. Those that
    own most keep the odd ones: a node that joins takes at most ⌈256/n⌉ partitions, and one that leaves moves only its
    own.

    Invariant: when all have moved, no node owns two partitions more than another.
    """
    ranked = sorted(owned, key=lambda name: (-len(owned[name]), name))
    floor, odd = divmod(PARTITION_COUNT, len(ranked))
    left = sorted(free)
    for rank, name in enumerate(ranked):
        quota = floor + 1 if rank < odd else floor
        missing = quota - len(owned[name])
        taken, left = (left[:missing], left[missing:]) if missing > 0 else ([], left)
        if name == node:
            return Moves(give=tuple(sorted(owned[name])[quota:]), take=tuple(taken))
    raise ValueError(f"node {node} is not among those that deliver")
