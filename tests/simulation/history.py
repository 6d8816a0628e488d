"""What happened in a world: requests as the receivers saw them, what publishers were told, what was seen at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.network import Exchange


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True, kw_only=True)
class Send:
    """One request as it left the engine; ``code`` is what it came to, None while under way or lost in a crash."""

    at_ms: int
    """By the clock of the process."""
    true_ms: int
    process: Process
    endpoint: int
    event: int
    delivery: int
    round: int
    number: int
    is_test: bool
    headers: dict[str, str]
    body: bytes
    code: str | None = None
    status_code: int | None = None
    done_ms: int | None = None
    told: bool = False
    """The engine got the answer."""
    lost: bool = False
    """Its node was declared dead, or aborted it: whoever owns the endpoint then sends again."""
    lines: bytes = b""
    begun_s: float = 0.0
    timeout_s: float = 0.0
    writes: int = 0
    exchange: Exchange | None = None

    @property
    def under_way(self) -> bool:
        """Neither answered nor lost."""
        return not self.told and not self.lost and self.process.alive


@dataclass(slots=True, kw_only=True)
class Published:
    """One event of a client; ``position`` once it was acknowledged, ``unsure`` when an answer was lost."""

    marker: int
    tenant: int
    repeatable: bool
    tries: int = 0
    unsure: int = 0
    position: int | None = None
    deliveries: int = 0
    refused: str | None = None
    by_key: bool = False
    """Repeated with an Idempotency-Key, which is kept for a day."""


@dataclass(slots=True)
class History:
    """The world's memory, never the product's."""

    sends: list[Send] = field(default_factory=list)
    by_delivery: dict[int, list[Send]] = field(default_factory=dict)
    by_endpoint: dict[int, list[Send]] = field(default_factory=dict)
    flying: dict[int, list[Send]] = field(default_factory=dict)
    published: list[Published] = field(default_factory=list)
    in_flight_at_crash: Counter[int] = field(default_factory=Counter)
    crashes: Counter[int] = field(default_factory=Counter)
    touched_by_people: set[int] = field(default_factory=set)
    known_ms: dict[int, int] = field(default_factory=dict)
    found_ms: dict[int, int] = field(default_factory=dict)
    reordered_ms: dict[int, int] = field(default_factory=dict)
    expired_events: set[int] = field(default_factory=set)
    disabled_endpoints: set[int] = field(default_factory=set)
    path_of_endpoint: dict[int, str] = field(default_factory=dict)
    removed_events: set[int] = field(default_factory=set)
    removed_rows: Counter[int] = field(default_factory=Counter)
    leap_ms: int = 0
    """How far ahead of the one before the present process began: its clock had been set."""
    began_s: float = 0.0
    """When the present process began."""
    old_leaps_ms: int = 0
    """The same of all processes before."""
    seen: Counter[str] = field(default_factory=Counter)
    notes: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def add(self, send: Send) -> None:
        """Remember a request."""
        self.sends.append(send)
        self.by_delivery.setdefault(send.delivery, []).append(send)
        self.by_endpoint.setdefault(send.endpoint, []).append(send)
        self.flying.setdefault(send.endpoint, []).append(send)

    def under_way(self, endpoint: int) -> list[Send]:
        """Requests to an endpoint that are under way now."""
        flying = [send for send in self.flying.get(endpoint, ()) if send.under_way]
        self.flying[endpoint] = flying
        return flying
