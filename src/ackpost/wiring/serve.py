"""``ackpost serve``: bind, start the node, serve until a signal, then stop without losing anything."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import uvicorn
import uvloop

from ackpost import __version__
from ackpost.api.app import create_app
from ackpost.config import Settings, summary
from ackpost.errors import AckpostError
from ackpost.wiring import keys
from ackpost.wiring.http_server import bind, uvicorn_config
from ackpost.wiring.lines import LineSink
from ackpost.wiring.logs import NodeTelemetry
from ackpost.wiring.node import Node
from ackpost.wiring.system import SystemClock, SystemEntropy

Ready = Callable[[str, str | None], None]
"""Called once it serves, with its URL and the operator's key if it may be shown."""


def serve(settings: Settings, *, ready: Ready | None = None) -> None:
    """Run a server until SIGINT or SIGTERM.

    Raises: ConfigError, StoreError with one clear line when it cannot start; AckpostError when it had to stop.
    """
    uvloop.run(run(settings, ready=ready))


async def run(settings: Settings, *, ready: Ready | None = None) -> None:
    """See ``serve``; inside a running loop."""
    listener = bind(settings.host, settings.port)
    port = int(listener.getsockname()[1])
    key = keys.dev_key(SystemEntropy()) if settings.dev and settings.operator_key is None else settings.operator_key
    settings = replace(settings, port=port)
    sink = LineSink(sys.stdout.buffer)
    telemetry = NodeTelemetry(sink, SystemClock(), log_format=settings.log_format, log_level=settings.log_level)
    node = Node(settings, telemetry, port=port)
    try:
        await _run_node(node, server=_Server(listener), key=key, ready=ready)
    finally:
        listener.close()
        sink.close()


class _Server:
    """uvicorn on a listener that is bound already."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.uvicorn: uvicorn.Server | None = None
        self.fatal: BaseException | None = None

    def stop(self, error: BaseException) -> None:
        """End serving: the engine cannot go on."""
        self.fatal = error
        if self.uvicorn is not None:
            self.uvicorn.should_exit = True


async def _run_node(node: Node, *, server: _Server, key: str | None, ready: Ready | None) -> None:
    settings, telemetry = node.settings, node.telemetry
    try:
        await node.start(server.stop)
        made = await keys.ensure_operator_key(node.store, node.clock, node.entropy, key)
        shown = _hand_over(made, settings.database_path, telemetry) if made else (key if settings.dev else None)
        url = f"http://{_in_url(settings.host)}:{settings.port}"
        telemetry.note("server.started", version=__version__, url=url, node=node.name, **_settings_shown(settings))
        server.uvicorn = uvicorn.Server(uvicorn_config(create_app(node.services)))
        gc.collect()
        gc.freeze()
        if ready is not None:
            ready(url, shown)
        await server.uvicorn.serve(sockets=[server.listener])
    finally:
        cut_off = await node.stop()
        telemetry.note("server.stopped", cut_off=cut_off)
    if server.fatal is not None:
        raise AckpostError(f"the server had to stop: {server.fatal}") from server.fatal


def _hand_over(key: str, database: Path, telemetry: NodeTelemetry) -> str | None:
    """A new key goes to a terminal, else into a file of which only the path is logged (contract §1)."""
    if sys.stdout.isatty():
        return key
    path = database.resolve().with_name(keys.OPERATOR_KEY_NAME)
    keys.write_secret(path, key)
    telemetry.note("operator_key.written", path=str(path))
    return None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _settings_shown(settings: Settings) -> dict[str, str]:
    return {f"setting_{name}": value for name, value in summary(settings).items()}
