"""Dead letters: reading them, and replaying or discarding many by a job (contract §3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ackpost.core.model import Delivery, Event, Job
from ackpost.errors import FieldError, InvalidInput, NotFound
from ackpost.ports.operations import CreateJob, Idempotency, JobSaved, JobSelector
from ackpost.ports.store import DeliveryFilter, Page
from ackpost.service.results import settle

if TYPE_CHECKING:
    from ackpost.service.context import Services

IDS_MAX: Final = 1_000
COUNTED_MAX: Final = 10_000_000
"""A dry run counts no further than this."""


class DeadLetter(msgspec.Struct):
    """A dead delivery with the URL its endpoint has now; None when the endpoint was deleted."""

    delivery: Delivery
    url: str | None


class DeadLetterService:
    """Use cases around dead letters."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._committer = services.committer
        self._clock = services.clock

    async def page(self, tenant: int | None, filter: DeliveryFilter, page: Page) -> tuple[list[DeadLetter], int | None]:
        """List dead letters; the second value as in the store port."""
        dead = msgspec.structs.replace(filter, statuses=("dead",))
        rows, cut = await self._store.deliveries(tenant, dead, page)
        endpoints = await self._store.load_endpoints(sorted({row.endpoint for row in rows})) if rows else {}
        urls = {position: endpoint.url for position, endpoint in endpoints.items()}
        return [DeadLetter(row, urls.get(row.endpoint)) for row in rows], cut

    async def get(self, tenant: int | None, position: int) -> tuple[DeadLetter, Event | None]:
        """One dead letter with its event. Raises: NotFound when there is none, or it is not dead any more."""
        delivery = await self._store.delivery(tenant, position)
        if delivery is None or delivery.status != "dead":
            raise NotFound("There is no such dead letter.")
        endpoints = await self._store.load_endpoints([delivery.endpoint])
        endpoint = endpoints.get(delivery.endpoint)
        letter = DeadLetter(delivery, None if endpoint is None else endpoint.url)
        return letter, await self._store.event(tenant, delivery.event)

    async def count(self, tenant: int, selector: JobSelector) -> int:
        """Count what a job with this selector would take now. Raises: InvalidInput."""
        check_selector(selector)
        return await self._store.count_dead(tenant, selector, COUNTED_MAX)

    async def start(
        self,
        tenant: int,
        kind: Literal["replay", "discard"],
        selector: JobSelector,
        idempotency: Idempotency | None = None,
    ) -> Job:
        """Start a job over what is dead now. Raises: InvalidInput (selector_required), Conflict, Unavailable."""
        check_selector(selector)
        now_ms = self._clock.now_ms()
        job = Job(position=0, tenant=tenant, kind=kind, params=selector_params(selector), created_at_ms=now_ms)
        return (await settle(self._committer, CreateJob(job, idempotency), JobSaved)).job


def check_selector(selector: JobSelector) -> None:
    """Refuse a selector that names nothing, or too much at once.

    Raises: InvalidInput; ``selector_required`` when nothing is named, so that a forgotten filter never takes all.
    """
    spans = (selector.endpoint, selector.type, selector.reason, selector.since_ms, selector.until_ms)
    filtered = any(value is not None for value in spans)
    if selector.ids is None and not filtered and not selector.all:
        raise InvalidInput(
            "Say which dead letters: ids, a filter, or all: true.",
            code="selector_required",
            errors=[FieldError(("body",), "must have ids, a filter (endpoint_id, type, reason, since, until) or all")],
        )
    if selector.ids is not None and not 1 <= len(selector.ids) <= IDS_MAX:
        raise too_many_ids()
    if selector.ids is not None and (filtered or selector.all):
        raise _invalid("ids", "excludes all other selectors")
    if selector.all and filtered:
        raise _invalid("all", "excludes all other selectors")
    if selector.since_ms is not None and selector.until_ms is not None and selector.since_ms >= selector.until_ms:
        raise _invalid("until", "must be later than since")


def too_many_ids() -> InvalidInput:
    """Make the refusal of a list of ids that is too long, or empty."""
    return _invalid("ids", f"must hold 1 to {IDS_MAX:,} ids; for more use a filter")


def selector_params(selector: JobSelector) -> dict[str, Any]:
    """Write a selector as a job keeps it: only what was set."""
    params: dict[str, Any] = msgspec.to_builtins(selector)
    return {name: value for name, value in params.items() if value is not None and value is not False}


def _invalid(field: str, text: str) -> InvalidInput:
    return InvalidInput(f"{field} {text}", errors=[FieldError(("body", field), text)])
