"""What one HTTP attempt came to, as a value, and how its answer is classified (contract §5).

Egress fills an ``Outcome``; ``core.decide`` reads it. Nothing here does I/O.
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

DELIVERED: Final = "delivered"
STATUS: Final = "status"
REDIRECT: Final = "redirect"
TIMEOUT: Final = "timeout"
CONNECT_TIMEOUT: Final = "connect_timeout"
DNS_ERROR: Final = "dns_error"
CONNECT_REFUSED: Final = "connect_refused"
CONNECT_ERROR: Final = "connect_error"
TLS_ERROR: Final = "tls_error"
RESET: Final = "reset"
BAD_RESPONSE: Final = "bad_response"
RESPONSE_TOO_LARGE: Final = "response_too_large"
BLOCKED_TARGET: Final = "blocked_target"
LOCAL_ERROR: Final = "local_error"
INTERRUPTED: Final = "interrupted"

ERROR_CODES: Final = (
    STATUS, REDIRECT, TIMEOUT, CONNECT_TIMEOUT, DNS_ERROR, CONNECT_REFUSED, CONNECT_ERROR, TLS_ERROR, RESET,
    BAD_RESPONSE, RESPONSE_TOO_LARGE, BLOCKED_TARGET, LOCAL_ERROR, INTERRUPTED,
)  # fmt: skip

_NETWORK: Final = frozenset({DNS_ERROR, CONNECT_REFUSED, CONNECT_ERROR, TLS_ERROR, RESET, BAD_RESPONSE})
_NETWORK_MORE: Final = _NETWORK | {RESPONSE_TOO_LARGE, BLOCKED_TARGET, INTERRUPTED}
_TIMEOUTS: Final = frozenset({TIMEOUT, CONNECT_TIMEOUT})
RETRY_AFTER_MAX_MS: Final = 24 * 3600 * 1000


class Outcome(msgspec.Struct, gc=False):
    """The result of one attempt.

    ``code`` is ``"delivered"`` or one of ``ERROR_CODES``; ``phase`` (dns, connect, tls, send, wait, read) is set for
    timeouts and resets; ``detail`` is safe to show: never a URL, secret or body. ``phases_ms`` is
    (dns, connect, tls, wait, read); all zeros but the last two on a reused connection.
    ``retry_after`` is the raw header text of the answer, if it had exactly one.
    """

    code: str
    status_code: int | None = None
    phase: str | None = None
    detail: str = ""
    duration_ms: float = 0.0
    phases_ms: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)
    remote_ip: str | None = None
    response_headers: tuple[tuple[str, str], ...] = ()
    response_body: bytes = b""
    truncated: bool = False
    retry_after: str | None = None


def classify_status(status_code: int) -> str:
    """Give the outcome code of a complete answer: any 2xx is delivered, a 3xx is a refused redirect."""
    if 200 <= status_code < 300:
        return DELIVERED
    if 300 <= status_code < 400:
        return REDIRECT
    return STATUS


def is_retryable(outcome: Outcome, retry_on: frozenset[str]) -> bool:
    """Say whether ``retry_on`` (contract §5: any, network, timeout, 3xx, 4xx, 5xx, single codes) names this failure.

    What no rule names though nobody judged the endpoint (a crash of ours, a blocked address) follows ``network``.
    """
    if "any" in retry_on:
        return True
    if outcome.code in _TIMEOUTS:
        return "timeout" in retry_on
    if outcome.status_code is not None and outcome.code in (STATUS, REDIRECT):
        return f"{outcome.status_code // 100}xx" in retry_on or str(outcome.status_code) in retry_on
    return outcome.code in _NETWORK_MORE and "network" in retry_on


def counts_for_circuit(outcome: Outcome, *, throttled: bool) -> bool:
    """Say whether a failure speaks against the endpoint (ours, blocked targets and told-to-wait answers do not)."""
    return not throttled and outcome.code not in (BLOCKED_TARGET, LOCAL_ERROR, INTERRUPTED)


def retry_after_ms(outcome: Outcome, now_ms: int) -> int | None:
    """Read ``Retry-After`` of a 429 or 503: milliseconds from ``now_ms`` in (0, 24 h], None when absent or garbage.

    Source: RFC 9110 §10.2.3 (delay-seconds or HTTP-date).
    """
    if outcome.status_code not in (429, 503) or outcome.retry_after is None:
        return None
    text = outcome.retry_after.strip()
    if text.isascii() and text.isdigit():
        delay_ms = int(text.lstrip("0")[:12] or "0") * 1000
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError):
            return None
        if moment.tzinfo is None:  # asctime form, or zone -0000: both say UTC
            moment = moment.replace(tzinfo=UTC)
        delay_ms = int(moment.timestamp() * 1000) - now_ms
    return min(delay_ms, RETRY_AFTER_MAX_MS) if delay_ms > 0 else None
