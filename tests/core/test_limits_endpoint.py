"""The limits of an endpoint's settings."""

from __future__ import annotations

import pytest

from ackpost.core.limits import (
    check_channels,
    check_event_types,
    check_headers,
    check_key_field,
    check_metadata,
    check_signature_header,
    check_text,
    pattern_fault,
)
from ackpost.errors import FieldError

LOC = ("body", "field")


def locs(errors: list[FieldError]) -> list[tuple[str | int, ...]]:
    """Give the places; each has a message."""
    assert all(error.message for error in errors)
    return [error.loc for error in errors]


@pytest.mark.parametrize(
    "pattern", ["*", "order", "order.*", "order.created", "a.b.*", "ackpost.*", "ackpost.test", "x" * 256 + ".*"]
)
def test_good_filters(pattern: str) -> None:
    """All, an exact type, or everything below one; reserved ones may be named."""
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "**",
        ".*",
        "*.created",
        "or*",
        "order.*.x",
        "order.",
        "order*",
        "order.**",
        "a b",
        "x" * 257,
        "x" * 257 + ".*",
    ],
)
def test_bad_filters(pattern: str) -> None:
    """A star stands alone or after the last dot."""
    errors: list[FieldError] = []
    check_event_types(["order", pattern], LOC, errors)
    assert locs(errors) == [(*LOC, 1)]


def test_filters_are_1_to_500_and_kept_once() -> None:
    """An empty list would never match anything and is refused; repeats are dropped."""
    errors: list[FieldError] = []
    assert check_event_types(["b", "a", "b"], LOC, errors) == ("b", "a")
    assert check_event_types([f"t{number % 500}" for number in range(501)], LOC, errors)[-1] == "t499"
    assert errors == []
    check_event_types([], LOC, errors)
    check_event_types([f"t{number}" for number in range(501)], LOC, errors)
    assert locs(errors) == [LOC, LOC]


def test_an_endpoint_has_at_most_10_channels() -> None:
    """The count is the caller's: 10 for an endpoint."""
    errors: list[FieldError] = []
    assert check_channels([*"abcdefghij", "a"], 10, LOC, errors) == tuple("abcdefghij")
    assert errors == []
    check_channels("abcdefghijk", 10, LOC, errors)
    assert locs(errors) == [LOC]


def header_errors(
    headers: dict[str, str], secret: dict[str, str] | None = None, signature_header: str | None = None
) -> list[tuple[str | int, ...]]:
    """Check headers of an endpoint; gives the places of the refusals."""
    errors: list[FieldError] = []
    check_headers(headers, secret or {}, signature_header, ("body",), errors)
    return locs(errors)


def test_headers_open_and_secret() -> None:
    """Good ones pass; bad names and values are told by field and name."""
    assert header_errors({"X-A": "1"}, {"Authorization": "Bearer x"}) == []
    assert header_errors({"Host": "x", "X-A": "a\r\nb"}, {"": "x", "TE": "trailers"}) == [
        ("body", "headers", "Host"), ("body", "headers", "X-A"),
        ("body", "secret_headers", ""), ("body", "secret_headers", "TE"),
    ]  # fmt: skip


def test_a_header_cannot_be_sent_twice() -> None:
    """The same name in another case, as open and secret, or as the signature's, is refused."""
    assert header_errors({"X-A": "1", "x-a": "2"}) == [("body", "headers", "x-a")]
    assert header_errors({"X-A": "1"}, {"x-A": "2"}) == [("body", "secret_headers", "x-A")]
    assert header_errors({"x-sig": "1", "X-SIG-PREVIOUS": "2"}, None, "X-Sig") == [
        ("body", "headers", "x-sig"), ("body", "headers", "X-SIG-PREVIOUS"),
    ]  # fmt: skip


def test_20_headers_together() -> None:
    """Open and secret ones share the limit."""
    ten = {f"X-{number}": "1" for number in range(10)}
    other = {f"Y-{number}": "1" for number in range(11)}
    assert header_errors(ten, dict(list(other.items())[:10])) == []
    assert header_errors(ten, other) == [("body", "headers")]


@pytest.mark.parametrize(
    ("name", "signature", "good"),
    [
        (None, "standard", True), (None, "sha256-hex", True), ("X-Hub-Signature-256", "sha256-hex", True),
        ("X-Webhook-Signature", "sha256-hex", True), ("X-Sig", "standard", False), ("Host", "sha256-hex", False),
        ("X-Webhook-Id", "sha256-hex", False), ("a b", "sha256-hex", False), ("X-Sig", "standard-ed25519", False),
    ],
)  # fmt: skip
def test_the_signature_header_is_renamed_for_hex_only(name: str | None, signature: str, good: bool) -> None:
    """Standard Webhooks has fixed names; a renamed header is a header name that is free."""
    errors: list[FieldError] = []
    check_signature_header(name, signature, LOC, errors)
    assert locs(errors) == ([] if good else [LOC])


@pytest.mark.parametrize(
    ("name", "good"),
    [
        (None, True), ("order_id", True), ("a-b.c", True), ("x" * 64, True), ("x" * 65, False), ("", False),
        ("a b", False), ('a"b', False), ("event", False), ("sequence", False), ("occurred_at", False), ("Event", True),
    ],
)  # fmt: skip
def test_key_fields(name: str | None, good: bool) -> None:
    """A plain name that is none of the envelope's."""
    errors: list[FieldError] = []
    check_key_field(name, LOC, errors)
    assert locs(errors) == ([] if good else [LOC])


def test_texts_for_people() -> None:
    """Lines and tabs are fine; other control characters and long texts are not."""
    errors: list[FieldError] = []
    check_text("two\nlines\tand é" + "x" * 100, 1024, LOC, errors)
    check_text("x" * 1024, 1024, LOC, errors)
    assert errors == []
    check_text("x" * 1025, 1024, LOC, errors)
    check_text("a\x00", 1024, LOC, errors)
    check_text("a\x1b[31m\x85", 1024, LOC, errors)
    assert locs(errors) == [LOC, LOC, LOC]


def test_metadata_of_an_endpoint() -> None:
    """An object of at most 4,096 bytes, kept as written; null and nothing are none."""
    errors: list[FieldError] = []
    largest = b'{"a":"%b"}' % (b"x" * (4096 - 8))
    assert check_metadata(largest, LOC, errors) == largest
    assert check_metadata(b"", LOC, errors) is None
    assert check_metadata(b"null", LOC, errors) is None
    assert errors == []
    check_metadata(largest + b" ", LOC, errors)
    check_metadata(b"[]", LOC, errors)
    assert locs(errors) == [LOC, LOC]
