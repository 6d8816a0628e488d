"""Reading tenants, keys, endpoints and jobs."""

from __future__ import annotations

from typing import Any

from ackpost.core.model import ApiKey, Endpoint, EndpointVersion, Job, Tenant
from ackpost.ports.store import Page, Routing
from ackpost.store.postgres.querying import Reader, Where, direction, rows_of
from ackpost.store.values import api_key_from, endpoint_from, from_document


async def _list(connection: Reader, table: str, columns: str, where: Where, page: Page) -> list[Any]:
    # These are kept with a time of making of their own: their positions may lie before it.
    where.span("position", page, timed=False)
    if page.since_ms is not None:
        where.add("created_ms >= ?", page.since_ms)
    if page.until_ms is not None:
        where.add("created_ms < ?", page.until_ms)
    sql = f"SELECT {columns} FROM {table} WHERE {where.sql} ORDER BY position {direction(page)} LIMIT ?"  # noqa: S608 - values are bound
    return await rows_of(connection, sql, (*where.values, page.limit))


async def routing(connection: Reader, tenant: int) -> Routing | None:
    """A live tenant with its endpoints and version, all of one moment."""
    rows = await rows_of(
        connection,
        "SELECT t.document, t.routing_version, e.document, e.rev FROM tenant t"
        " LEFT JOIN endpoint e ON e.tenant = t.position WHERE t.position = ? AND NOT t.deleted ORDER BY e.position",
        (tenant,),
    )
    if not rows:
        return None
    endpoints = [endpoint_from(document, rev) for _, _, document, rev in rows if document is not None]
    return Routing(from_document(Tenant, rows[0][0]), rows[0][1], endpoints)


def _tenant(rows: list[Any]) -> Tenant | None:
    return from_document(Tenant, rows[0][0]) if rows else None


async def tenant_by_uid(connection: Reader, uid: str) -> Tenant | None:
    """A live tenant by uid."""
    sql = "SELECT document FROM tenant WHERE uid = ? AND NOT deleted"
    return _tenant(await rows_of(connection, sql, (uid,)))


async def tenant(connection: Reader, position: int) -> Tenant | None:
    """A live tenant."""
    sql = "SELECT document FROM tenant WHERE position = ? AND NOT deleted"
    return _tenant(await rows_of(connection, sql, (position,)))


async def tenants(connection: Reader, page: Page) -> list[Tenant]:
    """Live tenants."""
    where = Where()
    where.add("NOT deleted")
    return [from_document(Tenant, text) for text, *_ in await _list(connection, "tenant", "document", where, page)]


async def api_key_by_digest(connection: Reader, digest: bytes) -> ApiKey | None:
    """A key that was not revoked."""
    rows = await rows_of(connection, "SELECT document, last_used_ms FROM api_key WHERE digest = ?", (digest,))
    return api_key_from(*rows[0]) if rows else None


async def api_keys(connection: Reader, tenant: int | None, page: Page) -> list[ApiKey]:
    """Keys of a tenant."""
    where = Where()
    where.equal("tenant", tenant)
    return [api_key_from(*row) for row in await _list(connection, "api_key", "document, last_used_ms", where, page)]


def _endpoint(rows: list[Any]) -> Endpoint | None:
    return endpoint_from(*rows[0]) if rows else None


async def endpoint(connection: Reader, tenant: int | None, position: int) -> Endpoint | None:
    """One endpoint."""
    where = Where()
    where.add("position = ?", position)
    where.equal("tenant", tenant)
    return _endpoint(await rows_of(connection, f"SELECT document, rev FROM endpoint WHERE {where.sql}", where.values))  # noqa: S608 - values are bound


async def endpoint_by_uid(connection: Reader, tenant: int, uid: str) -> Endpoint | None:
    """One endpoint by uid."""
    sql = "SELECT document, rev FROM endpoint WHERE tenant = ? AND uid = ?"
    return _endpoint(await rows_of(connection, sql, (tenant, uid)))


async def endpoints(
    connection: Reader,
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
    rows = await _list(connection, "endpoint", "document, rev", where, page)
    return [endpoint_from(document, rev) for document, rev in rows]


async def endpoint_version(connection: Reader, endpoint: int, version: int) -> EndpointVersion | None:
    """How an endpoint's requests looked."""
    sql = "SELECT document FROM endpoint_version WHERE endpoint = ? AND version = ?"
    rows = await rows_of(connection, sql, (endpoint, version))
    return from_document(EndpointVersion, rows[0][0]) if rows else None


async def job(connection: Reader, tenant: int | None, position: int) -> Job | None:
    """One job."""
    where = Where()
    where.add("position = ?", position)
    where.equal("tenant", tenant)
    rows = await rows_of(connection, f"SELECT document FROM job WHERE {where.sql}", where.values)  # noqa: S608 - values are bound
    return from_document(Job, rows[0][0]) if rows else None


async def jobs(connection: Reader, tenant: int | None, page: Page) -> list[Job]:
    """Jobs."""
    where = Where()
    where.equal("tenant", tenant)
    return [from_document(Job, text) for text, *_ in await _list(connection, "job", "document", where, page)]
