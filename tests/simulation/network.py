"""Sites that the real HTTP client connects to, and the watch over what goes over the wire.

Looked at from outside: a request is written once, whole, by the store's owner, never on a connection that this machine
knows to be closed; and an outcome says what the bytes said that had come by then.
"""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ackpost.core.outcome import DNS_ERROR, LOCAL_ERROR, Outcome, classify_status
from ackpost.egress.failures import AttemptFailed
from tests.simulation.history import Send, Violation
from tests.simulation.loop import process_here
from tests.simulation.receivers import Site
from tests.simulation.wire import END, RESET, End, Item, Wire

if TYPE_CHECKING:
    from tests.simulation.world import World

BLOCKED_IP: Final = "10.0.0.7"
PORT: Final = 443
WITHOUT_REQUEST: Final = (
    "dns_error", "local_error", "blocked_target", "connect_refused", "connect_error", "connect_timeout", "tls_error",
    "timeout", "reset", "bad_response",
)  # fmt: skip
LATE_S: Final = 1.5
HEADER_BYTES_MAX: Final = 16 * 1024
HEADERS_MAX: Final = 256
INTERIM_MAX: Final = 16
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] (\d{3})[^\r\n]*\r\n")
Name = tuple[str, str, str]
"""Path, event id and attempt number of a request."""


class Exchange:
    """What came back for one request before its outcome was known."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended: str | None = None

    def judge(self) -> tuple[str, int | None]:
        """Say what the bytes are: a final header with its status, part of one, too large or malformed."""
        data, start = bytes(self.received), 0
        for _ in range(INTERIM_MAX + 1):
            stop = data.find(b"\r\n\r\n", start)
            found, status = _judge_header(data[start : stop if stop >= 0 else len(data)], ended=stop >= 0)
            if (stop + 4 if stop >= 0 else len(data)) > HEADER_BYTES_MAX:
                return "large", None
            if found != "interim":
                return found, status
            start = stop + 4
        return "bad", None


def _judge_header(head: bytes, *, ended: bool) -> tuple[str, int | None]:
    match = _STATUS_LINE.match(head + b"\r\n" if ended else head)
    if match is None:
        return ("part" if not ended and head[:5] == b"HTTP/"[: len(head)] and b"\r\n" not in head else "bad"), None
    lines = head[match.end() :].split(b"\r\n")
    status, whole = int(match[1]), lines if ended else lines[:-1]
    if status >= 200 and len(whole) > HEADERS_MAX:
        return "large", None
    if len({line.lower() for line in lines if line.lower().startswith(b"content-length:")}) > 1:
        return ("bad" if ended else "doubtful"), None
    if not ended:
        return "part", None
    return ("final", status) if status >= 200 else ("interim", None)


class Watch:
    """What is looked at on one connection, from the client's side."""

    def __init__(self, network: Network, site: Site) -> None:
        self.site = site
        self._network = network
        self._exchange: Exchange | None = None

    def written(self, end: End, data: bytes) -> None:
        """The client writes: a whole request, and the right one."""
        network, is_reused = self._network, self._exchange is not None
        try:
            send = network.check_request(data)
        except Violation as violation:
            network.world.fail(violation)
            return
        if is_reused and end.has_unread():
            network.world.fail(Violation(f"I2: written on a connection that was known to be closed: {send}"))
        network.see("wire reused" if is_reused else "wire new")
        self._exchange = send.exchange = Exchange()

    def read(self, item: Item) -> None:
        """The client reads."""
        exchange = self._exchange
        if exchange is None:
            return
        if isinstance(item, bytes):
            exchange.received += item
        elif item in (END, RESET):
            exchange.ended = item


class Network:
    """Sites by name and address, and the watch over what goes over the wire."""

    def __init__(self, world: World, wire: Wire) -> None:
        self.world = world
        self.wire = wire
        self._by_host: dict[str, Site] = {}
        self._by_ip: dict[str, Site] = {}
        self._sends: dict[Name, list[Send]] = {}

    def site(self, host: str) -> Site:
        """Give the host of this name, made when first asked for."""
        site = self._by_host.get(host)
        if site is None:
            rng = self.wire.random
            site = Site(self, f"93.184.0.{len(self._by_host) + 1}", rng, self.world.chaos_s)
            self._by_host[host] = self._by_ip[site.ip] = site
            if rng.random() < 0.3:
                site.dead_ip = f"93.184.1.{len(self._by_host)}"
                self._by_ip[site.dead_ip] = site
        return site

    def see(self, what: str) -> None:
        """Count a behaviour."""
        self.world.history.seen[what] += 1

    # ---- asked by the client, in a process

    async def resolve(self, host: str) -> Sequence[str]:
        """Implements ``egress.resolver.Resolver``. Raises: AttemptFailed."""
        await asyncio.sleep(self.wire.latency_s())
        site = self._by_host[host]
        fault = site.dial_fault(("dns_error", "local_dns", "blocked"))
        if fault == "dns_error":
            raise AttemptFailed(DNS_ERROR, "simulated", phase="dns")
        if fault == "local_dns":
            raise AttemptFailed(LOCAL_ERROR, "simulated", phase="dns")
        if fault == "blocked":
            return (site.ip, BLOCKED_IP)
        if site.dead_ip is not None:
            return tuple(self.wire.random.sample([site.ip, site.dead_ip], 2))
        return (site.ip,)

    def close(self) -> None:
        """Nothing is kept."""

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], ip: str, port: int
    ) -> tuple[End, asyncio.Protocol]:
        """Open a connection. Raises: OSError."""
        site, rng = self._by_ip[ip], self.wire.random
        fault = site.dial_fault(("refused", "unreachable", "no_descriptor", "silent"))
        if ip == site.dead_ip:
            fault = rng.choice(["refused", "unreachable", "silent"])
        await asyncio.sleep(2 * self.wire.latency_s())
        if fault == "refused":
            raise ConnectionRefusedError(errno.ECONNREFUSED, "simulated")
        if fault == "silent":
            await asyncio.get_running_loop().create_future()
        if fault:
            raise OSError(errno.EHOSTUNREACH if fault == "unreachable" else errno.EMFILE, "simulated")
        protocol = factory()
        client, server = self.wire.pair()
        client.watch = Watch(self, site)
        self._count_open()
        loop = self.world.loop
        reader = asyncio.StreamReader(limit=1 << 20, loop=loop)
        streams = asyncio.StreamReaderProtocol(reader, site.converse, loop=loop)
        loop.call_soon(server.begin, streams, context=self.world.context)
        client.begin(protocol)
        for _ in range(rng.randint(1, 3)):
            await asyncio.sleep(0)
        return client, protocol

    def _count_open(self) -> None:
        """The client keeps to its bounds (a race of addresses may hold two for one)."""
        here, limit = process_here(), 2 * max(self.world.slots, self.world.host_cap)
        count = sum(end.process is here for end in self.wire.ends.values())
        if count > limit:
            self.world.fail(Violation(f"I6: {count} connections are open, {limit} at most may be"))

    async def start_tls(self, transport: End, protocol: asyncio.Protocol) -> End | None:
        """Shake hands. Raises: ssl.SSLError, ConnectionResetError."""
        transport.pause_reading()
        transport.muted = True
        assert isinstance(transport.watch, Watch)
        fault = transport.watch.site.dial_fault(("tls_alert", "tls_silent", "tls_lost"))
        await asyncio.sleep(2 * self.wire.latency_s())
        if fault == "tls_silent":
            await asyncio.get_running_loop().create_future()
        if fault == "tls_alert":
            raise ssl.SSLError(1, "simulated")
        if fault == "tls_lost" or transport.ended():
            if self.wire.random.random() < 0.5:
                raise ConnectionResetError("simulated")
            transport.abort()  # asyncio gives nothing when the connection was lost meanwhile
            return None
        transport.muted = False
        transport.resume_reading()
        return transport

    # ---- the watch

    def expect(self, path: str, headers: bytes, send: Send, timeout_s: float) -> None:
        """Note that this request will be on the wire soon."""
        send.lines, send.timeout_s, send.begun_s = headers, timeout_s, self.world.loop.time()
        self._sends.setdefault(_name(path, headers), []).append(send)

    def check_request(self, data: bytes) -> Send:
        """Look at what a client writes. Raises: Violation."""
        head, _, body = data.partition(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        host, _, lines = rest.partition(b"\r\n")
        sends = self._sends.get(_name(line.split(b" ")[1].decode(), lines), ())
        send = next((one for one in reversed(sends) if not one.told), None)
        if send is None:
            raise Violation(f"I2: a request that the engine does not send now: {data!r}")
        end = b"accept-encoding: identity\r\ncontent-length: %d" % len(body)
        if lines != send.lines + end or body != send.body or host[:6] != b"Host: " or line[-9:] != b" HTTP/1.1":
            raise Violation(f"I5: the bytes on the wire are not the request's: {data!r}, {send}")
        send.writes += 1
        if send.writes > 1:
            raise Violation(f"I2: one attempt is written {send.writes} times: {send}")
        trouble = self.world.owner_trouble(send.process, send.endpoint)
        if trouble is not None:
            raise Violation(f"I3: {send.process} writes, but {trouble}: {send}")
        late_s = self.world.loop.time() - send.begun_s - send.timeout_s
        if late_s > LATE_S:
            raise Violation(f"I6: written {late_s} s after the attempt's time was over: {send}")
        return send

    def request_arrived(self, head: bytes, body: bytes) -> None:
        """A receiver got a whole request."""
        line, _, lines = head.partition(b"\r\n")
        sends = self._sends.get(_name(line.split(b" ")[1].decode(), lines), ())
        send = next((one for one in reversed(sends) if one.writes and one.body == body), None)
        if send is None:
            self.world.fail(Violation(f"I5: what arrived was not sent: {head!r} {body!r}"))
        elif send.process.alive and not send.told:
            self.world.request_left(send)

    def judge(self, send: Send, outcome: Outcome) -> None:
        """Compare an outcome with the bytes that led to it. Raises: Violation."""
        exchange, code = send.exchange, outcome.code
        found, status = ("none", None) if exchange is None else exchange.judge()
        is_over = self.world.loop.time() >= send.begun_s + send.timeout_s - 0.001
        if status is not None:
            fits = (code, outcome.status_code) == (classify_status(status), status)
        elif outcome.status_code is not None:
            fits = False
        elif exchange is None:
            fits = code in WITHOUT_REQUEST
        elif code == "timeout":
            fits = found in ("part", "doubtful") and is_over
        elif code == "reset":
            fits = found in ("part", "doubtful") and exchange.ended is not None
        else:
            bad = {"bad": "bad_response", "doubtful": "bad_response", "large": "response_too_large"}
            fits = code == bad.get(found)
        if not fits:
            shown = b"" if exchange is None else bytes(exchange.received[:300])
            raise Violation(f"I1: {outcome} was made of {found} {status} {shown!r}: {send}")


def _name(path: str, lines: bytes) -> Name:
    named = dict(line.lower().partition(b": ")[::2] for line in lines.split(b"\r\n"))
    event = named.get(b"webhook-id") or named[b"x-webhook-id"]
    return path, event.decode(), named[b"ackpost-attempt"].decode()
