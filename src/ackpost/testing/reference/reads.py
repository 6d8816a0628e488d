"""All questions that services ask, answered by looking at everything."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ackpost.core.matching import pattern_matches
from ackpost.core.model import Attempt, Event
from ackpost.ports.store import DeliveryFilter, EndpointHealth, EventFilter, Page, StatsBy
from ackpost.testing.reference.state import EventRow, Row, State

T = TypeVar("T")

_HOUR_MS = 3_600_000
_LATENCIES_MAX = 1000


def page_of(
    rows: Iterable[T],
    page: Page,
    *,
    position: Callable[[T], int],
    made_ms: Callable[[T], int],
    keep: Callable[[T], bool],
    scan_rows_max: int,
) -> tuple[list[T], int | None]:
    """Give a page of the rows that ``keep`` takes, and where the scan stopped if its bound cut the page short."""
    found: list[T] = []
    looked, last = 0, page.after
    for row in sorted(rows, key=position, reverse=not page.ascending):
        at = position(row)
        if page.after is not None and (at <= page.after if page.ascending else at >= page.after):
            continue
        if len(found) == page.limit:
            return found, None
        if looked == scan_rows_max:
            return found, last
        looked, last = looked + 1, at
        if _in_span(made_ms(row), page) and keep(row):
            found.append(row)
    return found, None


def _in_span(made_ms: int, page: Page) -> bool:
    return (page.since_ms is None or made_ms >= page.since_ms) and (page.until_ms is None or made_ms < page.until_ms)


def of_tenant(tenant: int | None, owner: int | None) -> bool:
    """Whether an asker sees an object; None sees all."""
    return tenant is None or tenant == owner


def takes_type(patterns: Sequence[str] | None, event_type: str) -> bool:
    """Whether a filter's type patterns take a type."""
    return patterns is None or any(pattern_matches(pattern, event_type) for pattern in patterns)


# ---- events


def show_event(state: State, event: EventRow, *, with_data: bool) -> Event:
    """An event as read back."""
    counts: dict[str, int] = {}
    for position in state.rows_of_event.get(event.position, ()):
        status = state.rows[position].status
        counts[status] = counts.get(status, 0) + 1
    return Event(
        position=event.position, tenant=event.tenant, type=event.type, uid=event.uid, key=event.key,
        sequence=event.sequence, channels=event.channels, occurred_at_ms=event.occurred_at_ms,
        created_at_ms=event.created_at_ms, metadata=event.metadata, data=event.data if with_data else None,
        data_expired=event.data is None, delivery_counts=counts,
    )  # fmt: skip


def event_passes(state: State, event: EventRow, wanted: EventFilter) -> bool:
    """Whether an event fulfils every condition."""
    return (
        takes_type(wanted.types, event.type)
        and wanted.key in {None, event.key}
        and wanted.uid in {None, event.uid}
        and (wanted.endpoint is None or state.row_for(event.position, wanted.endpoint) is not None)
        and (wanted.channel is None or wanted.channel in event.channels)
        and (wanted.statuses is None or show_event(state, event, with_data=False).status in wanted.statuses)
    )


# ---- deliveries


def delivery_passes(row: Row, wanted: DeliveryFilter) -> bool:
    """Whether a delivery fulfils every condition."""
    return (
        wanted.endpoint in {None, row.endpoint}
        and wanted.event in {None, row.event}
        and (wanted.statuses is None or row.status in wanted.statuses)
        and (wanted.reasons is None or row.reason in wanted.reasons)
        and (wanted.errors is None or row.last_error in wanted.errors)
        and (wanted.status_codes is None or row.last_status_code in wanted.status_codes)
        and wanted.waiting in {None, row.waiting}
        and wanted.key in {None, row.key}
        and takes_type(wanted.types, row.type)
    )


def stats(state: State, tenant: int | None, by: StatsBy, since_ms: int | None) -> list[tuple[str, dict[str, int]]]:
    """Deliveries counted by status for each value."""
    value: dict[StatsBy, Callable[[Row], str | None]] = {
        "endpoint": lambda row: str(row.endpoint),
        "type": lambda row: row.type,
        "reason": lambda row: row.reason,
        "error": lambda row: row.last_error,
    }
    counted: dict[str, dict[str, int]] = {}
    for row in state.rows.values():
        name = value[by](row)
        is_old = since_ms is not None and row.created_at_ms < since_ms
        if name is None or is_old or row.trigger == "test" or not of_tenant(tenant, row.tenant):
            continue
        counts = counted.setdefault(name, {})
        counts[row.status] = counts.get(row.status, 0) + 1
    return sorted(counted.items())


def health(state: State, endpoint: int, now_ms: int) -> EndpointHealth:
    """Figures of one endpoint."""
    rows = state.pending.get(endpoint, {}).values()
    attempts = [attempt for attempt in attempts_of_endpoint(state, endpoint) if attempt.trigger != "test"]
    newest_first = sorted(attempts, key=lambda attempt: attempt.position, reverse=True)
    recent = [attempt for attempt in newest_first if attempt.started_at_ms >= now_ms - _HOUR_MS]
    good = sum(attempt.code == "delivered" for attempt in recent)
    failure = next((attempt for attempt in newest_first if attempt.code != "delivered"), None)
    return EndpointHealth(
        pending=len(rows),
        oldest_due_ms=min((row.due_ms for row in rows if not row.waiting), default=None),
        good_1h=good,
        bad_1h=len(recent) - good,
        latencies_ms=[attempt.duration_ms for attempt in recent[:_LATENCIES_MAX]],
        last_success_ms=next((a.started_at_ms for a in newest_first if a.code == "delivered"), None),
        last_failure=copy.copy(failure),
    )


def attempts_of_endpoint(state: State, endpoint: int) -> list[Attempt]:
    """Every kept attempt of an endpoint."""
    return [attempt for known in state.attempts.values() for attempt in known if attempt.endpoint == endpoint]
