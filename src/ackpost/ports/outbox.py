"""The outbox of an application that shares the store's database: rows are read here and deleted by the accept."""

from __future__ import annotations

from typing import Protocol

from ackpost.core.outbox import OutboxRow


class Outbox(Protocol):
    """A table that others write; each call raises StoreError. ``Accept.outbox`` names rows by their numbers."""

    async def outbox_is_there(self) -> bool:
        """Whether the table exists. Raises StoreError, too, when it may not be read, changed or deleted from."""

    async def outbox_waiting(self, rows_max: int, data_bytes_max: int) -> list[OutboxRow]:
        """Give the oldest visible rows that are not set aside; at least one, however large. One round trip."""

    async def set_outbox_aside(self, reasons: dict[int, str]) -> None:
        """Keep rows as refused, each with its reason."""
