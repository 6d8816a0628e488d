"""The bodies that consumers receive (contract §4). ``data`` is spliced in as its bytes, never read and written anew."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ackpost.core.jsondata import member_names
from ackpost.errors import FormatConflict

Format = Literal["standard", "store", "flat", "bare"]

FORMATS: Final[tuple[Format, ...]] = ("standard", "store", "flat", "bare")
FLAT_NAMES: Final = ("event", "sequence", "occurred_at")
"""The members of format ``flat`` that an endpoint's ``key_field`` must not be called."""

_text = msgspec.json.encode


def build_body(
    format: str,
    *,
    event_id: str,
    event_type: str,
    occurred_at: str,
    attempted_at: str,
    data: bytes,
    key: str | None = None,
    sequence: int | None = None,
    key_field: str | None = None,
) -> bytes:
    """Give the body of one request; ``data`` is valid JSON, both times are RFC 3339 text.

    Only ``store`` writes ``attempted_at``; every other body is the same on each attempt.
    ``key_field`` (``flat`` only) names the member that carries the key; without it the key is left out.

    Raises: FormatConflict when ``data`` does not go into ``flat``; ValueError for a format that does not exist.
    """
    if format == "standard":
        ordering = _ordering(b"key", key, sequence)
        head = b'{"type":%b,"id":%b,"timestamp":%b%b,"data":'
        return head % (_text(event_type), _text(event_id), _text(occurred_at), ordering) + data + b"}"
    if format == "store":
        ordering = _ordering(b"key", key, sequence)
        head = b'{"id":%b,"event":%b,"timestamp":%b%b,"data":'
        head %= (_text(event_id), _text(event_type), _text(attempted_at), ordering)
        return head + data + b',"apiVersion":"v1"}'
    if format == "flat":
        members = _members(data, key_field)
        ordering = _ordering((key_field or "").encode(), key if key_field else None, sequence)
        return b'{"event":%b%b,"occurred_at":%b' % (_text(event_type), ordering, _text(occurred_at)) + members
    if format == "bare":
        return data
    raise ValueError(f"no such format: {format}")


def _ordering(key_name: bytes, key: str | None, sequence: int | None) -> bytes:
    """Give the members that order an event, each with its comma before it."""
    written = b"" if key is None else b',"%b":%b' % (key_name, _text(key))
    return written if sequence is None else b'%b,"sequence":%d' % (written, sequence)


def _members(data: bytes, key_field: str | None) -> bytes:
    """Give all of ``data`` after its opening brace, with a comma before if it has members.

    A member of a name of the envelope is refused even if this event does not use that name, so that a consumer never
    takes ``data``'s for the sender's.
    """
    before, brace, rest = data.partition(b"{")
    if not brace or before.strip():
        raise FormatConflict("format flat needs an object as data")
    taken = member_names(data).intersection((*FLAT_NAMES, key_field))
    if taken:
        raise FormatConflict(f"data has a member of format flat's own: {', '.join(sorted(taken))}")
    return rest if rest.lstrip().startswith(b"}") else b"," + rest
