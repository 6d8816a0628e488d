"""``ackpost check`` and ``ackpost backup``: the database as a whole, beside a running server or without one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ackpost import config
from ackpost.cli.app import app
from ackpost.errors import StoreCorrupt
from ackpost.wiring import copies

_DatabaseUrl = Annotated[str | None, typer.Option(help="sqlite:///PATH of the database file.")]
_ConfigFile = Annotated[Path | None, typer.Option("--config", help="Read this ackpost.toml.")]


@app.command()
def check(database_url: _DatabaseUrl = None, config_file: _ConfigFile = None) -> None:
    """Read the whole database and say whether it is damaged (exit code 1); a server may run on it meanwhile."""
    settings = config.load({"database_url": database_url}, os.environ, Path.cwd(), config_file)
    condition = copies.examine(settings)
    if condition.problems:
        print(*condition.problems, sep="\n")
        raise StoreCorrupt(f"The database {settings.database_path} is damaged: stop the server and restore a backup.")
    print(f"{settings.database_path} is undamaged: {condition.events} events, {condition.pending} deliveries pending.")


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The new file; none may have this name.", show_default=False)],
    database_url: _DatabaseUrl = None,
    config_file: _ConfigFile = None,
) -> None:
    """Copy the database as it is at this moment into a new file; a server may run on it meanwhile."""
    settings = config.load({"database_url": database_url}, os.environ, Path.cwd(), config_file)
    size_bytes = copies.back_up(settings, target)
    print(f"{target} holds all that {settings.database_path} held ({size_bytes:,} bytes).")
