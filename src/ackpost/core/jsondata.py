r"""Untrusted JSON: strict checks, and publish bodies whose ``data`` stays the published bytes (contract §2, §4; E18).

The parser alone would pass bad UTF-8 inside ``data``, refuse lone surrogate escapes (``"\ud800"``, which are JSON and
pass through untouched), and fail on deep nesting in its own way; this module closes those gaps.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, TypeVar

import msgspec
import msgspec.inspect

from ackpost.errors import FieldError, InvalidInput, MalformedJson

DEPTH_MAX: Final = 64
"""How deep a body may be nested; its outermost array or object counts as 1."""

T = TypeVar("T")
Loc = tuple[str | int, ...]


class PublishBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An event as it was asked for; only its shape is checked (``core.limits`` checks the rest).

    ``data`` and ``metadata`` are slices of the body, without the whitespace around them; ``metadata`` is empty when
    it was left out. Null is the same as leaving out, but for ``data``.
    """

    type: str
    data: msgspec.Raw
    uid: str | None = None
    key: str | None = None
    sequence: int | None = None
    channels: tuple[str, ...] | None = None
    occurred_at: str | None = None
    metadata: msgspec.Raw = msgspec.Raw()


class BatchBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Many events, accepted all or none."""

    events: list[PublishBody]


_PUBLISH: Final = msgspec.json.Decoder(PublishBody)
_BATCH: Final = msgspec.json.Decoder(BatchBody)
_ANY_JSON: Final = msgspec.json.Decoder(msgspec.Raw)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

# Every escape of a string, from left to right; the group is set for a surrogate without its other half.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_ROUND_BRACKETS: Final = bytes.maketrans(b"[]{}", b"()()")
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")

_PATH: Final = re.compile(r"\A(.*?)(?: - at `\$([^`]*)`)?\Z", re.DOTALL)
_PATH_STEP: Final = re.compile(r"\.(\w+)|\[([0-9]+)\]")
_WRONG_FIELD: Final = re.compile(r"\AObject (missing required|contains unknown) field `(.*)`\Z", re.DOTALL)
_JSON_NAMES: Final = {
    "`str": "`string", "`int": "`integer", "`float": "`number", "`bool": "`boolean", " | null`": "`",
}  # fmt: skip
_TEXT_FIELDS: Final = ("type", "uid", "key", "occurred_at")
_LONE_SURROGATE: Final = "has a lone surrogate escape"
_NAME_SHOWN_CHARS_MAX: Final = 64


def decode_publish(body: bytes) -> PublishBody:
    """Read the body of one publish.

    Raises: MalformedJson (syntax, UTF-8, NaN, depth), InvalidInput (unknown or missing field, wrong type).
    """
    try:
        return _parse(body, _PUBLISH)
    except msgspec.DecodeError:
        hidden, marker = _hide_lone_surrogates(body)
    event = _parse(hidden, _PUBLISH, marker)
    _restore([(("body",), event)], marker)
    return event


def decode_batch(body: bytes) -> BatchBody:
    """Read the body of a batch.

    Raises: MalformedJson (syntax, UTF-8, NaN, depth), InvalidInput (unknown or missing field, wrong type).
    """
    try:
        return _parse(body, _BATCH)
    except msgspec.DecodeError:
        hidden, marker = _hide_lone_surrogates(body)
    batch = _parse(hidden, _BATCH, marker)
    _restore([(("body", "events", index), event) for index, event in enumerate(batch.events)], marker)
    return batch


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Read the body of any other call with that call's decoder, as strictly; lone surrogates are refused here.

    Raises: MalformedJson (syntax, UTF-8, NaN, depth), InvalidInput (unknown or missing field, wrong type).
    """
    try:
        return _parse(body, decoder)
    except msgspec.DecodeError:
        _hide_lone_surrogates(body)
    raise InvalidInput(f"body: {_LONE_SURROGATE}", errors=[FieldError(("body",), _LONE_SURROGATE)])


def member_names(data: bytes) -> frozenset[str]:
    """Give the decoded names of the members of ``data``, a valid JSON object."""
    try:
        return frozenset(_MEMBERS.decode(data))
    except msgspec.DecodeError:
        # A name with a lone surrogate comes back changed, but in neither form can it be one that anybody asks for.
        return frozenset(_MEMBERS.decode(_hide_lone_surrogates(data)[0]))


def nesting(data: bytes) -> int:
    """Give the depth of valid JSON: 0 for a scalar."""
    if b"\\" in data:
        # Pairs of backslashes first: what is then left before a quote escapes it.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(data.split(b'"')[::2]).translate(_ROUND_BRACKETS, _NO_BRACKETS)
    depth = deepest = 0
    for opened in brackets.split(b")"):
        depth += len(opened)
        deepest = max(deepest, depth)
        depth -= 1
    return deepest


def _parse(body: bytes, decoder: msgspec.json.Decoder[T], marker: str | None = None) -> T:
    """Raises: msgspec.DecodeError for the caller to look into; the refusals of ``decode_json``."""
    try:
        if not body.isascii():
            body.decode()
        parsed = decoder.decode(body)
    except UnicodeDecodeError as error:
        raise MalformedJson(f"the body is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError as error:
        _check_syntax(body)
        text = str(error) if marker is None else str(error).replace(marker, "\\u")
        raise _wrong_shape(text, decoder.type) from None
    if body.count(b"{") + body.count(b"[") > DEPTH_MAX and nesting(body) > DEPTH_MAX:
        raise _too_deep()
    return parsed


def _check_syntax(body: bytes) -> None:
    """Read to the end what the parser left at a field of the wrong shape.

    Raises: MalformedJson.
    """
    try:
        _ANY_JSON.decode(body)
    except msgspec.DecodeError:
        _hide_lone_surrogates(body)
    except RecursionError:
        raise _too_deep() from None


def _hide_lone_surrogates(body: bytes) -> tuple[bytes, str]:
    r"""Replace the ``\u`` of each lone surrogate by a marker that is plain text, as the parser refuses them.

    The marker has the body's own hash in it: nobody can write a body that contains it.
    Raises: MalformedJson when the body is wrong in any other way.
    """
    marker = f"surrogate-{hashlib.sha256(body).hexdigest()[:32]}-"
    marker_bytes = marker.encode()
    hidden = _ESCAPE.sub(lambda match: marker_bytes + match[1] if match[1] else match[0], body)
    try:
        _ANY_JSON.decode(hidden)
    except msgspec.DecodeError as error:
        text = str(error).removeprefix("JSON is malformed: ")
        if hidden != body:
            text = text.partition(" (byte")[0]
        if body.startswith(b"\xef\xbb\xbf"):
            text = "it begins with a byte order mark"
        if not body.strip():
            text = "it is empty"
        raise MalformedJson(f"the body is not JSON: {text}") from None
    except RecursionError:
        raise _too_deep() from None
    return hidden, marker


def _restore(events: list[tuple[Loc, PublishBody]], marker: str) -> None:
    """Put the lone surrogates back into ``data`` and ``metadata``.

    Raises: InvalidInput when one stands in any other field.
    """
    errors: list[FieldError] = []
    marker_bytes = marker.encode()
    for loc, event in events:
        texts: list[tuple[Loc, str | None]] = [((name,), getattr(event, name)) for name in _TEXT_FIELDS]
        texts.extend((("channels", index), channel) for index, channel in enumerate(event.channels or ()))
        errors.extend(FieldError((*loc, *where), _LONE_SURROGATE) for where, text in texts if text and marker in text)
        event.data = msgspec.Raw(bytes(event.data).replace(marker_bytes, b"\\u"))
        event.metadata = msgspec.Raw(bytes(event.metadata).replace(marker_bytes, b"\\u"))
    if errors:
        raise InvalidInput(f"outside data and metadata: {_LONE_SURROGATE}", errors=errors)


def _wrong_shape(text: str, expected: object) -> InvalidInput:
    """Translate what the parser says of a field into a place and words of JSON."""
    found = _PATH.match(text)
    assert found is not None  # the pattern takes any text
    text, path = found[1], found[2] or ""
    loc: list[str | int] = ["body"]
    loc.extend(name or int(index) for name, index in _PATH_STEP.findall(path))
    wrong_field = _WRONG_FIELD.match(text)
    if wrong_field is not None:
        known = _known(expected, loc[1:])
        loc.append(wrong_field[2][:_NAME_SHOWN_CHARS_MAX])
        message = "is missing" if wrong_field[1] == "missing required" else f"is no field of this call{known}"
    elif text.startswith("Invalid enum value"):
        message = text[:1].lower() + text[1:] + _known(expected, loc[1:])
    else:
        for python_name, json_name in _JSON_NAMES.items():
            text = text.replace(python_name, json_name)
        message = text[:1].lower() + text[1:]
    return InvalidInput(f"{'.'.join(map(str, loc))}: {message}", errors=[FieldError(tuple(loc), message)])


def _known(expected: object, steps: list[str | int]) -> str:
    """List the fields or values that could stand at a place of a body of that type; nothing when it is not sure."""
    places = _unions([msgspec.inspect.type_info(expected)])
    for step in steps:
        places = _unions([inner for place in places for inner in _below(place, step)])
    names: list[str] = []
    for place in places:
        if isinstance(place, msgspec.inspect.StructType):
            names.extend(field.encode_name for field in place.fields)
        elif isinstance(place, msgspec.inspect.LiteralType):
            names.extend(map(str, place.values))
    return f"; known are {', '.join(names)}" if names else ""


def _unions(types: list[msgspec.inspect.Type]) -> list[msgspec.inspect.Type]:
    """Put the members of unions in their place."""
    return [one for kind in types for one in (kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,))]


def _below(place: msgspec.inspect.Type, step: str | int) -> list[msgspec.inspect.Type]:
    if isinstance(place, msgspec.inspect.StructType):
        return [field.type for field in place.fields if field.encode_name == step]
    if isinstance(place, msgspec.inspect.CollectionType):
        return [place.item_type]
    return []


def _too_deep() -> MalformedJson:
    return MalformedJson(f"the body is nested deeper than {DEPTH_MAX}")
