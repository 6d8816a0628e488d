"""The look into an outbox that is missing, or that the database does not give."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ackpost.core.outbox import OutboxRow
from ackpost.errors import StoreError
from ackpost.service.outbox import ABSENT_S, LOOK_S, PickUp
from ackpost.service.publish import Publisher
from ackpost.service.telemetry import Counters
from ackpost.service.tenants import TenantDirectory


class _Outbox:
    """An empty one. Implements ``ports.outbox.Outbox``."""

    def __init__(self) -> None:
        self.is_there = False
        self.is_broken = False
        self.calls: list[str] = []

    async def outbox_is_there(self) -> bool:
        self.calls.append("is there")
        return self.is_there

    async def outbox_waiting(self, rows_max: int, data_bytes_max: int) -> list[OutboxRow]:
        self.calls.append("look")
        if self.is_broken:
            raise StoreError("no such column")
        return []

    async def set_outbox_aside(self, reasons: dict[int, str]) -> None:
        raise AssertionError("there is nothing to set aside")


class _Telemetry(Counters):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def note(self, name: str, **fields: object) -> None:
        self.told.append(name)


def test_an_outbox_may_be_missing_or_broken_for_a_while() -> None:
    """A missing one is looked for now and then; each look costs one statement; trouble is told once, and its end."""
    outbox, telemetry = _Outbox(), _Telemetry()
    pick_up = PickUp(outbox, cast("TenantDirectory", None), cast("Publisher", None), telemetry)

    async def main() -> None:
        assert await pick_up.step() == ABSENT_S
        outbox.is_there = True
        assert [await pick_up.step() for _ in range(3)] == [LOOK_S] * 3
        assert outbox.calls == ["is there", "is there", "look", "look", "look"]
        outbox.is_broken = True
        for _ in range(2):
            with pytest.raises(StoreError):
                await pick_up.step()
        outbox.is_broken = False
        assert await pick_up.step() == LOOK_S

    asyncio.run(main())
    assert telemetry.told == ["outbox.trouble", "outbox.recovered"]
