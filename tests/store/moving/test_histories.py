"""A copy is the same store: whatever is read of it or done to it has the same answer."""

from __future__ import annotations

import asyncio

import pytest

from ackpost.ports.store import Store
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.importing import PostgresImport
from ackpost.store.sqlite import SqliteStore
from ackpost.store.sqlite.export import SqliteRows
from ackpost.testing.store_contract import StoreHarness
from ackpost.wiring.copying import Compared, copy_rows
from tests.store.differential.race import Race
from tests.store.harnesses import InlineSqliteHarness, PostgresHarness, ReferenceHarness


class Move(Race):
    """A random history that begins in a file and goes on in a PostgreSQL."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, InlineSqliteHarness())
        self.left: list[tuple[StoreHarness, Store]] = []
        self.compared: list[Compared] = []

    async def run(self, steps: int, steps_after: int = 0) -> None:
        """Move after so many steps, look at everything, and go on."""
        await self._open()
        try:
            for _ in range(steps):
                await self._step()
            await self._move()
            await self._open()
            await self._look()
            for _ in range(steps_after):
                await self._step()
        finally:
            for store in (*self.old, self.store):
                await self.harness.dispose(store)
            for harness, store in self.left:
                await harness.dispose(store)

    async def _move(self) -> None:
        source = self.store
        assert isinstance(source, SqliteStore)
        await self.oracle.close()
        await source.close()
        self.left = [(self.harness, store) for store in (*self.old, source)]
        self.old = []
        self.harness = PostgresHarness()
        self.store = self.harness.make()
        assert isinstance(self.store, PostgresStore)
        rows = SqliteRows(source.path)
        self.compared = await copy_rows(
            rows, PostgresImport(self.store.place), now_ms=self.now_ms, on_rows=lambda *_: None, check=lambda: None
        )
        await rows.end()
        self.oracle = ReferenceHarness().reopen(self.oracle)
        self.history.append("moved")


@pytest.mark.parametrize("seed", range(4))
def test_a_history_goes_on(seed: int) -> None:
    """What random operations left in a file is read in PostgreSQL as it was, and goes on as if it had begun there."""
    move = Move(seed)
    asyncio.run(move.run(150, 30))
    assert [one for one in move.compared if not one.same or one.source != one.target] == []
