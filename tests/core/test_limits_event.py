"""The limits of a published event."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.jsondata import BatchBody, PublishBody, decode_publish
from ackpost.core.limits import EventInput, Limits, check_batch, check_publish, type_fault
from ackpost.errors import InvalidInput, TooLarge

LIMITS = Limits(data_bytes_max=100, batch_events_max=3)


def body(**fields: Any) -> PublishBody:
    """Give a publish with these fields beside a good type and data."""
    raw = {name: msgspec.Raw(fields.pop(name)) for name in ("data", "metadata") if name in fields}
    return PublishBody(**({"type": "order.created", "data": msgspec.Raw(b"1")} | fields | raw))


def refused(**fields: Any) -> dict[tuple[str | int, ...], str]:
    """Give the places and messages of the refusals."""
    with pytest.raises(InvalidInput) as caught:
        check_publish(body(**fields), LIMITS)
    first = caught.value.errors[0]
    assert caught.value.detail.startswith(f"{'.'.join(map(str, first.loc))} {first.message}")
    return {error.loc: error.message for error in caught.value.errors}


def test_a_whole_event_passes() -> None:
    """Every field comes out ready to be stored."""
    event = check_publish(
        decode_publish(
            b'{"type":"order.created","data":{"a": 1},"uid":"u-1","key":"\xc3\xa9","sequence":9007199254740991,'
            b'"channels":["a","b","a"],"occurred_at":"1970-01-01T00:00:01.5Z","metadata":{"m": 1}}'
        ),
        LIMITS,
    )
    assert event == EventInput("order.created", b'{"a": 1}', "u-1", "é", 2**53 - 1, ("a", "b"), 1500, b'{"m": 1}')


def test_a_bare_event_passes() -> None:
    """What was left out is None or empty; null metadata is none."""
    assert check_publish(body(metadata=b"null"), LIMITS) == EventInput("order.created", b"1")


@pytest.mark.parametrize("event_type", ["a", "a.b-c_D.9", "ackpost", "ackposts.x", "Ackpost.x", "x" * 256, "a._.-"])
def test_good_types(event_type: str) -> None:
    """Parts of letters, digits, ``-`` and ``_``, joined by dots, up to 256 characters."""
    assert check_publish(body(type=event_type), LIMITS).type == event_type


@pytest.mark.parametrize(
    "event_type", ["", ".", "a.", ".a", "a..b", "a b", "é", "a\n", "a/b", "*", "a.*", "x" * 257, "x" * 10**6]
)
def test_bad_types(event_type: str) -> None:
    """Anything else, however often it comes."""
    for _ in range(2):
        assert list(refused(type=event_type)) == [("body", "type")]
    assert type_fault(event_type) is not None


def test_reserved_types_are_for_ackpost() -> None:
    """Publishers cannot forge operational events; the names are good types all the same."""
    for event_type in ("ackpost.test", "ackpost.endpoint.disabled", "ackpost."):
        assert "ackpost." in refused(type=event_type)["body", "type"]
    assert type_fault("ackpost.test") is None


@pytest.mark.parametrize("key", ["k", "é" * 128, "x" * 256, "a b", "\u00a0", "\u2028", "😊"])
def test_good_keys(key: str) -> None:
    """1 to 256 bytes of UTF-8."""
    assert check_publish(body(key=key), LIMITS).key == key


@pytest.mark.parametrize("key", ["", "é" * 129, "x" * 257, "a\nb", "\x00", "a\x7f", "a\x85"])
def test_bad_keys(key: str) -> None:
    """Empty, longer, or with control characters."""
    assert list(refused(key=key)) == [("body", "key")]


@pytest.mark.parametrize("sequence", [0, -1, 2**53, 2**64])
def test_bad_sequences(sequence: int) -> None:
    """1 to 2^53-1."""
    assert list(refused(key="k", sequence=sequence)) == [("body", "sequence")]


def test_a_sequence_needs_a_key() -> None:
    """Without a key there is nothing that it could order."""
    assert "key" in refused(sequence=1)["body", "sequence"]


def test_channels() -> None:
    """At most 5 different ones of 1 to 128 characters."""
    assert check_publish(body(channels=()), LIMITS).channels == ()
    good = ("a", "b.c", "d:e", "f_g-H", "x" * 128)
    assert check_publish(body(channels=good), LIMITS).channels == good
    assert list(refused(channels=tuple("abcdef"))) == [("body", "channels")]
    bad = refused(channels=("a", "", "x" * 129, "a b", "é"))
    assert list(bad) == [("body", "channels", index) for index in (1, 2, 3, 4)]


@pytest.mark.parametrize("metadata", [b"[]", b"1", b'"x"', b'{"a":"%b"}' % (b"x" * 4096)])
def test_bad_metadata(metadata: bytes) -> None:
    """An object of at most 4 KiB."""
    assert list(refused(metadata=metadata)) == [("body", "metadata")]


def test_all_faults_of_an_event_are_told_at_once() -> None:
    """Nobody has to repair field by field."""
    found = refused(type="", uid="a b", key="\n", sequence=0, channels=("",), occurred_at="yesterday", metadata=b"[]")
    assert [loc[1] for loc in found] == ["type", "uid", "key", "sequence", "channels", "occurred_at", "metadata"]
    assert all(found.values())


def test_data_at_and_over_its_limit() -> None:
    """The limit itself passes; one byte more is 413 with its place."""
    assert check_publish(body(data=b"1" * 100), LIMITS).data == b"1" * 100
    with pytest.raises(TooLarge) as caught:
        check_publish(body(data=b"1" * 101), LIMITS)
    assert (caught.value.status, caught.value.code) == (413, "too_large")
    assert caught.value.errors[0].loc == ("body", "data")


def test_a_batch_names_the_index_of_each_fault() -> None:
    """All events are checked; the good ones are not named."""
    with pytest.raises(InvalidInput) as caught:
        check_batch(BatchBody([body(type=""), body(), body(key="", uid="")]), LIMITS)
    assert [error.loc for error in caught.value.errors] == [
        ("body", "events", 0, "type"), ("body", "events", 2, "uid"), ("body", "events", 2, "key"),
    ]  # fmt: skip
    assert "(and 2 more)" in caught.value.detail


def test_batch_sizes() -> None:
    """1 to the limit; an event's own size counts in a batch too."""
    assert check_batch(BatchBody([body()] * 3), LIMITS) == [EventInput("order.created", b"1")] * 3
    for events in ([], [body()] * 4):
        with pytest.raises(InvalidInput) as caught:
            check_batch(BatchBody(events), LIMITS)
        assert caught.value.errors[0].loc == ("body", "events")
    with pytest.raises(TooLarge) as too_large:
        check_batch(BatchBody([body(), body(data=b"1" * 101)]), LIMITS)
    assert too_large.value.errors[0].loc == ("body", "events", 1, "data")


def test_at_most_100_faults_are_listed() -> None:
    """A batch of nothing but faults has an answer of bounded size that tells their number."""
    with pytest.raises(InvalidInput, match="and 499 more") as caught:
        check_batch(BatchBody([body(type="")] * 500), Limits())
    assert len(caught.value.errors) == 100


@given(st.text(max_size=30), st.text(max_size=30), st.integers(), st.lists(st.text(max_size=5), max_size=7))
def test_what_passes_is_within_every_limit(event_type: str, key: str, sequence: int, channels: list[str]) -> None:
    """Any other text is refused, never passed on and never an error of ours."""
    published = body(type=event_type, key=key, sequence=sequence, channels=tuple(channels), uid=key)
    try:
        event = check_publish(published, LIMITS)
    except InvalidInput:
        return
    assert event.key is not None
    assert event.type.isascii()
    assert 1 <= len(event.key.encode()) <= 256
    assert sequence in range(1, 2**53)
    assert len(event.channels) <= 5
