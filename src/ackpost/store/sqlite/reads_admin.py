"""Reading tenants, keys, endpoints and jobs."""

from __future__ import annotations

from typing import Any

import apsw

from ackpost.core.model import ApiKey, Endpoint, EndpointVersion, Job, Tenant
from ackpost.ports.store import Page, Routing
from ackpost.store.sqlite.querying import Where, direction, rows_of
from ackpost.store.values import api_key_from, endpoint_from, from_document

# These are kept with a time of making of their own: their positions may lie before it.
_MADE = "json_extract(document, '$.created_at_ms')"


def _list(
    connection: apsw.Connection, table: str, columns: str, where: Where, page: Page
) -> list[tuple[Any, ...]]:
    where.span("position", page, timed=False)
    if page.since_ms is not None:
        where.add(f"{_MADE} >= ?", page.since_ms)
    if page.until_ms is not None:
        where.add(f"{_MADE} < ?", page.until_ms)
    sql = f"SELECT {columns} FROM {table} WHERE {where.sql} ORDER BY position {direction(page)} LIMIT ?"  # noqa: S608 - values are bound
    return rows_of(connection, sql, (*where.values, page.limit))


def routing(connection: apsw.Connection, tenant: int) -> Routing | None:
    """A live tenant with its endpoints and version, all of one moment."""
    rows = rows_of(
        connection,
        "SELECT t.document, t.routing_version, e.document, e.rev FROM tenant t"
        " LEFT JOIN endpoint e ON e.tenant = t.position WHERE t.position = ? AND t.deleted = 0 ORDER BY e.position",
        (tenant,),
    )
    if not rows:
        return None
    endpoints = [endpoint_from(document, rev) for _, _, document, rev in rows if document is not None]
    return Routing(from_document(Tenant, rows[0][0]), rows[0][1], endpoints)


def _tenant(rows: list[tuple[Any, ...]]) -> Tenant | None:
    return from_document(Tenant, rows[0][0]) if rows else None


def tenant_by_uid(connection: apsw.Connection, uid: str) -> Tenant | None:
    """A live tenant by uid."""
    sql = "SELECT document FROM tenant WHERE uid = ? AND deleted = 0"
    return _tenant(rows_of(connection, sql, (uid,)))


def tenant(connection: apsw.Connection, position: int) -> Tenant | None:
    """A live tenant."""
    sql = "SELECT document FROM tenant WHERE position = ? AND deleted = 0"
    return _tenant(rows_of(connection, sql, (position,)))


def tenants(connection: apsw.Connection, page: Page) -> list[Tenant]:
    """Live tenants."""
    where = Where()
    where.add("deleted = 0")
    return [from_document(Tenant, text) for text, *_ in _list(connection, "tenant", "document", where, page)]


def api_key_by_digest(connection: apsw.Connection, digest: bytes) -> ApiKey | None:
    """A key that was not revoked."""
    rows = rows_of(connection, "SELECT document, last_used_ms FROM api_key WHERE digest = ?", (digest,))
    return api_key_from(*rows[0]) if rows else None


def api_keys(connection: apsw.Connection, tenant: int | None, page: Page) -> list[ApiKey]:
    """Keys of a tenant."""
    where = Where()
    where.equal("tenant", tenant)
    return [api_key_from(*row) for row in _list(connection, "api_key", "document, last_used_ms", where, page)]


def _endpoint(rows: list[tuple[Any, ...]]) -> Endpoint | None:
    return endpoint_from(*rows[0]) if rows else None


def endpoint(connection: apsw.Connection, tenant: int | None, position: int) -> Endpoint | None:
    """One endpoint."""
    where = Where()
    where.add("position = ?", position)
    where.equal("tenant", tenant)
    return _endpoint(rows_of(connection, f"SELECT document, rev FROM endpoint WHERE {where.sql}", where.values))  # noqa: S608 - values are bound


def endpoint_by_uid(connection: apsw.Connection, tenant: int, uid: str) -> Endpoint | None:
    """One endpoint by uid."""
    sql = "SELECT document, rev FROM endpoint WHERE tenant = ? AND uid = ?"
    return _endpoint(rows_of(connection, sql, (tenant, uid)))


def endpoints(
    connection: apsw.Connection,
    tenant: int | None,
    page: Page,
    states: tuple[str, ...] | None,
    circuits: tuple[str, ...] | None,
    url: str | None,
) -> list[Endpoint]:
    """Endpoints, filtered."""
    where = Where()
    where.equal("tenant", tenant)
    where.any_of("state", states)
    where.any_of("circuit", circuits)
    where.equal("url", url)
    rows = _list(connection, "endpoint", "document, rev", where, page)
    return [endpoint_from(document, rev) for document, rev in rows]


def endpoint_version(connection: apsw.Connection, endpoint: int, version: int) -> EndpointVersion | None:
    """How an endpoint's requests looked."""
    sql = "SELECT document FROM endpoint_version WHERE endpoint = ? AND version = ?"
    rows = rows_of(connection, sql, (endpoint, version))
    return from_document(EndpointVersion, rows[0][0]) if rows else None


def job(connection: apsw.Connection, tenant: int | None, position: int) -> Job | None:
    """One job."""
    where = Where()
    where.add("position = ?", position)
    where.equal("tenant", tenant)
    rows = rows_of(connection, f"SELECT document FROM job WHERE {where.sql}", where.values)  # noqa: S608 - values are bound
    return from_document(Job, rows[0][0]) if rows else None


def jobs(connection: apsw.Connection, tenant: int | None, page: Page) -> list[Job]:
    """Jobs."""
    where = Where()
    where.equal("tenant", tenant)
    return [from_document(Job, text) for text, *_ in _list(connection, "job", "document", where, page)]
