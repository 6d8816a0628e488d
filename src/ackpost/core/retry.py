"""When the next attempt is due (contract §5). Source: contract "Policy"; n-th delay = after the n-th failed attempt."""

from __future__ import annotations

import math
from typing import Final

from ackpost.core.policy import Retry

LAST_ATTEMPT_LATE_MAX_MS: Final = 60_000


def delay_ms(retry: Retry, failures: int, unit: float) -> int | None:
    """Give the delay after ``failures`` ≥ 1 failed attempts of a round, or None when the attempts are used up.

    ``unit`` in [0, 1) is the drawn jitter.
    """
    if retry.schedule_s is not None:
        if failures > len(retry.schedule_s):
            return None
        spread = 1.0 + retry.jitter_ratio * (2.0 * unit - 1.0)
        return round(retry.schedule_s[failures - 1] * spread * 1000)
    if retry.max_attempts is not None and failures >= retry.max_attempts:
        return None
    bound_s = _bound_s(retry, failures)
    if retry.jitter == "full":
        bound_s *= unit
    elif retry.jitter == "equal":
        bound_s *= 0.5 + 0.5 * unit
    return round(bound_s * 1000)


def _bound_s(retry: Retry, failures: int) -> float:
    """min(cap, base · factor^(n-1)), without overflow for any n."""
    if retry.base_s >= retry.cap_s:
        return retry.cap_s
    growth = (failures - 1) * math.log(retry.factor)
    if growth >= math.log(retry.cap_s / retry.base_s):
        return retry.cap_s
    return float(retry.base_s * retry.factor ** (failures - 1))


def within_age_ms(retry: Retry, wait_ms: int, age_ms: int) -> int | None:
    """Shorten a wait so that the last attempt falls on the age limit; None when the age is used up already."""
    if retry.max_age_s is None:
        return wait_ms
    left_ms = round(retry.max_age_s * 1000) - age_ms
    if left_ms <= 0:
        return None
    return min(wait_ms, left_ms)


def aged_out(retry: Retry, age_ms: int, overdue_ms: int) -> bool:
    """Say whether a due delivery was held up beyond its age.

    ``overdue_ms`` is how long it has been due. The last attempt, due at the limit, may be a minute late.
    """
    if retry.max_age_s is None:
        return False
    limit_ms = round(retry.max_age_s * 1000)
    return age_ms > limit_ms and (age_ms - overdue_ms < limit_ms or age_ms > limit_ms + LAST_ATTEMPT_LATE_MAX_MS)
