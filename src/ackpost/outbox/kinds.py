"""What kind of connection the caller has, told by where its classes come from: no driver is imported for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

Dialect = Literal["postgresql", "sqlite"]
Values = Sequence[str | None]

KINDS_TEXT: Final = (
    "a psycopg 3 or sqlite3 connection or cursor, a SQLAlchemy Session or Connection, or Django's connection"
)
ASYNC_KINDS_TEXT: Final = (
    "an asyncpg Connection, a psycopg 3 AsyncConnection or AsyncCursor, or a SQLAlchemy AsyncSession or AsyncConnection"
)


class Kind(NamedTuple):
    """How a kind of connection writes a value's place (the n-th, from 1), runs a statement, and names its database."""

    is_async: bool
    place: Callable[[int], str]
    run: Callable[[Any, str, Values], Any]
    dialect: Callable[[Any], str]


def _run_directly(connection: Any, sql: str, values: Values) -> Any:
    return connection.execute(sql, tuple(values)) if values else connection.execute(sql)


def _run_apart(connection: Any, sql: str, values: Values) -> Any:
    return connection.execute(sql, *values)


def _run_text(connection: Any, sql: str, values: Values) -> Any:
    """SQLAlchemy is loaded: its caller has an object of it."""
    text = sys.modules["sqlalchemy"].text(sql)
    return connection.execute(text, {f"v{number}": value for number, value in enumerate(values, start=1)})


def _run_by_cursor(connection: Any, sql: str, values: Values) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, list(values) if values else None)


def _bound(session: Any) -> str:
    """Name the database of a SQLAlchemy session or connection."""
    bind = session.get_bind() if hasattr(session, "get_bind") else session
    return str(bind.dialect.name)


def _postgresql(_connection: Any) -> str:
    return "postgresql"


_PSYCOPG: Final = Kind(False, lambda _: "%s", _run_directly, _postgresql)
_ALCHEMY: Final = Kind(False, lambda number: f":v{number}", _run_text, _bound)
_KINDS: Final = {
    ("sqlite3", "Connection"): Kind(False, lambda _: "?", _run_directly, lambda _: "sqlite"),
    ("sqlite3", "Cursor"): Kind(False, lambda _: "?", _run_directly, lambda _: "sqlite"),
    ("psycopg", "Connection"): _PSYCOPG,
    ("psycopg", "Cursor"): _PSYCOPG,
    ("psycopg", "AsyncConnection"): _PSYCOPG._replace(is_async=True),
    ("psycopg", "AsyncCursor"): _PSYCOPG._replace(is_async=True),
    ("asyncpg", "Connection"): Kind(True, lambda number: f"${number}", _run_apart, _postgresql),
    ("asyncpg", "PoolConnectionProxy"): Kind(True, lambda number: f"${number}", _run_apart, _postgresql),
    ("sqlalchemy", "Session"): _ALCHEMY,
    ("sqlalchemy", "scoped_session"): _ALCHEMY,
    ("sqlalchemy", "Connection"): _ALCHEMY,
    ("sqlalchemy", "AsyncSession"): _ALCHEMY._replace(is_async=True),
    ("sqlalchemy", "async_scoped_session"): _ALCHEMY._replace(is_async=True),
    ("sqlalchemy", "AsyncConnection"): _ALCHEMY._replace(is_async=True),
    ("django", "BaseDatabaseWrapper"): Kind(False, lambda _: "%s", _run_by_cursor, lambda one: str(one.vendor)),
    ("django", "ConnectionProxy"): Kind(False, lambda _: "%s", _run_by_cursor, lambda one: str(one.vendor)),
}


def kind_of(connection: object, *, is_async: bool) -> Kind:
    """Find the kind of a connection, of a subclass too.

    Raises: TypeError for anything else. A pool or an engine is none: it would write outside the caller's transaction.
    """
    for one in type(connection).__mro__:
        found = _KINDS.get((one.__module__.partition(".")[0], one.__qualname__))
        if found is not None:
            if found.is_async != is_async:
                other = "the function ending in _async" if found.is_async else "the function without _async"
                raise TypeError(f"use {other} for {_name(connection)}")
            return found
    known = ASYNC_KINDS_TEXT if is_async else KINDS_TEXT
    raise TypeError(f"{_name(connection)} is no connection known here: give {known}")


def _name(connection: object) -> str:
    kind = type(connection)
    return f"{kind.__module__}.{kind.__qualname__}"
