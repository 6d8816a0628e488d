"""The schema's versions: additive steps, each in a transaction of its own, one node at a time."""

from __future__ import annotations

from importlib import resources
from typing import Final

from ackpost.errors import SchemaMismatch
from ackpost.store.postgres.connection import Connection, quoted

SCHEMA_VERSION: Final = 1
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '2s'"
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext($1), 41634)"
_VERSION_MIN: Final = 140_000


async def migrate(connection: Connection, schema: str) -> None:
    """Bring the schema to this code's version.

    A lock that others hold is waited for 2 s at most, so that a step never makes a queue of everybody else's
    statements; then the start fails, and may be tried again. Raises: SchemaMismatch when the schema is newer.
    """
    async with connection.transaction():
        number = await connection.fetchval("SELECT current_setting('server_version_num')::integer")
        found = await _version(connection, schema)
    if number < _VERSION_MIN:
        raise SchemaMismatch(f"PostgreSQL {number // 10_000} is too old; Ackpost needs 14 or newer.")
    if found > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"The database's schema has version {found}, this program knows {SCHEMA_VERSION}: it is older than the one"
            " that used the database before."
        )
    for version in range(found + 1, SCHEMA_VERSION + 1):
        await _step(connection, schema, version)


async def _version(connection: Connection, schema: str) -> int:
    if await connection.fetchval("SELECT to_regclass($1)", f"{quoted(schema)}.schema_version") is None:
        return 0
    version: int = await connection.fetchval("SELECT version FROM schema_version")
    return version


async def _step(connection: Connection, schema: str, version: int) -> None:
    script = resources.files(__package__).joinpath("migrations", f"{version:04d}.sql").read_text(encoding="utf-8")
    async with connection.transaction():
        await connection.execute(_LOCK_TIMEOUT)
        await connection.execute(_LOCK, schema)
        if version == 1:
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
        # Another node may have been faster.
        if await _version(connection, schema) >= version:
            return
        if version == 1:
            await connection.execute("CREATE TABLE schema_version (version integer NOT NULL)")
            await connection.execute("INSERT INTO schema_version VALUES (0)")
        await connection.execute(script)
        await connection.execute("UPDATE schema_version SET version = $1", version)
