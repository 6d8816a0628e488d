"""``ackpost migrate``, and keys: made by the server, or beside a stopped one when the last operator key is lost."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ackpost import config
from ackpost.cli.app import FLAG, app
from ackpost.cli.client import connect, decoded
from ackpost.cli.resources import GROUPS
from ackpost.cli.show import print_answer, print_bytes
from ackpost.errors import ConfigError
from ackpost.wiring import offline

_DatabaseUrl = Annotated[str | None, typer.Option(help="sqlite:///PATH of the database file.")]
_ConfigFile = Annotated[Path | None, typer.Option("--config", help="Read this ackpost.toml.")]


@app.command()
def migrate(database_url: _DatabaseUrl = None, config_file: _ConfigFile = None) -> None:
    """Bring the database's schema to this version's (the server must be stopped; it does so itself at its start)."""
    settings = _settings(database_url, config_file)
    offline.migrate(settings)
    print(f"{settings.database_shown} has the schema of this version.")


@GROUPS["api-keys"].command("create")
def create_api_key(
    role: Annotated[str, typer.Option(help="operator, admin, publisher or reader.")],
    name: Annotated[str, typer.Option(help="For people.")] = "made on the command line",
    expires_at: Annotated[str | None, typer.Option(help="Until when it holds (RFC 3339).")] = None,
    without_server: Annotated[
        bool,
        typer.Option("--offline", metavar=FLAG, help="Write an operator's key into the database of a stopped server."),
    ] = False,
    database_url: _DatabaseUrl = None,
    config_file: _ConfigFile = None,
    tenant: Annotated[str | None, typer.Option(help="Whose key it is.")] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print the API's answer.")] = False,
) -> None:
    """Make a key; this is the only time it is shown."""
    if without_server:
        if role != "operator" or expires_at or tenant:
            raise ConfigError("--offline makes operator keys only: --role operator, no --tenant and no --expires-at")
        key = offline.create_operator_key(_settings(database_url, config_file), name)
        print("The new operator key:", file=sys.stderr)
        print(key)
        return
    if database_url or config_file:
        raise ConfigError("--database-url and --config go with --offline: the server has its own")
    body = {"name": name, "role": role, **({"expires_at": expires_at} if expires_at else {})}
    answer = connect(tenant).call_bytes("POST", "/v1/api-keys", body)
    if as_json:
        print_bytes(answer)
    else:
        print_answer(decoded(answer), ())


def _settings(database_url: str | None, config_file: Path | None) -> config.Settings:
    return config.load({"database_url": database_url}, os.environ, Path.cwd(), config_file)
