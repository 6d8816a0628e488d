"""A real server process on a real file: started, asked, stopped, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from ackpost.cli.client import ApiClient, ApiFailed

Found = TypeVar("Found")

KEY: Final = "operator-key-of-the-process-tests-01"
START_S: Final = 30.0
STOP_S: Final = 35.0
_POLL_S: Final = 0.02
_NEVER: Final = threading.Event()


def until(condition: Callable[[], Found | None], what: str, within_s: float = 15.0) -> Found:
    """Ask again and again until the answer is true, and give it.

    Raises: AssertionError naming ``what`` when it does not come within the time.
    """
    for _ in range(round(within_s / _POLL_S)):
        found = condition()
        if found:
            return found
        _NEVER.wait(_POLL_S)
    raise AssertionError(f"not within {within_s} s: {what}")


class Lines:
    """What a process writes to one of its streams, line by line, as it comes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))
        self._stream.close()

    def join(self) -> list[str]:
        """Give all lines, once the process has ended."""
        self._thread.join()
        return self.lines


class Server:
    """``ackpost serve`` on the database of one folder; use as a context, or ``start`` and ``stop`` it.

    ``arguments`` and ``environment`` are added to those of a developer's server with logs in JSON; ``module`` is what
    Python runs in place of ``ackpost``: the tests' own ways of starting it.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        database: Path | None = None,
        environment: Mapping[str, str] | None = None,
        module: str = "ackpost",
    ) -> None:
        self.folder = folder
        self.database = folder / "ackpost.db" if database is None else database
        self.port = 0
        self._arguments = arguments
        self._environment = environment or {}
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._out: Lines | None = None
        self._errors: Lines | None = None
        self.ended: list[str] = []
        """Lines of the logs of earlier processes."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.kill()

    # ------------------------------------------------------------ the process

    def launch(self, stdout: int = subprocess.PIPE) -> None:
        """Start the process without waiting for it to serve; ``stdout`` is where its log goes instead of here."""
        assert self._process is None, "it runs already"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ACKPOST_")}
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", self._module, "serve", "--dev", "--port", str(self.port),
                "--database-url", f"sqlite:///{self.database}", *self._arguments,
            ],
            cwd=self.folder,
            env={**inherited, "ACKPOST_OPERATOR_KEY": KEY, "ACKPOST_LOG_FORMAT": "json", **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stderr is not None
        self._out = None if self._process.stdout is None else Lines(self._process.stdout)
        self._errors = Lines(self._process.stderr)

    def start(self) -> Self:
        """Start the process and wait until it serves; after the first time on the same port."""
        self.launch()
        started = until(self._started, "the server's start", START_S)
        self.port = urlsplit(str(started["url"])).port or 0
        return self

    def _started(self) -> dict[str, Any] | None:
        code = self.process.poll()
        assert code is None, f"the server ended with {code}: {self.complaint()}"
        return next(iter(self.logged("server.started")), None)

    def fail(self, within_s: float = START_S) -> tuple[int, list[str]]:
        """Start the process, which must end by itself; give its exit code and what it wrote to stderr."""
        self.launch()
        return self.wait(within_s)

    def wait(self, within_s: float = STOP_S) -> tuple[int, list[str]]:
        """Wait for its end; give the exit code and the lines of stderr."""
        try:
            code = self.process.wait(within_s)
        finally:
            self.process.kill()
        complaint = self._collect()
        return code, complaint

    def stop(self, within_s: float = STOP_S) -> int:
        """Ask it to stop (SIGTERM) and give its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code, complaint = self.wait(within_s)
        if code != 0:
            print(f"the server ended with {code}:", *complaint, sep="\n")
        return code

    def kill(self) -> None:
        """Kill it in the middle of whatever it does (SIGKILL)."""
        self.process.kill()
        self.process.wait()
        self._collect()

    def restart(self) -> None:
        """Kill it and start it again on the same file and port."""
        self.kill()
        self.start()

    def _collect(self) -> list[str]:
        assert self._errors is not None
        self.ended += [] if self._out is None else self._out.join()
        complaint = self._errors.join()
        self._process = self._out = self._errors = None
        return complaint

    @property
    def running(self) -> bool:
        """Whether a process of it was started and has not been waited for."""
        return self._process is not None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that runs now."""
        assert self._process is not None, "it does not run"
        return self._process

    # ------------------------------------------------------------ what it wrote

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Give the log lines of one kind that the present process has written."""
        return _of_kind(() if self._out is None else tuple(self._out.lines), event)

    def logged_before(self, event: str) -> list[dict[str, Any]]:
        """Give the log lines of one kind of the processes that have ended."""
        return _of_kind(tuple(self.ended), event)

    def complaint(self) -> str:
        """What the present process wrote to stderr so far."""
        return "" if self._errors is None else "\n".join(self._errors.lines)

    # ------------------------------------------------------------ its API

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> ApiClient:
        """A client with the operator's key."""
        return ApiClient(self.url, KEY, timeout_s=30.0)

    def get(self, path: str, **query: object) -> Any:
        """GET a path under /v1."""
        return self.api.call("GET", f"/v1{path}", query=query)

    def post(self, path: str, body: object = None, **query: object) -> Any:
        """POST to a path under /v1."""
        return self.api.call("POST", f"/v1{path}", {} if body is None else body, query=query)

    def patch(self, path: str, body: object) -> Any:
        """PATCH a path under /v1."""
        return self.api.call("PATCH", f"/v1{path}", body)

    def publish(self, type: str, data: bytes = b'{"n":1}', **fields: object) -> Any:
        """Publish an event whose data are exactly these bytes."""
        more = "".join(f',"{name}":{json.dumps(value)}' for name, value in fields.items())
        body = b'{"type":"%b","data":%b%b}' % (type.encode(), data, more.encode())
        return self.api.call("POST", "/v1/events", raw=body)

    def refused(self, method: str, path: str, body: object = None, *, version: str = "/v1") -> ApiFailed:
        """Make a call that must be refused, and give the refusal."""
        try:
            answer = self.api.call(method, version + path, body)
        except ApiFailed as failed:
            return failed
        raise AssertionError(f"{method} {path} was not refused: {answer!r}")

    def endpoint(self, url: str, types: str | list[str], **fields: object) -> Any:
        """Make an endpoint for some types."""
        event_types = [types] if isinstance(types, str) else types
        return self.post("/endpoints", {"url": url, "event_types": event_types, **fields})

    def deliveries(self, event_id: str) -> list[Any]:
        """Give the deliveries of an event."""
        found: list[Any] = self.get("/deliveries", event_id=event_id)["data"]
        return found

    def settled(self, event_id: str, status: str = "delivered", within_s: float = 15.0) -> Any:
        """Wait until the event's only delivery has a status, and give it."""

        def reached() -> Any:
            (delivery,) = self.deliveries(event_id)
            return delivery if delivery["status"] == status else None

        return until(reached, f"{event_id} {status}", within_s)


def _of_kind(lines: tuple[str, ...], event: str) -> list[dict[str, Any]]:
    mark = f'"event":"{event}"'
    return [json.loads(line) for line in lines if mark in line]
