"""All commands: importing this module adds them to the command line."""

from __future__ import annotations

from ackpost.cli import serve
from ackpost.cli.app import run
from ackpost.cli.bench import command

COMMANDS = (command, serve)

__all__ = ["COMMANDS", "run"]
