"""What a long run needs: publishers and a receiver that only count, and faults that a server must live with."""

from __future__ import annotations

import asyncio
import http.client
import resource
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ackpost.cli.client import ApiFailed
from ackpost.testing.faults import FaultServer, SeenRequest
from ackpost.testing.script import Step, parse_script
from tests.process.server import KEY, Server

_PAUSE_S: Final = 0.05
PADDING: Final = "x" * 400


class CountingReceiver:
    """Answers each path by its one step, which may be changed, and counts. Use as a context."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="receiver")
        self._server = FaultServer(self._answer, keep_max=1)
        self._steps: dict[str, Step] = {}
        self.received: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def hook(self, path: str, step: str = "200") -> str:
        """Answer so from now on; give the URL."""
        self._steps[path] = parse_script(step)[0]
        return self._server.url(path)

    def _answer(self, request: SeenRequest) -> Step:
        self.received[request.path] += 1
        return self._steps[request.path]


class CountingPublishers:
    """Each publishes ``<number>-<count>`` after another, every one until it is acknowledged. Use as a context."""

    def __init__(self, server: Server, type: str, connections: int) -> None:
        self.server = server
        self._type = type
        self._stop = threading.Event()
        self.pace_s = 0.0
        self.counts = [0] * connections
        self.refusals: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(connections)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        connection: http.client.HTTPConnection | None = None
        due_s = time.monotonic()
        while not self._stop.is_set():
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=15)
            refusal = self._post(connection, f"{number}-{self.counts[number]}")
            if refusal is None:
                self.counts[number] += 1
                due_s = max(due_s + self.pace_s, time.monotonic() - 1)
                self._stop.wait(max(0.0, due_s - time.monotonic()))
            else:
                self.refusals[refusal] += 1
                connection.close()
                connection = None
                self._stop.wait(_PAUSE_S)
        if connection is not None:
            connection.close()

    def _post(self, connection: http.client.HTTPConnection, uid: str) -> str | None:
        body = f'{{"type":"{self._type}","uid":"{uid}","data":{{"padding":"{PADDING}"}}}}'
        try:
            connection.request("POST", "/v1/events", body, {"Authorization": f"Bearer {KEY}"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        return None if answer.status == 202 else str(answer.status)


class Faults:
    """What is done to a server that goes on living, one after the other; ``done`` counts it."""

    def __init__(self, server: Server, receiver: CountingReceiver, moody: str, wait: Callable[[float], object]) -> None:
        self._server = server
        self._receiver = receiver
        self._moody = moody
        self._wait = wait
        self._next = 0
        self.done: Counter[str] = Counter()

    def next(self) -> None:
        """Do the next one, and undo it."""
        all_of_them = (
            self._pause, self._failing, self._held_database, self._hanging, self._no_descriptors, self._rude_clients,
            self._resets, self._come_and_go, self._long_reader,
        )  # fmt: skip
        fault = all_of_them[self._next % len(all_of_them)]
        self._next += 1
        self.done[fault.__name__.strip("_")] += 1
        fault()

    def _pause(self) -> None:
        self._server.process.send_signal(signal.SIGSTOP)
        self._wait(1.5)
        self._server.process.send_signal(signal.SIGCONT)

    def _failing(self) -> None:
        self._mood("500")

    def _hanging(self) -> None:
        self._mood("hang")

    def _resets(self) -> None:
        self._mood("reset:header")

    def _mood(self, step: str) -> None:
        self._receiver.hook(self._moody, step)
        self._wait(3)
        self._receiver.hook(self._moody)

    def _held_database(self) -> None:
        with closing(sqlite3.connect(self._server.database, timeout=10, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            self._wait(2)
            other.execute("ROLLBACK")

    def _long_reader(self) -> None:
        with closing(sqlite3.connect(self._server.database, timeout=10, isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM endpoint").fetchall()
            self._wait(3)

    def _no_descriptors(self) -> None:
        process = self._server.process.pid
        before = resource.prlimit(process, resource.RLIMIT_NOFILE)
        now = len(list(Path(f"/proc/{process}/fd").iterdir()))
        resource.prlimit(process, resource.RLIMIT_NOFILE, (now, before[1]))
        self._wait(2)
        resource.prlimit(process, resource.RLIMIT_NOFILE, before)

    def _rude_clients(self) -> None:
        """Half a request, then nothing; then all of them are gone at once."""
        clients = [socket.create_connection(("127.0.0.1", self._server.port), timeout=10) for _ in range(50)]
        for number, client in enumerate(clients):
            client.sendall(b"POST /v1/events HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n{"[: 20 + number])
        self._wait(1)
        for client in clients:
            client.close()

    def _come_and_go(self) -> None:
        """Endpoints that are made, sent to and deleted, and calls that are refused."""
        for _ in range(20):
            endpoint = self._server.endpoint(self._receiver.hook("/passing"), "soak.passing")
            self._server.publish("soak.passing")
            self._server.api.call("DELETE", f"/v1/endpoints/{endpoint['id']}")
            try:
                self._server.get(f"/endpoints/{endpoint['id']}")
            except ApiFailed:
                self.done["refused calls"] += 1
