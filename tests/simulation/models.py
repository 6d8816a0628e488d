"""Endpoints as the network shows them: fast and slow, failing, lying, hanging, flapping, asking to wait."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ackpost.core.outcome import Outcome, classify_status


@dataclass(slots=True)
class Answer:
    """What a request comes to after ``delay_s``; ``processed``: the receiver took it, whatever the engine learns."""

    delay_s: float
    outcome: Outcome
    processed: bool = False


KINDS = (
    "good", "slow", "failing", "flapping", "throttling", "hanging", "resetting", "refusing", "gone", "mixed", "odd",
)  # fmt: skip


class Model:
    """One receiver. From ``heals_at_s`` on it is a good one."""

    def __init__(self, kind: str, rng: random.Random, heals_at_s: float) -> None:
        self.kind = kind
        self.heals_at_s = heals_at_s
        self._random = rng
        self._up_s = rng.uniform(2, 20)
        self._down_s = rng.uniform(2, 20)

    def answer(self, now_s: float, timeout_s: float) -> Answer:
        """Draw what a request that begins now comes to."""
        if now_s >= self.heals_at_s:
            return self._good()
        answer: Answer = getattr(self, f"_{self.kind}")() if self.kind != "flapping" else self._flapping(now_s)
        if answer.delay_s >= timeout_s:
            phase = self._random.choice(["connect", "wait", "read"])
            code = "connect_timeout" if phase == "connect" else "timeout"
            return Answer(timeout_s, Outcome(code, phase=phase, duration_ms=timeout_s * 1000), answer.processed)
        answer.outcome.duration_ms = answer.delay_s * 1000
        return answer

    def _latency_s(self) -> float:
        return 0.002 + self._random.expovariate(1 / 0.03)

    def _status(self, status_code: int, delay_s: float | None = None, retry_after: str | None = None) -> Answer:
        outcome = Outcome(classify_status(status_code), status_code=status_code, retry_after=retry_after)
        return Answer(self._latency_s() if delay_s is None else delay_s, outcome, 200 <= status_code < 300)

    def _error(self, code: str, *, processed: bool = False, phase: str | None = None) -> Answer:
        return Answer(self._latency_s(), Outcome(code, phase=phase), processed)

    def _good(self) -> Answer:
        return self._status(self._random.choice([200, 200, 202, 204]))

    def _slow(self) -> Answer:
        return self._status(200, self._random.uniform(0.5, 6))

    def _failing(self) -> Answer:
        return self._status(self._random.choice([500, 500, 502, 404]))

    def _flapping(self, now_s: float) -> Answer:
        up = now_s % (self._up_s + self._down_s) < self._up_s
        return self._good() if up else self._failing()

    def _throttling(self) -> Answer:
        if self._random.random() < 0.6:
            return self._good()
        text = self._random.choice(["1", "3", "8", "0", "-1", "soon", None])
        return self._status(self._random.choice([429, 503]), retry_after=text)

    def _hanging(self) -> Answer:
        hangs = self._random.random() < 0.6
        return self._status(200, 1000.0 if hangs else None)

    def _resetting(self) -> Answer:
        drawn = self._random.random()
        if drawn < 0.5:
            return self._good()
        return self._error("reset", processed=drawn < 0.75, phase="wait")

    def _refusing(self) -> Answer:
        return self._error(self._random.choice(["connect_refused", "dns_error", "tls_error", "connect_error"]))

    def _gone(self) -> Answer:
        return self._good() if self._random.random() < 0.9 else self._status(410)

    def _odd(self) -> Answer:
        kind = self._random.choice(
            ["local_error", "blocked_target", "bad_response", "response_too_large", "redirect", "good", "good"]
        )
        if kind == "redirect":
            return self._status(302)
        return self._good() if kind == "good" else self._error(kind)

    def _mixed(self) -> Answer:
        kind = self._random.choice(["good", "good", "good", "failing", "resetting", "slow", "odd", "refusing"])
        answer: Answer = getattr(self, f"_{kind}")()
        return answer
