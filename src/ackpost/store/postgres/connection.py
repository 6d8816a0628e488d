"""Connections: their settings, and how to get one that lives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

import asyncpg
import msgspec

from ackpost.errors import StoreError
from ackpost.store.postgres.faults import mapped

Connection = Any
"""``asyncpg.Connection``; the library has no types."""

OnQuery = Callable[[object], None]

CONNECT_TIMEOUT_S: Final = 5.0
COMMAND_TIMEOUT_S: Final = 15.0
"""After this a statement is given up here; the server ends it by itself before, if it can be reached."""

_STATEMENTS_KEPT: Final = 1000
_IDLE_CONNECTION_S: Final = 300.0
_VERSION_MIN: Final = 140_000

_SETTINGS: Final = {
    "application_name": "ackpost",
    "statement_timeout": "10000",
    "lock_timeout": "2000",
    "idle_in_transaction_session_timeout": "5000",
    "timezone": "UTC",
    "jit": "off",
    # Every statement here has one good plan: walk an index, and look the rest up by index. Left alone, a statement that
    # is prepared while a table is empty keeps a plan that reads all of it (rule E9).
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_PATIENT: Final = {
    "application_name": "ackpost copy",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "600000",
    "enable_seqscan": "on",
    "enable_hashjoin": "on",
    "enable_mergejoin": "on",
}


_SELECT_SETTINGS: Final = "SELECT lower(name), setting FROM pg_settings WHERE lower(name) = ANY($1)"


class Place(msgspec.Struct, frozen=True):
    """Where the database is. ``pooled``: a pooler before it gives each transaction another session, so nothing is set
    for a session, and no statement is kept prepared; the role has the settings.
    """

    dsn: str
    schema: str
    pooled: bool = False

    def options(self) -> dict[str, Any]:
        """What asyncpg is told for each connection."""
        kept = 0 if self.pooled else _STATEMENTS_KEPT
        settings = {} if self.pooled else {**_SETTINGS, "search_path": quoted(self.schema)}
        return {
            "dsn": self.dsn,
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": COMMAND_TIMEOUT_S,
            "statement_cache_size": kept,
            "max_cached_statement_lifetime": 0,
            "server_settings": settings,
        }


Connect = Callable[[Place], Awaitable[Connection]]


def role_settings(schema: str) -> dict[str, str]:
    """What has to be set on the role where a pooler shares its sessions."""
    return {**_SETTINGS, "search_path": quoted(schema)}


def on_one_session(place: Place, connection: Connection) -> AbstractAsyncContextManager[Any]:
    """Keep the session while statements are sent: a pooler that shares sessions gives another one between two steps of
    a single statement, but for those in a transaction.
    """
    context: AbstractAsyncContextManager[Any] = connection.transaction() if place.pooled else nullcontext()
    return context


async def expect_role_settings(place: Place, connection: Connection) -> None:
    """Refuse a pooled way whose sessions have not what the others are given. Raises: StoreError naming them."""
    wanted = {name: value for name, value in role_settings(place.schema).items() if name != "application_name"}
    async with connection.transaction():
        found = dict(await connection.fetch(_SELECT_SETTINGS, [*wanted, "synchronous_commit"]))
    wrong = [name for name, value in wanted.items() if found.get(name, "").strip('"') != value.strip('"')]
    if found.get("synchronous_commit") == "off":
        wrong.append("synchronous_commit")
    if wrong:
        raise StoreError(
            f"database_pooled: the role has not the settings that it needs, wrong are {', '.join(wrong)}; "
            "docs/how-to/pgbouncer.md has the statements."
        )


async def connect(place: Place, on_query: OnQuery | None = None) -> Connection:
    """Give a new connection; ``on_query`` is called after each statement.

    Raises: StoreError.
    """
    with mapped():
        connection = await asyncpg.connect(**place.options())
        if not place.pooled:
            await _make_durable(connection)
        if on_query is not None:
            connection.add_query_logger(on_query)
        return connection


async def connect_patiently(place: Place) -> Connection:
    """Give a new connection for work on all of a database: it takes its time, and reads tables as they lie.

    Raises: StoreError.
    """
    settings = {**_SETTINGS, **_PATIENT, "search_path": quoted(place.schema)}
    options = {**place.options(), "command_timeout": None, "server_settings": settings}
    with mapped():
        connection = await asyncpg.connect(**options)
        await _make_durable(connection)
        return connection


async def make_pool(place: Place, connections_max: int, on_query: OnQuery) -> Any:
    """Give a pool of connections for reading; it connects when first asked. ``on_query`` is called as above."""

    async def init(connection: Connection) -> None:
        connection.add_query_logger(on_query)

    with mapped():
        return await asyncpg.create_pool(
            **place.options(),
            min_size=0,
            max_size=connections_max,
            max_inactive_connection_lifetime=_IDLE_CONNECTION_S,
            init=init,
            reset=_keep,
        )


async def _keep(_connection: Connection) -> None:
    """Nothing here changes a session beyond its transactions: there is nothing to reset."""


async def _make_durable(connection: Connection) -> None:
    """Wait for the disk at COMMIT even where the server's default does not; keep stricter defaults (replicas)."""
    await connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'
