"""The circuit of an endpoint (contract §5): closed → open → half-open → ramping → closed, as values.

closed      suspicion from the third failure in a row: one request at a time, ≥ 0.5 s apart
open        nothing is sent until ``retry_at_ms``
half-open   one probe at a time; ``successes`` in a row lead on, a failure reopens for twice as long
ramping     limit 1, doubled every 5 s of ≥ 90 % success until the full limit closes it; halved below that;
            suspicion and the rule for opening hold as when closed
"""

from __future__ import annotations

from typing import Final

import msgspec

from ackpost.core.model import CLOSED, Circuit
from ackpost.core.policy import CircuitPolicy

SUSPICION_FAILURES: Final = 3
SUSPICION_SPACING_MS: Final = 500
RAMP_STEP_MS: Final = 5000
RAMP_GOOD_RATIO: Final = 0.9
_BUCKETS: Final = 12


def limit(circuit: Circuit, policy: CircuitPolicy, max_in_flight: int) -> int:
    """How many requests may be under way."""
    if circuit.state == "open":
        return 0
    if circuit.state == "half-open" or _suspicious(circuit, policy):
        return 1
    return max_in_flight if circuit.state == "closed" else min(circuit.ramp_limit, max_in_flight)


def spacing_ms(circuit: Circuit, policy: CircuitPolicy) -> int:
    """How far apart requests must start: only under suspicion."""
    return SUSPICION_SPACING_MS if _suspicious(circuit, policy) else 0


def _suspicious(circuit: Circuit, policy: CircuitPolicy) -> bool:
    return policy.enabled and circuit.state in ("closed", "ramping") and circuit.failures >= SUSPICION_FAILURES


def wake(circuit: Circuit, now_ms: int) -> Circuit:
    """An open circuit whose time has come is half-open."""
    if circuit.state == "open" and now_ms >= circuit.retry_at_ms:
        return half_open(circuit)
    return circuit


def half_open(circuit: Circuit) -> Circuit:
    """Allow one probe now."""
    return msgspec.structs.replace(circuit, state="half-open", successes=0)


def owned_anew(circuit: Circuit) -> Circuit:
    """What a new owner starts with (rule E17): what was ramping starts at the ramp's first limit."""
    if circuit.state == "ramping":
        return msgspec.structs.replace(circuit, ramp_limit=1, ramp_step_ms=0, ramp_good=0, ramp_bad=0)
    return circuit


def after_attempt(
    circuit: Circuit,
    policy: CircuitPolicy,
    max_in_flight: int,
    *,
    good: bool,
    started_ms: int,
    now_ms: int,
    unit: float,
) -> Circuit:
    """Give the circuit after an attempt that counts. ``unit`` in [0, 1) spreads the open time by ± 20 %.

    What was sent before the circuit opened says nothing about the endpoint now and is ignored afterwards.
    """
    if not policy.enabled:
        return CLOSED
    if circuit.state != "closed" and started_ms <= circuit.opened_at_ms:
        return circuit
    if circuit.state == "half-open":
        return _after_probe(circuit, policy, good=good, now_ms=now_ms, unit=unit)
    if circuit.state == "open":
        return circuit
    counted = _count(circuit, policy, good=good, now_ms=now_ms)
    if not good and _must_open(counted, policy, now_ms):
        return _opened(counted, policy, now_ms, unit)
    if counted.state == "ramping":
        return _ramp(counted, max_in_flight, good=good, now_ms=now_ms)
    return counted


def _after_probe(circuit: Circuit, policy: CircuitPolicy, *, good: bool, now_ms: int, unit: float) -> Circuit:
    if not good:
        return _opened(circuit, policy, now_ms, unit)
    successes = circuit.successes + 1
    if successes < policy.successes:
        return msgspec.structs.replace(circuit, successes=successes)
    return Circuit(
        state="ramping", opened_at_ms=circuit.opened_at_ms, openings=circuit.openings, ramp_limit=1, ramp_step_ms=now_ms
    )


def _opened(circuit: Circuit, policy: CircuitPolicy, now_ms: int, unit: float) -> Circuit:
    openings = circuit.openings + 1
    open_s = min(policy.open_max_s, policy.open_s * 2.0 ** min(openings - 1, 40))
    return Circuit(
        state="open",
        failures=max(circuit.failures, 1),
        opened_at_ms=now_ms,
        retry_at_ms=now_ms + round(open_s * 1000 * (0.8 + 0.4 * unit)),
        openings=openings,
    )


def _count(circuit: Circuit, policy: CircuitPolicy, *, good: bool, now_ms: int) -> Circuit:
    """Count an attempt in the row of failures and in the sliding window of twelve buckets."""
    window_ms = policy.window_s * 1000
    window = circuit.window
    if window and now_ms - window[-1][0] < window_ms / _BUCKETS:
        start, goods, bads = window[-1]
        window = (*window[:-1], (start, goods + good, bads + (not good)))
    else:
        kept = tuple(bucket for bucket in window if now_ms - bucket[0] < window_ms)
        window = (*kept, (now_ms, int(good), int(not good)))
    failures = 0 if good else circuit.failures + 1
    return msgspec.structs.replace(
        circuit,
        window=window,
        failures=failures,
        row_started_ms=now_ms if failures == 1 else circuit.row_started_ms,
    )


def _must_open(circuit: Circuit, policy: CircuitPolicy, now_ms: int) -> bool:
    span_ms = policy.span_min_s * 1000
    if circuit.failures >= policy.failures and now_ms - circuit.row_started_ms >= span_ms:
        return True
    window_ms = policy.window_s * 1000
    live = [bucket for bucket in circuit.window if now_ms - bucket[0] < window_ms]
    bads = sum(bucket[2] for bucket in live)
    total = bads + sum(bucket[1] for bucket in live)
    return total >= policy.attempts_min and bads >= policy.ratio * total and now_ms - live[0][0] >= span_ms


def _ramp(circuit: Circuit, max_in_flight: int, *, good: bool, now_ms: int) -> Circuit:
    goods, bads = circuit.ramp_good + good, circuit.ramp_bad + (not good)
    step_ms = circuit.ramp_step_ms or now_ms
    if now_ms - step_ms < RAMP_STEP_MS:
        return msgspec.structs.replace(circuit, ramp_good=goods, ramp_bad=bads, ramp_step_ms=step_ms)
    if goods >= RAMP_GOOD_RATIO * (goods + bads):
        doubled = circuit.ramp_limit * 2
        if doubled >= max_in_flight:
            return Circuit(window=circuit.window, failures=circuit.failures, row_started_ms=circuit.row_started_ms)
        ramp_limit = doubled
    else:
        ramp_limit = max(1, circuit.ramp_limit // 2)
    return msgspec.structs.replace(circuit, ramp_limit=ramp_limit, ramp_step_ms=now_ms, ramp_good=0, ramp_bad=0)
