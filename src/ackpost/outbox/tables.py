"""The table, in the application's database and with its migrations."""

from __future__ import annotations

from typing import Final

from ackpost.core.outbox import TABLE
from ackpost.errors import ConfigError
from ackpost.outbox.kinds import kind_of

# No unique key but the number: a second writer of the same uid would wait for the first one's transaction.
_POSTGRESQL: Final = f"""\
CREATE TABLE IF NOT EXISTS {TABLE} (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_ms bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    uid text NOT NULL,
    tenant text,
    type text NOT NULL,
    key text,
    channels text,
    occurred_at text,
    metadata text,
    data text NOT NULL,
    refused text
)
"""

# A number is never given twice: what was moved is deleted by it.
_SQLITE: Final = f"""\
CREATE TABLE IF NOT EXISTS {TABLE} (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    created_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    uid TEXT NOT NULL,
    tenant TEXT,
    type TEXT NOT NULL,
    key TEXT,
    channels TEXT,
    occurred_at TEXT,
    metadata TEXT,
    data TEXT NOT NULL,
    refused TEXT
)
"""
_SCHEMAS: Final = {"postgresql": _POSTGRESQL, "sqlite": _SQLITE}


def schema(dialect: str) -> str:
    """Give the statement that makes the table if it is missing, for ``postgresql`` or ``sqlite``.

    Raises: ConfigError for any other dialect.
    """
    found = _SCHEMAS.get(dialect)
    if found is None:
        raise ConfigError(f"there is no outbox for {dialect}: use {' or '.join(_SCHEMAS)}")
    return found


def create(connection: object) -> None:
    """Make the table if it is missing, in the caller's transaction; the connections are those of ``publish``.

    Raises: TypeError, ConfigError, and what the connection raises.
    """
    kind = kind_of(connection, is_async=False)
    kind.run(connection, schema(kind.dialect(connection)), ())


async def create_async(connection: object) -> None:
    """Do as ``create``, with the connections of ``publish_async``."""
    kind = kind_of(connection, is_async=True)
    await kind.run(connection, schema(kind.dialect(connection)), ())
