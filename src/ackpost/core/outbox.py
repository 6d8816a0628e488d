"""A row of the outbox: what an application writes beside its own rows, and how it becomes a published event.

The same checks as for a publish over HTTP hold, so that what is wrong fails where it is written. Whoever moves rows
checks them again: an application may write its table by other means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ackpost.core.ids import valid_uid
from ackpost.core.jsondata import decode_publish
from ackpost.core.limits import EventInput, Limits, check_publish
from ackpost.core.times import rfc3339_ms
from ackpost.errors import FieldError, InvalidInput, MalformedJson

TABLE: Final = "ackpost_outbox"
COLUMNS: Final = "uid, type, data, key, channels, occurred_at, metadata, tenant, number, created_ms"
"""In the order of ``OutboxRow``'s fields."""

_OF_TENANT: Final = frozenset({"unknown_tenant", "tenant_required"})

_SPACE: Final = b" \t\n\r"
_encode = msgspec.json.Encoder().encode


class OutboxRow(msgspec.Struct, gc=False):
    """One event that waits. ``data``, ``channels`` and ``metadata`` are JSON texts.

    ``number`` rises in the order of writing; ``created_ms`` is the time of writing by the application's database. Both
    are 0 before the row is written. ``tenant``: an id or uid; None is the tenant of the key that the row is moved with.
    """

    uid: str
    type: str
    data: str
    key: str | None = None
    channels: str | None = None
    occurred_at: str | None = None
    metadata: str | None = None
    tenant: str | None = None
    number: int = 0
    created_ms: int = 0

    def body(self) -> bytes:
        """Give the event as the API takes it, its data byte for byte; it occurred when it was written, if not told.

        Raises: InvalidInput for text that is no Unicode.
        """
        occurred_at = self.occurred_at
        if occurred_at is None and self.created_ms:
            occurred_at = rfc3339_ms(self.created_ms)
        try:
            parts = [b'{"type":%b,"data":%b,"uid":%b' % (_encode(self.type), self.data.encode(), _encode(self.uid))]
            if self.key is not None:
                parts.append(b'"key":' + _encode(self.key))
            if self.channels is not None:
                parts.append(b'"channels":' + self.channels.encode())
            if occurred_at is not None:
                parts.append(b'"occurred_at":' + _encode(occurred_at))
            if self.metadata is not None:
                parts.append(b'"metadata":' + self.metadata.encode())
        except UnicodeEncodeError:
            text = "the event has half of a surrogate pair, which is no text"
            raise InvalidInput(f"{text}.", errors=[FieldError(("body",), text)]) from None
        return b",".join(parts) + b"}"


def check_row(row: OutboxRow, limits: Limits) -> EventInput:
    """Check a row as the API checks a publish, and give its event.

    Raises: InvalidInput with every refused field; MalformedJson; TooLarge.
    """
    try:
        body = row.body()
        event = check_publish(decode_publish(body), limits)
    except MalformedJson as error:
        raise MalformedJson(str(error).replace("the body", "the event", 1)) from None
    # What was spliced in must be one value each: a text like 1,"key":"x" would add members.
    if event.data != row.data.encode().strip(_SPACE):
        raise _invalid("data", "must be one JSON value")
    if (event.metadata or b"null") != (row.metadata or "null").encode().strip(_SPACE):
        raise _invalid("metadata", "must be one JSON object")
    if (event.type, event.uid, event.key) != (row.type, row.uid, row.key):
        raise _invalid("channels", "must be one JSON array")
    if row.tenant is not None and not valid_uid(row.tenant):
        raise _invalid("tenant", "must be a tenant's uid or id")
    return event


def after_refusal(
    rows: Sequence[OutboxRow], code: str, detail: str, errors: Iterable[tuple[Sequence[str | int], str]]
) -> tuple[dict[int, str], list[list[OutboxRow]]]:
    """Say what becomes of rows whose batch was refused as a whole; ``errors`` are places and messages of the refusal.

    Gives the reasons, by number, of those to be set aside, and the batches to try next, in order: the others without
    those, or halves where nobody knows whom it meant.
    """
    reason = f"{code}: {detail}"
    if code in _OF_TENANT:
        return {row.number: reason for row in rows}, []
    refused: dict[int, str] = {}
    for loc, message in errors:
        match tuple(loc):
            case ("body", "events", int(index), *path) if index < len(rows):
                text = f"{'.'.join(map(str, path))} {message}".strip()
                number = rows[index].number
                refused[number] = f"{refused[number]}; {text}" if number in refused else f"{code}: {text}"
            case _:
                pass
    if not refused and len(rows) == 1:
        refused[rows[0].number] = reason
    rest = [row for row in rows if row.number not in refused]
    half = len(rest) if refused else len(rest) // 2
    return refused, [part for part in (rest[:half], rest[half:]) if part]


def _invalid(field: str, message: str) -> InvalidInput:
    return InvalidInput(f"{field} {message}.", errors=[FieldError(("body", field), message)])
