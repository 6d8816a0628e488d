"""What the operator reads: one wide line an attempt, and rare lines for what changed. No secrets, no URLs' queries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from ackpost.core.decision import Decision
from ackpost.core.ids import public_id
from ackpost.core.times import rfc3339_ms
from ackpost.ports.clock import Clock
from ackpost.service.telemetry import Counters
from ackpost.wiring.lines import LineSink

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_WARNINGS: Final = frozenset(
    {
        "store.trouble", "store.warning", "clock.stepped", "clock.behind_store", "endpoint.broken",
        "retention.dead_letters_removed", "delivery.poison", "order.promoted_by_sweep", "deliveries.interrupted",
        "outbox.refused", "outbox.trouble",
    }
)  # fmt: skip


class AttemptLine(msgspec.Struct, omit_defaults=True):
    """One attempt as it is logged."""

    ts: str
    event: str
    level: str
    endpoint_id: str
    event_id: str
    delivery_id: str
    attempt: int
    outcome: str
    verdict: str
    duration_ms: float
    status_code: int | None = None
    phase: str | None = None
    reason: str | None = None
    next_attempt_at: str | None = None
    trigger: str = "schedule"
    error_detail: str = ""


class NodeTelemetry(Counters):
    """Counts (for /metrics) and writes lines."""

    def __init__(self, sink: LineSink, clock: Clock, *, log_format: str, log_level: str) -> None:
        super().__init__()
        self._sink = sink
        self._clock = clock
        self._console = log_format == "console"
        self._level = _LEVELS[log_level]
        self._render = _Render(console=self._console)
        self._encoder = msgspec.json.Encoder()
        self.salt = 0

    @property
    def log_batches_dropped(self) -> int:
        """Batches of lines that found no room because nobody read the output."""
        return self._sink.dropped

    def attempts(self, decisions: Sequence[Decision]) -> None:
        """Results that became durable with one commit; lines are made in the sink's thread."""
        super().attempts(decisions)
        if self._level <= _LEVELS["info"]:
            self._sink.put(partial(self._attempt_lines, decisions), len(decisions))

    def circuit(self, endpoint: int, state: str) -> None:
        """An endpoint's circuit changed."""
        super().circuit(endpoint, state)
        fields = {"endpoint_id": public_id("ep", endpoint, self.salt), "state": state}
        self._write("endpoint.circuit", "warning" if state == "open" else "info", fields)

    def note(self, name: str, **fields: object) -> None:
        """A rare operational fact."""
        super().note(name)
        endpoint = fields.get("endpoint")
        if isinstance(endpoint, int):
            fields = {**fields, "endpoint": public_id("ep", endpoint, self.salt)}
        self._write(name, "warning" if name in _WARNINGS else "info", fields)

    def _write(self, event: str, level: str, fields: dict[str, Any]) -> None:
        if _LEVELS[level] >= self._level:
            line = {"ts": rfc3339_ms(self._clock.now_ms()), "event": event, "level": level, **fields}
            self._sink.put(lambda: self._render(line))

    def _attempt_lines(self, decisions: Sequence[Decision]) -> bytes:
        lines = [_attempt_line(decision, self.salt) for decision in decisions if decision.outcome is not None]
        if self._console:
            return b"".join(self._render(msgspec.to_builtins(line)) for line in lines)
        return self._encoder.encode_lines(lines)


def _attempt_line(decision: Decision, salt: int) -> AttemptLine:
    outcome = decision.outcome
    if outcome is None:
        raise ValueError("an ending without an attempt has no line")
    return AttemptLine(
        ts=rfc3339_ms(decision.ended_at_ms),
        event="attempt.finished",
        level="info",
        endpoint_id=public_id("ep", decision.endpoint, salt),
        event_id=public_id("evt", decision.event, salt),
        delivery_id=public_id("dlv", decision.delivery, salt),
        attempt=decision.number,
        outcome=outcome.code,
        verdict=decision.verdict,
        duration_ms=round(outcome.duration_ms, 1),
        status_code=outcome.status_code,
        phase=outcome.phase,
        reason=decision.reason,
        next_attempt_at=None if decision.due_ms is None else rfc3339_ms(decision.due_ms),
        trigger=decision.trigger,
        error_detail=outcome.detail,
    )


class _Render:
    """Turns one line's fields into bytes, as structlog's renderers do."""

    def __init__(self, *, console: bool) -> None:
        self._console = structlog.dev.ConsoleRenderer(colors=False, sort_keys=False, timestamp_key="ts")
        self._json = structlog.processors.JSONRenderer(serializer=_to_json)
        self._is_console = console

    def __call__(self, line: dict[str, Any]) -> bytes:
        if self._is_console:
            return f"{self._console(None, '', dict(line))}\n".encode(errors="backslashreplace")
        return f"{self._json(None, '', line)!s}\n".encode(errors="backslashreplace")


def _to_json(line: Any, **_: Any) -> str:
    return msgspec.json.encode(line, enc_hook=str).decode()
