"""All commands: importing this module adds them to the command line."""

from __future__ import annotations

from ackpost.cli import admin, copying, listen, publish, resources, serve, upkeep
from ackpost.cli.app import run
from ackpost.cli.bench import command
from ackpost.cli.demo import command as demo
from ackpost.cli.relay import command as relay

COMMANDS = (admin, command, copying, demo, listen, publish, relay, resources, serve, upkeep)

__all__ = ["COMMANDS", "run"]
