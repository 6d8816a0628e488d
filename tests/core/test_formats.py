"""The four bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ackpost.core.formats import FORMATS, build_body
from ackpost.errors import FormatConflict
from tests.core import json_texts

OCCURRED = "2026-01-31T12:00:00.123Z"
ATTEMPTED = "2026-02-01T00:00:00.000Z"
KEYS = st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
SEQUENCES = st.none() | st.integers(1, 2**53 - 1)


def build(format: str, data: bytes, **more: Any) -> bytes:
    """Build a body of one event with what a test does not care about."""
    arguments = {"event_id": "evt_1", "event_type": "order.created", "occurred_at": OCCURRED, "attempted_at": ATTEMPTED}
    return build_body(format, data=data, **(arguments | more))


@pytest.mark.parametrize(
    ("format", "more", "expected"),
    [
        ("standard", {}, b'{"type":"order.created","id":"evt_1","timestamp":"%b","data":{ "a" : 1 }}'),
        (
            "standard",
            {"key": 'o"1', "sequence": 7},
            b'{"type":"order.created","id":"evt_1","timestamp":"%b","key":"o\\"1","sequence":7,"data":{ "a" : 1 }}',
        ),
        ("flat", {}, b'{"event":"order.created","occurred_at":"%b", "a" : 1 }'),
        (
            "flat",
            {"key": "é", "sequence": 7, "key_field": "order_id"},
            '{"event":"order.created","order_id":"é","sequence":7,"occurred_at":"%b", "a" : 1 }'.encode(),
        ),
        ("flat", {"key": "k", "sequence": 7}, b'{"event":"order.created","sequence":7,"occurred_at":"%b", "a" : 1 }'),
        ("flat", {"key_field": "order_id"}, b'{"event":"order.created","occurred_at":"%b", "a" : 1 }'),
    ],
)
def test_bodies_of_the_events_time(format: str, more: dict[str, Any], expected: bytes) -> None:
    """Envelope without whitespace, members in their order, ``data`` as published; the time is the event's."""
    assert build(format, b'{ "a" : 1 }', **more) == expected % OCCURRED.encode()


def test_the_store_body_has_the_attempts_time() -> None:
    """Format ``store``: the attempt's time, the event's type as ``event``, ``apiVersion`` at the end."""
    expected = (
        b'{"id":"evt_1","event":"order.created","timestamp":"%b","key":"k","sequence":1,"data":[],"apiVersion":"v1"}'
    )
    assert build("store", b"[]", key="k", sequence=1) == expected % ATTEMPTED.encode()
    assert b'"key"' not in build("store", b"[]")


@given(json_texts.values, KEYS, SEQUENCES)
def test_every_body_is_json_with_data_inside_untouched(data: str, key: str | None, sequence: int | None) -> None:
    """The bytes of ``data`` stand in the body as published, and reading the body gives the event."""
    raw = data.encode()
    for format in ("standard", "store"):
        body = build(format, raw, key=key, sequence=sequence)
        assert b'"data":' + raw in body
        read = json.loads(body)
        assert read["id"] == "evt_1"
        assert (read.get("key"), read.get("sequence")) == (key, sequence)
        assert json.dumps(read["data"]) == json.dumps(json.loads(data))
    assert build("bare", raw, key=key, sequence=sequence) == raw


@given(json_texts.objects, KEYS, SEQUENCES, st.none() | st.sampled_from(["order_id", "v", "a-b.c"]))
@example('{"\\u0076":1}', "k", 1, "v")
@example("{ }", None, None, None)
@example("{}", "k", 1, "v")
def test_flat_holds_all_members_or_refuses(
    data: str, key: str | None, sequence: int | None, key_field: str | None
) -> None:
    """The members of ``data`` follow the envelope's untouched; a clash of names in any spelling is refused."""
    members = json.loads(data, object_pairs_hook=list)
    own = {"event", "sequence", "occurred_at", key_field}
    clash = any(name in own for name, _ in members)
    try:
        body = build("flat", data.encode(), key=key, sequence=sequence, key_field=key_field)
    except FormatConflict:
        assert clash
        return
    assert not clash
    assert body.endswith(data.encode().partition(b"{")[2])
    read = json.loads(body, object_pairs_hook=list)
    assert json.dumps(read[len(read) - len(members) :]) == json.dumps(members)
    envelope: dict[str, Any] = {"event": "order.created"}
    if key is not None and key_field is not None:
        envelope[key_field] = key
    if sequence is not None:
        envelope["sequence"] = sequence
    envelope["occurred_at"] = OCCURRED
    assert read[: len(read) - len(members)] == list(envelope.items())


@pytest.mark.parametrize(
    "data",
    [
        "1", "null", "[]", '"{"', '[{"a":1}]', '["{",{}]', '{"event":1}', '{"a":1,"sequence":null}',
        '{"occurred_at":"x"}', '{"order_id":1}', '{"ev\\u0065nt":1}', '{"\\u0065\\u0076ent":1}',
        '{"a":1,"event":1,"a":2}',
        '{"event":1,"event":2}', ' { "event" : 1 }', '{"x":"\\ud800","event":1}', '{"order\\u005Fid":"\\udc00"}',
    ],
)  # fmt: skip
def test_data_that_does_not_go_into_flat(data: str) -> None:
    """No object, or a member of the envelope's in any spelling: refused, whether this event uses the name or not."""
    with pytest.raises(FormatConflict):
        build("flat", data.encode(), key_field="order_id")


@pytest.mark.parametrize(
    "data", ['{"a":{"event":1}}', '{"a":"event"}', '{"Event":1}', '{"event ":1}', '{"order_id":1}']
)
def test_data_that_goes_into_flat(data: str) -> None:
    """Names deeper inside, values, other spellings and the key field of other endpoints do not clash."""
    assert json.loads(build("flat", data.encode()))


def test_surrogates_in_members_pass_through_flat() -> None:
    """Lone surrogate escapes, in names too, are spliced like any other bytes."""
    data = b'{"\\ud800":"\\udc00","a":1}'
    assert build("flat", data).endswith(b"," + data[1:])


@pytest.mark.parametrize("format", FORMATS)
def test_only_store_changes_with_the_attempt(format: str) -> None:
    """Two attempts have the same bytes, but for the timestamp of ``store``."""
    first, second = (build(format, b'{"a":1}', attempted_at=at) for at in (ATTEMPTED, "2026-03-01T00:00:00.000Z"))
    assert (first == second) == (format != "store")
    assert first.replace(ATTEMPTED.encode(), b"") == second.replace(b"2026-03-01T00:00:00.000Z", b"")


def test_a_format_that_does_not_exist() -> None:
    """Such a name is a mistake of the caller's code."""
    with pytest.raises(ValueError, match="no such format"):
        build("xml", b"{}")
