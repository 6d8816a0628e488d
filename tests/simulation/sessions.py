"""The database as a node's lease and hints reach it: sessions with latency, that can be cut, silent or deaf.

The real ``LeaseKeeper`` and ``NotifyWakeup`` run on them, inline: ``database.connect`` stands in for asyncpg's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import asyncpg

from ackpost.store.postgres.connection import COMMAND_TIMEOUT_S, CONNECT_TIMEOUT_S, Place
from ackpost.store.postgres.sharing import RENEW
from ackpost.testing.reference import State
from ackpost.testing.reference.sharing import renew
from tests.simulation.loop import Process, VirtualLoop, process_here

PLACE = Place("simulated", "ackpost")
Away = Literal["refused", "silent"]
Heard = Callable[[Any, int, str, object], None]


class Database:
    """One for a world. ``away``: how it is out of reach, by name of the process that asks.

    ``hint_s`` draws how long a hint takes, None: it is lost.
    """

    def __init__(self, loop: VirtualLoop, state: State, now_ms: Callable[[], int]) -> None:
        self._loop = loop
        self._sessions: list[Session] = []
        self.state = state
        self.now_ms = now_ms
        self.latency_s: Callable[[], float] = lambda: 0.001
        self.hint_s: Callable[[], float | None] = lambda: 0.001
        self.away: dict[str, Away] = {}
        self.statements = 0
        self.hints_told = 0

    async def connect(self, place: Place) -> Session:
        """Open a session. Raises: OSError, TimeoutError."""
        process = process_here()
        assert process is not None
        assert place is PLACE
        await self.reach(process, CONNECT_TIMEOUT_S)
        session = Session(self, process)
        self._sessions.append(session)
        return session

    async def reach(self, process: Process, timeout_s: float) -> None:
        """Go one way. Raises: OSError, TimeoutError."""
        await asyncio.sleep(self.latency_s())
        how = self.away.get(process.name)
        if how == "refused":
            raise ConnectionRefusedError("simulated")
        if how == "silent":
            await asyncio.sleep(timeout_s)
            raise TimeoutError

    def lose(self, name: str) -> None:
        """End all sessions of a process, as a restart of the database does."""
        for session in [one for one in self._sessions if one.process.name == name]:
            session.terminate()

    def closed(self, session: Session) -> None:
        """Forget a session."""
        if session in self._sessions:
            self._sessions.remove(session)

    def notify(self, channel: str, payload: str) -> None:
        """Tell all who listen, the sender, too."""
        self.hints_told += 1
        for session in list(self._sessions):
            heard, delay_s = session.listeners.get(channel), self.hint_s()
            if heard is not None and delay_s is not None and session.process.alive:
                self._loop.call_later(delay_s, session.hear, heard, channel, payload, context=session.process.context)


class Session:
    """What is used of an ``asyncpg.Connection``."""

    def __init__(self, database: Database, process: Process) -> None:
        self._database = database
        self._is_closed = False
        self._ends: list[Callable[[Session], None]] = []
        self.process = process
        self.listeners: dict[str, Heard] = {}

    async def fetchval(self, sql: str, node: str, incarnation: int, lease_ms: int) -> int | None:
        """Renew a lease."""
        assert sql is RENEW
        await self._send(COMMAND_TIMEOUT_S)
        database = self._database
        renewed_ms = renew(database.state, node, incarnation, lease_ms, database.now_ms())
        await self._send(COMMAND_TIMEOUT_S)
        return renewed_ms

    async def execute(self, sql: str, *values: str, timeout: float) -> None:  # noqa: ASYNC109 - asyncpg's own
        """Notify, or do nothing."""
        await self._send(timeout)
        if values:
            self._database.notify(*values)
        else:
            assert sql == "SELECT 1"
        await self._send(timeout)

    async def _send(self, timeout_s: float) -> None:
        self._database.statements += 1
        if not self._is_closed:
            await self._database.reach(self.process, timeout_s)
        if self._is_closed:
            raise asyncpg.InterfaceError("simulated: the connection is closed")

    async def add_listener(self, channel: str, heard: Heard) -> None:
        """Hear what is told from now on."""
        await self._send(COMMAND_TIMEOUT_S)
        self.listeners[channel] = heard

    def hear(self, heard: Heard, channel: str, payload: str) -> None:
        """A hint arrives, if the session is still there."""
        if not self._is_closed:
            heard(self, 0, channel, payload)

    def add_termination_listener(self, ended: Callable[[Session], None]) -> None:
        """Be told of the end."""
        self._ends.append(ended)

    def is_closed(self) -> bool:
        """Whether it was terminated."""
        return self._is_closed

    def terminate(self) -> None:
        """End it."""
        if not self._is_closed:
            self._is_closed = True
            self._database.closed(self)
            if self.process.alive:
                loop = asyncio.get_running_loop()
                for ended in self._ends:
                    loop.call_soon(ended, self, context=self.process.context)
