"""The command line's root: its options, its subcommands, and how an error becomes one line and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from ackpost import __version__, config
from ackpost.errors import AckpostError

FLAG: Final = ""
"""The metavar of an option without a value: the help would call it <bool>."""

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        print(f"ackpost {__version__}")
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", metavar=FLAG, callback=_version, is_eager=True, help="Print the version.")
]


@app.callback()
def ackpost(version: _Version = False) -> None:
    """Send events to other people's servers until they acknowledge them.

    Begin with `demo`, or `serve --dev`. Commands that talk to a server read
    ACKPOST_URL (default: http://127.0.0.1:8080) and ACKPOST_API_KEY (default:
    the key that `serve --dev` keeps in this folder).
    """


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
