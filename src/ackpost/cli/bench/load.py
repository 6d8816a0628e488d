"""The load of the benchmark: a closed loop of keep-alive connections that publish, or a paced open one.

Reads its orders as one JSON object from standard input, prints one JSON object: counts and accept latencies.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from typing import Final, cast

import httptools
import msgspec
import uvloop

from ackpost.cli.bench.receiver import percentile

SCATTER: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835


class Orders(msgspec.Struct):
    """What to send. ``rate_per_s`` 0: as fast as the answers come. ``uids``: each event gets a random uid.

    ``ports``: of the servers, whose connections are equal in number. ``types`` > 1: the events are of so many types in
    turn, ``<event_type>.0`` and so on.
    """

    host: str
    ports: list[int]
    key: str
    events: int
    connections: int = 64
    batch: int = 1
    rate_per_s: float = 0.0
    uids: bool = False
    data_bytes: int = 500
    event_type: str = "bench.event"
    types: int = 1


class Load:
    """Hands out the requests and gathers the answers."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.loop = asyncio.get_running_loop()
        self.left = orders.events
        self.accepted = 0
        self.refused = 0
        self.latencies_s = array("d")
        self.done = self.loop.create_future()
        self.open = orders.connections
        self.next_at = time.monotonic()
        self._made = 0
        self._seed = time.monotonic_ns()
        path = "/v1/events" if orders.batch == 1 else "/v1/events/batch"
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {orders.host}:{orders.ports[0]}\r\nAuthorization: Bearer {orders.key}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()
        types = [orders.event_type] if orders.types == 1 else [f"{orders.event_type}.{i}" for i in range(orders.types)]
        self._types = [one.encode() for one in types]
        self._filling = b'"text":"' + b"x" * max(0, orders.data_bytes - 40) + b'"'

    def next_request(self) -> bytes | None:
        """The bytes of the next publish, None when all were handed out."""
        if self.left <= 0:
            return None
        count = min(self.orders.batch, self.left)
        self.left -= count
        body = (
            self._event()
            if self.orders.batch == 1
            else b'{"events":[' + b",".join(self._event() for _ in range(count)) + b"]}"
        )
        return self._head + b"%d\r\n\r\n%b" % (len(body), body)

    def _event(self) -> bytes:
        # Scattered over the whole range like random ids, without a generator's cost.
        uid = b'"uid":"%032x",' % ((self._seed + self._made) * SCATTER % 2**128) if self.orders.uids else b""
        now_ns = int(time.monotonic() * 1e9)
        event_type = self._types[self._made % len(self._types)]
        self._made += 1
        return b'{%b"type":"%b","data":{"t":%d,%b}}' % (uid, event_type, now_ns, self._filling)

    def closed(self, *, broken: bool) -> None:
        """One connection has ended."""
        self.refused += broken
        self.open -= 1
        if self.open == 0 and not self.done.done():
            self.done.set_result(None)


class LoadProtocol(asyncio.Protocol):
    """One connection: a request, its answer, the next one."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        self._next()

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Note one answer; called by the parser."""
        load = self._load
        load.latencies_s.append(time.monotonic() - self._sent_at)
        if self._parser.get_status_code() == 202:
            load.accepted += load.orders.batch
        else:
            load.refused += load.orders.batch
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the load; a connection that broke is one that refuses what it still had to send."""
        self._load.closed(broken=exc is not None)

    def _next(self) -> None:
        load = self._load
        if load.orders.rate_per_s > 0:
            load.next_at = max(load.next_at, time.monotonic() - 0.1) + load.orders.batch / load.orders.rate_per_s
            load.loop.call_at(load.next_at, self._send)
        else:
            self._send()

    def _send(self) -> None:
        request = self._load.next_request()
        if self._transport is None or request is None:
            if self._transport is not None:
                self._transport.close()
            return
        self._sent_at = time.monotonic()
        self._transport.write(request)


async def main() -> dict[str, float | int]:
    """Run the orders given on standard input."""
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=Orders)
    load = Load(orders)
    started = time.monotonic()
    for number in range(orders.connections):
        port = orders.ports[number % len(orders.ports)]
        await load.loop.create_connection(lambda: LoadProtocol(load), orders.host, port)
    await load.done
    ordered = sorted(load.latencies_s)
    return {
        "accepted": load.accepted,
        "refused": load.refused,
        "started_at": started,
        "ended_at": time.monotonic(),
        "p50_ms": percentile(ordered, 0.50) * 1000,
        "p99_ms": percentile(ordered, 0.99) * 1000,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main())))
