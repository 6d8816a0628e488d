"""The command line's root: its options, its subcommands, and how an error becomes one line and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ackpost import __version__, config
from ackpost.errors import AckpostError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        print(f"ackpost {__version__}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def ackpost(version: _Version = False) -> None:
    """Send events to other people's servers until they acknowledge them."""


@app.command("config")
def print_config() -> None:
    """Print a commented ackpost.toml with every setting at its default."""
    print(config.default_file(), end="")


def run() -> None:
    """Run the command named in ``sys.argv``; an error of ours is one line on stderr and exit code 1."""
    try:
        app()
    except AckpostError as error:
        sys.exit(f"ackpost: {error}")
