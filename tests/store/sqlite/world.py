"""A SQLite store in a folder, with the verbs that these tests need."""

from __future__ import annotations

from pathlib import Path

from ackpost.core.decision import Decision
from ackpost.core.model import DeliveryRef, Endpoint
from ackpost.core.outcome import Outcome
from ackpost.ports.operations import Accept, Accepted, CreateEndpoint, EndpointSaved, NewEvent, Record, Recorded
from ackpost.store.sqlite import SqliteStore
from ackpost.testing.store_contract.world import target_of

NOW_MS = 1_700_000_000_000
LEASE_MS = 20_000


class Opened:
    """A store that is open, its tenant and one endpoint."""

    def __init__(self, store: SqliteStore, incarnation: int, tenant: int, endpoint: Endpoint) -> None:
        self.store = store
        self.incarnation = incarnation
        self.tenant = tenant
        self.endpoint = endpoint
        self.now_ms = NOW_MS

    async def accept(self, count: int, *, size_bytes: int = 100, **fields: object) -> list[DeliveryRef]:
        """Accept events for the endpoint in one commit; give their deliveries."""
        (answer,) = await self.store.commit([await self.accept_of(count, size_bytes=size_bytes, **fields)])
        assert isinstance(answer, Accepted), answer
        return answer.refs

    async def accept_of(self, count: int, *, size_bytes: int = 100, **fields: object) -> Accept:
        """Give the operation that accepts events for the endpoint."""
        routing = await self.store.routing(self.tenant)
        assert routing is not None
        data = b'"' + b"x" * size_bytes + b'"'
        targets = (target_of(self.endpoint),)
        events = [NewEvent("order.made", data, targets=targets, **fields) for _ in range(count)]  # type: ignore[arg-type] # the test names fields
        return Accept(self.tenant, routing.version, events, self.now_ms, batch=True)

    async def deliver(self, refs: list[DeliveryRef]) -> Recorded:
        """Record that all of them were answered well."""
        (answer,) = await self.store.commit([self.record_of(refs)])
        assert isinstance(answer, Recorded), answer
        return answer

    def record_of(self, refs: list[DeliveryRef]) -> Record:
        """Give the operation that records good answers."""
        decisions = [
            Decision(
                delivery=ref.position, event=ref.event, tenant=ref.tenant, endpoint=ref.endpoint, round=ref.round,
                number=ref.number + 1, verdict="delivered", outcome=Outcome("delivered", 200),
                started_at_ms=self.now_ms, ended_at_ms=self.now_ms, ordered=ref.ordered,
            )
            for ref in refs
        ]  # fmt: skip
        return Record(decisions, self.incarnation, self.now_ms, "a")


async def opened(path: Path, *, node: str = "a", inline: bool = False, **policy: object) -> Opened:
    """Open a store in a new or old file and make an endpoint."""
    store = SqliteStore(str(path), inline=inline)
    incarnation = await store.open(node=node, now_ms=NOW_MS, lease_ms=LEASE_MS)
    default = await store.tenant_by_uid("default")
    assert default is not None
    draft = Endpoint(position=0, tenant=default.position, url="https://example.com/", policy=policy)
    (answer,) = await store.commit([CreateEndpoint(draft, 1000)])
    assert isinstance(answer, EndpointSaved), answer
    return Opened(store, incarnation, default.position, answer.endpoint)
