"""Day partitions: made ahead of their day, and not in anybody's way (rule E14).

A partition is made as a table of its own and then attached, which lets reads and writes go on; ``CREATE TABLE …
PARTITION OF`` would stop them.
"""

from __future__ import annotations

from typing import Final

from ackpost.store.postgres.ledger import Ledger

TABLES: Final = ("event", "history", "attempt")
DAYS_AHEAD: Final = 1

# One transaction at a time changes what partitions there are. The number is arbitrary.
LOCK_DAYS: Final = "SELECT pg_advisory_xact_lock(hashtext(current_schema()), 41636)"
SELECT_DAYS: Final = r"""
SELECT substring(c.relname FROM '\d+$')::integer AS day FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'event'::regclass AND c.relname ~ '^event_\d+$' ORDER BY day
"""


async def ensure_day(ledger: Ledger, day: int) -> None:
    """Make sure, inside the transaction, that rows of ``day`` have a place."""
    if day > ledger.newest_day:
        await make_days(ledger, day)


async def make_days(ledger: Ledger, day: int) -> None:
    """Make the partitions of ``day`` and the days that follow, where they are missing."""
    if await _missing(ledger, day):
        await ledger.one(LOCK_DAYS)
        # Another node may have been faster.
        for one in await _missing(ledger, day):
            await ledger.execute("".join(
                f"CREATE TABLE {table}_{one} (LIKE {table} INCLUDING ALL);"
                f"ALTER TABLE {table} ATTACH PARTITION {table}_{one} FOR VALUES FROM ({one}) TO ({one + 1});"
                for table in TABLES
            ))  # fmt: skip
    ledger.newest_day = max(ledger.newest_day, day)


async def _missing(ledger: Ledger, day: int) -> list[int]:
    made = {row[0] for row in await ledger.all(SELECT_DAYS)}
    return [one for one in range(day, day + DAYS_AHEAD + 1) if one not in made]
