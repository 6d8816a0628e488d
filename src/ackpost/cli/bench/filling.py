"""Fills a database before the measurement, by the store's own commits: a backlog, a history.

The endpoints of what lies there already take only events of type ``past``, so that no measured event goes to them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ackpost.cli.bench.load import SCATTER
from ackpost.cli.client import ApiClient
from ackpost.config import Settings
from ackpost.core.decision import Decision
from ackpost.core.model import DeliveryRef, Tenant
from ackpost.core.outcome import Outcome
from ackpost.errors import AckpostError
from ackpost.ports.operations import Accept, Accepted, NewEvent, Record
from ackpost.ports.store import Store
from ackpost.service.routing import target_of
from ackpost.wiring.offline import with_store
from ackpost.wiring.system import SystemClock

PAUSED: Final = "bench-past-paused"
DEAD: Final = "bench-past-dead"
DONE: Final = "bench-past-done"
DONE_WITH_UIDS: Final = "bench-past-done-uids"
NOBODY: Final = "http://127.0.0.1:1/nobody"

_EVENTS_A_COMMIT: Final = 2_000
_UID_PASSES: Final = 10
_DATA: Final = b'{"text":"' + b"x" * 480 + b'"}'


def make_past_endpoints(api: ApiClient) -> dict[str, int]:
    """Make the endpoints of the past, if they are not there; give how much lies in the file already, by uid."""
    filled: dict[str, int] = {}
    for uid in (PAUSED, DEAD, DONE, DONE_WITH_UIDS):
        found = api.call("GET", "/v1/endpoints", query={"limit": "250"})["data"]
        known = next((one for one in found if one["uid"] == uid), None)
        if known is None:
            known = api.call("PUT", f"/v1/endpoints/{uid}", {"url": NOBODY, "event_types": ["past"]})
            if uid == PAUSED:
                api.call("POST", f"/v1/endpoints/{uid}/pause")
        filled[uid] = int(known["metadata"].get("filled", 0))
    return filled


def note_filled(api: ApiClient, filled: dict[str, int]) -> None:
    """Remember in the file what was filled in, for the next run on it."""
    for uid, count in filled.items():
        api.call("PATCH", f"/v1/endpoints/{uid}", {"metadata": {"filled": str(count)}})


def fill(database_url: str, missing: dict[str, int]) -> None:
    """Put so many events, each with a delivery, to each endpoint of the past; those of ``DONE…`` are delivered."""

    async def work(store: Store, incarnation: int) -> None:
        tenant = await store.tenant_by_uid("default")
        assert tenant is not None, "every database has it"
        await _Filler(store, incarnation, tenant).fill(missing)

    asyncio.run(with_store(Settings(database_url=database_url), work))


class _Filler:
    def __init__(self, store: Store, incarnation: int, tenant: Tenant) -> None:
        self._store = store
        self._incarnation = incarnation
        self._tenant = tenant
        self._clock = SystemClock()

    async def fill(self, missing: dict[str, int]) -> None:
        routing = await self._store.routing(self._tenant.position)
        assert routing is not None
        for endpoint in routing.endpoints:
            total = missing.get(endpoint.uid or "", 0)
            for start in range(0, total, _EVENTS_A_COMMIT):
                numbers = range(start, min(total, start + _EVENTS_A_COMMIT))
                targets = (target_of(endpoint),)
                if endpoint.uid == DONE_WITH_UIDS:
                    uids = (_scattered_uid(number, total) for number in numbers)
                    events = [NewEvent("past", _DATA, uid=uid, digest=uid.encode(), targets=targets) for uid in uids]
                else:
                    events = [NewEvent("past", _DATA, targets=targets) for _ in numbers]
                refs = await self._accept(events, routing.version)
                if endpoint.uid in {DONE, DONE_WITH_UIDS}:
                    await self._commit(self._record(refs))

    async def _accept(self, events: list[NewEvent], version: int) -> list[DeliveryRef]:
        result = await self._commit(Accept(self._tenant.position, version, events, self._clock.now_ms(), batch=True))
        assert isinstance(result, Accepted)
        return result.refs

    def _record(self, refs: list[DeliveryRef]) -> Record:
        now_ms = self._clock.now_ms()
        outcome = Outcome("delivered", 200, duration_ms=1.0)
        decisions = [
            Decision(
                ref.position, ref.event, ref.tenant, ref.endpoint, ref.round, 1, "delivered", outcome=outcome,
                started_at_ms=now_ms, ended_at_ms=now_ms,
            )
            for ref in refs
        ]  # fmt: skip
        return Record(decisions, self._incarnation, now_ms, "bench")

    async def _commit(self, operation: Accept | Record) -> Any:
        (result,) = await self._store.commit([operation])
        if isinstance(result, Exception):
            raise AckpostError(f"the database could not be filled: {result}")
        return result


def _scattered_uid(number: int, total: int) -> str:
    """Give uids that leave the tree of uids as random ones would, in an order that fills it fast.

    They rise through the whole range again and again, each at a scattered place in its stretch of it.
    """
    a_pass = -(-total // _UID_PASSES)
    width = 2**128 // a_pass
    return f"{number % a_pass * width + (total + number + 1) * SCATTER % 2**128 % width:032x}"
