"""``python -m tests.process.fragile serve …``: Ackpost that certain data and answers kill, or make fail.

Stands in for faults that nobody knows yet. ``{"deadly":"built"}`` as data kills the process as the request is built; an
answer whose body says ``deadly`` kills it as it is judged, and one that says ``wrong`` raises there.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from ackpost.cli import main
from ackpost.core.outcome import Outcome
from ackpost.engine.engine import Engine
from ackpost.engine.request import RequestBuilder


def _install() -> None:
    build, judge = RequestBuilder.build, Engine._judge

    def fragile_build(self: RequestBuilder, ref: Any, payload: Any, **named: Any) -> tuple[bytes, bytes]:
        if payload.data == b'{"deadly":"built"}':
            os.kill(os.getpid(), signal.SIGSEGV)
        return build(self, ref, payload, **named)

    def fragile_judge(self: Engine, lane: Any, ref: Any, event_type: str, started_ms: int, outcome: Outcome) -> None:
        if outcome.response_body == b"deadly":
            os.kill(os.getpid(), signal.SIGSEGV)
        if outcome.response_body == b"wrong":
            raise ValueError("nobody expected this answer")
        judge(self, lane, ref, event_type, started_ms, outcome)

    RequestBuilder.build = fragile_build  # type: ignore[method-assign] # from outside
    Engine._judge = fragile_judge  # type: ignore[method-assign] # from outside


if __name__ == "__main__":
    _install()
    main()
