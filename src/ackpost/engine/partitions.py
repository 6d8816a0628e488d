"""Which endpoints this engine delivers to, and what it tells the others' owners (rule E1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from ackpost.core.ids import partition_of
from ackpost.engine.lane import Lane
from ackpost.ports.cluster import Lease, Wakeup

UNREADY_S: Final = 8.0


class Cluster(msgspec.Struct):
    """What an engine needs that shares its store with other nodes."""

    lease: Lease
    wakeup: Wakeup
    on_fenced: Callable[[], None]

    def trouble(self) -> str | None:
        """Tell when the lease has not been renewed for a while: the node is not ready then."""
        late = self.lease.renewed_ago_s() > UNREADY_S
        return "The database cannot be reached: this node's lease was not renewed." if late else None


class Partitions:
    """``owned`` are the partitions whose endpoints this engine delivers to; None: all, as nobody else is there."""

    def __init__(self, lanes: dict[int, Lane], cluster: Cluster | None) -> None:
        self._lanes = lanes
        self._wakeup = None if cluster is None else cluster.wakeup
        self.owned: frozenset[int] | None = None if cluster is None else frozenset()

    def owns(self, endpoint: int) -> bool:
        """Whether this engine delivers to an endpoint."""
        return self.owned is None or partition_of(endpoint) in self.owned

    def take(self, partitions: Iterable[int]) -> None:
        """Deliver to these from now on; the next poll loads them."""
        self.owned = (self.owned or frozenset()).union(partitions)

    def leave(self, partitions: Iterable[int]) -> None:
        """Begin to give partitions up: nothing more of them is sent; see ``left``."""
        leaving = frozenset(partitions)
        self.owned = (self.owned or frozenset()) - leaving
        for lane in self._lanes.values():
            if not lane.leaving and partition_of(lane.endpoint) in leaving:
                lane.leave()

    def left(self, partitions: Iterable[int]) -> list[int]:
        """Give those partitions of which nothing is in flight or unrecorded any more: others may own them."""
        for lane in [lane for lane in self._lanes.values() if lane.is_left]:
            del self._lanes[lane.endpoint]
        busy = {partition_of(lane.endpoint) for lane in self._lanes.values() if lane.leaving}
        return [partition for partition in partitions if partition not in busy]

    def drop_all(self) -> None:
        """Own nothing any more, at once."""
        self.owned = frozenset()
        for lane in self._lanes.values():
            lane.leave()
            lane.forget_all()
        self._lanes.clear()

    def tell_work(self, endpoint: int, tenant: int) -> None:
        """An endpoint of others has new deliveries."""
        if self._wakeup is not None:
            self._wakeup.tell_work(endpoint, tenant)

    def tell_change(self, endpoint: int) -> None:
        """An endpoint that may be of others was changed."""
        if self._wakeup is not None and not self.owns(endpoint):
            self._wakeup.tell_change(endpoint)
