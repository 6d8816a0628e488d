"""Mixed load on a server that is killed again and again: all kinds of calls, each with a ledger of its answers."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from tests.process.server import KEY, Server

_PAUSE_S: Final = 0.02
_GIVES_UP_AFTER: Final = 1500
"""Tries of one call: half a minute and more without a server."""


class Caller:
    """One connection that is made anew when it breaks; a call is repeated until it is answered below 500."""

    def __init__(self, port: int, stop: threading.Event) -> None:
        self._port = port
        self._stop = stop
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Give status and answer."""
        text = None if body is None else json.dumps(body)
        for _ in range(_GIVES_UP_AFTER):
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=15)
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                self._connection.request(method, path, text, {"Authorization": f"Bearer {KEY}", **named})
                answer = self._connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                self.close()
            else:
                if answer.status < 500 and content:
                    return answer.status, json.loads(content)
                if not content:
                    self.close()  # this library takes a header that was cut off for a whole one
            threading.Event().wait(_PAUSE_S)
        raise AssertionError(f"{method} {path} got no answer")

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class MixedLoad:
    """Publishers of single events, batches, keyed events and repeated calls, and an operator; use as a context.

    ``by_uid``, ``by_key``: what was acknowledged under a uid or an Idempotency-Key, with the event's id; ``faults``:
    answers that must not come.
    """

    def __init__(self, server: Server, type: str, seed: int) -> None:
        self._type = type
        self._server = server
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.by_uid: dict[str, str] = {}
        self.by_key: dict[str, str] = {}
        self.deeds: dict[str, int] = {}
        self.faults: list[str] = []
        self._random = random.Random(seed)
        works = [self._singles] * 6 + [self._batches] * 2 + [self._keyed] * 4 + [self._repeated] * 3 + [self._operator]
        self._threads = [
            threading.Thread(target=self._guarded, args=(work, number)) for number, work in enumerate(works)
        ]

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

    @property
    def acknowledged(self) -> dict[str, str]:
        """All of them, by uid or key."""
        with self._lock:
            return {**self.by_uid, **self.by_key}

    def _guarded(self, work: Callable[[Caller, int], None], number: int) -> None:
        caller = Caller(self._server.port, self._stop)
        try:
            work(caller, number)
        except AssertionError as error:
            self.faults.append(str(error))
        finally:
            caller.close()

    def _event(self, uid: str, **more: object) -> dict[str, object]:
        return {"type": self._type, "uid": uid, "data": {"uid": uid}, **more}

    def _keep(self, ledger: dict[str, str], name: str, status: int, identity: str | None) -> None:
        with self._lock:
            if status != 202 or identity is None:
                self.faults.append(f"{name}: {status}")
            elif ledger.setdefault(name, identity) != identity:
                self.faults.append(f"{name}: two events, {ledger[name]} and {identity}")

    def _singles(self, caller: Caller, worker: int) -> None:
        number = 0
        while not self._stop.is_set():
            uid = f"one-{worker}-{number}"
            status, answer = caller.call("POST", "/v1/events", self._event(uid))
            self._keep(self.by_uid, uid, status, answer.get("id"))
            number += 1

    def _batches(self, caller: Caller, worker: int) -> None:
        number = 0
        while not self._stop.is_set():
            uids = [f"batch-{worker}-{number}-{item}" for item in range(20)]
            status, answer = caller.call("POST", "/v1/events/batch", {"events": [self._event(uid) for uid in uids]})
            for uid, event in zip(uids, answer.get("events", [{}] * 20), strict=True):
                self._keep(self.by_uid, uid, status, event.get("id"))
            number += 1
            self._stop.wait(0.05)

    def _keyed(self, caller: Caller, worker: int) -> None:
        """Events of a few keys, numbered by the service: this worker is the only one of its keys."""
        number = 0
        while not self._stop.is_set():
            uid = f"keyed-{worker}-{number}"
            event = self._event(uid, key=f"key-{worker}-{number % 3}")
            status, answer = caller.call("POST", "/v1/events", event)
            self._keep(self.by_uid, uid, status, answer.get("id"))
            if answer.get("sequence") != number // 3 + 1:
                self.faults.append(f"{uid}: sequence {answer.get('sequence')}")
            number += 1

    def _repeated(self, caller: Caller, worker: int) -> None:
        """Calls under an Idempotency-Key, now and then sent once more though they were answered."""
        number = 0
        while not self._stop.is_set():
            key = f"call-{worker}-{number}"
            body = {"type": self._type, "data": {"call": key}}
            for _ in range(1 + (number % 3 == 0)):
                status, answer = caller.call("POST", "/v1/events", body, Idempotency_Key=key)
                self._keep(self.by_key, key, status, answer.get("id"))
            number += 1

    def _operator(self, caller: Caller, worker: int) -> None:
        """Redeliver, cancel and replay this and that."""
        while not self._stop.is_set():
            with self._lock:
                known = list(self.by_uid.values())
            if known:
                deed = self._random.choice(["redeliver", "cancel"])
                status, _ = caller.call("POST", f"/v1/events/{self._random.choice(known[-200:])}/{deed}")
                self.deeds[f"{deed} {status}"] = self.deeds.get(f"{deed} {status}", 0) + 1
                if self._random.random() < 0.1:
                    status, _ = caller.call("POST", "/v1/dead-letters/replay", {"all": True})
                    self.deeds[f"replay {status}"] = self.deeds.get(f"replay {status}", 0) + 1
            self._stop.wait(0.03)
