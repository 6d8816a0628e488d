"""Keeps a node's lease from a thread of its own, which a busy event loop cannot starve and a hung one cannot use.

It renews only if the event loop beat within a third of the lease. Validity counts from before the request that renewed
it, less a margin, on a clock that goes on while the machine sleeps (rule E3).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import asyncpg

from ackpost.errors import StoreError
from ackpost.store.postgres.connection import Connect, Connection, Place, connect, on_one_session
from ackpost.store.postgres.faults import LOST
from ackpost.store.postgres.sharing import RENEW

RENEWALS: Final = 4
"""How often a lease is renewed in its time."""
_MARGIN: Final = 1 / 8
_RETRY_S: Final = 0.5
_JOIN_S: Final = 2.0


class LeaseKeeper:
    """Implements ``ports.cluster.Lease``. ``boot_s`` counts while the machine sleeps, ``monotonic_s`` need not.

    ``start`` makes the thread; whoever wants none lets ``run`` run somewhere else.
    """

    def __init__(
        self,
        place: Place,
        *,
        node: str,
        lease_ms: int,
        boot_s: Callable[[], float],
        monotonic_s: Callable[[], float],
        connect: Connect = connect,
    ) -> None:
        self._place, self._node, self._connect = place, node, connect
        self._lease_ms = lease_ms
        self._lease_s = lease_ms / 1000
        self._boot_s, self._monotonic_s = boot_s, monotonic_s
        self._incarnation = 0
        self._valid_until_s = 0.0
        self._renewed_at_s = boot_s()
        self._beat_at_s = boot_s()
        self._offset_ms: int | None = None
        self._lost = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------ ports.cluster.Lease

    @property
    def lost(self) -> bool:
        """A renewal found that this incarnation was declared dead."""
        return self._lost

    def is_valid(self) -> bool:
        """Whether nobody else can own this node's partitions yet, with a margin."""
        return self._boot_s() < self._valid_until_s

    def renewed_ago_s(self) -> float:
        """Seconds since the last renewal was asked for that succeeded."""
        return self._boot_s() - self._renewed_at_s

    def clock_offset_ms(self) -> int | None:
        """The database's clock minus monotonic time as last measured."""
        return self._offset_ms

    def beat(self) -> None:
        """The event loop lives."""
        self._beat_at_s = self._boot_s()

    def now_s(self) -> float:
        """The lease's own clock."""
        return self._boot_s()

    def adopt(self, incarnation: int, asked_at_s: float) -> None:
        """Keep the lease of this incarnation, that was asked for at that time."""
        with self._lock:
            self._incarnation, self._lost = incarnation, False
            self._renewed(asked_at_s)

    # ------------------------------------------------------------ thread

    def start(self) -> None:
        """Begin to renew."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self.run()), name="lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; the lease is given up by whoever closes the store."""
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _renewed(self, asked_at_s: float) -> None:
        self._renewed_at_s = asked_at_s
        self._valid_until_s = asked_at_s + self._lease_s * (1 - _MARGIN)

    async def run(self) -> None:
        """Renew until stopped."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        connection: Connection | None = None
        while not self._stop.is_set():
            pause_s = self._lease_s / RENEWALS
            if not self._lost and self._boot_s() - self._beat_at_s <= self._lease_s / 3:
                try:
                    async with asyncio.timeout(pause_s):
                        if connection is None or connection.is_closed():
                            connection = await self._connect(self._place)
                        await self._renew(connection)
                except (StoreError, asyncpg.PostgresError, *LOST):
                    if connection is not None:
                        connection.terminate()
                    connection, pause_s = None, _RETRY_S
            else:
                pause_s = _RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
        if connection is not None:
            connection.terminate()

    async def _renew(self, connection: Connection) -> None:
        incarnation = self._incarnation
        asked_at_s, asked_s = self._boot_s(), self._monotonic_s()
        async with on_one_session(self._place, connection):
            database_ms = await connection.fetchval(RENEW, self._node, incarnation, self._lease_ms)
        answered_s = self._monotonic_s()
        with self._lock:
            if incarnation != self._incarnation:
                return
            if database_ms is None:
                self._lost, self._valid_until_s = True, 0.0
                return
            self._renewed(asked_at_s)
            self._offset_ms = database_ms - round((asked_s + answered_s) * 500)
