"""Picking up events that an application wrote into its outbox, in the database that it shares with Ackpost.

Rows are read, then accepted and deleted in one commit. Each look takes the oldest rows that are visible, so one whose
transaction commits late is only found later; and as nothing but the table itself says what was picked up, it does not
matter which node looks, or whether two do.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ackpost.core.limits import EventInput
from ackpost.core.outbox import OutboxRow, after_refusal, check_row
from ackpost.errors import RequestError, StoreError, Unavailable
from ackpost.ports.outbox import Outbox
from ackpost.ports.telemetry import Telemetry
from ackpost.service.publish import Publisher
from ackpost.service.tenants import DEFAULT, TenantDirectory

ROWS_MAX: Final = 500
DATA_BYTES_MAX: Final = 2 * 1024 * 1024
LOOK_S: Final = 1.0
"""The pause after a look that found nothing: one statement a second in the whole cluster."""

ABSENT_S: Final = 10.0


class PickUp:
    """Looks into one table. ``step`` is called again and again by the node that does so for all."""

    def __init__(self, outbox: Outbox, tenants: TenantDirectory, publisher: Publisher, telemetry: Telemetry) -> None:
        self._outbox = outbox
        self._tenants = tenants
        self._publisher = publisher
        self._telemetry = telemetry
        self._is_there = False
        self._trouble: str | None = None

    async def step(self) -> float:
        """Pick up what is found in one look, and say how long to pause.

        Raises: StoreError, Unavailable; then the rows wait.
        """
        try:
            if not self._is_there:
                self._is_there = await self._outbox.outbox_is_there()
                if not self._is_there:
                    return ABSENT_S
            rows = await self._outbox.outbox_waiting(ROWS_MAX, DATA_BYTES_MAX)
            self._tell(None)
            if not rows:
                return LOOK_S
            refused = await self._publish_all(rows)
            if refused:
                await self._outbox.set_outbox_aside(refused)
                self._telemetry.note("outbox.refused", rows=len(refused), reason=next(iter(refused.values())))
        except StoreError as error:
            self._is_there = False
            self._tell(str(error))
            raise
        return 0.0

    async def _publish_all(self, rows: list[OutboxRow]) -> dict[int, str]:
        """Publish rows in their order, and give why some are refused."""
        refused: dict[int, str] = {}
        events: dict[int, EventInput] = {}
        by_tenant: dict[str, list[OutboxRow]] = {}
        for row in rows:
            try:
                events[row.number] = check_row(row, self._publisher.limits)
            except RequestError as error:
                refused[row.number] = f"{error.code}: {error}"
            else:
                by_tenant.setdefault(row.tenant or DEFAULT, []).append(row)
        for name, ours in by_tenant.items():
            parts = deque([ours])
            while parts:
                part = parts.popleft()
                try:
                    tenant = await self._tenants.by_name(name)
                    numbers = tuple(row.number for row in part)
                    await self._publisher.take_over(tenant.position, [events[one] for one in numbers], numbers)
                except Unavailable:
                    raise
                except RequestError as error:
                    named, again = after_refusal(part, error.code, error.detail, error.errors)
                    refused.update(named)
                    parts.extendleft(reversed(again))
        return refused

    def _tell(self, trouble: str | None) -> None:
        if (trouble is None) != (self._trouble is None):
            self._telemetry.note("outbox.trouble" if trouble else "outbox.recovered", reason=trouble or self._trouble)
        self._trouble = trouble
