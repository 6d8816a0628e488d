"""What the relay needs of an application's database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec

from ackpost.core.outbox import TABLE, OutboxRow
from ackpost.core.times import rfc3339_ms
from ackpost.errors import AckpostError

NO_TABLE: Final = f"there is no table {TABLE}: make it with the statement of `ackpost outbox schema`"


class SourceFailed(AckpostError):
    """The application's database did not do what was asked; it may be asked again."""


class Waiting(msgspec.Struct):
    """The oldest rows, and the time by the same database's clock."""

    rows: list[OutboxRow]
    now_ms: int


class Refused(msgspec.Struct):
    """A row that was set aside, and why."""

    row: OutboxRow
    reason: str


class Turn(Protocol):
    """A span in which this relay moves rows. What it changes is durable when it ends without an error."""

    async def waiting(self, rows_max: int, data_bytes_max: int) -> Waiting:
        """Give the oldest rows that are not set aside, at least one however large."""

    async def remove(self, numbers: Sequence[int]) -> None:
        """Delete rows that were moved."""

    async def set_aside(self, reasons: dict[int, str]) -> None:
        """Keep rows as refused, each with its reason."""


class Source(Protocol):
    """An application's database. Every call raises SourceFailed; the next one connects anew."""

    def turn(self) -> AbstractAsyncContextManager[Turn | None]:
        """Begin to move; None when another relay is doing so."""

    async def refused(self, rows_max: int) -> list[Refused]:
        """Give the rows that were set aside, oldest first."""

    async def renew(self, rows: Sequence[OutboxRow]) -> None:
        """Let rows that were set aside wait again, as if written now; they tell when they occurred."""

    async def close(self) -> None:
        """Let go of the database."""


def occurred_at(row: OutboxRow) -> str:
    """Give when a row's event occurred, which was not told if it was when it was written."""
    return rfc3339_ms(row.created_ms) if row.occurred_at is None else row.occurred_at
