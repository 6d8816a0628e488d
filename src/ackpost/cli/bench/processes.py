"""Starts the benchmark's processes, pins them and reads what they used."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from ackpost.errors import AckpostError

SERVER_CORE = 0
OTHER_CORE = 1
START_S = 60.0


class Child:
    """A pinned child process that prints its port first."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        core: int,
        orders: object = None,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - stop() closes it
        self.process = subprocess.Popen(  # noqa: S603 - this Python and modules of this package
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            preexec_fn=_pin(core),  # noqa: PLW1509 - started before this process has threads, and only sets an affinity
        )
        self._port = 0
        if self.process.stdin is not None:
            if orders is not None:
                self.process.stdin.write(json.dumps(orders).encode())
            self.process.stdin.close()

    def line(self) -> bytes:
        """Read one line it prints."""
        if self.process.stdout is None:
            return b""
        return self.process.stdout.readline()

    def port(self) -> int:
        """Give the port it prints first."""
        if self._port == 0:
            line = self.line().strip()
            if not line.isdigit():
                raise self.failed(f"did not start: {line!r}")
            self._port = int(line)
        return self._port

    def result(self) -> Any:
        """Wait for its end and decode what it printed."""
        output = b"" if self.process.stdout is None else self.process.stdout.read()
        self.process.wait()
        if self.process.returncode != 0:
            raise self.failed(f"ended with {self.process.returncode}")
        return json.loads(output)

    def failed(self, how: str) -> AckpostError:
        """Tell what went wrong, with the last lines it wrote to its standard error."""
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-5:]
        return AckpostError("\n".join((f"a process of the benchmark {how}", *last)))

    def cpu_s(self) -> float:
        """Seconds of processor time used so far (user and system)."""
        return _cpu_s(f"/proc/{self.process.pid}/stat")

    def loop_cpu_s(self) -> float:
        """Of these the seconds of its first thread, which runs the event loop."""
        return _cpu_s(f"/proc/{self.process.pid}/task/{self.process.pid}/stat")

    def peak_rss_mib(self) -> float:
        """The most resident memory so far."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self, *, gently: bool = True) -> None:
        """End it, gently first unless nothing it still does matters."""
        if gently:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=35)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()


def _cpu_s(path: str) -> float:
    fields = Path(path).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pin(core: int) -> Callable[[], None]:
    """One core for the server, another for receiver and load, where there are two."""

    def pin() -> None:
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[core % len(cores)]})

    return pin
