"""The receiver of the benchmark: one process, counts requests by ``webhook-id`` and measures how old they are.

``POST`` is a delivery; ``GET /stats`` tells and ``GET /reset`` starts anew. The data of each event holds ``"t":`` with
the nanoseconds of the machine's monotonic clock when it was published.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from collections.abc import Sequence
from typing import cast

import uvloop

_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Tally:
    """What was received so far."""

    def __init__(self) -> None:
        self.received = 0
        self.repeated = 0
        self.ids: set[bytes] = set()
        self.ages_s = array("d")
        self.last_at = 0.0

    def add(self, head: bytes, body: bytes, now: float) -> None:
        """Count one delivery; ``now`` in seconds of the monotonic clock."""
        self.received += 1
        self.last_at = now
        start = head.find(b"webhook-id: ") + 12
        url_end = head.find(b" HTTP/1.1")
        identity = head[5:url_end] + head[start : head.find(b"\r", start)]
        if identity in self.ids:
            self.repeated += 1
        self.ids.add(identity)
        mark = body.find(b'"t":')
        if mark >= 0:
            end = body.find(b",", mark)
            self.ages_s.append(now - int(body[mark + 4 : end]) / 1e9)

    def summary(self) -> dict[str, float | int]:
        """Counts, and the ages' p50, p95, p99 in milliseconds."""
        ages = sorted(self.ages_s)
        return {
            "received": self.received,
            "repeated": self.repeated,
            "last_at": self.last_at,
            "p50_ms": percentile(ages, 0.50) * 1000,
            "p95_ms": percentile(ages, 0.95) * 1000,
            "p99_ms": percentile(ages, 0.99) * 1000,
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the ordered values lie; 0 without values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class ReceiverProtocol(asyncio.Protocol):
    """Just enough HTTP for the one client it serves."""

    def __init__(self, tally: list[Tally]) -> None:
        self._tally = tally
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so

    def data_received(self, data: bytes) -> None:
        """Answer each complete request."""
        buffer = self._buffer + data if self._buffer else data
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                break
            head = buffer[:end]
            mark = head.find(b"ontent-length: ")
            stop = head.find(b"\r", mark)
            length = int(head[mark + 15 : stop if stop > 0 else end]) if mark > 0 else 0
            if len(buffer) < end + 4 + length:
                break
            self._answer(head, buffer[end + 4 : end + 4 + length])
            buffer = buffer[end + 4 + length :]
        self._buffer = buffer

    def _answer(self, head: bytes, body: bytes) -> None:
        if self._transport is None:
            return
        if head.startswith(b"POST /hang"):
            return
        if head.startswith(b"POST"):
            self._tally[0].add(head, body, time.monotonic())
            self._transport.write(_OK)
            return
        if head.startswith(b"GET /reset"):
            self._tally[0] = Tally()
        answer = json.dumps(self._tally[0].summary()).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))


async def main() -> None:
    """Listen on a free port of 127.0.0.1, print it, serve until killed."""
    tally = [Tally()]
    server = await asyncio.get_running_loop().create_server(
        lambda: ReceiverProtocol(tally), "127.0.0.1", 0, backlog=2048
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
