"""What nodes that share a store need of it, and of each other: membership, partitions, a lease, hints (rules E1–E3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

import msgspec

from ackpost.ports.store import Store, Work

Role = Literal["all", "api", "engine"]


class NodeInfo(msgspec.Struct):
    """A living node. ``lease_left_ms`` by the store's clock, negative once the lease has run out; ``leaving``: it is
    stopping and takes no partitions any more.
    """

    id: str
    role: Role
    incarnation: int
    since_ms: int
    version: str
    leaving: bool
    lease_left_ms: int
    partitions: list[int]

    @property
    def delivers(self) -> bool:
        """Whether partitions may be its."""
        return self.role != "api" and not self.leaving


class ClusterState(msgspec.Struct):
    """All living nodes by id, and the partitions that nobody owns, as of one moment."""

    nodes: list[NodeInfo]
    free: list[int]


class Members(Protocol):
    """Who can be asked about all nodes."""

    async def cluster(self) -> ClusterState:
        """Who lives and who owns what."""


class Looked(msgspec.Struct):
    """What a poll found: work as of ``Store.scan_work``, and whether any job is open."""

    work: list[Work]
    has_jobs: bool


class SharedStore(Store, Protocol):
    """A store that several nodes have open at once, each with an incarnation of its own.

    ``commit`` of a node that was declared dead raises StoreFenced and stores nothing.
    """

    async def look(self, partitions: Sequence[int], *, after_endpoint: int, limit: int) -> Looked:
        """Work of some partitions only, and whether there are jobs, in one round trip."""

    async def cluster(self) -> ClusterState:
        """Who lives and who owns what."""

    async def take_over(self) -> list[str]:
        """Declare nodes dead whose lease has run out, once their commit under way has ended; free their partitions."""

    async def claim(self, partitions: Collection[int]) -> list[int]:
        """Own those of them that are free; none when this node was declared dead."""

    async def release(self, partitions: Collection[int]) -> None:
        """Own these no longer: nothing of them is in flight or unrecorded."""

    async def leave(self) -> None:
        """Tell that this node is stopping: others take what it releases."""

    async def rejoin(self) -> int:
        """Come back after having been declared dead, owning nothing; give the new incarnation.

        Raises: StoreLocked when another process has taken this node's name.
        """


class Lease(Protocol):
    """The node's lease, renewed outside the event loop, but only while the loop beats (rule E3)."""

    @property
    def lost(self) -> bool:
        """A renewal found that this incarnation was declared dead."""

    def is_valid(self) -> bool:
        """Whether nobody else can own this node's partitions yet, with a margin."""

    def renewed_ago_s(self) -> float:
        """Seconds since the last renewal was asked for that succeeded."""

    def clock_offset_ms(self) -> int | None:
        """The store's clock minus monotonic time as last measured; None before the first measure."""

    def beat(self) -> None:
        """The event loop lives: called at least every third of the lease."""

    def now_s(self) -> float:
        """The lease's own clock, which counts while the machine sleeps."""

    def adopt(self, incarnation: int, asked_at_s: float) -> None:
        """Keep the lease of this incarnation, that was asked for at that time of ``now_s``."""


class Wakeup(Protocol):
    """Hints to other nodes. A hint may be lost: polling is the truth."""

    @property
    def is_listening(self) -> bool:
        """Whether hints of others arrive at present."""

    def tell_work(self, endpoint: int, tenant: int) -> None:
        """An endpoint that another node owns has new deliveries."""

    def tell_change(self, endpoint: int) -> None:
        """An endpoint that another node owns, or its deliveries, were changed."""

    def tell_members(self) -> None:
        """Partitions or nodes changed."""


class Heard(msgspec.Struct):
    """What to call with the hints of others; ``work``: endpoint and tenant."""

    work: Callable[[Sequence[tuple[int, int]]], None]
    change: Callable[[Sequence[int]], None]
    members: Callable[[], None]
    anything: Callable[[], None]
    """Hints may have been lost: look everywhere."""
