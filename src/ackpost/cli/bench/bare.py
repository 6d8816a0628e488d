"""The bare loop: the same server library, HTTP client and signing code; no store, policy or records.

What any sender on this machine could reach at most; the benchmark gives Ackpost's rates as shares of it. Reads
``{"target": URL}`` from standard input, prints its port, serves ``POST /v1/events`` until killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvicorn
import uvloop

from ackpost.core.addresses import AddressPolicy
from ackpost.core.outcome import Outcome
from ackpost.core.signing import Signer, generate_secret
from ackpost.core.target import parse_target
from ackpost.egress.client import HttpClient
from ackpost.wiring.http_server import bind, uvicorn_config
from ackpost.wiring.system import SystemClock, SystemEntropy

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class _Published(msgspec.Struct):
    type: str
    data: msgspec.Raw


class BareApp:
    """Publish → sign → POST, and nothing else."""

    def __init__(self, target_url: str) -> None:
        self._client = HttpClient(AddressPolicy(["127.0.0.0/8"]))
        self._target = parse_target(target_url, allow_http=True)
        self._clock = SystemClock()
        self._signer = Signer("standard", [(generate_secret(SystemEntropy().token(32)), None)], None)
        self._decoder = msgspec.json.Decoder(_Published)
        self._count = 0
        self._start = {
            "type": "http.response.start",
            "status": 202,
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"13")],
        }

    async def __call__(self, _scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one publish."""
        message = await receive()
        body: bytes = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        published = self._decoder.decode(body)
        self._count += 1
        event_id = f"evt_{self._count:026d}"
        content = b'{"type":"%b","id":"%b","timestamp":"2026-01-01T00:00:00.000Z","data":%b}' % (
            published.type.encode(),
            event_id.encode(),
            bytes(published.data),
        )
        headers = self._signer.headers(event_id, self._clock.wall_s(), content, self._clock.now_ms())
        self._client.send(self._target, headers, content, 5.0, _nothing)
        await send(self._start)
        await send({"type": "http.response.body", "body": b'{"done":true}'})


def _nothing(outcome: Outcome) -> None:
    """The bare loop keeps no results."""


async def main() -> None:
    """Serve until killed."""
    orders = json.load(sys.stdin)
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn_config(BareApp(orders["target"])))
    print(listener.getsockname()[1], flush=True)
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
