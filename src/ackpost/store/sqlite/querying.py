"""Building the WHERE of lists: conditions and their values together, so that no value ever becomes SQL text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw
import msgspec

from ackpost.core.matching import RESERVED_PREFIX
from ackpost.ports.store import Page

_encode = msgspec.json.Encoder().encode

_END: Final = (1 << 63) - 1


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
            listed = "IN (SELECT value FROM json_each(?))"
            self.add(f"{column} {listed}", _encode(values).decode())

    def types(self, column: str, patterns: Sequence[str] | None) -> None:
        """Add that a type matches one of the patterns, as ``core.matching`` does."""
        if patterns is None:
            return
        parts: list[str] = []
        for pattern in patterns:
            if pattern == "*":
                parts.append(f"substr({column}, 1, {len(RESERVED_PREFIX)}) <> ?")
                self.values.append(RESERVED_PREFIX)
            elif pattern.endswith(".*"):
                parts.append(f"(substr({column}, 1, ?) = ? AND length({column}) > ?)")
                self.values += (len(pattern) - 1, pattern[:-1], len(pattern) - 1)
            else:
                parts.append(f"{column} = ?")
                self.values.append(pattern)
        self._conditions.append(f"({' OR '.join(parts)})" if parts else "0")

    def span(self, column: str, page: Page, *, timed: bool = True) -> None:
        """Add the page's place in the order of positions and, where ``timed``, its span of time."""
        low, high = 0, _END
        if page.after is not None:
            if page.ascending:
                low = page.after + 1
            else:
                high = page.after - 1
        if timed and page.since_ms is not None:
            low = max(low, page.since_ms << 20)
        if timed and page.until_ms is not None:
            high = min(high, (page.until_ms << 20) - 1)
        self.add(f"{column} BETWEEN ? AND ?", low, high)

    @property
    def sql(self) -> str:
        """The text behind WHERE."""
        return " AND ".join(self._conditions) if self._conditions else "1"


def direction(page: Page) -> str:
    """Give the word behind ORDER BY position."""
    return "ASC" if page.ascending else "DESC"


def rows_of(connection: apsw.Connection, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Give all rows of a query."""
    return connection.execute(sql, values).fetchall()


def frontier(connection: apsw.Connection, inner: str, values: Sequence[Any], rows_max: int) -> int | None:
    """Give the last position looked at when the scan bound, not the end of the table, ended a scan.

    ``inner`` selects positions in order, without LIMIT.
    """
    rows = rows_of(connection, f"{inner} LIMIT 2 OFFSET ?", (*values, rows_max - 1))
    position: int | None = rows[0][0] if len(rows) == 2 else None
    return position


def is_short(connection: apsw.Connection, sql: str, values: Sequence[Any], rows_max: int) -> bool:
    """Say whether a query gives at most ``rows_max`` rows."""
    return not rows_of(connection, f"SELECT 1 FROM ({sql}) LIMIT 1 OFFSET ?", (*values, rows_max))  # noqa: S608 - constants
