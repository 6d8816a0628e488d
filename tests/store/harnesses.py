"""The stores that the contract and the differential test are run on."""

from __future__ import annotations

from ackpost.ports.store import Store
from ackpost.testing.reference import ReferenceStore, State
from ackpost.testing.store_contract import StoreHarness


class ReferenceHarness:
    """The oracle itself."""

    name = "reference"

    def make(self, *, scan_rows_max: int = 10_000) -> Store:
        """A store over a new state."""
        return ReferenceStore(State(), scan_rows_max=scan_rows_max)

    def reopen(self, store: Store) -> Store:
        """Another store over the same state."""
        assert isinstance(store, ReferenceStore)
        return ReferenceStore(store.durable)

    async def dispose(self, store: Store) -> None:
        """Nothing is left behind by memory."""


HARNESSES: tuple[type[StoreHarness], ...] = (ReferenceHarness,)
