"""Opens one connection: name → vetted addresses → TCP → TLS. What was judged is what is dialled, looked up once."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from ackpost.core.addresses import AddressPolicy
from ackpost.core.outcome import (
    BLOCKED_TARGET,
    CONNECT_ERROR,
    CONNECT_REFUSED,
    CONNECT_TIMEOUT,
    LOCAL_ERROR,
    TIMEOUT,
    TLS_ERROR,
)
from ackpost.core.target import Target
from ackpost.egress.connection import Connection
from ackpost.egress.failures import AttemptFailed, connect_failure, tls_failure
from ackpost.egress.limits import ADDRESSES_TRIED_MAX, NEXT_ADDRESS_AFTER_S, Limits
from ackpost.egress.resolver import Resolver

_TLS_SHUTDOWN_S: Final = 1.0
# Of several addresses that failed, the most telling failure is reported.
_MOST_TELLING: Final = (LOCAL_ERROR, CONNECT_TIMEOUT, CONNECT_REFUSED, CONNECT_ERROR)


class Dial:
    """One opening: where it stands, and how long its phases took so far."""

    __slots__ = ("connect_ms", "dns_ms", "ip", "phase", "tls_ms")

    def __init__(self) -> None:
        self.phase = "dns"
        self.ip: str | None = None
        self.dns_ms = self.connect_ms = self.tls_ms = 0.0


class Dialer:
    """Opens connections to targets, never to an address that the policy refuses."""

    def __init__(self, policy: AddressPolicy, resolver: Resolver, context: ssl.SSLContext, limits: Limits) -> None:
        self._policy = policy
        self._resolver = resolver
        self._context = context
        self._limits = limits
        self._loop = asyncio.get_running_loop()

    async def open(self, target: Target, deadline: float, dial: Dial, factory: Callable[[], Connection]) -> Connection:
        """Open a connection before ``deadline`` (loop time).

        Raises:
            AttemptFailed: no connection stands; nothing is left open.
        """
        try:
            async with asyncio.timeout_at(deadline):
                return await self._open(target, dial, factory)
        except TimeoutError:
            if dial.phase == "connect":
                raise AttemptFailed(
                    CONNECT_TIMEOUT, "no answer to the connection request", phase="connect", remote_ip=dial.ip
                ) from None
            raise AttemptFailed(
                TIMEOUT, "the time for the attempt ended", phase=dial.phase, remote_ip=dial.ip
            ) from None

    async def _open(self, target: Target, dial: Dial, factory: Callable[[], Connection]) -> Connection:
        began = self._loop.time()
        addresses = (target.literal_ip,) if target.literal_ip else await self._resolver.resolve(target.host)
        self._vet(addresses, target.port)
        resolved = self._loop.time()
        dial.dns_ms = (resolved - began) * 1000
        dial.phase = "connect"
        connection = await self._connect_in_time(_order(addresses), target.port, dial, factory)
        connected = self._loop.time()
        dial.connect_ms = (connected - resolved) * 1000
        if target.scheme == "https":
            dial.phase = "tls"
            await self._start_tls(connection, target.host)
            dial.tls_ms = (self._loop.time() - connected) * 1000
        return connection

    def _vet(self, addresses: Sequence[str], port: int) -> None:
        """Refuse the whole name if one of its addresses is refused."""
        for ip in addresses:
            refusal = self._policy.refusal(ip, port)
            if refusal is not None:
                raise AttemptFailed(BLOCKED_TARGET, refusal, phase="dns")

    async def _connect_in_time(
        self, addresses: Sequence[str], port: int, dial: Dial, factory: Callable[[], Connection]
    ) -> Connection:
        dial.ip = addresses[0]
        async with asyncio.timeout(self._limits.connect_s):
            if len(addresses) > 1:
                connection = await self._race(addresses, port, factory)
            else:
                connection = await self._connect(addresses[0], port, factory)
        dial.ip = connection.remote_ip
        return connection

    async def _race(self, addresses: Sequence[str], port: int, factory: Callable[[], Connection]) -> Connection:
        """Try each address, the next one when the one before failed or is silent for a moment. Source: RFC 8305."""
        waiting = list(reversed(addresses))
        tasks: list[asyncio.Task[Connection]] = []
        failures: list[AttemptFailed] = []
        try:
            while waiting or tasks:
                if waiting:
                    tasks.append(asyncio.create_task(self._connect(waiting.pop(), port, factory)))
                pause_s = NEXT_ADDRESS_AFTER_S if waiting else None
                done, _ = await asyncio.wait(tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                for task in [one for one in tasks if one in done]:
                    tasks.remove(task)
                    error = task.exception()
                    if error is None:
                        return task.result()
                    if not isinstance(error, AttemptFailed):
                        raise error
                    failures.append(error)
        finally:
            for task in tasks:
                task.cancel()
                task.add_done_callback(_abort_loser)
        raise min(failures, key=lambda failure: _MOST_TELLING.index(failure.code))

    async def _connect(self, ip: str, port: int, factory: Callable[[], Connection]) -> Connection:
        try:
            _, connection = await self._loop.create_connection(factory, ip, port)
        except OSError as error:
            raise connect_failure(error, ip) from None
        connection.remote_ip = ip
        return connection

    async def _start_tls(self, connection: Connection, host: str) -> None:
        plain = connection.transport
        ip = connection.remote_ip or ""
        try:
            async with asyncio.timeout(self._limits.tls_s):
                secured = await self._loop.start_tls(
                    plain,
                    connection,
                    self._context,
                    server_hostname=host,
                    ssl_handshake_timeout=self._limits.tls_s + 1.0,
                    ssl_shutdown_timeout=_TLS_SHUTDOWN_S,
                )
        except BaseException as error:
            plain.abort()
            if isinstance(error, TimeoutError):
                raise AttemptFailed(
                    TLS_ERROR, f"the TLS handshake took longer than {self._limits.tls_s:g} s", phase="tls", remote_ip=ip
                ) from None
            if isinstance(error, OSError | ssl.SSLError | ssl.CertificateError):
                raise tls_failure(error, ip) from None
            raise
        if secured is None:
            raise AttemptFailed(
                TLS_ERROR, "the connection was lost during the TLS handshake", phase="tls", remote_ip=ip
            )
        connection.attach(secured)


def _order(addresses: Sequence[str]) -> Sequence[str]:
    """Alternate the families, the resolver's first choice first; few enough to try them all in time."""
    if len(addresses) == 1:
        return addresses
    first = [ip for ip in addresses if (":" in ip) == (":" in addresses[0])]
    other = [ip for ip in addresses if (":" in ip) != (":" in addresses[0])]
    mixed: list[str] = []
    for turn in range(max(len(first), len(other))):
        mixed += first[turn : turn + 1] + other[turn : turn + 1]
    return mixed[:ADDRESSES_TRIED_MAX]


def _abort_loser(task: asyncio.Task[Connection]) -> None:
    """Close what connected beside the winner."""
    if not task.cancelled() and task.exception() is None:
        task.result().transport.abort()
