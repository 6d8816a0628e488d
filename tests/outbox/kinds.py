"""Each kind of connection that an application may have, with its own way of transactions, behind one face."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import django
import psycopg
from django.conf import settings
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from ackpost import outbox

Transaction = Callable[[], AbstractAsyncContextManager[Any]]


class Face:
    """``transaction`` commits, or rolls back what is raised through it; inside another one it is a savepoint."""

    def __init__(self, connection: object, transaction: Transaction, *, is_async: bool) -> None:
        self.connection = connection
        self.transaction = transaction
        self._is_async = is_async

    async def create(self) -> None:
        if self._is_async:
            await outbox.create_async(self.connection)
        else:
            outbox.create(self.connection)

    async def publish(self, type: str, data: object, **more: Any) -> str:
        if self._is_async:
            return await outbox.publish_async(self.connection, type, data, **more)
        return outbox.publish(self.connection, type, data, **more)


Opened = AbstractAsyncContextManager[Face]


def _sync(transaction: Callable[[], Any]) -> Transaction:
    @asynccontextmanager
    async def wrapped() -> AsyncIterator[None]:
        with transaction():
            yield

    return wrapped


@asynccontextmanager
async def sqlite3_connection(path: str, *, cursor: bool = False) -> AsyncIterator[Face]:
    connection = sqlite3.connect(path)

    @contextmanager
    def transaction() -> Iterator[None]:
        inner = connection.in_transaction
        connection.execute("SAVEPOINT s" if inner else "BEGIN")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK TO s" if inner else "ROLLBACK")
            raise
        connection.execute("RELEASE s" if inner else "COMMIT")

    try:
        yield Face(connection.cursor() if cursor else connection, _sync(transaction), is_async=False)
    finally:
        connection.close()


def sqlite3_cursor(path: str) -> Opened:
    return sqlite3_connection(path, cursor=True)


@asynccontextmanager
async def psycopg_connection(url: str, *, cursor: bool = False) -> AsyncIterator[Face]:
    with psycopg.connect(url, autocommit=True) as connection:
        given = connection.cursor() if cursor else connection
        yield Face(given, _sync(connection.transaction), is_async=False)


def psycopg_cursor(url: str) -> Opened:
    return psycopg_connection(url, cursor=True)


@asynccontextmanager
async def psycopg_async(url: str, *, cursor: bool = False) -> AsyncIterator[Face]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield Face(connection.cursor() if cursor else connection, connection.transaction, is_async=True)


def psycopg_async_cursor(url: str) -> Opened:
    return psycopg_async(url, cursor=True)


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Face]:
    connection = await asyncpg.connect(url)
    try:
        yield Face(connection, connection.transaction, is_async=True)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(url: str) -> AsyncIterator[Face]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield Face(connection, connection.transaction, is_async=True)


def engine(url: str) -> Engine:
    """Make an engine; the standard driver of SQLite is told to leave BEGIN to SQLAlchemy, as its manual has it."""
    if url.startswith("postgresql://"):
        return create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    made = create_engine(f"sqlite:///{url}")

    @event.listens_for(made, "connect")
    def _connected(raw: Any, _record: object) -> None:
        raw.isolation_level = None

    @event.listens_for(made, "begin")
    def _begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return made


def _nested(one: Any) -> Callable[[], Any]:
    return lambda: one.begin_nested() if one.in_transaction() else one.begin()


@asynccontextmanager
async def alchemy_session(url: str) -> AsyncIterator[Face]:
    made = engine(url)
    with Session(made) as session:
        yield Face(session, _sync(_nested(session)), is_async=False)
    made.dispose()


@asynccontextmanager
async def alchemy_connection(url: str) -> AsyncIterator[Face]:
    made = engine(url)
    with made.connect() as connection:
        yield Face(connection, _sync(_nested(connection)), is_async=False)
    made.dispose()


def alchemy_async_session(url: str) -> Opened:
    return _alchemy_async(url.replace("postgresql://", "postgresql+asyncpg://"), session=True)


def alchemy_async_connection(url: str) -> Opened:
    return _alchemy_async(url.replace("postgresql://", "postgresql+psycopg://"), session=False)


@asynccontextmanager
async def _alchemy_async(url: str, *, session: bool) -> AsyncIterator[Face]:
    made = create_async_engine(url)
    try:
        async with AsyncSession(made) if session else made.connect() as one:
            yield Face(one, _nested(one), is_async=True)
    finally:
        await made.dispose()


@asynccontextmanager
async def django_connection(url: str) -> AsyncIterator[Face]:
    from django.db import connections, transaction

    name = "postgresql" if url.startswith("postgresql://") else "default"
    one = connections[name]
    one.settings_dict.update(_django_database(url))
    try:
        yield Face(one, _sync(lambda: transaction.atomic(using=name)), is_async=False)
    finally:
        one.close()


def _django_database(url: str) -> dict[str, Any]:
    if not url.startswith("postgresql://"):
        return {"NAME": url}
    parts = psycopg.conninfo.conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port", "PASSWORD": "password"}
    return {name: str(parts.get(ours, "")) for name, ours in names.items()}


def _set_up_django() -> None:
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # nothing else runs in the loop that it would hold up
    kinds = {"default": "sqlite3", "postgresql": "postgresql"}
    databases = {name: {"ENGINE": f"django.db.backends.{kind}", "NAME": "x"} for name, kind in kinds.items()}
    settings.configure(DATABASES=databases, USE_TZ=True)
    django.setup()


_set_up_django()

POSTGRESQL: dict[str, Callable[[str], Opened]] = {
    "psycopg connection": psycopg_connection,
    "psycopg cursor": psycopg_cursor,
    "psycopg async connection": psycopg_async,
    "psycopg async cursor": psycopg_async_cursor,
    "asyncpg": asyncpg_connection,
    "asyncpg from a pool": asyncpg_pooled,
    "sqlalchemy session": alchemy_session,
    "sqlalchemy connection": alchemy_connection,
    "sqlalchemy async session": alchemy_async_session,
    "sqlalchemy async connection": alchemy_async_connection,
    "django": django_connection,
}
SQLITE: dict[str, Callable[[str], Opened]] = {
    "sqlite3 connection": sqlite3_connection,
    "sqlite3 cursor": sqlite3_cursor,
    "sqlalchemy session": alchemy_session,
    "sqlalchemy connection": alchemy_connection,
    "django": django_connection,
}


def rows(place: str, columns: str = "type") -> list[tuple[Any, ...]]:
    """Read the table from outside, in its order."""
    sql = f"SELECT {columns} FROM ackpost_outbox ORDER BY number"
    if place.startswith("postgresql://"):
        with psycopg.connect(place) as connection:
            return connection.execute(sql.encode()).fetchall()
    reader = sqlite3.connect(place)
    try:
        return reader.execute(sql).fetchall()
    finally:
        reader.close()


def sqlite_file(folder: Path) -> str:
    return str(folder / "app.db")
