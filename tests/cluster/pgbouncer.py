"""A real PgBouncer that gives each transaction another session."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.needs import need_program
from tests.process.server import until

_NOBODY = 65_534


class PgBouncer:
    """In front of the server of a URL; use as a context."""

    def __init__(self, url: str) -> None:
        self._program = need_program("pgbouncer", "pgbouncer")
        parts = urlsplit(url)
        self._server = parse_qs(parts.query)["host"][0]
        self._database = parts.path
        self._folder = tempfile.TemporaryDirectory(prefix="ackpost-pgbouncer-")
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    @property
    def url(self) -> str:
        """Where the database is, this way."""
        return f"postgresql://postgres@127.0.0.1:{self._port}{self._database}"

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={self._server} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self._port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
            f"max_client_conn = 200\ndefault_pool_size = 8\nlogfile = {folder}/log\npidfile = {folder}/pid\n",
            encoding="ascii",
        )
        folder.chmod(0o777)
        user: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY} if os.geteuid() == 0 else {}
        command = [self._program, "-q", str(folder / "pgbouncer.ini")]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user)
        until(self._listens, "the pooler's start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (Path(self._folder.name) / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0
