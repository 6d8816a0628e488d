"""``python -m tests.process.failing serve …``: Ackpost with one named point at which it dies, fails or stalls.

``FAILPOINT`` names the point, ``FAIL_ACTION`` what happens there: ``exit`` (as by kill -9), ``raise`` (an error of the
database, once) or ``stall`` (for ``STALL_S``, once). ``FAIL_AFTER`` lets the point pass that often first; ``FAIL_MARK``
is a file that is made when it is hit. The product knows nothing of this: its functions are wrapped from outside, and
the statements of its writer are watched.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import apsw

STALL_S: Final = 3.0

CALLS: Final = {
    # name: (module, class or empty, function, whether the point is behind the call)
    "a request was read": ("ackpost.api.direct", "DirectPublish", "take", False),
    "a request was validated": ("ackpost.engine.writer", "Writer", "queue", False),
    "a request was queued": ("ackpost.engine.writer", "Writer", "queue", True),
    "a group is durable": ("ackpost.store.sqlite.store", "SqliteStore", "_commit", True),
    "a publisher is to be answered": ("ackpost.engine.writer", "Writer", "_resolve", False),
    "a publisher was answered": ("ackpost.engine.writer", "Writer", "_resolve", True),
    "a delivery was handed over": ("ackpost.engine.engine", "Engine", "hand_off", True),
    "a request is to be sent": ("ackpost.egress.client", "HttpClient", "send", False),
    "a request was sent": ("ackpost.egress.client", "HttpClient", "send", True),
    "what was in flight is counted": ("ackpost.store.sqlite.deliveries", "", "interrupt", True),
    "an answer came": ("ackpost.engine.engine", "Engine", "_on_outcome", False),
    "an answer was judged": ("ackpost.engine.writer", "Writer", "record", False),
    "a result was queued": ("ackpost.engine.writer", "Writer", "record", True),
    "results are durable": ("ackpost.engine.engine", "Engine", "on_recorded", False),
    "results are settled": ("ackpost.engine.engine", "Engine", "on_recorded", True),
    "a job's step begins": ("ackpost.store.sqlite.jobs", "", "step_job", False),
    "a job's step is done": ("ackpost.store.sqlite.jobs", "", "step_job", True),
    "retention begins": ("ackpost.store.sqlite.retention", "", "retain", False),
    "retention is done": ("ackpost.store.sqlite.retention", "", "retain", True),
}
STATEMENTS: Final = {
    # name: how the statement begins, before which the point is
    "a transaction begins": "BEGIN IMMEDIATE",
    "uids are looked up": "SELECT u.tenant, u.uid",
    "keys are looked up": "SELECT k.tenant, k.key",
    "earlier answers are looked up": "SELECT i.tenant, i.key",
    "events are inserted": "INSERT INTO event (",
    "deliveries are inserted": "INSERT INTO delivery (",
    "uids are inserted": "INSERT INTO event_uid (",
    "keys are numbered": "INSERT INTO key_state (",
    "answers are kept": "INSERT INTO idempotency (",
    "first results are taken out": "DELETE FROM delivery WHERE position IN",
    "first results are kept": "INSERT INTO history (",
    "attempts are kept": "INSERT INTO attempt (",
    "the next of a key is let go": "UPDATE delivery SET waiting = 0",
    "a transaction ends": "COMMIT",
    "the schema is made": "CREATE TABLE",
}
HALF_ANSWER: Final = "half an answer was written"
POINTS: Final = (*CALLS, *STATEMENTS, HALF_ANSWER)


class Point:
    """The point that was asked for."""

    def __init__(self, action: str, after: int, mark: Path) -> None:
        self._action = action
        self._left = after
        self._mark = mark

    def pass_by(self) -> None:
        """Do what was asked for, if it is time."""
        self._left -= 1
        if self._left >= 0 or self._mark.exists():
            return
        self._mark.touch()
        if self._action == "exit":
            os._exit(9)
        if self._action == "raise":
            raise apsw.IOError("a failure at this point")
        threading.Event().wait(STALL_S)


def _wrap(point: Point, module: str, owner: str, name: str, *, behind: bool) -> None:
    holder: Any = importlib.import_module(module)
    holder = getattr(holder, owner) if owner else holder
    inner: Callable[..., Any] = getattr(holder, name)

    @functools.wraps(inner)
    def wrapped(*given: Any, **named: Any) -> Any:
        if not behind:
            point.pass_by()
        result = inner(*given, **named)
        if behind:
            point.pass_by()
        return result

    setattr(holder, name, wrapped)


def _watch_statements(point: Point, begin: str) -> None:
    """Tell the point of the writer's statements; readers and the checkpointer open their connections otherwise."""
    connection: Any = importlib.import_module("ackpost.store.sqlite.connection")
    prepare = connection._prepare

    def watched(writer: apsw.Connection, path: str, busy_timeout_ms: int) -> None:
        def trace(_cursor: Any, sql: str, _values: Any) -> bool:
            if begin in sql if begin == "CREATE TABLE" else sql.startswith(begin):
                point.pass_by()
            return True

        writer.exec_trace = trace
        prepare(writer, path, busy_timeout_ms)

    connection._prepare = watched


def _break_answers(point: Point) -> None:
    from ackpost.wiring.direct_calls import DirectRequest

    answer = DirectRequest.answer

    def half(self: Any, head: bytes, body: bytes) -> None:
        self.transport.write(head[: len(head) // 2])
        point.pass_by()
        answer(self, head[len(head) // 2 :], body)

    DirectRequest.answer = half  # type: ignore[method-assign] # from outside


def install() -> None:
    """Put the point where the environment says."""
    name = os.environ["FAILPOINT"]
    after, mark = int(os.environ.get("FAIL_AFTER", "0")), Path(os.environ["FAIL_MARK"])
    point = Point(os.environ.get("FAIL_ACTION", "exit"), after, mark)
    if name in CALLS:
        module, owner, function, behind = CALLS[name]
        _wrap(point, module, owner, function, behind=behind)
        if not owner:
            _rebind(module, function)
    elif name in STATEMENTS:
        _watch_statements(point, STATEMENTS[name])
    else:
        assert name == HALF_ANSWER
        _break_answers(point)


def _rebind(module: str, function: str) -> None:
    """The table of operations holds the functions themselves."""
    from ackpost.store.sqlite import commit

    replaced: Any = getattr(importlib.import_module(module), function)
    for operation, known in commit._APPLY.items():
        if known.__name__ == function:
            commit._APPLY[operation] = replaced


if __name__ == "__main__":
    install()
    from ackpost.cli import main

    main()
