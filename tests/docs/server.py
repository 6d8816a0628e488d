"""A fresh server for the commands of one page, started as the page's reader would: ``ackpost serve --dev``."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Server:
    """Where the server listens, and what the shell beside it needs."""

    port: int
    environment: dict[str, str]

    def adapt(self, text: str) -> str:
        """Put the test's port in the place of the default one; nothing else of a page is changed."""
        return re.sub(r"\b(127\.0\.0\.1|localhost):8080\b", rf"\1:{self.port}", text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def fresh_server(folder: Path) -> Iterator[Server]:
    """Run a server in ``folder`` (its database and key lie there) until the page is done."""
    port = _free_port()
    environment = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["ackpost", "serve", "--dev", "--port", str(port)],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    printed: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if "curl" in line:  # the last thing a developer's server prints before it waits for requests
                ready.set()
        ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert ready.wait(START_TIMEOUT_S), f"no server within {START_TIMEOUT_S} s:\n{''.join(printed)}"
        assert process.poll() is None, f"the server ended with {process.returncode}:\n{''.join(printed)}"
        yield Server(port, environment)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        finally:
            process.kill()
            reader.join()
            assert process.stdout is not None
            process.stdout.close()
