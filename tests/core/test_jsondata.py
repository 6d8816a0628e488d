"""Untrusted JSON: what passes untouched, what is refused, and where an error points."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core import jsondata
from ackpost.core.jsondata import DEPTH_MAX, decode_batch, decode_json, decode_publish, member_names, nesting
from ackpost.errors import InvalidInput, MalformedJson
from tests.core import json_texts

FIDELITY = [
    '{"n":18446744073709551616,"p":7615917337495251231,"f":0.1000000000000000055,"e":1E400}',
    '{"weight":614.0,"z":-0.0,"e":1e2}',
    '{"s":"a\\u0000b"}',
    '{"b":1, "a":2,"b":3}',
    '"\u2028\u2029<!-- &amp; \\/ \u00e9 e\u0301"',
    '{"body":"\\u001B[34mbar \\u2665"}',
    '{"body":"\\\\u00e9 is text, \\\\ud800 too"}',
    '"\\ud800"',
    '["\\uDC00\\uD83D","\\uD83D\\uDE00","\\\\\\ud83d"]',
    '{"\\ud800":1}',
    "null",
    "0",
]


@pytest.mark.parametrize("data", FIDELITY)
def test_data_comes_out_as_its_bytes(data: str) -> None:
    """Big numbers, number forms, escapes, key order, duplicate keys and lone surrogates are not touched."""
    body = f'{{"type":"a", "data" :  {data} , "metadata":{{"m":{data}}}}}'.encode()
    event = decode_publish(body)
    assert bytes(event.data) == data.encode()
    assert bytes(event.metadata) == f'{{"m":{data}}}'.encode()
    assert bytes(decode_batch(b'{"events":[%b]}' % body).events[0].data) == data.encode()


@given(json_texts.values, json_texts.values)
def test_any_json_value_passes_untouched(data: str, metadata: str) -> None:
    """Whatever the grammar allows comes out as it went in, alone and in a batch."""
    body = f'{{"metadata":{metadata},"data":{data},"type":"a","key":"\\u00e9"}}'.encode()
    both = decode_batch(b'{"events":[%b,%b]}' % (body, body)).events
    for event in (decode_publish(body), *both):
        assert bytes(event.data) == data.encode()
        assert bytes(event.metadata) == metadata.encode()
        assert (event.type, event.key) == ("a", "é")


def _reference_accepts(text: bytes) -> bool:
    def refuse(constant: str) -> float:
        raise ValueError(constant)

    try:
        json.loads(text.decode(), parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(json_texts.values, st.integers(0, 40), st.sampled_from([*'{}[]",:\\0-.eEu \x00\x1fN', "\xff", "é", "\\ud8"]))
def test_the_same_texts_are_json_as_for_the_standard_library(data: str, index: int, inserted: str) -> None:
    """A random character put anywhere is judged alike, bad UTF-8 included."""
    raw = inserted.encode("latin-1") if inserted == "\xff" else inserted.encode()
    encoded = data.encode()
    body = b'{"type":"a","data":[%b%b%b]}' % (encoded[:index], raw, encoded[index:])
    try:
        decode_publish(body)
    except MalformedJson:
        accepted = False
    except InvalidInput:
        accepted = True
    else:
        accepted = True
    assert accepted == _reference_accepts(body)


MALFORMED = [
    (b"", "empty"),
    (b"{", "truncated"),
    (b'{"type":"a","data":1}}', "trailing"),
    (b'{"type":"a","data":1} x', "trailing"),
    (b"\xef\xbb\xbf{}", "byte order mark"),
    ('{"type":"a","data":1}'.encode("utf-16"), "UTF-8"),
    ('{"type":"a","data":1}'.encode("utf-16-be"), "not JSON"),
    (b'{"type":"a","data":"\xff"}', "UTF-8"),
    (b'{"type":"a","data":"\xed\xa0\x80"}', "UTF-8"),
    (b'{"type":"a","data":"\xc0\xaf"}', "UTF-8"),
    (b'{"type":"a","data":NaN}', "not JSON"),
    (b'{"type":"a","data":[-Infinity]}', "not JSON"),
    (b'{"type":"a","data":[1,]}', "not JSON"),
    (b'{"type":"a","data":01}', "not JSON"),
    (b"{'type':1}", "not JSON"),
    (b'{"type":"a","data":"\\ud800","key":}', "not JSON"),
    (b'{"type":1,"data":', "truncated"),
    (b'{"type":1,"data":"\\ud800","x":NaN}', "not JSON"),
]


@pytest.mark.parametrize(("body", "cause"), MALFORMED)
def test_malformed_bodies_are_400(body: bytes, cause: str) -> None:
    """Syntax, encoding, NaN: also after a field of a wrong type and beside lone surrogates."""
    for decode in (decode_publish, decode_batch, lambda text: decode_json(text, ANY)):
        with pytest.raises(MalformedJson, match=cause) as caught:
            decode(body)
        assert (caught.value.status, caught.value.code) == (400, "malformed_json")


ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def test_the_place_of_an_error_is_not_given_where_it_would_be_wrong() -> None:
    """A byte offset is told for plain bodies only: a hidden surrogate shifts it."""
    with pytest.raises(MalformedJson, match=r"byte 18"):
        decode_publish(b'{"type":"","data":x}')
    with pytest.raises(MalformedJson) as caught:
        decode_publish(b'{"type":"\\ud800","data":x}')
    assert "byte" not in caught.value.detail


def deep(depth: int, opened: bytes = b"[", closed: bytes = b"]", leaf: bytes = b"") -> bytes:
    """Give a value nested so deep."""
    return opened * depth + leaf + closed * depth


@pytest.mark.parametrize("leaf", [b'"[[[{{{"', b'"\\"[[[\\\\\\"{{{"', b'"\\\\"', b""])
def test_64_levels_pass_and_65_do_not(leaf: bytes) -> None:
    """The body's own levels count: 63 in a publish, 61 in a batch's data; brackets in strings do not."""
    body = b'{"type":"a","data":%b}'
    assert decode_publish(body % deep(DEPTH_MAX - 1, leaf=leaf)).type == "a"
    assert decode_batch(b'{"events":[%b]}' % (body % deep(DEPTH_MAX - 3, b'{"a":', b"}", leaf or b"0"))).events
    with pytest.raises(MalformedJson, match="deeper than 64"):
        decode_publish(body % deep(DEPTH_MAX, leaf=leaf))
    with pytest.raises(MalformedJson, match="deeper than 64"):
        decode_batch(b'{"events":[%b]}' % (body % deep(DEPTH_MAX - 2, b'{"a":', b"}", leaf or b"0")))


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"a","data":%b}' % deep(100_000),
        b'{"type":"a","data":%b' % (b"[" * 200_000),
        b'{"type":1,"data":%b}' % deep(100_000),
        b'{"type":"a","data":["\\ud800",%b]}' % deep(100_000),
        b'{"type":"a","data":["\\ud800",%b]}' % deep(DEPTH_MAX - 1),
        deep(100_000),
    ],
    ids=["deep", "unclosed", "after a wrong field", "after a surrogate", "65 after a surrogate", "array"],
)
def test_hostile_depth_is_400(body: bytes) -> None:
    """Nesting far beyond what any parser takes ends as a refusal, wherever it stands."""
    with pytest.raises(MalformedJson, match="deeper than 64"):
        decode_publish(body)
    with pytest.raises(MalformedJson, match="deeper than 64"):
        decode_batch(b'{"events":[%b]}' % body if body.endswith(b"}") else body)


def _depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    # Pairs, so that members of one name all count.
    return 1 + max((_depth(member) for _, member in value), default=0) if isinstance(value, tuple) else 0


@given(json_texts.values)
def test_nesting_is_the_depth(text: str) -> None:
    """The quick count agrees with walking the parsed value."""
    assert nesting(text.encode()) == _depth(json.loads(text, object_pairs_hook=tuple))


WRONG = [
    (b'{"data":1}', ("type",), "is missing"),
    (b'{"type":"a"}', ("data",), "is missing"),
    (b'{"type":1,"data":1}', ("type",), "expected `string`, got `integer`"),
    (b'{"type":null,"data":1}', ("type",), "expected `string`, got `null`"),
    (b'{"type":"a","data":1,"sequence":"1"}', ("sequence",), "expected `integer`, got `string`"),
    (b'{"type":"a","data":1,"sequence":1.0}', ("sequence",), "expected `integer`, got `number`"),
    (b'{"type":"a","data":1,"sequence":true}', ("sequence",), "expected `integer`, got `boolean`"),
    (b'{"type":"a","data":1,"sequence":%b}' % (b"9" * 5000), ("sequence",), "out of range"),
    (b'{"type":"a","data":1,"channels":"x"}', ("channels",), "expected `array`, got `string`"),
    (b'{"type":"a","data":1,"channels":["x",{}]}', ("channels", 1), "expected `string`, got `object`"),
    (b'{"type":"a","data":1,"extra":1}', ("extra",), "is no field"),
    (b'{"type":"a","data":1,"a.b[3]`":1}', ("a.b[3]`",), "is no field"),
    (b'{"type":"a","data":1,"%b":1}' % (b"x" * 5000), ("x" * 64,), "is no field"),
    (b'{"type":"a","data":"\\udfff","\\ud800":1}', ("\\ud800",), "is no field"),
    (b'{"type":"a","data":"\\udfff","uid":7}', ("uid",), "expected `string`, got `integer`"),
    (b'{"type":"\\ud800","data":1}', ("type",), "lone surrogate"),
    (b'{"type":"a","data":1,"uid":"\\ud800"}', ("uid",), "lone surrogate"),
    (b'{"type":"a","data":1,"key":"\\udc00x"}', ("key",), "lone surrogate"),
    (b'{"type":"a","data":1,"occurred_at":"\\ud800"}', ("occurred_at",), "lone surrogate"),
    (b'{"type":"a","data":1,"channels":["a","\\ud800"]}', ("channels", 1), "lone surrogate"),
]


@pytest.mark.parametrize(("body", "loc", "message"), WRONG)
def test_wrong_shapes_are_422_with_their_place(body: bytes, loc: tuple[str | int, ...], message: str) -> None:
    """Missing and unknown fields and wrong types name the field, alone and in a batch by index."""
    for decode, sent, prefix in (
        (decode_publish, body, ("body",)),
        (decode_batch, b'{"events":[{"type":"a","data":1},%b]}' % body, ("body", "events", 1)),
    ):
        with pytest.raises(InvalidInput) as caught:
            decode(sent)
        assert (caught.value.status, caught.value.code) == (422, "invalid")
        (error,) = caught.value.errors
        assert error.loc == (*prefix, *loc)
        assert message in error.message
        assert "surrogate-" not in repr((caught.value.detail, error))


class _Inner(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["fast", "slow"] | None = None


class _Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: _Inner | None = None
    many: list[_Inner] = []
    free: Any = None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"iner":{}}', "body.iner: is no field of this call; known are inner, many, free"),
        (b'{"inner":{"mod":1}}', "body.inner.mod: is no field of this call; known are mode"),
        (b'{"many":[{},{"mod":1}]}', "body.many.1.mod: is no field of this call; known are mode"),
        (b'{"inner":{"mode":"fats"}}', "body.inner.mode: invalid enum value 'fats'; known are fast, slow"),
        (b'{"inner":1}', "body.inner: expected `object`, got `integer`"),
    ],
)
def test_a_mistyped_name_or_value_is_told_the_known_ones(body: bytes, message: str) -> None:
    """What a person mistyped is answered with what could stand there, however deep."""
    with pytest.raises(InvalidInput) as caught:
        decode_json(body, msgspec.json.Decoder(_Outer))
    assert caught.value.detail == message


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_an_empty_body_is_called_empty(body: bytes) -> None:
    """Not by how the parser found its end."""
    with pytest.raises(MalformedJson) as caught:
        decode_publish(body)
    assert caught.value.detail == "the body is not JSON: it is empty"


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (b"[]", ("body",)), (b"null", ("body",)), (b'"x"', ("body",)), (b"{}", ("body", "events")),
        (b'{"events":{}}', ("body", "events")), (b'{"events":[1]}', ("body", "events", 0)),
    ],
)  # fmt: skip
def test_wrong_batches_are_422_with_their_place(body: bytes, loc: tuple[str | int, ...]) -> None:
    """A body or an item of another type is told where it is."""
    with pytest.raises(InvalidInput) as caught:
        decode_batch(body)
    assert caught.value.errors[0].loc == loc


def test_every_event_of_a_batch_with_a_surrogate_outside_its_data_is_named() -> None:
    """All places are collected, and the good ones in between are not."""
    events = [b'{"type":"a","data":"\\ud800"}', b'{"type":"a","data":1,"key":"\\ud800","uid":"\\ud800"}']
    with pytest.raises(InvalidInput) as caught:
        decode_batch(b'{"events":[%b]}' % b",".join(events))
    assert {error.loc for error in caught.value.errors} == {("body", "events", 1, "key"), ("body", "events", 1, "uid")}


def test_null_is_leaving_out() -> None:
    """Optional fields may be null; null data is data."""
    event = decode_publish(
        b'{"type":"a","data":null,"uid":null,"key":null,"sequence":null,"channels":null,"occurred_at":null}'
    )
    assert bytes(event.data) == b"null"
    assert (event.uid, event.key, event.sequence, event.channels, event.occurred_at) == (None,) * 5


def test_other_bodies_are_read_as_strictly() -> None:
    """A call's own decoder gets the same checks; a lone surrogate cannot be kept there and is refused."""

    class Call(msgspec.Struct, forbid_unknown_fields=True):
        url: str

    decoder = msgspec.json.Decoder(Call)
    assert decode_json(b'{"url":"x"}', decoder).url == "x"
    with pytest.raises(InvalidInput) as caught:
        decode_json(b'{"url":"x","urll":1}', decoder)
    assert caught.value.errors[0].loc == ("body", "urll")
    with pytest.raises(InvalidInput, match="lone surrogate"):
        decode_json(b'{"url":"\\ud800"}', decoder)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    """Nothing but the two refusals ever comes out."""
    for decode in (decode_publish, decode_batch):
        with contextlib.suppress(MalformedJson, InvalidInput):
            decode(body)


@given(json_texts.objects)
def test_member_names_are_the_decoded_ones(text: str) -> None:
    """Escapes are resolved; only names with lone surrogates come out in another form."""
    names = set(json.loads(text))
    found = member_names(text.encode())
    assert {name for name in names if _encodable(name)} <= found
    assert len(found) <= len(names)


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (rb'["\\",[[]]]', 3), (rb'["\\\\",[[]]]', 3), (rb'["\\\"[",[[]]]', 3), (rb'["\"[",[[]]]', 3),
        (rb'["\\","[[[["]', 1), (b'[{"a":[]},{}]', 3), (b'"x"', 0), (b"1", 0),
    ],
)  # fmt: skip
def test_nesting_sees_where_strings_end(text: bytes, depth: int) -> None:
    """Escaped quotes do not end a string, a quote after an escaped backslash does."""
    assert nesting(text) == depth


@pytest.mark.parametrize(
    "pair", ["\\ud83d\\ude00", "\\uD83D\\uDE00", "\\uD83d\\uDe00", "\\uDBFF\\uDFFF", "\\udbff\\udfff"]
)
def test_surrogate_pairs_beside_lone_ones_stay_characters(pair: str) -> None:
    """A lone surrogate in data changes nothing about how other fields are read."""
    event = decode_publish(f'{{"type":"a","key":"{pair}","data":"{pair}\\ud800"}}'.encode())
    assert event.key == json.loads(f'"{pair}"')
    assert bytes(event.data) == f'"{pair}\\ud800"'.encode()


def test_the_marker_cannot_be_forged() -> None:
    """A body that holds the marker of another body keeps it as text."""
    body = b'{"type":"a","data":"\\ud800"}'
    marker = jsondata._hide_lone_surrogates(body)[1]
    forged = body.replace(b'"a"', b'"a","key":"%b"' % marker.encode())
    event = decode_publish(forged)
    assert event.key == marker
    assert bytes(event.data) == b'"\\ud800"'
