"""Publishers that keep a ledger: what the server has acknowledged, over crashes and restarts."""

from __future__ import annotations

import http.client
import json
import threading
from types import TracebackType
from typing import Final, Self

from tests.process.server import KEY, Server

_PAUSE_S: Final = 0.02


class Publishers:
    """So many connections, each publishing one event after another until stopped; use as a context.

    An event that was not acknowledged is published again with the same uid, as a publisher is told to.
    """

    def __init__(
        self,
        server: Server,
        type: str,
        *,
        connections: int = 16,
        pace_s: float = 0.0,
        padding_bytes: int = 0,
        name: str = "",
    ) -> None:
        self.acknowledged: dict[str, str] = {}
        """The ledger: from uid to the id that was answered."""
        self.refusals: dict[str, int] = {}
        """How often each answer or failure came that was no acknowledgement."""
        self.conflicts: list[str] = []
        self._port = server.port
        self._type = type
        self._name = name
        self._pace_s = pace_s
        self._padding = "x" * padding_bytes
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(connections)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Publish nothing new; wait until the last events are acknowledged."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def turn_to(self, server: Server) -> None:
        """Make new connections to this server from now on."""
        self._port = server.port

    def _work(self, worker: int) -> None:
        connection: http.client.HTTPConnection | None = None
        number = 0
        gives_up = 0
        while not self._stop.is_set() or gives_up:
            uid = f"{self._name}{worker}-{number}"
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=15)
            answer = self._post(connection, uid)
            if answer is not None:
                self._keep(uid, answer)
                number, gives_up = number + 1, 0
                self._stop.wait(self._pace_s)
                continue
            connection.close()
            connection = None
            gives_up += 1
            if self._stop.is_set() and gives_up > 500:
                break
            threading.Event().wait(_PAUSE_S)
        if connection is not None:
            connection.close()

    def _post(self, connection: http.client.HTTPConnection, uid: str) -> str | None:
        body = f'{{"type":"{self._type}","uid":"{uid}","data":{{"uid":"{uid}","padding":"{self._padding}"}}}}'
        try:
            connection.request("POST", "/v1/events", body, {"Authorization": f"Bearer {KEY}"})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._count(type(error).__name__)
            return None
        if answer.status == 202:
            identity: str = json.loads(text)["id"]
            return identity
        self._count(f"{answer.status} {json.loads(text)['code']} retry-after={answer.headers['Retry-After']}")
        return None

    def _keep(self, uid: str, identity: str) -> None:
        with self._lock:
            self.acknowledged[uid] = identity

    def _count(self, what: str) -> None:
        with self._lock:
            self.refusals[what] = self.refusals.get(what, 0) + 1
