"""What the use cases work with: the ports, the few settings they need, and what they keep in memory between calls."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final

from ackpost.ports.clock import Clock, Entropy
from ackpost.ports.commit import Committer
from ackpost.ports.engine import EngineView
from ackpost.ports.store import Store
from ackpost.service.auth import Authenticator
from ackpost.service.publish import Publisher
from ackpost.service.routing import Router
from ackpost.service.telemetry import Counters
from ackpost.service.tenants import TenantDirectory

ENVELOPE_BYTES_MAX: Final = 65_536
"""What a body may hold besides an event's data."""

BATCH_BYTES_MAX: Final = 4 * 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The values of settings that calls depend on; ``allow_targets`` are ranges opened by the operator."""

    data_bytes_max: int = 262_144
    endpoints_max: int = 1_000
    allow_http: bool = False
    allow_targets: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    own_ports: frozenset[int] = frozenset()
    metrics_are_public: bool = False
    retention_events_days: int = 30
    retention_dead_letters_days: int = 90

    @property
    def body_bytes_max(self) -> int:
        """The largest body of any call but a batch."""
        return self.data_bytes_max + ENVELOPE_BYTES_MAX


@dataclass(slots=True, kw_only=True)
class Services:
    """Made once by ``wiring`` and given to the app."""

    store: Store
    committer: Committer
    engine: EngineView
    clock: Clock
    entropy: Entropy
    options: Options = field(default_factory=Options)
    counters: Counters = field(default_factory=Counters)
    auth: Authenticator = field(init=False)
    tenants: TenantDirectory = field(init=False)
    router: Router = field(init=False)
    publisher: Publisher = field(init=False)

    def __post_init__(self) -> None:
        self.auth = Authenticator(self.store, self.committer, self.clock)
        self.tenants = TenantDirectory(self.store, self.clock)
        self.router = Router(self.store, self.clock)
        self.publisher = Publisher(
            self.router, self.tenants, self.committer, self.clock, data_bytes_max=self.options.data_bytes_max
        )

    def salt(self) -> int:
        """The store's salt, for public ids (known once the store is open)."""
        return self.store.salt
