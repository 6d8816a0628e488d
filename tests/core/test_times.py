"""RFC 3339 text and milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.times import parse_rfc3339, rfc3339_ms

MIN_MS, MAX_MS = -62_135_596_800_000, 253_402_300_799_999


@given(st.integers(MIN_MS, MAX_MS))
def test_what_is_written_reads_back(ms: int) -> None:
    """Every time of the years 1 to 9999 keeps its milliseconds, and agrees with the standard library."""
    text = rfc3339_ms(ms)
    assert parse_rfc3339(text) == ms
    moment = datetime.fromisoformat(text)
    assert moment - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(milliseconds=ms)


@given(st.integers(0, 10**13), st.integers(0, 10**13))
def test_written_times_sort_as_text(one: int, other: int) -> None:
    """Text order is time order."""
    assert (rfc3339_ms(one) < rfc3339_ms(other)) == (one < other)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01T01:30:00+01:30", 0),
        ("1969-12-31T23:00:00.5-01:00", 500),
        ("2026-02-28T23:59:59.999999999Z", 1_772_323_199_999),
        ("2024-02-29T12:00:00.1-00:00", 1_709_208_000_100),
        ("0001-01-01T00:00:00Z", MIN_MS),
        ("9999-12-31T23:59:59.999Z", MAX_MS),
    ],
)
def test_zones_fractions_and_lower_case(text: str, ms: int) -> None:
    """Zones are applied, finer fractions cut off, both cases read."""
    assert parse_rfc3339(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01 00:00:00Z", "2026-01-01T00:00Z", "20260101T000000Z",
        "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00+0100", "2026-01-01T00:00:00+24:00", "2026-01-01T24:00:00Z",
        "2026-W01-1T00:00:00Z", "1700000000", "2026-13-01T00:00:00Z", "2025-02-29T00:00:00Z",
        "2016-12-31T23:59:60Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01",
        " 2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z\n", "２026-01-01T00:00:00Z", "2026-01-01T00:00:00ſ",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    """No zone, no seconds, other ISO forms, impossible dates, leap seconds and times outside the years 1 to 9999."""
    with pytest.raises(ValueError, match=r"must|is no time"):
        parse_rfc3339(text)
