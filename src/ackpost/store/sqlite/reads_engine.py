"""What the engine reads: work, windows, payloads. Each takes one connection and gives structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw

from ackpost.core.model import CLASSES, DeliveryRef, Endpoint, EventPayload, Job
from ackpost.ports.store import Work
from ackpost.store.sqlite.ledger import integers
from ackpost.store.sqlite.querying import rows_of
from ackpost.store.sqlite.rows import HOT_COLUMNS, PAYLOAD_SQL
from ackpost.store.values import Hot, endpoint_from, from_document

COUNT_BOUND: Final = 100_000

# Two steps, not one comparison of (endpoint, klass): SQLite would use only the endpoint of it, and walk all its rows.
SCAN_SQL: Final = """
WITH RECURSIVE found (position) AS (
    SELECT (SELECT position FROM delivery WHERE waiting = 0 AND endpoint > ?1
            ORDER BY endpoint, klass, due_ms, position LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT n.position FROM delivery n WHERE n.waiting = 0 AND n.endpoint = d.endpoint AND n.klass > d.klass
         ORDER BY n.klass, n.due_ms, n.position LIMIT 1),
        (SELECT n.position FROM delivery n WHERE n.waiting = 0 AND n.endpoint > d.endpoint
         ORDER BY n.endpoint, n.klass, n.due_ms, n.position LIMIT 1))
    FROM found CROSS JOIN delivery d ON d.position = found.position
)
SELECT d.endpoint, d.tenant, d.klass, d.due_ms
FROM found CROSS JOIN delivery d ON d.position = found.position LIMIT ?2
"""

_WINDOW_HEAD: Final = f"SELECT {HOT_COLUMNS} FROM delivery WHERE waiting = 0 AND endpoint = ? AND klass = ?"  # noqa: S608 - constants only
WINDOW_SQL: Final = f"{_WINDOW_HEAD} ORDER BY due_ms, position LIMIT ?"
WINDOW_AFTER_SQL: Final = f"{_WINDOW_HEAD} AND (due_ms, position) > (?, ?) ORDER BY due_ms, position LIMIT ?"

DUE_SQL: Final = """
SELECT w.value, (SELECT count(*) FROM (SELECT 1 FROM delivery WHERE waiting = 0 AND endpoint = w.value LIMIT ?2))
FROM carray(?1) w
"""

_OLDEST_STEP: Final = 1000


def scan_work(connection: apsw.Connection, after_endpoint: int, limit: int) -> list[Work]:
    """One probe of the hot index for each (endpoint, class) with work, of at most ``limit`` endpoints."""
    works: list[Work] = []
    endpoints = 0
    for row in rows_of(connection, SCAN_SQL, (after_endpoint, limit * len(CLASSES))):
        if not works or works[-1].endpoint != row[0]:
            if endpoints == limit:
                break
            endpoints += 1
        works.append(Work(*row))
    return works


def load_window(
    connection: apsw.Connection, endpoint: int, klass: int, after: tuple[int, int] | None, limit: int
) -> list[DeliveryRef]:
    """The next rows of one class of an endpoint."""
    if after is None:
        rows = rows_of(connection, WINDOW_SQL, (endpoint, klass, limit))
    else:
        rows = rows_of(connection, WINDOW_AFTER_SQL, (endpoint, klass, *after, limit))
    return [Hot(*row).ref() for row in rows]


def load_payloads(connection: apsw.Connection, events: Sequence[int]) -> dict[int, EventPayload]:
    """Payloads by event."""
    if not events:
        return {}
    rows = rows_of(connection, PAYLOAD_SQL, (integers(events),))
    return {row[0]: EventPayload(*row) for row in rows}


def load_endpoints(connection: apsw.Connection, endpoints: Sequence[int]) -> dict[int, Endpoint]:
    """Endpoints by position."""
    if not endpoints:
        return {}
    sql = "SELECT position, document, rev FROM endpoint WHERE position IN (SELECT value FROM carray(?))"
    rows = rows_of(connection, sql, (integers(endpoints),))
    return {position: endpoint_from(document, rev) for position, document, rev in rows}


def endpoint_revs(connection: apsw.Connection, endpoints: Sequence[int]) -> dict[int, int]:
    """Revs by endpoint."""
    if not endpoints:
        return {}
    sql = "SELECT position, rev FROM endpoint WHERE position IN (SELECT value FROM carray(?))"
    return dict(rows_of(connection, sql, (integers(endpoints),)))


def open_jobs(connection: apsw.Connection, limit: int) -> list[Job]:
    """Jobs that are not done, oldest first."""
    rows = rows_of(connection, "SELECT document FROM job WHERE open = 1 ORDER BY position LIMIT ?", (limit,))
    return [from_document(Job, text) for (text,) in rows]


def newest_event_ms(connection: apsw.Connection) -> int | None:
    """When the newest event was accepted."""
    newest = rows_of(connection, "SELECT max(position) FROM event", ())[0][0]
    return None if newest is None else newest >> 20


def pending_counts(connection: apsw.Connection) -> dict[str, int]:
    """Rows due and waiting, each counted up to ``COUNT_BOUND``."""
    due = "SELECT count(*) FROM (SELECT 1 FROM delivery WHERE waiting = 0 AND endpoint > 0 LIMIT ?)"
    waiting = "SELECT count(*) FROM (SELECT 1 FROM delivery WHERE waiting = 1 LIMIT ?)"
    return {
        "due": rows_of(connection, due, (COUNT_BOUND,))[0][0],
        "waiting": rows_of(connection, waiting, (COUNT_BOUND,))[0][0],
    }


def due_counts(connection: apsw.Connection, endpoints: Sequence[int], rows_max: int) -> dict[int, int]:
    """Rows due of each endpoint, each counted up to ``rows_max``."""
    if not endpoints:
        return {}
    return dict(rows_of(connection, DUE_SQL, (integers(endpoints), rows_max)))


def oldest_due_ms(connection: apsw.Connection) -> int | None:
    """The smallest due time of all endpoints with work."""
    oldest: int | None = None
    after = 0
    while works := scan_work(connection, after, _OLDEST_STEP):
        least = min(work.due_ms for work in works)
        oldest = least if oldest is None else min(oldest, least)
        after = works[-1].endpoint
    return oldest
