"""Building the WHERE of lists: conditions and their values together, so that no value ever becomes SQL text.

Texts are put together with ``?`` and numbered at the end (``$1``, ``$2``, …).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from ackpost.core.matching import RESERVED_PREFIX
from ackpost.ports.store import Page
from ackpost.store.postgres.ledger import DAY_MS

Reader = Any
"""A connection that reads (``asyncpg.Connection``)."""

_END: Final = (1 << 63) - 1

NOW_MS: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
"""The time of the database, at this very moment."""


class Where:
    """Conditions joined by AND, with their bindings in order."""

    __slots__ = ("_conditions", "values")

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self.values: list[Any] = []

    def add(self, condition: str, *values: Any) -> None:
        """Add a condition as it stands."""
        self._conditions.append(condition)
        self.values += values

    def equal(self, column: str, value: object) -> None:
        """Add equality, unless ``value`` is None."""
        if value is not None:
            self.add(f"{column} = ?", value)

    def any_of(self, column: str, values: Sequence[object] | None) -> None:
        """Add membership, unless ``values`` is None."""
        if values is not None:
            self.add(f"{column} = ANY(?)", values)

    def types(self, column: str, patterns: Sequence[str] | None) -> None:
        """Add that a type matches one of the patterns, as ``core.matching`` does."""
        if patterns is None:
            return
        parts: list[str] = []
        for pattern in patterns:
            if pattern == "*":
                parts.append(f"NOT starts_with({column}, ?)")
                self.values.append(RESERVED_PREFIX)
            elif pattern.endswith(".*"):
                parts.append(f"(starts_with({column}, ?) AND length({column}) > ?)")
                self.values += (pattern[:-1], len(pattern) - 1)
            else:
                parts.append(f"{column} = ?")
                self.values.append(pattern)
        self._conditions.append(f"({' OR '.join(parts)})" if parts else "false")

    def span(self, column: str, page: Page, *, timed: bool = True) -> None:
        """Add the page's place in the order of positions and, where ``timed``, its span of time."""
        low, high = 0, _END
        if page.after is not None:
            if page.ascending:
                low = page.after + 1
            else:
                high = page.after - 1
        if page.final_ms is not None:
            high = min(high, (page.final_ms << 20) - 1)
        if timed and page.since_ms is not None:
            low = max(low, page.since_ms << 20)
        if timed and page.until_ms is not None:
            high = min(high, (page.until_ms << 20) - 1)
        self.add(f"{column} BETWEEN ? AND ?", low, high)

    @property
    def sql(self) -> str:
        """The text behind WHERE."""
        return " AND ".join(self._conditions) if self._conditions else "true"


def event_of(delivery: str, event: str = "e") -> str:
    """Join a delivery's row with its event: the day lets PostgreSQL look into no other partition."""
    position = f"{delivery}.position - {delivery}.event_offset"
    return (
        f"{event}.position = {position}"
        f" AND ({event}.day = -1 OR {event}.day = (({position}) >> 20) / {DAY_MS})"
    )  # fmt: skip


def direction(page: Page) -> str:
    """Give the word behind ORDER BY position."""
    return "ASC" if page.ascending else "DESC"


@lru_cache(maxsize=1024)
def numbered(sql: str) -> str:
    """Number the places of values."""
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{text}" for number, text in enumerate(rest, start=1))


async def rows_of(connection: Reader, sql: str, values: Sequence[Any]) -> list[Any]:
    """Give all rows of a query with ``?``."""
    rows: list[Any] = await connection.fetch(numbered(sql), *values)
    return rows


async def frontier(connection: Reader, inner: str, values: Sequence[Any], rows_max: int) -> int | None:
    """Give the last position looked at when the scan bound, not the end of the table, ended a scan.

    ``inner`` selects positions in order, without LIMIT.
    """
    rows = await rows_of(connection, f"{inner} LIMIT 2 OFFSET ?", (*values, rows_max - 1))
    position: int | None = rows[0][0] if len(rows) == 2 else None
    return position


async def is_short(connection: Reader, sql: str, values: Sequence[Any], rows_max: int) -> bool:
    """Say whether a query gives at most ``rows_max`` rows."""
    return not await rows_of(connection, f"SELECT 1 FROM ({sql}) q LIMIT 1 OFFSET ?", (*values, rows_max))  # noqa: S608 - constants
