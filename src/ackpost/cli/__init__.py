"""The command ``ackpost``. Its parts need the extra ``server``; a base install says how to get it."""

from __future__ import annotations

import sys

EXTRA_MISSING = "This command needs the server's dependencies: pip install 'ackpost[server]'"


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from ackpost.cli.commands import run  # noqa: PLC0415 - a base install has none of what this imports
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "ackpost":
            raise
        sys.exit(EXTRA_MISSING)
    run()
