"""What the engine reads: work, windows, payloads. Each takes one connection and gives structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ackpost.core.ids import PARTITION_COUNT, partition_of
from ackpost.core.model import CLASSES, DeliveryRef, Endpoint, EventPayload, Job
from ackpost.ports.cluster import Looked
from ackpost.ports.store import Work
from ackpost.store.postgres.ledger import DAY_MS
from ackpost.store.postgres.querying import Reader
from ackpost.store.postgres.rows import HOT_COLUMNS
from ackpost.store.values import Hot, endpoint_from, from_document

COUNT_BOUND: Final = 100_000
ALL_PARTITIONS: Final = tuple(range(PARTITION_COUNT))

# One probe of the hot index for each (endpoint, class) with work, partition by partition.
SCAN_SQL: Final = """
SELECT w.endpoint, w.tenant, w.klass, w.due_ms FROM unnest($3::smallint[]) p (id) CROSS JOIN LATERAL (
    WITH RECURSIVE found AS (
        (SELECT endpoint, tenant, klass, due_ms FROM delivery
         WHERE waiting = 0 AND partition = p.id AND endpoint > $1
         ORDER BY endpoint, klass, due_ms, position LIMIT 1)
        UNION ALL
        SELECT n.endpoint, n.tenant, n.klass, n.due_ms FROM found f CROSS JOIN LATERAL (
            SELECT endpoint, tenant, klass, due_ms FROM delivery
            WHERE waiting = 0 AND partition = p.id AND (endpoint, klass) > (f.endpoint, f.klass)
            ORDER BY endpoint, klass, due_ms, position LIMIT 1) n
    )
    SELECT * FROM found LIMIT $2) w
ORDER BY w.endpoint, w.klass LIMIT $2
"""

LOOK_SQL: Final = f"""
SELECT * FROM (({SCAN_SQL}) UNION ALL
    (SELECT NULL, NULL, NULL, NULL WHERE EXISTS (SELECT 1 FROM job WHERE open LIMIT 1))) l ORDER BY 1, 3
"""  # noqa: S608 - constants only

_WINDOW_HEAD: Final = (
    f"SELECT {HOT_COLUMNS} FROM delivery WHERE waiting = 0 AND partition = $1 AND endpoint = $2 AND klass = $3"  # noqa: S608 - constants only
)
WINDOW_SQL: Final = f"{_WINDOW_HEAD} AND due_ms >= $5 ORDER BY due_ms, position LIMIT $4"
WINDOW_AFTER_SQL: Final = f"{_WINDOW_HEAD} AND (due_ms, position) > ($5, $6) ORDER BY due_ms, position LIMIT $4"

# The days let PostgreSQL look into no other partition; what outlived its day lies in day -1.
PAYLOAD_SQL: Final = """
SELECT e.position, e.type, coalesce(e.occurred_at_ms, e.position >> 20), e.data, k.key, e.sequence
FROM event e LEFT JOIN key_state k ON k.id = e.key_id
WHERE e.position = ANY($1) AND (e.day = -1 OR e.day BETWEEN $2 AND $3) AND e.data IS NOT NULL
"""

DUE_SQL: Final = """
SELECT e.endpoint, (
    SELECT count(*) FROM (
        SELECT 1 FROM delivery WHERE waiting = 0 AND partition = e.partition AND endpoint = e.endpoint LIMIT $3) d)
FROM unnest($1::bigint[], $2::smallint[]) e (endpoint, partition)
"""

_OLDEST_STEP: Final = 1000


async def scan_work(connection: Reader, after_endpoint: int, limit: int) -> list[Work]:
    """Work of at most ``limit`` endpoints, whole."""
    works: list[Work] = []
    endpoints = 0
    for row in await connection.fetch(SCAN_SQL, after_endpoint, limit * len(CLASSES), ALL_PARTITIONS):
        if not works or works[-1].endpoint != row[0]:
            if endpoints == limit:
                break
            endpoints += 1
        works.append(Work(*row))
    return works


async def look(connection: Reader, partitions: Sequence[int], after_endpoint: int, limit: int) -> Looked:
    """Work of at most ``limit`` endpoints of some partitions, and whether any job is open: one statement."""
    rows = await connection.fetch(LOOK_SQL, after_endpoint, limit * len(CLASSES), partitions)
    has_jobs = bool(rows) and rows[-1][0] is None
    works = [Work(*row) for row in rows if row[0] is not None]
    endpoints = sorted({work.endpoint for work in works})[:limit]
    last = endpoints[-1] if endpoints else 0
    return Looked([work for work in works if work.endpoint <= last], has_jobs)


async def load_window(
    connection: Reader, endpoint: int, klass: int, after: tuple[int, int] | None, limit: int, begin_ms: int
) -> list[DeliveryRef]:
    """The next rows of one class of an endpoint; none is due before ``begin_ms``."""
    place = (partition_of(endpoint), endpoint, klass, limit)
    if after is None:
        rows = await connection.fetch(WINDOW_SQL, *place, begin_ms)
    else:
        rows = await connection.fetch(WINDOW_AFTER_SQL, *place, *after)
    return [Hot(*row).ref() for row in rows]


async def load_payloads(connection: Reader, events: Sequence[int]) -> dict[int, EventPayload]:
    """Payloads by event."""
    if not events:
        return {}
    first, last = ((event >> 20) // DAY_MS for event in (min(events), max(events)))
    return {row[0]: EventPayload(*row) for row in await connection.fetch(PAYLOAD_SQL, events, first, last)}


async def load_endpoints(connection: Reader, endpoints: Sequence[int]) -> dict[int, Endpoint]:
    """Endpoints by position."""
    if not endpoints:
        return {}
    sql = "SELECT position, document, rev FROM endpoint WHERE position = ANY($1)"
    return {row[0]: endpoint_from(row[1], row[2]) for row in await connection.fetch(sql, endpoints)}


async def endpoint_revs(connection: Reader, endpoints: Sequence[int]) -> dict[int, int]:
    """Revs by endpoint."""
    if not endpoints:
        return {}
    rows = await connection.fetch("SELECT position, rev FROM endpoint WHERE position = ANY($1)", endpoints)
    return {row[0]: row[1] for row in rows}


async def open_jobs(connection: Reader, limit: int) -> list[Job]:
    """Jobs that are not done, oldest first."""
    rows = await connection.fetch("SELECT document FROM job WHERE open ORDER BY position LIMIT $1", limit)
    return [from_document(Job, row[0]) for row in rows]


async def newest_event_ms(connection: Reader) -> int | None:
    """When the newest event was accepted."""
    newest = await connection.fetchval("SELECT position FROM event ORDER BY position DESC LIMIT 1")
    return None if newest is None else newest >> 20


async def pending_counts(connection: Reader) -> dict[str, int]:
    """Rows due and waiting, each counted up to ``COUNT_BOUND``."""
    row = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM (SELECT 1 FROM delivery WHERE waiting = 0 AND partition >= 0 LIMIT $1) d),"
        " (SELECT count(*) FROM (SELECT 1 FROM delivery WHERE waiting = 1 LIMIT $1) w)",
        COUNT_BOUND,
    )
    return {"due": row[0], "waiting": row[1]}


async def due_counts(connection: Reader, endpoints: Sequence[int], rows_max: int) -> dict[int, int]:
    """Rows due of each endpoint, each counted up to ``rows_max``."""
    partitions = [partition_of(endpoint) for endpoint in endpoints]
    return dict(await connection.fetch(DUE_SQL, endpoints, partitions, rows_max))


async def oldest_due_ms(connection: Reader) -> int | None:
    """The smallest due time of all endpoints with work."""
    oldest: int | None = None
    after = 0
    while works := await scan_work(connection, after, _OLDEST_STEP):
        least = min(work.due_ms for work in works)
        oldest = least if oldest is None else min(oldest, least)
        after = works[-1].endpoint
    return oldest
