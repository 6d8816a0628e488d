"""Hints between nodes by NOTIFY, sent and heard on one connection outside all other transactions.

What gathers while a NOTIFY is on its way goes out with the next one. Without a connection, or behind a pooler that
drops LISTEN, hints are lost: polling finds what they told of (rule E1).

A hint is ``sender|w:endpoint.tenant,…|c:endpoint,…|m``, numbers in hexadecimal; ``*`` stands for more than fits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import asyncpg

from ackpost.errors import StoreError
from ackpost.ports.cluster import Heard
from ackpost.store.postgres.connection import Connect, Connection, Place, connect, on_one_session
from ackpost.store.postgres.faults import LOST

PAYLOAD_MAX: Final = 7000
"""PostgreSQL takes 7,999 bytes."""
CHECK_S: Final = 30.0
_RETRY_S: Final = 1.0
_TIMEOUT_S: Final = 5.0


class NotifyWakeup:
    """Implements ``ports.cluster.Wakeup``. ``sender`` is this node's name."""

    def __init__(self, place: Place, *, sender: str, connect: Connect = connect) -> None:
        self._place, self._sender, self._connect = place, sender, connect
        self._channel = f"ackpost:{place.schema}"
        self._heard: Heard | None = None
        self._connection: Connection | None = None
        self._work: dict[tuple[int, int], None] = {}
        self._changed: dict[int, None] = {}
        self._members = False
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_listening = False

    def start(self, heard: Heard) -> None:
        """Begin to listen."""
        self._heard = heard
        self._task = asyncio.get_running_loop().create_task(self._run(), name="wakeup")

    async def stop(self) -> None:
        """Send what is left to tell, and end."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(asyncpg.PostgresError, *LOST):
                await self._flush(connection)
            connection.terminate()

    # ------------------------------------------------------------ ports.cluster.Wakeup

    def tell_work(self, endpoint: int, tenant: int) -> None:
        """An endpoint that another node owns has new deliveries."""
        self._work[endpoint, tenant] = None
        self._wanted.set()

    def tell_change(self, endpoint: int) -> None:
        """An endpoint that another node owns, or its deliveries, were changed."""
        self._changed[endpoint] = None
        self._wanted.set()

    def tell_members(self) -> None:
        """Partitions or nodes changed."""
        self._members = True
        self._wanted.set()

    # ------------------------------------------------------------ sending and hearing

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._listen()
                while self._connection is not None:
                    await self._flush(connection)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(CHECK_S):
                            await self._wanted.wait()
                    if not self._wanted.is_set():
                        await connection.execute("SELECT 1", timeout=_TIMEOUT_S)
            except (StoreError, asyncpg.PostgresError, *LOST):
                self._drop()
            await asyncio.sleep(_RETRY_S)

    async def _listen(self) -> Connection:
        connection = self._connection = await self._connect(self._place)
        connection.add_termination_listener(lambda _: self._drop())
        if not self._place.pooled:
            await connection.add_listener(self._channel, self._on_notification)
            self.is_listening = True
        if self._heard is not None:
            self._heard.anything()
        return connection

    def _drop(self) -> None:
        self.is_listening = False
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()
        self._wanted.set()

    async def _flush(self, connection: Connection) -> None:
        self._wanted.clear()
        work, changed, members = self._work, self._changed, self._members
        if not (work or changed or members):
            return
        self._work, self._changed, self._members = {}, {}, False
        try:
            payload = self._hint(work, changed, members=members)
            async with on_one_session(self._place, connection):
                await connection.execute("SELECT pg_notify($1, $2)", self._channel, payload, timeout=_TIMEOUT_S)
        except BaseException:
            self._work, self._changed = {**work, **self._work}, {**changed, **self._changed}
            self._members = self._members or members
            raise

    def _hint(self, work: dict[tuple[int, int], None], changed: dict[int, None], *, members: bool) -> str:
        everything = f"{self._sender}|*" + ("|m" if members else "")
        if len(work) + len(changed) > PAYLOAD_MAX // 8:
            return everything
        parts = [self._sender]
        if work:
            parts.append("w:" + ",".join(f"{endpoint:x}.{tenant:x}" for endpoint, tenant in work))
        if changed:
            parts.append("c:" + ",".join(f"{endpoint:x}" for endpoint in changed))
        if members:
            parts.append("m")
        payload = "|".join(parts)
        return payload if len(payload) <= PAYLOAD_MAX else everything

    def _on_notification(self, _connection: Any, _process: int, _channel: str, payload: object) -> None:
        sender, *parts = str(payload).split("|")
        heard = self._heard
        if sender == self._sender or heard is None:
            return
        for part in parts:
            if part == "*":
                heard.anything()
            elif part == "m":
                heard.members()
            elif part.startswith("w:"):
                pairs = (pair.split(".") for pair in part[2:].split(","))
                heard.work([(int(endpoint, 16), int(tenant, 16)) for endpoint, tenant in pairs])
            elif part.startswith("c:"):
                heard.change([int(endpoint, 16) for endpoint in part[2:].split(",")])
