"""A PostgreSQL database made for one run and removed after it, beside the one that a URL names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from ackpost.errors import StoreError

Given = TypeVar("Given")


@contextmanager
def scratch_database(url: str, name: str) -> Iterator[str]:
    """Make the database ``name`` where ``url`` leads, give its URL, and drop it at the end.

    Raises: StoreError when it cannot be made; the role needs CREATEDB.
    """
    _run(url, lambda session: session.execute(f'CREATE DATABASE "{name}"'))
    try:
        yield urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    finally:
        _run(url, lambda session: session.execute(f'DROP DATABASE "{name}" WITH (FORCE)'))


def transactions_committed(url: str) -> int:
    """Transactions that the database counts as committed, of all sessions."""
    sql = "SELECT pg_stat_get_db_xact_commit(oid) FROM pg_database WHERE datname = current_database()"
    return int(_run(url, lambda session: session.fetchval(sql)))


def _run(url: str, work: Callable[[Any], Awaitable[Given]]) -> Given:
    async def run() -> Given:
        session = await asyncpg.connect(url)
        try:
            return await work(session)
        finally:
            await session.close()

    try:
        return asyncio.run(run())
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise StoreError(f"PostgreSQL refused: {error}") from error
