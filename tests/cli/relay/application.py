"""An application's database with an outbox, and the relay as a process of its own."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg

from ackpost import outbox
from tests.process.server import KEY, Lines, Server

Connection = Any
"""``sqlite3.Connection`` or ``psycopg.Connection``: what both can do is used."""

Answer = tuple[int, bytes]

END_S = 60.0


class Application:
    """Its database, by the URL that the relay gets."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self.connect() as connection:
            outbox.create(connection)
            connection.commit()

    def connect(self) -> Connection:
        if self.url.startswith("sqlite"):
            return _Closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), check_same_thread=False))
        return psycopg.connect(self.url)

    def publish(self, type: str, count: int = 1, **more: Any) -> list[str]:
        """Write events in one transaction, numbered from 0 in their data; give their uids."""
        with self.connect() as connection:
            uids = [outbox.publish(connection, type, {"n": number}, **more) for number in range(count)]
            connection.commit()
        return uids

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement, and give its rows if it has any."""
        with self.connect() as connection:
            cursor = connection.execute(sql)
            rows: list[tuple[Any, ...]] = [] if cursor.description is None else cursor.fetchall()
            connection.commit()
        return rows

    def waiting(self) -> list[str]:
        """The uids of all rows, refused ones too."""
        return [uid for (uid,) in self.run("SELECT uid FROM ackpost_outbox ORDER BY number")]

    def hold_rows(self) -> Connection:
        """Keep others from deleting rows until the connection is closed; they can be read."""
        connection = self.connect()
        is_file = self.url.startswith("sqlite")
        connection.execute("BEGIN IMMEDIATE" if is_file else "SELECT * FROM ackpost_outbox FOR UPDATE")
        return connection


class _Closing:
    """A connection of the standard library that its context closes, as psycopg's does."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class RelayProcess:
    """``ackpost relay``, to be stopped, killed and started again."""

    def __init__(self, application: Application, server_url: str, folder: Path, *arguments: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ACKPOST_")}
        ours = {"ACKPOST_URL": server_url, "ACKPOST_API_KEY": KEY, "ACKPOST_OUTBOX_URL": application.url}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ackpost", "relay", *arguments],
            cwd=folder, env={**inherited, **ours}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out, self.errors = Lines(self.process.stdout), Lines(self.process.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.out.join()
        self.errors.join()

    def end(self) -> tuple[int, list[str]]:
        """Ask it to end; give its code and what it printed."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S), self.out.join()


class Between:
    """Stands between relay and server: ``act`` gets each batch, and may pass it on by calling what it is given."""

    def __init__(self, server: Server, act: Callable[[Callable[[], Answer]], Answer | None]) -> None:
        self._server = server
        self._act = act
        between = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = between._act(lambda: between._pass_on(self.path, body, dict(self.headers.items())))
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def _pass_on(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        connection = HTTPConnection("127.0.0.1", urlsplit(self._server.url).port)
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def sequences(server: Server, uids: Sequence[str]) -> list[int]:
    """Give the sequences of events in their keys, by uid."""
    return [server.get(f"/events/{uid}")["sequence"] for uid in uids]
