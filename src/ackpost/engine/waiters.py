"""Who waits for an attempt of a delivery (``?wait_s=``), on whichever node it is made."""

from __future__ import annotations

import asyncio
from typing import Final

from ackpost.ports.clock import Clock
from ackpost.ports.store import Store

FOREIGN_LOOK_S: Final = 0.25


class AttemptWaiters:
    """``shared``: other nodes may make the attempt, so the store is asked now and then."""

    def __init__(self, store: Store, clock: Clock, *, shared: bool) -> None:
        self._store = store
        self._clock = clock
        self._shared = shared
        self._waiting: dict[int, list[asyncio.Future[bool]]] = {}

    def __len__(self) -> int:
        """Deliveries that somebody waits for."""
        return len(self._waiting)

    async def wait(self, delivery: int, timeout_s: float) -> bool:
        """Wait until an attempt of this delivery has been recorded; False when the time is over first."""
        if not self._shared:
            return await self._wait_here(delivery, timeout_s)
        end_s = self._clock.monotonic() + timeout_s
        while (left_s := end_s - self._clock.monotonic()) > 0:
            if await self._wait_here(delivery, min(left_s, FOREIGN_LOOK_S)):
                return True
            stored = await self._store.delivery(None, delivery)
            if stored is None or stored.attempt_count:
                return stored is not None
        return False

    async def _wait_here(self, delivery: int, timeout_s: float) -> bool:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(delivery, []).append(future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting.get(delivery)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._waiting[delivery]

    def recorded(self, delivery: int) -> None:
        """An attempt was recorded here."""
        if self._waiting:
            for future in self._waiting.pop(delivery, ()):
                if not future.done():
                    future.set_result(True)
