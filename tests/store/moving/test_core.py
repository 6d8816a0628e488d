"""A file as the first version left it: this version opens it, finds all of it, goes on with it, and moves it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec

from ackpost.ports.operations import Accept, Accepted, NewEvent
from ackpost.ports.store import DeliveryFilter, EventFilter, Page, Store
from ackpost.store.portable import TABLES
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.importing import PostgresImport
from ackpost.store.sqlite import SqliteStore
from ackpost.store.sqlite.connection import SCHEMA_VERSION
from ackpost.store.sqlite.export import SqliteRows
from ackpost.testing.store_contract.world import LEASE_MS
from ackpost.wiring.copying import Compared, copy_rows
from tests.store.harnesses import PostgresHarness

FIXTURE = Path(__file__).with_name("core")
CONTENT: dict[str, Any] = json.loads((FIXTURE / "content.json").read_text(encoding="utf-8"))
LATER_MS = 1_700_000_200_000
TENANT = CONTENT["tenants"][0]["position"]
KEY = "k"
LAST_OF_KEY = 12


def file(folder: Path) -> Path:
    """Make the file."""
    path = folder / "core.db"
    connection = apsw.Connection(str(path))
    connection.execute((FIXTURE / "file.sql").read_text(encoding="utf-8"))
    connection.close()
    return path


async def content_of(store: Store) -> dict[str, Any]:
    """Read what the first version read, in the form of ``content.json``."""
    page = Page(limit=100_000, ascending=True)
    events, _ = await store.events(None, EventFilter(), page)
    deliveries, _ = await store.deliveries(None, DeliveryFilter(), page)
    endpoints = sorted({one.endpoint for one in deliveries})
    attempts = [
        one
        for endpoint in endpoints
        for one in await store.attempts(None, delivery=None, endpoint=endpoint, page=page)
    ]
    found = {
        "tenants": await store.tenants(page),
        "keys": await store.api_keys(None, page),
        "endpoints": await store.endpoints(None, page),
        "events": events,
        "deliveries": deliveries,
        "jobs": await store.jobs(None, page),
        "payloads": await store.load_payloads([one.position for one in events]),
        "attempts": sorted(attempts, key=lambda one: one.position),
    }
    content: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return content


def lost(expected: Any, found: Any, place: str = "") -> list[str]:
    """Say where something is missing or differs; what a later version added does not count."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [line for name, value in expected.items() for line in lost(value, found.get(name), f"{place}/{name}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for index, pair in pairs for line in lost(*pair, f"{place}/{index}")]
    return [] if expected == found else [f"{place}: {found!r} for {expected!r}"]


async def move(
    source: SqliteRows, target: PostgresImport, check: Callable[[], None] = lambda: None
) -> list[Compared]:
    """Copy, and let go of the file."""
    try:
        return await copy_rows(source, target, now_ms=LATER_MS, on_rows=lambda *_: None, check=check)
    finally:
        await source.end()


async def go_on(store: Store) -> None:
    """A ``uid`` of before is known, and a key's sequence goes on."""
    routing = await store.routing(TENANT)
    assert routing is not None
    known = next(one for one in CONTENT["events"] if one["uid"] == "u8")
    events = [NewEvent("plain", b"1", uid="u8", digest=b"1"), NewEvent("plain", b"2", key=KEY)]
    (answer,) = await store.commit([Accept(TENANT, routing.version, events, LATER_MS, batch=True)])
    assert isinstance(answer, Accepted), answer
    repeated, fresh = answer.events
    assert (repeated.position, repeated.duplicate) == (known["position"], True)
    assert (fresh.sequence, fresh.duplicate) == (LAST_OF_KEY + 1, False)


def test_the_first_versions_file_is_opened_and_nothing_is_missing(tmp_path: Path) -> None:
    """It gets today's schema; every object is read as its own version read it; publishing goes on."""
    path = file(tmp_path)

    async def run() -> None:
        store = SqliteStore(str(path))
        await store.open(node="a", now_ms=LATER_MS, lease_ms=LEASE_MS)
        assert lost(CONTENT, await content_of(store)) == []
        await go_on(store)
        await store.close()

    asyncio.run(run())
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.pragma("user_version") == SCHEMA_VERSION
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


def test_the_first_versions_file_moves_to_postgresql(tmp_path: Path) -> None:
    """Its rows, some in every table, are in PostgreSQL, and are read there as they were read first."""
    path = file(tmp_path)

    async def run() -> None:
        source = SqliteStore(str(path))
        await source.open(node="a", now_ms=LATER_MS, lease_ms=LEASE_MS)
        await source.close()
        harness = PostgresHarness()
        store = harness.make()
        assert isinstance(store, PostgresStore)
        try:
            compared = await move(SqliteRows(str(path)), PostgresImport(store.place))
            assert [one for one in compared if not one.same] == []
            assert [one.table for one in compared if one.target] == [table.name for table in TABLES]
            await store.open(node="a", now_ms=LATER_MS, lease_ms=LEASE_MS)
            assert lost(CONTENT, await content_of(store)) == []
            await go_on(store)
        finally:
            await harness.dispose(store)

    asyncio.run(run())
