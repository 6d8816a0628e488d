"""The server of the demo: ``ackpost serve --dev`` as a child, on a file in a temporary folder and a free port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Final

from ackpost.config import ENVIRONMENT_PREFIX
from ackpost.errors import AckpostError

LOG_NAME: Final = "server.log"
_START_S: Final = 20.0
_STOP_S: Final = 35.0
_READY: Final = re.compile(r"listens on (http://\S+)")


class ServerProcess:
    """A running server. Its log lies in its folder."""

    def __init__(self, process: asyncio.subprocess.Process, errors: asyncio.StreamReader) -> None:
        self._process = process
        self._errors = errors
        self._drain: asyncio.Task[None] | None = None
        self.url = ""

    @classmethod
    async def start(cls, folder: Path, key: str) -> ServerProcess:
        """Start it and wait until it serves.

        Raises: AckpostError with what it said when it did not.
        """
        environment = {name: text for name, text in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        log = os.open(folder / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ackpost", "serve", "--dev", "--port", "0",
                cwd=folder,
                env={**environment, f"{ENVIRONMENT_PREFIX}OPERATOR_KEY": key},
                stdout=log,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its server
            )  # fmt: skip
        finally:
            os.close(log)
        assert process.stderr is not None
        server = cls(process, process.stderr)
        try:
            await asyncio.wait_for(server._ready(), _START_S)
        except TimeoutError:
            await server.stop()
            raise AckpostError(f"the server did not start within {_START_S:g} s") from None
        except BaseException:
            await server.stop()
            raise
        return server

    async def _ready(self) -> None:
        said = ""
        while not (found := _READY.search(said)):
            line = await self._errors.readline()
            if not line:
                raise AckpostError(f"the server did not start: {said.strip() or 'it said nothing'}")
            said += line.decode(errors="replace")
        self.url = found[1]
        self._drain = asyncio.get_running_loop().create_task(self._discard())

    async def _discard(self) -> None:
        """Read on, so that the child never waits for a reader."""
        while await self._errors.read(65_536):
            pass

    async def ended(self) -> int:
        """Wait until the server ends by itself, and give its code."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop it as an operator would; it finishes what is in flight."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._drain is not None:
            await self._drain
