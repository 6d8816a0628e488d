"""Milliseconds since the epoch (UTC) to and from RFC 3339 text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_FRACTIONS: Final = tuple(f".{ms:03d}Z" for ms in range(1000))
_SHAPE: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,30})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_MIN_MS: Final = -62_135_596_800_000
_MAX_MS: Final = 253_402_300_799_999


def rfc3339_ms(ms: int) -> str:
    """Write a time as ``2026-01-31T12:00:00.000Z``; ``ms`` lies in the years 1 to 9999."""
    return _second_text(ms // 1000) + _FRACTIONS[ms % 1000]


def parse_rfc3339(text: str) -> int:
    """Read an RFC 3339 time with its zone; finer fractions than milliseconds are cut off.

    Source: RFC 3339 §5.6; the leap second ``:60`` is refused, as it has no place on the scale of milliseconds.
    Raises: ValueError when ``text`` is anything else, or lies outside the years 1 to 9999 in UTC.
    """
    upper = text.upper()
    if not _SHAPE.fullmatch(upper):
        raise ValueError("must be an RFC 3339 time with a zone, like 2026-01-31T12:00:00.000Z")
    try:
        ms = (datetime.fromisoformat(upper) - _EPOCH) // _MILLISECOND
    except ValueError:
        raise ValueError("is no time that exists in the calendar") from None
    if not _MIN_MS <= ms <= _MAX_MS:
        raise ValueError("must lie in the years 1 to 9999 (UTC)")
    return ms


@lru_cache(maxsize=1024)
def _second_text(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]
