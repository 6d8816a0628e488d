"""What a store holds, in a form that every kind of store can read and write: for moving from one to another. No SQL.

A row is a tuple of the columns named here, as integers, floats, texts, bytes and None. What only one kind of store has
(days, partitions, copies of what a document says) is not among them: the other one makes its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec

Row = tuple[Any, ...]
Batches = AsyncIterator[list[Row]]

BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_ROWS: Final = 4000
_ROWS_FIRST: Final = 50
_SUM_MASK: Final = (1 << 64) - 1


class Table(msgspec.Struct, frozen=True):
    """A table's name and columns; ``payload`` names the one whose bytes count when memory is bounded."""

    name: str
    columns: tuple[str, ...]
    payload: str | None = None


def _table(name: str, columns: str, payload: str | None = None) -> Table:
    return Table(name, tuple(columns.split()), payload)


TABLES: Final = (
    _table("tenant", "position uid deleted routing_version document"),
    _table("api_key", "position tenant digest last_used_ms document"),
    _table(
        "endpoint",
        "position tenant uid url state circuit rev hears paused_since_ms paused_total_ms document",
    ),
    _table("endpoint_version", "endpoint version tenant document"),
    _table("key_state", "id tenant key last_sequence last_event"),
    _table(
        "event",
        "position tenant type fanout key_id sequence occurred_at_ms uid channels metadata data",
        "data",
    ),
    _table("event_uid", "tenant uid event digest"),
    _table("idempotency", "tenant key created_ms digest result", "result"),
    _table(
        "delivery",
        "position event_offset tenant endpoint rev due_ms age_start_ms pin trigger key_id waiting klass round number"
        " round_attempts crashes code status_code",
    ),
    _table("late_delivery", "event delivery tenant"),
    _table(
        "dead_letter",
        "position event_offset tenant endpoint trigger reason round number code status_code ended_ms ended_mark",
    ),
    _table("key_hold", "endpoint key_id delivery tenant event"),
    _table(
        "history",
        "position event_offset tenant endpoint ended_ms status reason trigger round number code status_code ended_mark"
        " attempt_position started_ms duration_ms detail body",
        "body",
    ),
    _table(
        "attempt",
        "position delivery round number event tenant endpoint trigger code status_code started_ms duration_ms detail"
        " body",
        "body",
    ),
    _table("job", "position tenant open document"),
)
"""In the order in which they are copied."""


class Facts(msgspec.Struct, frozen=True):
    """What holds for a store as a whole. No position above ``position_bound`` was ever given.

    ``events_by_day``: how many events were accepted on each day since the epoch (UTC).
    """

    salt: int
    incarnation: int
    position_bound: int
    events_by_day: dict[int, int]


class Source(Protocol):
    """A store that is read at one moment, by its owner."""

    async def begin(self) -> Facts:
        """Hold that moment, and tell of the store. Raises: StoreError."""

    async def count(self, table: Table) -> int:
        """Count the rows of a table."""

    def rows(self, table: Table) -> Batches:
        """Read a table, in no order that matters."""

    async def end(self) -> None:
        """Let go; again does nothing."""


class Target(Protocol):
    """A store in the making: it is none before ``finish``, and no server takes it for one."""

    async def begin(self, facts: Facts, now_ms: int) -> None:
        """Take possession. Raises: StoreLocked (it is in use), StoreError (it holds something)."""

    async def write(self, table: Table, batches: Batches) -> None:
        """Write all of a table."""

    def rows(self, table: Table) -> Batches:
        """Read back what was written."""

    async def finish(self) -> None:
        """Make it a store, durably."""

    async def abandon(self) -> None:
        """Leave it behind, unusable but for another copy; after ``finish`` does nothing."""


class Tally:
    """Counts rows, and sums up what is in them whatever their order: two tables with the same tally hold the same."""

    __slots__ = ("_encode", "rows", "sum")

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self.rows = 0
        self.sum = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Take in rows."""
        encode, total, count = self._encode, 0, 0
        for row in rows:
            total += int.from_bytes(blake2b(encode(row), digest_size=8).digest(), "little")
            count += 1
        self.rows += count
        self.sum = (self.sum + total) & _SUM_MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and (self.rows, self.sum) == (other.rows, other.sum)

    __hash__ = None  # type: ignore[assignment] # it changes


class Pace:
    """How many rows to read at once: few where they are long, so that a batch has about ``BATCH_BYTES``."""

    __slots__ = ("_column", "rows")

    def __init__(self, table: Table) -> None:
        self._column = None if table.payload is None else table.columns.index(table.payload)
        self.rows = _BATCH_ROWS if self._column is None else _ROWS_FIRST

    def note(self, batch: list[Row]) -> None:
        """Learn from a batch; the number at most doubles, as rows may become longer."""
        if self._column is not None and batch:
            size_bytes = sum(len(row[self._column] or b"") for row in batch) + 200 * len(batch)
            fitting = BATCH_BYTES * len(batch) // size_bytes
            self.rows = max(1, min(fitting, 2 * self.rows, _BATCH_ROWS))
