"""Public ids: made from rising positions, read back without a look-up (contract §2).

An id is a prefix, ``_`` and 26 characters of Crockford's base32 (upper case): one 128-bit number whose upper half is
the object's position, so ids sort as text in the order of their positions. The lower half of an object's id is a tag
mixed from the position and the store's salt; it catches typing errors and ids of other stores. It is no secret and
guards nothing: every look-up carries the tenant.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

TENANT: Final = "ten"
ENDPOINT: Final = "ep"
EVENT: Final = "evt"
DELIVERY: Final = "dlv"
ATTEMPT: Final = "att"
API_KEY: Final = "key"
JOB: Final = "job"

PARTITION_COUNT: Final = 256

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_TO_BASE32: Final = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
# The first character holds the two top bits of a position below 2^63, after two bits of padding.
_TEXT: Final = re.compile(r"[0-3][0-9A-HJKMNP-TV-Z]{25}")
_UID: Final = re.compile(r"[a-zA-Z0-9\-_.]{1,256}")
_MASK_64: Final = (1 << 64) - 1
_MASK_30: Final = (1 << 30) - 1
# Odd multipliers with well spread bits: the golden ratio, and one of the finalisers of SplitMix64.
_GOLDEN: Final = 0x9E3779B97F4A7C15
_SPREAD: Final = 0xBF58476D1CE4E5B9


@lru_cache(maxsize=8192)
def public_id(prefix: str, position: int, salt: int) -> str:
    """Give the public id of the object at ``position`` (0 to 2^63-1) in the store with this 64-bit ``salt``.

    Remembered, because the same event is named when it is accepted, sent (to each of its endpoints) and logged.
    """
    return f"{prefix}_{_encode(position, _tag(position, salt))}"


def parse_id(prefix: str, text: str, salt: int) -> int | None:
    """Give the position behind a public id; None when malformed, of another kind or of another store."""
    halves = _decode(prefix, text)
    if halves is None or halves[1] != _tag(halves[0], salt):
        return None
    return halves[0]


def attempt_id(attempt_position: int, delivery_position: int) -> str:
    """Give an attempt's public id, which also tells its delivery (both positions 0 to 2^63-1)."""
    return f"{ATTEMPT}_{_encode(attempt_position, delivery_position)}"


def parse_attempt_id(text: str) -> tuple[int, int] | None:
    """Give (attempt position, delivery position); None when malformed."""
    halves = _decode(ATTEMPT, text)
    return None if halves is None or halves[1] >> 63 else halves


def partition_of(endpoint: int) -> int:
    """Give the partition (0 to 255) that an endpoint's position belongs to.

    Invariant: never changes for a position; nodes of different versions must agree.
    """
    mixed = endpoint * _GOLDEN & _MASK_64
    return ((mixed ^ mixed >> 32) * _SPREAD & _MASK_64) >> 56


def valid_uid(text: str) -> bool:
    """Say whether ``text`` can be a caller's own id: 1 to 256 of letters, digits, ``-``, ``_``, ``.``."""
    return _UID.fullmatch(text) is not None


def _tag(position: int, salt: int) -> int:
    mixed = (position ^ salt) * _GOLDEN & _MASK_64
    return (mixed ^ mixed >> 29) * _SPREAD & _MASK_64


def _encode(high: int, low: int) -> str:
    # Digits of 30 bits are single machine digits of Python's integers: cutting those is twice as fast.
    number = high << 64 | low
    a = number >> 120
    b = number >> 90 & _MASK_30
    c = number >> 60 & _MASK_30
    d = number >> 30 & _MASK_30
    e = number & _MASK_30
    pairs = _PAIRS
    return (
        f"{pairs[a]}{pairs[b >> 20]}{pairs[b >> 10 & 1023]}{pairs[b & 1023]}"
        f"{pairs[c >> 20]}{pairs[c >> 10 & 1023]}{pairs[c & 1023]}"
        f"{pairs[d >> 20]}{pairs[d >> 10 & 1023]}{pairs[d & 1023]}"
        f"{pairs[e >> 20]}{pairs[e >> 10 & 1023]}{pairs[e & 1023]}"
    )


def _decode(prefix: str, text: str) -> tuple[int, int] | None:
    start = len(prefix) + 1
    if not text.startswith(prefix) or text[start - 1 : start] != "_" or not _TEXT.fullmatch(text, start):
        return None
    number = int(text[start:].translate(_TO_BASE32), 32)
    return number >> 64, number & _MASK_64
