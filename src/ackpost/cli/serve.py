"""``ackpost serve``: the API and the delivery engine."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from ackpost import config
from ackpost.cli.app import FLAG, app

_DEV_HELP: Final = "For a developer's machine: http and loopback targets allowed, listens on loopback only."


@app.command()
def serve(
    database_url: Annotated[
        str | None, typer.Option(help="sqlite:///PATH (ackpost.db), or postgresql://… shared by nodes.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[str | None, typer.Option(help="Port to listen on (8080); 0 takes a free one.")] = None,
    dev: Annotated[bool | None, typer.Option("--dev", metavar=FLAG, help=_DEV_HELP)] = None,
    node_role: Annotated[str | None, typer.Option(help="What it does on PostgreSQL: all, api or engine (all).")] = None,
    allow_http: Annotated[
        bool | None, typer.Option("--allow-http", metavar=FLAG, help="Accept http:// endpoints.")
    ] = None,
    allow_target: Annotated[
        list[str] | None, typer.Option(help="Open an address range for delivery (CIDR, repeatable).")
    ] = None,
    config_file: Annotated[Path | None, typer.Option("--config", help="Read this ackpost.toml.")] = None,
) -> None:
    """Run the API and the delivery engine until SIGINT or SIGTERM; `ackpost config` shows all settings."""
    given: dict[str, object] = {
        "database_url": database_url,
        "host": host,
        "port": port,
        "dev": dev,
        "node_role": node_role,
        "allow_http": allow_http,
        "allow_target": allow_target or None,
    }
    settings = config.load(given, os.environ, Path.cwd(), config_file)
    # Only here: a wrong setting is told, and other commands start, in a third of the time that these imports take.
    from ackpost.wiring.serve import serve as run_server  # noqa: PLC0415 - see above

    made = "also in .ackpost/dev-key" if settings.dev else "shown only this once"
    kept = made if settings.operator_key is None else "the one that was set"
    run_server(settings, ready=partial(_greet, kept=kept) if settings.dev or sys.stdout.isatty() else None)


def _greet(url: str, key: str | None, *, kept: str) -> None:
    """Say where it is and print a curl that works."""
    lines = [f"Ackpost listens on {url}   docs: {url}/docs"]
    if key is not None:
        event = '{"type":"hello.world","data":{"n":1}}'
        lines += [
            f"Operator key ({kept}): {key}",
            "Try:",
            f"  curl {url}/v1/events -H 'Authorization: Bearer {key}' -d '{event}'",
        ]
    print("\n".join(lines), file=sys.stderr, flush=True)
