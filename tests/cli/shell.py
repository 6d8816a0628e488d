"""The command line in this process, as a shell would call it; and ``ackpost listen`` as a process of its own."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from ackpost import cli
from tests.process.server import Lines, until

END_S = 20.0


class Result(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        """What it printed, read as JSON."""
        return json.loads(self.out)


class Shell:
    """Runs commands with the environment of a fixture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch = monkeypatch
        self._capfd = capfd
        for name in [name for name in os.environ if name.startswith("ACKPOST_")]:
            monkeypatch.delenv(name)

    def use(self, url: str, key: str) -> Shell:
        """Talk to this server from now on."""
        self.monkeypatch.setenv("ACKPOST_URL", url)
        self.monkeypatch.setenv("ACKPOST_API_KEY", key)
        return self

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result:
        """Run one command to its end."""
        self.monkeypatch.setattr(sys, "argv", ["ackpost", *arguments])
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capfd.readouterr()
        try:
            cli.main()
            code: str | int | None = 0
        except SystemExit as ended:
            code = ended.code
        out, error = self._capfd.readouterr()
        if isinstance(code, str):
            return Result(1, out, error + code)
        return Result(code or 0, out, error)

    def ok(self, *arguments: str, stdin: bytes = b"") -> Result:
        """Run one command, which must end well."""
        result = self(*arguments, stdin=stdin)
        assert result.code == 0, result
        return result

    def refused(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run one command, which must end with one line of ours; gives it without its beginning."""
        result = self(*arguments, stdin=stdin)
        assert result.code == 1, result
        assert result.error.startswith("ackpost: "), result
        assert "\n" not in result.error, result
        return result.error.removeprefix("ackpost: ")


class Listener:
    """``ackpost listen --port 0`` with further arguments; use as a context."""

    def __init__(self, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ACKPOST_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ackpost", "listen", "--port", "0", *arguments],
            cwd=folder,
            env={**inherited, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out, self.errors = Lines(self.process.stdout), Lines(self.process.stderr)
        self.url = ""
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.url = until(self._listening, "ackpost listen listens")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.out.join()
        self.errors.join()

    def _listening(self) -> str | None:
        assert self.process.poll() is None, self.errors.join()
        found = re.search(r"Listening on (\S+)/ ", "\n".join(self.errors.lines))
        return found[1] if found else None

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal, and give the code it ends with."""
        self.process.send_signal(number)
        return self.process.wait(END_S)

    def shown(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many lines of ``--json``."""
        lines = until(lambda: self.out.lines if len(self.out.lines) >= count else None, f"{count} lines")
        return [json.loads(line) for line in lines]
