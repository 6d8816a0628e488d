"""Reading attempts: rows of ``attempt``, and history rows that are their delivery's only attempt (rule E15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ackpost.core.ids import partition_of
from ackpost.core.model import CLASSES, Attempt
from ackpost.ports.store import EndpointHealth, Page
from ackpost.store.postgres.querying import Reader, Where, direction, rows_of
from ackpost.store.values import TRIGGER_CODES, TRIGGERS, decode_detail

_HOUR_MS: Final = 3_600_000
_LATENCIES_MAX: Final = 1000
_COUNTED_MAX: Final = 100_000

_SAME: Final = "endpoint, tenant, round, number, trigger, code, status_code, started_ms, duration_ms, detail, body"

# Columns of both tables in the order of ``_attempt``, and the name of the attempt's position.
_TABLES: Final = {
    "attempt": (
        f"position, delivery, event, {_SAME}",
        "position",
    ),
    "history": (
        f"attempt_position, position, position - event_offset, {_SAME}",
        "attempt_position",
    ),
}
PENDING_SQL: Final = """
SELECT (SELECT count(*) FROM delivery WHERE waiting = 0 AND partition = $1 AND endpoint = $2)
    + (SELECT count(*) FROM delivery WHERE waiting = 1 AND key_id IS NOT NULL AND endpoint = $2),
    (SELECT min(d.due_ms) FROM unnest($3::smallint[]) k (klass) CROSS JOIN LATERAL (
        SELECT due_ms FROM delivery WHERE waiting = 0 AND partition = $1 AND endpoint = $2 AND klass = k.klass
        ORDER BY due_ms LIMIT 1) d)
"""
_NOT_TEST: Final = f"trigger <> {TRIGGER_CODES['test']}"


def _attempt(row: Sequence[Any]) -> Attempt:
    (position, delivery, event, endpoint, tenant, round_, number, trigger, code, status_code, started_ms, duration_ms,
     detail, body) = row  # fmt: skip
    more = decode_detail(detail)
    return Attempt(
        position=position, delivery=delivery, event=event, endpoint=endpoint, tenant=tenant, number=number,
        round=round_, trigger=TRIGGERS[trigger], started_at_ms=started_ms, duration_ms=duration_ms, code=code,
        status_code=status_code, phase=more.phase, detail=more.detail, phases_ms=more.phases_ms,
        remote_ip=more.remote_ip, version=more.version, response_headers=more.response_headers,
        response_body=body or b"", truncated=more.truncated or body == b"", next_due_ms=more.next_due_ms,
        node=more.node,
    )  # fmt: skip


async def attempts(
    connection: Reader, tenant: int | None, delivery: int | None, endpoint: int | None, page: Page
) -> list[Attempt]:
    """Attempts of a delivery or an endpoint."""
    found: list[Attempt] = []
    for table, (columns, position) in _TABLES.items():
        where = Where()
        where.add(f"{position} IS NOT NULL")
        where.equal("delivery" if table == "attempt" else "position", delivery)
        where.equal("endpoint", endpoint)
        where.equal("tenant", tenant)
        where.span(position, page, timed=False)
        if page.since_ms is not None:
            where.add("started_ms >= ?", page.since_ms)
        if page.until_ms is not None:
            where.add("started_ms < ?", page.until_ms)
        sql = f"SELECT {columns} FROM {table} WHERE {where.sql} ORDER BY {position} {direction(page)} LIMIT ?"  # noqa: S608 - values are bound
        found += [_attempt(row) for row in await rows_of(connection, sql, (*where.values, page.limit))]
    found.sort(key=lambda attempt: attempt.position, reverse=not page.ascending)
    return found[: page.limit]


async def attempt(connection: Reader, tenant: int | None, delivery: int, position: int) -> Attempt | None:
    """One attempt."""
    for table, (columns, _) in _TABLES.items():
        where = Where()
        if table == "attempt":
            where.add("position = ? AND delivery = ?", position, delivery)
        else:
            where.add("position = ? AND attempt_position = ?", delivery, position)
        where.equal("tenant", tenant)
        rows = await rows_of(connection, f"SELECT {columns} FROM {table} WHERE {where.sql}", where.values)  # noqa: S608 - values are bound
        if rows:
            return _attempt(rows[0])
    return None


async def endpoint_health(connection: Reader, endpoint: int, now_ms: int) -> EndpointHealth:
    """Figures of one endpoint; tests do not count, nor, at a very high rate, what is not among the newest 100,000."""
    pending, oldest_due_ms = await connection.fetchrow(PENDING_SQL, partition_of(endpoint), endpoint, CLASSES)
    good = bad = 0
    timed: list[tuple[int, float]] = []
    last_success: list[tuple[int, int]] = []
    since_ms = now_ms - _HOUR_MS
    for table, (_, position) in _TABLES.items():
        # An attempt's position is given when it is recorded, after it was started.
        recent = f"FROM {table} WHERE endpoint = ? AND {position} >= ? AND started_ms >= ? AND {_NOT_TEST}"
        values = (endpoint, since_ms << 20, since_ms)
        newest = f"ORDER BY {position} DESC LIMIT"
        codes = f"SELECT code {recent} {newest} {_COUNTED_MAX}"
        good_sql = f"SELECT count(*), count(*) FILTER (WHERE code = 'delivered') FROM ({codes}) c"  # noqa: S608 - constants
        (counts,) = await rows_of(connection, good_sql, values)
        good, bad = good + counts[1], bad + counts[0] - counts[1]
        timed += await rows_of(connection, f"SELECT {position}, duration_ms {recent} {newest} {_LATENCIES_MAX}", values)
        last_success += await rows_of(
            connection,
            f"SELECT {position}, started_ms FROM {table} WHERE endpoint = ? AND {position} IS NOT NULL"  # noqa: S608 - constants
            f" AND code = 'delivered' AND {_NOT_TEST} {newest} 1",
            (endpoint,),
        )
    timed.sort(reverse=True)
    failures = await rows_of(
        connection,
        f"SELECT {_TABLES['attempt'][0]} FROM attempt WHERE endpoint = ? AND code <> 'delivered' AND {_NOT_TEST}"  # noqa: S608 - constants
        " ORDER BY position DESC LIMIT 1",
        (endpoint,),
    )
    return EndpointHealth(
        pending=pending,
        oldest_due_ms=oldest_due_ms,
        good_1h=good,
        bad_1h=bad,
        latencies_ms=[duration_ms for _, duration_ms in timed[:_LATENCIES_MAX]],
        last_success_ms=max(last_success)[1] if last_success else None,
        last_failure=_attempt(failures[0]) if failures else None,
    )
