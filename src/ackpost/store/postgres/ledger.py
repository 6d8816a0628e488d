"""The writer's side of the database: its connection, the positions it gives, what it remembers between commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ackpost.store.postgres.connection import Connection

Row = Any
"""``asyncpg.Record``: a tuple that knows its columns' names."""

DAY_MS: Final = 24 * 3600 * 1000
KEPT_DAY: Final = -1
"""Where what outlives its day lies."""

SLOT_BITS: Final = 6
COUNTER_BITS: Final = 14
COUNTER_END: Final = 1 << COUNTER_BITS
_SLOT_MASK: Final = (1 << SLOT_BITS) - 1
_BOUND_STEP_MS: Final = 1000


def insert_sql(table: str, columns: str, tail: str = "", *, first: int = 1) -> str:
    """Give an ``INSERT`` of any number of rows: one array a column, bound from ``$first`` on.

    ``columns`` names them with their types (``position bigint, code text``); ``tail`` is what follows (``ON CONFLICT
    …``).
    """
    named = [column.split() for column in columns.split(",")]
    names = ", ".join(name for name, _ in named)
    arrays = ", ".join(f"${number}::{kind}[]" for number, (_, kind) in enumerate(named, start=first))
    # Names of tables and columns are this package's own; every value is bound.
    return f"INSERT INTO {table} ({names}) SELECT * FROM unnest({arrays}) {tail}"  # noqa: S608 - no value in it


class Insert:
    """``INSERT`` of rows given one by one; see ``insert_sql``."""

    __slots__ = ("sql",)

    def __init__(self, table: str, columns: str, tail: str = "") -> None:
        self.sql = insert_sql(table, columns, tail)

    async def rows(self, ledger: Ledger, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows."""
        if rows:
            await ledger.execute(self.sql, *zip(*rows, strict=True))


class Ledger:
    """What one commit works with.

    ``last_position`` is the last position given, ``slot`` the part of each that no other living node has. ``versions``
    are the routing versions that this transaction has seen, by tenant; None: there is no such tenant. Days from
    ``oldest_day`` to ``newest_day`` have partitions. ``…_looked_at`` say where retention's scan goes on.

    Where nodes share the database, ``floor_ms`` is its time when this commit got its fence: no position of the commit
    lies below, so that whoever waits for the commits under way knows below which time nothing will come any more.
    """

    __slots__ = (
        "_bound", "connection", "events_looked_at", "floor_ms", "incarnation", "is_shared", "keys_looked_at",
        "last_position", "newest_day", "node", "oldest_day", "outbox_table", "salt", "slot", "stored_bound",
        "uids_looked_at", "versions",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.salt = 0
        self.node = ""
        self.incarnation = 0
        self.slot = 0
        self.is_shared = False
        self.floor_ms = 0
        self.last_position = 0
        self.versions: dict[int, int | None] = {}
        self.oldest_day = 0
        self.newest_day = 0
        self.events_looked_at = 0
        self.keys_looked_at = 0
        self.uids_looked_at = 0
        self.outbox_table = ""
        self._bound = 0
        self.stored_bound = 0

    def adopt(self, *, node: str, incarnation: int, slot: int, position_bound: int) -> None:
        """Begin as owner; no position up to ``position_bound`` is given again with this slot."""
        self.node, self.incarnation, self.slot = node, incarnation, slot
        self.last_position = self._bound = self.stored_bound = position_bound

    async def execute(self, sql: str, *values: Any) -> int:
        """Run one statement; give the number of rows that it wrote."""
        status: str = await self.connection.execute(sql, *values)
        last = status.rpartition(" ")[2]
        return int(last) if last.isdigit() else 0

    async def one(self, sql: str, *values: Any) -> Row | None:
        """Give the first row."""
        return await self.connection.fetchrow(sql, *values)

    async def all(self, sql: str, *values: Any) -> list[Row]:
        """Give all rows."""
        rows: list[Row] = await self.connection.fetch(sql, *values)
        return rows

    # ---- positions

    def allocate(self, count: int, now_ms: int | None) -> int:
        """Give the first of ``count`` consecutive new positions; without a time, right behind the last one.

        All of them lie in one millisecond's share of this node's slot; where that has too few left, in the next one's.
        """
        assert count <= COUNTER_END, "more positions than a millisecond has"
        first = self.last_position + 1
        least_ms = max(now_ms or 0, self.floor_ms)
        if least_ms:
            first = max(first, least_ms << 20 | self.slot << COUNTER_BITS)
        counter = first & (COUNTER_END - 1)
        if first >> COUNTER_BITS & _SLOT_MASK != self.slot or counter + count > COUNTER_END:
            first = ((first >> 20) + 1) << 20 | self.slot << COUNTER_BITS
        self.last_position = first + count - 1
        if self.last_position > self._bound:
            self._bound = ((self.last_position >> 20) // _BOUND_STEP_MS + 1) * _BOUND_STEP_MS << 20
        return first

    @property
    def end_mark(self) -> int:
        """What is noted of a delivery that ends in this commit: all that is made later lies above."""
        return max(self.last_position, self.floor_ms << 20)

    async def bound_of_all(self) -> int:
        """Give a position above each that any node has given and committed."""
        row = await self.one("SELECT max(position_bound) FROM position_slot")
        return max(self.last_position, 0 if row is None else row[0]) + 1

    async def store_bound(self) -> None:
        """Write the bound before the commit that passes it, at most once a second: a crash forgets no position."""
        if self._bound != self.stored_bound:
            sql = "UPDATE position_slot SET position_bound = $1 WHERE slot = $2"
            await self.execute(sql, self._bound, self.slot)

    def mark(self) -> tuple[int, int]:
        """Give what to return to with ``restore`` when an operation is refused."""
        return self.last_position, self._bound

    def restore(self, mark: tuple[int, int]) -> None:
        """Return to ``mark``: the operation's savepoint was rolled back."""
        self.last_position, self._bound = mark
        self.versions.clear()

    def committed(self) -> None:
        """Note that the transaction is durable."""
        self.stored_bound = self._bound

    def failed(self, newest_day: int) -> None:
        """Forget what the transaction may not have stored. Positions are not given again: it may have stored them."""
        self._bound = self.stored_bound
        if self.last_position > self._bound:
            self._bound = ((self.last_position >> 20) // _BOUND_STEP_MS + 1) * _BOUND_STEP_MS << 20
        self.newest_day = newest_day
        self.events_looked_at = self.keys_looked_at = self.uids_looked_at = 0
        self.versions.clear()

    # ---- days

    def day_of(self, event: int) -> int:
        """Give the day in whose partition an event's rows lie."""
        day = (event >> 20) // DAY_MS
        return day if day >= self.oldest_day else KEPT_DAY

    # ---- routing versions (rule E10)

    async def load_versions(self, tenants: Iterable[int]) -> None:
        """Read the routing versions of those tenants that this transaction has not read yet."""
        missing = sorted(set(tenants) - self.versions.keys())
        if missing:
            self.versions.update(dict.fromkeys(missing))
            sql = "SELECT position, routing_version FROM tenant WHERE position = ANY($1) AND NOT deleted"
            self.versions.update(await self.all(sql, missing))

    async def routing_version(self, tenant: int) -> int | None:
        """Give a live tenant's routing version."""
        await self.load_versions([tenant])
        return self.versions[tenant]

    async def raise_routing_version(self, tenant: int) -> None:
        """Make every accept of the tenant that was routed before now route again."""
        self.versions.pop(tenant, None)
        await self.execute("UPDATE tenant SET routing_version = routing_version + 1 WHERE position = $1", tenant)
