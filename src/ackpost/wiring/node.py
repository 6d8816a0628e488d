"""Puts one node together from settings: the only place that names adapters."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable

from ackpost import __version__
from ackpost.config import Settings
from ackpost.core.addresses import AddressPolicy
from ackpost.core.model import Endpoint
from ackpost.egress.client import HttpClient
from ackpost.egress.limits import Limits
from ackpost.egress.own_addresses import own_addresses
from ackpost.egress.resolver import SystemResolver
from ackpost.engine.engine import UNRECORDED_MAX, Engine, EngineLimits
from ackpost.engine.housekeeping import Housekeeping, Retention
from ackpost.engine.request import RequestBuilder
from ackpost.engine.slots import SlotFile
from ackpost.engine.writer import Writer
from ackpost.errors import StoreError
from ackpost.ports.cluster import Members
from ackpost.ports.operations import Interrupt, Interrupted
from ackpost.service.context import Options, Services
from ackpost.service.nodes import SoleMember
from ackpost.service.outbox import PickUp
from ackpost.service.telemetry import watch_loop
from ackpost.store.postgres import PostgresStore
from ackpost.store.sqlite import SqliteStore
from ackpost.wiring.logs import NodeTelemetry
from ackpost.wiring.membership import Membership
from ackpost.wiring.system import SystemClock, SystemEntropy

LEASE_MS = 20_000
CRASHES_MAX = 3
DRAIN_S = 30.0
SWITCH_INTERVAL_S = 0.0005
"""Two busy threads share one core here: the writer must not wait 5 ms for the interpreter at each statement."""


class Node:
    """One server process's parts. ``start`` opens the store and begins to deliver; ``stop`` loses nothing."""

    def __init__(self, settings: Settings, telemetry: NodeTelemetry, *, port: int) -> None:
        self.settings = settings
        self.telemetry = telemetry
        self.clock = SystemClock()
        self.entropy = SystemEntropy()
        self._port = port
        self._membership: Membership | None = None
        self.store: SqliteStore | PostgresStore
        if settings.is_shared:
            self.name = settings.node_name or f"{socket.gethostname()}-{port}"
            self._membership = Membership(settings, self.name, self.clock, self.entropy, lease_ms=LEASE_MS)
            self.store = self._membership.store
        else:
            self.name = settings.node_name or socket.gethostname()
            self.store = SqliteStore(str(settings.database_path))
        self._slots: SlotFile | None = None
        self._transport: HttpClient | None = None
        self._housekeeping: Housekeeping | None = None
        self._engine: Engine | None = None
        self._writer: Writer | None = None
        self._services: Services | None = None
        self._lag_watch: asyncio.Task[None] | None = None
        self._stopping_since: float | None = None

    @property
    def services(self) -> Services:
        """The use cases, once started."""
        if self._services is None:
            raise RuntimeError("the node has not started")
        return self._services

    async def start(self, on_fatal: Callable[[BaseException], None]) -> None:
        """Open the store, take over what a dead process left, begin to deliver.

        Raises: StoreError (locked, corrupt, not writable) with one clear line.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        incarnation = await self._open()
        self.telemetry.salt = self.store.salt
        stored_ms = self.store.last_ms
        self._slots = self._open_slots()
        self._transport = self._make_transport()
        writer = self._writer = Writer(
            self.store, self.clock, self.telemetry, incarnation=incarnation, node=self.name,
            shortage=self.store.shortage,
        )  # fmt: skip
        member = self._membership
        engine = self._engine = Engine(
            self.store, writer, self._transport, self.clock, self.entropy, self.telemetry, self._slots,
            make_builder=self._make_builder,
            limits=EngineLimits(slots=self.settings.slots, host_cap=self.settings.connections_per_host),
            on_fatal=on_fatal,
            cluster=None if member is None else member.cluster,
        )  # fmt: skip
        writer.start()
        await self._take_over(writer)
        owner = None if member is None else member.start(writer, engine, self.telemetry, incarnation)
        services = self._services = Services(
            store=self.store, committer=writer, engine=engine, clock=self.clock, entropy=self.entropy,
            members=self._members(engine), options=self._options(), counters=self.telemetry,
        )  # fmt: skip
        self._housekeeping = Housekeeping(
            self.store, writer, engine, self.clock, self.telemetry,
            node=self.name, incarnation=incarnation, lease_ms=LEASE_MS, retention=self._retention(),
            stored_ms=stored_ms, store_warning=self.store.warning, owner=owner,
            pick_up=self._pick_up(services),
        )  # fmt: skip
        self._housekeeping.start()
        self._lag_watch = asyncio.create_task(watch_loop(self.telemetry, self.clock), name="loop-lag")

    def _members(self, engine: Engine) -> Members:
        """Give who knows all nodes."""
        if self._membership is not None:
            return self._membership.store
        return SoleMember(self.name, __version__, self.clock.now_ms(), lambda: engine.lease_until_ms, self.clock)

    def _pick_up(self, services: Services) -> Callable[[], Awaitable[float]] | None:
        """Give the look into the outbox of applications that share the database."""
        if self._membership is None or self.settings.outbox is None:
            return None
        return PickUp(self._membership.store, services.tenants, services.publisher, self.telemetry).step

    async def _open(self) -> int:
        """Open the store; a wall clock behind what is stored, or beside the shared database's, is made up for."""
        if self._membership is not None:
            return await self._membership.open(lease_ms=LEASE_MS)
        incarnation = await self.store.open(node=self.name, now_ms=self.clock.now_ms(), lease_ms=LEASE_MS)
        behind_ms = self.clock.continue_from(self.store.last_ms)
        if behind_ms:
            self.telemetry.note("clock.behind_store", behind_ms=behind_ms)
        return incarnation

    def stop_sending(self) -> None:
        """Begin to stop: no request starts any more; those under way have ``DRAIN_S`` from now on."""
        if self._stopping_since is None:
            self._stopping_since = self.clock.monotonic()
            if self._engine is not None:
                self._engine.stop_sending()
            if self._membership is not None:
                self._membership.begin_leaving()

    async def stop(self) -> int:
        """Finish what is in flight (≤ 30 s), store all results, give the database up; requests cut off are given."""
        self.stop_sending()
        cut_off = 0
        if self._lag_watch is not None:
            self._lag_watch.cancel()
        if self._engine is not None and self._stopping_since is not None:
            passed_s = self.clock.monotonic() - self._stopping_since
            cut_off = await self._engine.drain(max(0.0, DRAIN_S - passed_s))
        if self._services is not None:
            await self._services.auth.close()
        if self._membership is not None:
            await self._membership.stop()
        if self._housekeeping is not None:
            await self._housekeeping.stop()
        if self._writer is not None:
            await self._writer.stop()
        if self._transport is not None:
            await self._transport.close()
        await self.store.close()
        if self._slots is not None:
            self._slots.close()
        if self._membership is not None:
            await self._membership.close()
        return cut_off

    def _open_slots(self) -> SlotFile:
        if self._membership is not None:
            path = self._membership.home.slots_path
        else:
            database = self.settings.database_path
            path = database.with_name(database.name + "-inflight")
        try:
            return SlotFile(path, self.settings.slots + UNRECORDED_MAX + 100)
        except OSError as error:
            raise StoreError(f"The file {path} cannot be made: {error.strerror}.") from error

    async def _take_over(self, writer: Writer) -> None:
        """Record what was in flight when the last process died (rule E5)."""
        if self._slots is None or not self._slots.left:
            return
        left = self._slots.left
        result = await writer.submit(Interrupt(left, CRASHES_MAX, self.clock.now_ms(), self.name))
        if isinstance(result, Interrupted) and result.pending:
            self.telemetry.note("deliveries.interrupted", pending=result.pending, poison=result.dead)
        self._slots.clear()

    def _make_transport(self) -> HttpClient:
        own = own_addresses()
        policy = AddressPolicy((str(one) for one in self.settings.allow_target), own, {self._port})
        limits = Limits(
            connections_per_host_max=self.settings.connections_per_host,
            connections_max=max(1000, self.settings.slots),
        )
        resolver = SystemResolver(threads=self.settings.dns_threads)
        return HttpClient(policy, resolver=resolver, limits=limits, may_write=self._holds_lease)

    def _holds_lease(self) -> bool:
        """Asked when a request has its connection: the node may have stood still while it was opened."""
        return self._engine is not None and self._engine.holds_lease()

    def _make_builder(self, endpoint: Endpoint) -> RequestBuilder:
        return RequestBuilder(
            endpoint,
            salt=self.store.salt,
            user_agent=f"Ackpost/{__version__}",
            allow_http=self.settings.allow_http,
        )

    def _retention(self) -> Retention:
        settings = self.settings
        return Retention(
            settings.retention_events_days, settings.retention_dead_letters_days, settings.retention_keys_days
        )

    def _options(self) -> Options:
        settings = self.settings
        return Options(
            data_bytes_max=settings.data_bytes_max,
            endpoints_max=settings.endpoints_max,
            allow_http=settings.allow_http,
            allow_targets=settings.allow_target,
            own_ports=frozenset({self._port}),
            metrics_are_public=settings.metrics_are_public,
            retention_events_days=settings.retention_events_days,
            retention_dead_letters_days=settings.retention_dead_letters_days,
        )
