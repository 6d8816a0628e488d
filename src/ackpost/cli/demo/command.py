"""The command: a folder, a server, a receiver, the scenes one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from ackpost.cli.app import FLAG, app
from ackpost.cli.client import ApiClient
from ackpost.cli.demo.receiver import Receiver
from ackpost.cli.demo.scenes import SCENES, Stage
from ackpost.cli.demo.server import LOG_NAME, ServerProcess
from ackpost.errors import AckpostError
from ackpost.wiring.system import SystemClock, SystemEntropy

_NAME_CHARS: Final = 27


@app.command()
def demo(once: Annotated[bool, typer.Option("--once", metavar=FLAG, help="End when all is shown.")] = False) -> None:
    """Start a server and a receiver, show what Ackpost does with real events, and check each promise."""
    folder = Path(tempfile.mkdtemp(prefix="ackpost-demo-"))
    try:
        asyncio.run(_until_signal(_demo(folder, once=once)))
    except AckpostError as error:
        raise AckpostError(f"demo: {error} (the server's log: {folder / LOG_NAME})") from error
    except asyncio.CancelledError:
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(130)
    shutil.rmtree(folder, ignore_errors=True)


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Ctrl-C and SIGTERM end the work in order."""
    task = asyncio.get_running_loop().create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


async def _demo(folder: Path, *, once: bool) -> None:
    clock = SystemClock()
    started_s = clock.monotonic()
    key = f"demo-{SystemEntropy().token(16).hex()}"
    receiver = Receiver(clock)
    await receiver.start()
    try:
        server = await ServerProcess.start(folder, key)
        try:
            console = Console(highlight=False, soft_wrap=True)
            _introduce(console, server.url, key, receiver.url("/"))
            await _show(console, Stage(ApiClient(server.url, key), receiver), clock)
            console.print(f"\nAll promises kept, in {clock.monotonic() - started_s:.1f} s.", style="bold")
            if not once:
                await _stay(console, server)
        finally:
            await server.stop()
    finally:
        await receiver.stop()


def _introduce(console: Console, url: str, key: str, receiver_url: str) -> None:
    console.print(f"Ackpost serves {url} (docs: {url}/docs), a receiver listens on {receiver_url}", markup=False)
    console.print(f"export ACKPOST_URL={url} ACKPOST_API_KEY={key}\n", markup=False)


async def _show(console: Console, stage: Stage, clock: SystemClock) -> None:
    for name, scene in SCENES.items():
        began_s = clock.monotonic()
        try:
            told = await scene(stage)
        except AckpostError as error:
            console.print(Text(f"✘ {name:<{_NAME_CHARS}} {error}", style="red"))
            raise AckpostError(f"{name}: {error}") from error
        line = Text(f"✔ {name:<{_NAME_CHARS}}", style="green")
        line.append(f"{told.what} ({clock.monotonic() - began_s:.1f} s)", style="default")
        console.print(line)
        console.print(Text(f"  {told.curl}", style="dim"))


async def _stay(console: Console, server: ServerProcess) -> None:
    """Leave everything running until Ctrl-C.

    Raises: AckpostError when the server ends meanwhile.
    """
    console.print(f"\nThe server goes on at {server.url} (docs: {server.url}/docs). Ctrl-C ends it.", markup=False)
    with contextlib.suppress(asyncio.CancelledError):
        code = await server.ended()
        raise AckpostError(f"the server ended with code {code}")
