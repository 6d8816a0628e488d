"""``ackpost listen``: a receiver to send to, which shows what comes and answers as told."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console

from ackpost.cli.app import FLAG, app
from ackpost.cli.client import ApiClient, connect
from ackpost.cli.received import REMEMBERED_MAX, Memory, as_json, as_text
from ackpost.cli.verbs import bytes_given
from ackpost.cli.verifying import Verifier
from ackpost.errors import AckpostError, ConfigError
from ackpost.testing.faults import FaultServer, SeenRequest
from ackpost.testing.script import Script, parse_script
from ackpost.wiring.system import SystemClock

_ANY_PATH: Final = "*"
_SCRIPT_HELP: Final = (
    "Answers, like 500*2,200 · delay:3 · reset · 410 · 429:retry-after=2 · drip · close · hang; "
    "/path=… for one path (repeatable)."
)
_UNSPECIFIED: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - recognised, not bound


class _Options(msgspec.Struct):
    host: str
    port: int
    scripts: dict[str, Script]
    register: list[str] | None
    signature: str | None
    tenant: str | None
    json_lines: bool


@app.command()
def listen(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 9000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    secret: Annotated[str | None, typer.Option(help="Verify with this secret: TEXT, @FILE or -.")] = None,
    register: Annotated[
        list[str] | None,
        typer.Option(help="Make an endpoint for these event types (repeatable) on the server; deleted at the end."),
    ] = None,
    signature: Annotated[
        str | None, typer.Option(help="standard, standard-ed25519 or sha256-hex (default: by the secret).")
    ] = None,
    signature_header: Annotated[str | None, typer.Option(help="sha256-hex under another header.")] = None,
    script: Annotated[
        list[str] | None,
        typer.Option(help=_SCRIPT_HELP),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="With --register: the tenant that is meant.")] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", metavar=FLAG, help="One JSON object a request and line.")
    ] = False,
) -> None:
    """Show each request that comes, its verified signature, repeats and gaps; answer as told until Ctrl-C."""
    if secret is not None and register:
        raise ConfigError("--secret and --register exclude each other: a new endpoint has a secret of its own")
    options = _Options(host, port, _scripts(script or ["200"]), register, signature, tenant, json_lines)
    verifier = None
    if secret is not None:
        verifier = Verifier(bytes_given("--secret", secret).decode().strip(), signature, signature_header)
    elif signature is not None and not register:
        raise ConfigError("--signature goes with --secret or --register")
    asyncio.run(_listen(options, Memory(verifier)))


def _scripts(texts: list[str]) -> dict[str, Script]:
    """Read ``SCRIPT`` and ``/path=SCRIPT``; a path without a script answers 200."""
    scripts = {_ANY_PATH: parse_script("200")}
    for text in texts:
        path, equals, rest = text.partition("=") if text.startswith("/") else (_ANY_PATH, "=", text)
        if not equals:
            raise ConfigError(f"--script {text}: write /path=answers")
        scripts[path] = parse_script(rest)
    return scripts


async def _listen(options: _Options, memory: Memory) -> None:
    clock = SystemClock()
    console = Console(highlight=False, soft_wrap=True)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)

    def show(request: SeenRequest) -> None:
        received = memory.note(request, clock.now_ms())
        try:
            if options.json_lines:
                print(as_json(received), flush=True)
            else:
                console.print(as_text(received), end="\n\n")
        except BrokenPipeError:
            ended.set()

    server = FaultServer(
        options.scripts, host=options.host, port=options.port, on_request=show, keep_max=REMEMBERED_MAX
    )
    try:
        await server.start()
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        where = f"{options.host}:{options.port}"
        raise ConfigError(f"port: cannot listen on {where}: {why}; choose another --port") from error
    try:
        url = f"http://{_UNSPECIFIED[options.host]}:{server.port}/" if options.host in _UNSPECIFIED else server.url()
        async with _registered(options, url, memory):
            print(f"Listening on {url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
            await ended.wait()
    finally:
        await server.stop()
    print(f"{server.received} request{'' if server.received == 1 else 's'} received", file=sys.stderr, flush=True)


@asynccontextmanager
async def _registered(options: _Options, url: str, memory: Memory) -> AsyncIterator[None]:
    """Have an endpoint of its own on the server meanwhile, if wanted."""
    if not options.register:
        yield
        return
    api = connect(options.tenant)
    wanted: dict[str, Any] = {"url": url, "event_types": options.register, "description": "ackpost listen"}
    if options.signature is not None:
        wanted["signature"] = options.signature
    made = await asyncio.to_thread(api.call, "POST", "/v1/endpoints", wanted)
    try:
        memory.verifier = Verifier(made.get("secret") or made["public_key"], made["signature"])
        print(f"Registered {made['id']} for {', '.join(made['event_types'])}", file=sys.stderr, flush=True)
        yield
    finally:
        await asyncio.to_thread(_remove, api, made["id"])


def _remove(api: ApiClient, endpoint_id: str) -> None:
    try:
        api.call("DELETE", f"/v1/endpoints/{endpoint_id}")
    except AckpostError as error:
        print(f"ackpost: endpoint {endpoint_id} could not be deleted: {error}", file=sys.stderr)
