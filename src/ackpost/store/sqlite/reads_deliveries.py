"""Reading deliveries, wherever they lie: the backlog, the dead letters, the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw

from ackpost.core.model import Delivery, DeliveryStatus
from ackpost.ports.store import DeliveryFilter, Page, StatsBy
from ackpost.store.sqlite.querying import Where, direction, frontier, is_short, rows_of
from ackpost.store.values import TRIGGER_CODES

# The same columns of each table: status as in the history (0 pending, 2 dead).
_TABLES: Final = {
    "delivery": "0 AS status, NULL AS reason, waiting, due_ms, NULL AS ended_ms",
    "dead_letter": "2 AS status, reason, 0 AS waiting, NULL AS due_ms, ended_ms",
    "history": "status, reason, 0 AS waiting, NULL AS due_ms, ended_ms",
}
_COMMON: Final = "position, event_offset, tenant, endpoint, round, number, code, status_code, trigger"
_COLUMNS: Final = (
    "d.position, d.position - d.event_offset, d.tenant, d.endpoint, e.type, k.key, d.status, d.reason, d.waiting,"
    " d.number, d.round, d.due_ms, d.ended_ms, d.code, d.status_code"
)
_JOIN: Final = "JOIN event e ON e.position = d.position - d.event_offset LEFT JOIN key_state k ON k.id = e.key_id"
_STATUSES: Final[tuple[DeliveryStatus, ...]] = ("pending", "delivered", "dead", "cancelled", "discarded")

# Deliveries of chosen events in table {0}: behind the event, or made later. {1} chooses among events e.
_OF_EVENTS: Final = (
    "d.position IN (SELECT p.position FROM event e CROSS JOIN {0} p ON p.position > e.position"
    " AND p.position <= e.position + e.fanout WHERE {1}"
    " UNION ALL SELECT l.delivery FROM event e CROSS JOIN late_delivery l ON l.event = e.position WHERE {1})"
)


PENDING_OF_ENDPOINT: Final = (
    "SELECT position FROM delivery WHERE waiting = 0 AND endpoint = ?"
    " UNION ALL SELECT position FROM delivery WHERE waiting = 1 AND key_id IS NOT NULL AND endpoint = ?"
)


def _delivery(row: Sequence[Any]) -> Delivery:
    (position, event, tenant, endpoint, type, key, status, reason, waiting, number, round_, due_ms, ended_ms, code,
     status_code) = row  # fmt: skip
    return Delivery(
        position=position, tenant=tenant, event=event, endpoint=endpoint, type=type, key=key, status=_STATUSES[status],
        reason=reason, waiting=bool(waiting), attempt_count=number, round=round_, due_ms=None if waiting else due_ms,
        event_created_at_ms=event >> 20, created_at_ms=position >> 20, ended_at_ms=ended_ms,
        last_error=None if code == "delivered" else code, last_status_code=status_code,
    )  # fmt: skip


def _branch(table: str, inner: str) -> str:
    return f"(SELECT {_COMMON}, {_TABLES[table]} FROM {table} d {inner})"  # noqa: S608 - constants and conditions, values are bound


def delivery(connection: apsw.Connection, tenant: int | None, position: int) -> Delivery | None:
    """One delivery."""
    for table in _TABLES:
        where = Where()
        where.add("d.position = ?", position)
        where.equal("d.tenant", tenant)
        rows = rows_of(connection, f"SELECT {_COLUMNS} FROM {_branch(table, '')} d {_JOIN} WHERE {where.sql}", where.values)  # noqa: S608, E501 - values are bound
        if rows:
            return _delivery(rows[0])
    return None


def deliveries(
    connection: apsw.Connection, tenant: int | None, wanted: DeliveryFilter, page: Page, scan_rows_max: int
) -> tuple[list[Delivery], int | None]:
    """Deliveries of all states: a page of each table that can hold some, merged by position.

    Where the scan bound stopped one table's page, nothing beyond that position may be shown of the others.
    """
    found: list[Delivery] = []
    cuts: list[int] = []
    for table in _tables(wanted):
        rows, cut = _page_of(connection, table, tenant, wanted, page, scan_rows_max)
        found += rows
        if cut is not None:
            cuts.append(cut)
    found.sort(key=lambda row: row.position, reverse=not page.ascending)
    if not cuts:
        return found[: page.limit], None
    cut = min(cuts) if page.ascending else max(cuts)
    shown = [row for row in found if (row.position <= cut if page.ascending else row.position >= cut)]
    return shown[: page.limit], None if len(shown) >= page.limit else cut


def of_events(
    connection: apsw.Connection, events: Sequence[int], each_max: int, scan_rows_max: int
) -> dict[int, list[Delivery]]:
    """The newest deliveries of each event."""
    found: dict[int, list[Delivery]] = {}
    for event in events:
        rows, _ = deliveries(connection, None, DeliveryFilter(event=event), Page(limit=each_max), scan_rows_max)
        if rows:
            found[event] = rows
    return found


def _tables(wanted: DeliveryFilter) -> list[str]:
    """Leave out the tables that cannot hold what is wanted."""
    tables = dict.fromkeys(_TABLES)
    statuses = set(_STATUSES if wanted.statuses is None else wanted.statuses)
    if "pending" not in statuses or wanted.reasons is not None:
        tables.pop("delivery")
    if "dead" not in statuses or wanted.waiting:
        tables.pop("dead_letter")
    if statuses.isdisjoint({"delivered", "cancelled", "discarded"}) or wanted.waiting:
        tables.pop("history")
    return list(tables)


def _page_of(
    connection: apsw.Connection, table: str, tenant: int | None, wanted: DeliveryFilter, page: Page, scan_rows_max: int
) -> tuple[list[Delivery], int | None]:
    scan, keep = Where(), Where()
    if wanted.event is not None:
        scan.add(_OF_EVENTS.format(table, "e.position = ?"), wanted.event, wanted.event)
    if wanted.key is not None and tenant is not None:
        of_key = "e.key_id = (SELECT id FROM key_state WHERE tenant = ? AND key = ?)"
        scan.add(_OF_EVENTS.format(table, of_key), tenant, wanted.key, tenant, wanted.key)
    else:
        keep.equal("k.key", wanted.key)
    if table != "delivery":
        scan.equal("d.endpoint", wanted.endpoint)
    elif wanted.endpoint is not None:
        # The backlog has no index of positions by endpoint: few are listed, many are met on the way.
        keep.equal("d.endpoint", wanted.endpoint)
        values = (wanted.endpoint, wanted.endpoint)
        if is_short(connection, PENDING_OF_ENDPOINT, values, scan_rows_max):
            scan.add(f"d.position IN ({PENDING_OF_ENDPOINT})", *values)
    scan.span("d.position", page)
    keep.equal("d.tenant", tenant)
    if wanted.statuses is not None:
        keep.any_of("d.status", [_STATUSES.index(name) for name in _STATUSES if name in wanted.statuses])
    keep.any_of("d.reason", wanted.reasons)
    keep.any_of("d.code", None if wanted.errors is None else [code for code in wanted.errors if code != "delivered"])
    keep.any_of("d.status_code", wanted.status_codes)
    keep.equal("d.waiting", None if wanted.waiting is None else int(wanted.waiting))
    keep.types("e.type", wanted.types)
    order = f"ORDER BY d.position {direction(page)}"
    sql = (
        f"SELECT {_COLUMNS} FROM {_branch(table, f'WHERE {scan.sql} {order} LIMIT ?')} d {_JOIN}"  # noqa: S608 - values are bound
        f" WHERE {keep.sql} {order} LIMIT ?"
    )
    rows = rows_of(connection, sql, (*scan.values, scan_rows_max, *keep.values, page.limit))
    cut = None
    if len(rows) < page.limit:
        inner = f"SELECT d.position FROM {table} d WHERE {scan.sql} {order}"  # noqa: S608 - values are bound
        cut = frontier(connection, inner, scan.values, scan_rows_max)
    return [_delivery(row) for row in rows], cut


def stats(
    connection: apsw.Connection, tenant: int | None, by: StatsBy, since_ms: int | None
) -> list[tuple[str, dict[str, int]]]:
    """Deliveries counted by status for each value, tests left out."""
    value = {
        "endpoint": "CAST(d.endpoint AS TEXT)", "type": "e.type", "reason": "d.reason",
        "error": "nullif(d.code, 'delivered')",
    }[by]  # fmt: skip
    join = _JOIN if by == "type" else ""
    counted: dict[str, dict[str, int]] = {}
    for table in _TABLES:
        where = Where()
        where.add("d.trigger <> ?", TRIGGER_CODES["test"])
        where.equal("d.tenant", tenant)
        if since_ms is not None:
            where.add("d.position >= ?", since_ms << 20)
        sql = f"SELECT {value}, d.status, count(*) FROM {_branch(table, '')} d {join} WHERE {where.sql} GROUP BY 1, 2"  # noqa: S608 - values are bound
        for name, status, count in rows_of(connection, sql, where.values):
            if name is not None:
                counts = counted.setdefault(name, {})
                counts[_STATUSES[status]] = counts.get(_STATUSES[status], 0) + count
    return sorted(counted.items())
