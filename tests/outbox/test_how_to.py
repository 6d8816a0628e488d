"""The how-to's examples do what it says, each on a real connection."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from ackpost import outbox
from tests.docs.blocks import blocks
from tests.outbox.kinds import django_connection, engine, rows, sqlite_file
from tests.store.postgres.server import own_database
from tests.tidy.tree import DOCS

_PAGE = DOCS / "how-to" / "publish-in-your-transaction.md"
_ORDERS = "CREATE TABLE orders (id integer PRIMARY KEY)"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the Python blocks define, run as one module."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(_PAGE):
        if block.info == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(_PAGE), "exec"), namespace)
    return namespace


@pytest.fixture
def url() -> Iterator[str]:
    """A PostgreSQL with both tables."""
    with own_database() as url:
        with psycopg.connect(url) as connection:
            connection.execute(_ORDERS)
            outbox.create(connection)
        yield url


@pytest.fixture
def path(tmp_path: Path) -> str:
    """An SQLite file with both tables."""
    path = sqlite_file(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute(_ORDERS)
    outbox.create(connection)
    connection.close()
    return path


def test_the_examples_of_postgresql(page: dict[str, Any], url: str) -> None:
    """Each writes an order with its event; an order that is there already fails, and its event with it."""

    async def by_asyncpg() -> None:
        connection = await asyncpg.connect(url)
        await page["order_with_asyncpg"](connection, 2)
        with pytest.raises(asyncpg.UniqueViolationError):
            await page["order_with_asyncpg"](connection, 2)
        await connection.close()

    async def by_async_sqlalchemy() -> None:
        made = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
        async with AsyncSession(made) as session:
            await page["order_with_async_sqlalchemy"](session, 3)
        await made.dispose()

    with psycopg.connect(url) as connection:
        page["order_with_psycopg"](connection, 1)
    asyncio.run(by_asyncpg())
    asyncio.run(by_async_sqlalchemy())
    made = engine(url)
    with Session(made) as session:
        page["order_with_sqlalchemy"](session, 4)
    made.dispose()
    assert rows(url, "data, key") == [(f'{{"order":{number}}}', f"order-{number}") for number in (1, 2, 3, 4)]


def test_the_examples_of_sqlite(page: dict[str, Any], path: str) -> None:
    """Django and the standard library, on a file."""
    connection = sqlite3.connect(path)
    page["order_with_sqlite3"](connection, 1)
    with pytest.raises(sqlite3.IntegrityError):
        page["order_with_sqlite3"](connection, 1)
    connection.close()

    async def by_django() -> None:
        async with django_connection(path):
            page["order_with_django"](2)

    asyncio.run(by_django())
    assert rows(path, "data, key") == [(f'{{"order":{number}}}', f"order-{number}") for number in (1, 2)]
