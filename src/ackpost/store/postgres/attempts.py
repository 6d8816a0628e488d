"""Writing attempts: each (delivery, round, number) once, also for deliveries that ended meanwhile (rule E6)."""

from __future__ import annotations

from typing import Any, Final

from ackpost.core.decision import Decision
from ackpost.core.outcome import DELIVERED as GOOD
from ackpost.core.outcome import INTERRUPTED, Outcome
from ackpost.store.postgres.ledger import Insert, Ledger
from ackpost.store.postgres.rows import NO_ATTEMPT
from ackpost.store.values import (
    BODY_BYTES_GOOD_MAX,
    BODY_BYTES_MAX,
    TRIGGER_CODES,
    AttemptDetail,
    Hot,
    encode_detail,
)

_insert = Insert(
    "attempt",
    "position bigint, delivery bigint, day integer, round integer, number integer, event bigint, tenant bigint,"
    " endpoint bigint, trigger smallint, code text, status_code integer, started_ms bigint, duration_ms float8,"
    " detail bytea, body bytea",
    "ON CONFLICT DO NOTHING",
)

_WHOLE_BODIES_OF_NEWEST: Final = 3
CUT_OLD_BODIES: Final = r"""
UPDATE attempt SET body = '\x' WHERE delivery = ANY($1) AND code <> 'delivered' AND length(body) > 0
AND position < (SELECT a.position FROM attempt a WHERE a.delivery = attempt.delivery AND a.code <> 'delivered'
    ORDER BY a.position DESC LIMIT 1 OFFSET $2)
AND position > (SELECT min(f.position) FROM attempt f WHERE f.delivery = attempt.delivery AND f.code <> 'delivered')
"""
IS_KNOWN: Final = """
SELECT EXISTS (SELECT 1 FROM attempt WHERE delivery = $1 AND round = $2 AND number = $3) OR EXISTS (
    SELECT 1 FROM history WHERE position = $1 AND round = $2 AND number = $3 AND attempt_position IS NOT NULL)
"""


def uses_attempt(one: Decision) -> bool:
    """Whether an attempt was used: only those are shown and counted."""
    return one.outcome is not None and one.verdict != "again"


class AttemptWriter:
    """The attempts of one operation."""

    def __init__(self, ledger: Ledger, node: str) -> None:
        self._ledger = ledger
        self._node = node
        self._rows: list[tuple[Any, ...]] = []
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
            return NO_ATTEMPT
        if one.verdict == "delivered" and one.number == 1:
            return self.columns(one, outcome, position)
        self._stage(one, outcome, position)
        return NO_ATTEMPT

    def _stage(self, one: Decision, outcome: Outcome, position: int) -> None:
        _, started_ms, duration_ms, detail, body = self.columns(one, outcome, position)
        self._rows.append((
            position, one.delivery, self._ledger.day_of(one.event), one.round, one.number, one.event, one.tenant,
            one.endpoint, TRIGGER_CODES[one.trigger], outcome.code, outcome.status_code, started_ms, duration_ms,
            detail, body,
        ))  # fmt: skip
        if outcome.code != GOOD and one.number > _WHOLE_BODIES_OF_NEWEST + 1:
            self._failed.append(one.delivery)

    async def late(self, one: Decision, outcome: Outcome, position: int) -> bool:
        """Store the attempt of a delivery that moved on; say whether it was not known."""
        await self.flush()
        known = await self._ledger.one(IS_KNOWN, one.delivery, one.round, one.number)
        if known is not None and known[0]:
            return False
        self._stage(one, outcome, position)
        await self.flush()
        return True

    def interrupted(self, hot: Hot, position: int, now_ms: int, version: int, next_due_ms: int | None) -> None:
        """Keep an attempt that ended with the process; ``hot`` counts it already."""
        detail = AttemptDetail(
            None, "", (0.0, 0.0, 0.0, 0.0, 0.0), None, version, (), False, next_due_ms, self._node
        )  # fmt: skip
        self._rows.append((
            position, hot.position, self._ledger.day_of(hot.event), hot.round, hot.number, hot.event, hot.tenant,
            hot.endpoint, hot.trigger, INTERRUPTED, None, now_ms, 0.0, encode_detail(detail), None,
        ))  # fmt: skip
        if hot.number > _WHOLE_BODIES_OF_NEWEST + 1:
            self._failed.append(hot.position)

    async def flush(self) -> None:
        """Write the attempts; cut the bodies that are neither of the first nor of the last three failures."""
        await _insert.rows(self._ledger, self._rows)
        self._rows = []
        if self._failed:
            await self._ledger.execute(CUT_OLD_BODIES, sorted(set(self._failed)), _WHOLE_BODIES_OF_NEWEST - 1)
            self._failed = []
