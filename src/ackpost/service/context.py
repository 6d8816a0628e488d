"""What the use cases work with: the ports, the few settings they need, and what they keep in memory between calls."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final

from ackpost.ports.clock import Clock, Entropy
from ackpost.ports.cluster import Members
from ackpost.ports.commit import Committer
from ackpost.ports.engine import EngineView
from ackpost.ports.store import Store
from ackpost.service.api_keys import ApiKeys
from ackpost.service.auth import Authenticator
from ackpost.service.dead_letters import DeadLetterService
from ackpost.service.deliveries import DeliveryService
from ackpost.service.endpoint_health import HealthService
from ackpost.service.endpoint_secrets import SecretService
from ackpost.service.endpoint_state import StateService
from ackpost.service.endpoint_tests import TestSender
from ackpost.service.endpoints import EndpointService
from ackpost.service.events import EventService
from ackpost.service.jobs import JobService
from ackpost.service.nodes import NodeService
from ackpost.service.publish import Publisher
from ackpost.service.routing import Router
from ackpost.service.stats import StatsService
from ackpost.service.telemetry import Counters
from ackpost.service.tenant_changes import TenantChanges
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
    members: Members
    options: Options = field(default_factory=Options)
    counters: Counters = field(default_factory=Counters)
    auth: Authenticator = field(init=False)
    tenants: TenantDirectory = field(init=False)
    router: Router = field(init=False)
    publisher: Publisher = field(init=False)
    events: EventService = field(init=False)
    tenant_changes: TenantChanges = field(init=False)
    api_keys: ApiKeys = field(init=False)
    endpoints: EndpointService = field(init=False)
    secrets: SecretService = field(init=False)
    tests: TestSender = field(init=False)
    states: StateService = field(init=False)
    health: HealthService = field(init=False)
    deliveries: DeliveryService = field(init=False)
    dead_letters: DeadLetterService = field(init=False)
    jobs: JobService = field(init=False)
    stats: StatsService = field(init=False)
    nodes: NodeService = field(init=False)

    def __post_init__(self) -> None:
        self.auth = Authenticator(self.store, self.committer, self.clock)
        self.tenants = TenantDirectory(self.store, self.clock)
        self.router = Router(self.store, self.clock)
        self.publisher = Publisher(
            self.router, self.tenants, self.committer, self.clock, data_bytes_max=self.options.data_bytes_max
        )
        self.tenant_changes = TenantChanges(self)
        self.api_keys = ApiKeys(self)
        self.endpoints = EndpointService(self)
        self.secrets = SecretService(self)
        self.deliveries = DeliveryService(self)
        self.events = EventService(self, self.deliveries)
        self.tests = TestSender(self, self.deliveries)
        self.states = StateService(self, self.tests)
        self.health = HealthService(self, self.deliveries)
        self.dead_letters = DeadLetterService(self)
        self.jobs = JobService(self)
        self.stats = StatsService(self)
        self.nodes = NodeService(self)
