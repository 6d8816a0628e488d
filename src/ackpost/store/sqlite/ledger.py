"""The writer's side of the database: its connection, the positions it gives, what it remembers between commits."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import apsw

Row = tuple[Any, ...]

_CHUNK_ROWS_MAX: Final = 64
_BINDINGS_MAX: Final = 4096
_BOUND_STEP_MS: Final = 1000


class Insert:
    """``INSERT`` of many rows by few statements: SQLite runs one for each power of two up to 64 rows.

    ``tail`` is what follows the values (``ON CONFLICT …``). Few statements matter twice: each costs a hand-over of the
    interpreter's lock, and apsw keeps them prepared by their text.
    """

    __slots__ = ("_sizes", "_statements", "_width")

    def __init__(self, table: str, columns: str, tail: str = "") -> None:
        self._width = columns.count(",") + 1
        one = f"({', '.join('?' * self._width)})"
        self._sizes: list[int] = []
        self._statements: dict[int, str] = {}
        size = _CHUNK_ROWS_MAX
        while size:
            if size * self._width <= _BINDINGS_MAX:
                self._sizes.append(size)
                rows = ", ".join([one] * size)
                # Names of tables and columns are this package's own; every value is bound.
                self._statements[size] = f"INSERT INTO {table} ({columns}) VALUES {rows} {tail}"  # noqa: S608 - no value in it
            size >>= 1

    def run(self, connection: apsw.Connection, flat: list[Any]) -> None:
        """Insert the rows whose values lie one after another in ``flat``."""
        width, start, left = self._width, 0, len(flat) // self._width
        for size in self._sizes:
            while left >= size:
                end = start + size * width
                connection.execute(self._statements[size], flat if end - start == len(flat) else flat[start:end])
                start, left = end, left - size
            if not left:
                return

    def rows(self, connection: apsw.Connection, rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows given one by one."""
        self.run(connection, list(chain.from_iterable(rows)))


def integers(values: Iterable[int]) -> Any:
    """Bind many integers as one parameter: ``… IN (SELECT value FROM carray(?))``."""
    # An empty array has no memory to bind; no row has this number.
    return apsw.carray(array("q", values) or array("q", (-1,)))


class Ledger:
    """What one commit works with.

    ``last_position`` is the last position given; ``versions`` are routing versions by tenant, valid because nobody else
    writes this database. Both are forgotten when a commit fails. ``…_looked_at`` say where retention's scan goes on.
    """

    __slots__ = (
        "_bound", "connection", "events_looked_at", "incarnation", "keys_looked_at", "last_position", "node", "salt",
        "versions",
    )  # fmt: skip

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.salt = 0
        self.node = ""
        self.incarnation = 0
        self.last_position = 0
        self.versions: dict[int, int] = {}
        self.events_looked_at = 0
        self.keys_looked_at = 0
        self._bound = 0

    def adopt(self, *, node: str, incarnation: int, salt: int, position_bound: int) -> None:
        """Begin as owner; no position up to ``position_bound`` is given again."""
        self.node, self.incarnation, self.salt = node, incarnation, salt
        self.last_position = self._bound = position_bound

    def execute(self, sql: str, bindings: Sequence[Any] = ()) -> apsw.Cursor:
        """Run one statement."""
        return self.connection.execute(sql, bindings)

    def one(self, sql: str, bindings: Sequence[Any] = ()) -> Row | None:
        """Give the first row."""
        return self.connection.execute(sql, bindings).fetchone()

    def all(self, sql: str, bindings: Sequence[Any] = ()) -> list[Row]:
        """Give all rows."""
        return self.connection.execute(sql, bindings).fetchall()

    def allocate(self, count: int, now_ms: int | None) -> int:
        """Give the first of ``count`` consecutive new positions; without a time, right behind the last one.

        The bound in ``meta`` is raised at most once a second, so that a crash forgets no position and an accept does
        not pay for it.
        """
        first = self.last_position + 1
        if now_ms is not None and now_ms << 20 > first:
            first = now_ms << 20
        self.last_position = first + count - 1
        if self.last_position > self._bound:
            self._bound = ((self.last_position >> 20) // _BOUND_STEP_MS + 1) * _BOUND_STEP_MS << 20
            self.execute("UPDATE meta SET position_bound = ?", (self._bound,))
        return first

    def mark(self) -> tuple[int, int]:
        """Give what to return to with ``restore`` when the work is rolled back."""
        return self.last_position, self._bound

    def restore(self, mark: tuple[int, int]) -> None:
        """Return to ``mark``: the transaction was rolled back."""
        self.last_position, self._bound = mark
        self.versions.clear()

    def routing_version(self, tenant: int) -> int | None:
        """Give a live tenant's routing version."""
        version = self.versions.get(tenant)
        if version is None:
            row = self.one("SELECT routing_version FROM tenant WHERE position = ? AND deleted = 0", (tenant,))
            if row is None:
                return None
            version = self.versions[tenant] = row[0]
        return version

    def raise_routing_version(self, tenant: int) -> None:
        """Make every accept of the tenant that was routed before now route again (rule E10)."""
        self.versions.pop(tenant, None)
        self.execute("UPDATE tenant SET routing_version = routing_version + 1 WHERE position = ?", (tenant,))
