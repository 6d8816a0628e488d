"""One bash in which the commands of a page run one after the other, as a reader would type them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

COMMAND_TIMEOUT_S = 30.0


class SessionEnded(AssertionError):
    """The shell ended or a command did not come back in time."""


class Session:
    """A bash in its own folder; variables and folders last from one command to the next."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._mark = f"end-of-command-{secrets.token_hex(8)}"
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """Run one command to its end: its exit code and all it printed."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        # The command reads no input of ours; its last line may lack a line end.
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n%s %d\\n' {self._mark} $?\n")
        self._bash.stdin.flush()
        overdue = threading.Timer(COMMAND_TIMEOUT_S, self._bash.kill)
        overdue.start()
        output: list[str] = []
        try:
            for line in self._bash.stdout:
                if line.startswith(self._mark):
                    return int(line.split()[1]), "".join(output).removesuffix("\n")
                output.append(line)
        finally:
            overdue.cancel()
        raise SessionEnded(f"the shell ended in {command!r}; it printed:\n{''.join(output)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself, with all it started
            os.killpg(self._bash.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._bash.communicate()
