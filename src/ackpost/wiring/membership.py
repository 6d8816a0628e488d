"""What a node has more when it shares its PostgreSQL with others: a home, a lease, hints, its part of the work."""

from __future__ import annotations

from ackpost import __version__
from ackpost.config import Settings
from ackpost.engine.engine import Engine
from ackpost.engine.ownership import SharedOwner
from ackpost.engine.partitions import Cluster
from ackpost.engine.writer import Writer
from ackpost.ports.clock import Entropy
from ackpost.ports.telemetry import Telemetry
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.lease import LeaseKeeper
from ackpost.store.postgres.sharing import Sharing
from ackpost.store.postgres.wakeup import NotifyWakeup
from ackpost.wiring.home import Home
from ackpost.wiring.system import SystemClock


class Membership:
    """One node's part in a cluster. Raises: StoreLocked, StoreError when the node's files cannot be used."""

    def __init__(self, settings: Settings, name: str, clock: SystemClock, entropy: Entropy, *, lease_ms: int) -> None:
        self.home = Home(settings.state_dir, name, entropy)
        self._name = name
        self._clock = clock
        self._role = settings.node_role
        self.store = PostgresStore(
            settings.database_url,
            readers_max=settings.database_connections,
            sharing=Sharing(settings.node_role, self.home.id, __version__, lease_ms),
            pooled=settings.database_pooled,
            outbox_table=settings.outbox,
        )
        self._lease = LeaseKeeper(
            self.store.place, node=name, lease_ms=lease_ms, boot_s=clock.boot_s, monotonic_s=clock.monotonic
        )
        self._wakeup = NotifyWakeup(self.store.place, sender=name)
        self.cluster = Cluster(self._lease, self._wakeup, on_fenced=lambda: None)
        self.owner: SharedOwner | None = None

    async def open(self, *, lease_ms: int) -> int:
        """Join the cluster and go by the database's clock; give the incarnation. Raises: StoreError."""
        asked_at_s = self._lease.now_s()
        incarnation = await self.store.open(node=self._name, now_ms=self._clock.now_ms(), lease_ms=lease_ms)
        self._clock.begin_at(await self.store.clock_ms())
        self._lease.adopt(incarnation, asked_at_s)
        self._lease.start()
        return incarnation

    def start(self, writer: Writer, engine: Engine, telemetry: Telemetry, incarnation: int) -> SharedOwner:
        """Listen, then take partitions."""
        owner = self.owner = SharedOwner(
            self.store, writer, engine, self.cluster, self._clock, telemetry,
            node=self._name, incarnation=incarnation, delivers=self._role != "api",
        )  # fmt: skip
        self._wakeup.start(owner.heard())
        owner.start()
        return owner

    def begin_leaving(self) -> None:
        """Give up what is drained, as soon as it is."""
        if self.owner is not None:
            self.owner.begin_leaving()

    async def stop(self) -> None:
        """Take no more part in the sharing out; the store is still open."""
        if self.owner is not None:
            await self.owner.stop()

    async def close(self) -> None:
        """After the store was closed: tell the others, and let go of everything."""
        self._lease.stop()
        self._wakeup.tell_members()
        await self._wakeup.stop()
        self.home.close()
