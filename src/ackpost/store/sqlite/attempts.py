"""Writing attempts: each (delivery, round, number) once, also for deliveries that ended meanwhile (rule E6)."""

from __future__ import annotations

from typing import Any, Final

from ackpost.core.decision import Decision
from ackpost.core.outcome import DELIVERED as GOOD
from ackpost.core.outcome import INTERRUPTED, Outcome
from ackpost.store.sqlite.ledger import Insert, Ledger
from ackpost.store.values import BODY_BYTES_GOOD_MAX, BODY_BYTES_MAX, TRIGGER_CODES, AttemptDetail, Hot, encode_detail

_insert = Insert(
    "attempt",
    "position, delivery, round, number, event, tenant, endpoint, trigger, code, status_code, started_ms,"
    " duration_ms, detail, body",
    "ON CONFLICT DO NOTHING",
)

_WHOLE_BODIES_OF_NEWEST: Final = 3
CUT_OLD_BODY: Final = (
    "UPDATE attempt SET body = x'' WHERE length(body) > 0 AND position = (SELECT position FROM attempt"
    " WHERE delivery = ?1 AND code <> 'delivered' ORDER BY position DESC LIMIT 1 OFFSET ?2)"
    " AND position > (SELECT min(position) FROM attempt WHERE delivery = ?1 AND code <> 'delivered')"
)
_NO_ATTEMPT: Final = (None, None, None, None, None)


def uses_attempt(one: Decision) -> bool:
    """Whether an attempt was used: only those are shown and counted."""
    return one.outcome is not None and one.verdict != "again"


class AttemptWriter:
    """The attempts of one operation."""

    def __init__(self, ledger: Ledger, node: str) -> None:
        self._ledger = ledger
        self._node = node
        self._rows: list[Any] = []
        self._failed: list[int] = []

    def columns(self, one: Decision, outcome: Outcome, position: int) -> tuple[Any, ...]:
        """Give position, start, duration, detail and capped body as stored."""
        body: bytes | None = outcome.response_body or None
        truncated = outcome.truncated
        if body is not None:
            body_bytes_max = BODY_BYTES_GOOD_MAX if outcome.code == GOOD else BODY_BYTES_MAX
            if len(body) > body_bytes_max:
                body, truncated = body[:body_bytes_max], True
        detail = AttemptDetail(
            outcome.phase, outcome.detail, outcome.phases_ms, outcome.remote_ip, one.version,
            outcome.response_headers, truncated, one.due_ms if one.verdict == "retry" else None, self._node,
        )  # fmt: skip
        return position, one.started_at_ms, outcome.duration_ms, encode_detail(detail), body

    def take(self, one: Decision, position: int) -> tuple[Any, ...]:
        """Keep the attempt of a decision that holds; give the attempt's columns of its history row.

        A delivery's only attempt, answered well, stands in the history row itself (rule E15).
        """
        outcome = one.outcome
        if outcome is None or one.verdict == "again":
            return _NO_ATTEMPT
        if one.verdict == "delivered" and one.number == 1:
            return self.columns(one, outcome, position)
        self._stage(one, outcome, position)
        return _NO_ATTEMPT

    def _stage(self, one: Decision, outcome: Outcome, position: int) -> None:
        _, started_ms, duration_ms, detail, body = self.columns(one, outcome, position)
        self._rows += (
            position, one.delivery, one.round, one.number, one.event, one.tenant, one.endpoint,
            TRIGGER_CODES[one.trigger], outcome.code, outcome.status_code, started_ms, duration_ms, detail, body,
        )  # fmt: skip
        if outcome.code != GOOD and one.number > _WHOLE_BODIES_OF_NEWEST + 1:
            self._failed.append(one.delivery)

    def late(self, one: Decision, outcome: Outcome, position: int, *, stands_in_history: bool) -> bool:
        """Store the attempt of a delivery that moved on; say whether it was not known."""
        if stands_in_history:
            return False
        self.flush()
        self._stage(one, outcome, position)
        before = self._ledger.connection.total_changes()
        self.flush()
        return self._ledger.connection.total_changes() > before

    def interrupted(self, hot: Hot, position: int, now_ms: int, version: int, next_due_ms: int | None) -> None:
        """Keep an attempt that ended with the process; ``hot`` counts it already."""
        detail = AttemptDetail(
            None, "", (0.0, 0.0, 0.0, 0.0, 0.0), None, version, (), False, next_due_ms, self._node
        )  # fmt: skip
        self._rows += (
            position, hot.position, hot.round, hot.number, hot.event, hot.tenant, hot.endpoint, hot.trigger,
            INTERRUPTED, None, now_ms, 0.0, encode_detail(detail), None,
        )  # fmt: skip
        if hot.number > _WHOLE_BODIES_OF_NEWEST + 1:
            self._failed.append(hot.position)

    def flush(self) -> None:
        """Write the attempts; cut the bodies that are neither of the first nor of the last three failures."""
        if self._rows:
            _insert.run(self._ledger.connection, self._rows)
            self._rows = []
        for delivery in self._failed:
            self._ledger.execute(CUT_OLD_BODY, (delivery, _WHOLE_BODIES_OF_NEWEST))
        self._failed = []
