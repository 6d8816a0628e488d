"""``ackpost serve``: bind, start the node, serve until a signal, then stop without losing anything."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import uvloop

from ackpost import __version__
from ackpost.api.app import WatchedApp, create_app
from ackpost.config import Settings, summary
from ackpost.errors import AckpostError
from ackpost.wiring import keys
from ackpost.wiring.http_server import QuietServer, bind, uvicorn_config
from ackpost.wiring.lines import LineSink
from ackpost.wiring.logs import NodeTelemetry
from ackpost.wiring.node import Node
from ackpost.wiring.system import SystemClock, SystemEntropy

FILES_WANTED: Final = 65_536

Ready = Callable[[str, str | None], None]
"""Called once it serves, with its URL and the operator's key if it may be shown."""


def serve(settings: Settings, *, ready: Ready | None = None) -> None:
    """Run a server until SIGINT or SIGTERM.

    Raises: ConfigError, StoreError with one clear line when it cannot start; AckpostError when it had to stop.
    """
    _allow_files()
    uvloop.run(run(settings, ready=ready))


def _allow_files() -> None:
    """Let the process have as many sockets as the system grants: shells grant few unless asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def run(settings: Settings, *, ready: Ready | None = None) -> None:
    """See ``serve``; inside a running loop of the main thread."""
    listener = bind(settings.host, settings.port)
    port = int(listener.getsockname()[1])
    sink = LineSink(sys.stdout.fileno())
    try:
        key = keys.dev_key(SystemEntropy()) if settings.dev and settings.operator_key is None else settings.operator_key
        settings = replace(settings, port=port)
        telemetry = NodeTelemetry(sink, SystemClock(), log_format=settings.log_format, log_level=settings.log_level)
        node = Node(settings, telemetry, port=port)
        await _run_node(node, end=_End(node), listener=listener, key=key, ready=ready)
    finally:
        listener.close()
        sink.close()


class _End:
    """Why and when serving ends: a signal, or an engine that cannot go on. Both may come before serving began."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asked = False
        self._server: QuietServer | None = None
        self.fatal: BaseException | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    async def serve(self, server: QuietServer, listener: socket.socket) -> None:
        """Serve until the end was asked for."""
        self._server = server
        if not self._asked:
            await server.serve(sockets=[listener])

    def on_fatal(self, error: BaseException) -> None:
        """The engine cannot go on."""
        self.fatal = self.fatal or error
        self._ask()

    def _on_signal(self, number: signal.Signals) -> None:
        """Stop without losing anything; who presses Ctrl-C again does not want to wait for that."""
        self._ask()
        if number == signal.SIGINT:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    def _ask(self) -> None:
        self._asked = True
        self._node.stop_sending()
        if self._server is not None:
            self._server.should_exit = True


async def _run_node(node: Node, *, end: _End, listener: socket.socket, key: str | None, ready: Ready | None) -> None:
    settings, telemetry = node.settings, node.telemetry
    try:
        await node.start(end.on_fatal)
        made = await keys.ensure_operator_key(node.store, node.clock, node.entropy, key)
        shown = _hand_over(made, settings, telemetry) if made else (key if settings.dev else None)
        url = f"http://{_in_url(settings.host)}:{settings.port}"
        telemetry.note("server.started", version=__version__, url=url, node=node.name, **_settings_shown(settings))
        app = WatchedApp(node.services) if settings.node_role == "engine" else create_app(node.services)
        server = QuietServer(uvicorn_config(app))
        gc.collect()
        gc.freeze()
        if ready is not None:
            ready(url, shown)
        await end.serve(server, listener)
    finally:
        cut_off = await node.stop()
    telemetry.note("server.stopped", cut_off=cut_off)
    if end.fatal is not None:
        raise AckpostError(f"the server had to stop: {end.fatal}") from end.fatal


def _hand_over(key: str, settings: Settings, telemetry: NodeTelemetry) -> str | None:
    """A new key goes to a terminal, else into a file of which only the path is logged (contract §1)."""
    if sys.stdout.isatty():
        return key
    folder = settings.state_dir if settings.is_shared else settings.database_path.parent
    path = folder.resolve() / keys.OPERATOR_KEY_NAME
    keys.write_secret(path, key)
    telemetry.note("operator_key.written", path=str(path))
    return None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _settings_shown(settings: Settings) -> dict[str, str]:
    """All of them for machines; people read those that are not at their default."""
    shown, usual = summary(settings), summary(Settings()) if settings.log_format == "console" else {}
    return {f"setting_{name}": value for name, value in shown.items() if value != usual.get(name)}
