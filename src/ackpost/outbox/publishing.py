"""Writing one row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final

from ackpost.core.limits import Limits
from ackpost.core.outbox import TABLE, OutboxRow, check_row
from ackpost.errors import FieldError, InvalidInput
from ackpost.outbox.identity import new_uid
from ackpost.outbox.kinds import Kind, Values, kind_of

DATA_BYTES_MAX: Final = Limits().data_bytes_max

_COLUMNS: Final = ("uid", "tenant", "type", "key", "channels", "occurred_at", "metadata", "data")


def publish(
    connection: object,
    type: str,
    data: object,
    *,
    key: str | None = None,
    channels: Sequence[str] | None = None,
    occurred_at: datetime | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    uid: str | None = None,
    tenant: str | None = None,
    data_bytes_max: int = DATA_BYTES_MAX,
) -> str:
    """Write an event into the outbox, in the transaction that the connection is in; give the event's uid.

    ``data`` is any JSON value, or JSON itself as ``str`` or ``bytes``, which stays as it is byte for byte (a text alone
    is thus written ``'"text"'``). ``occurred_at`` is RFC 3339 or a datetime with its zone; without, it is the time of
    writing by the database's clock. ``uid`` is made where none is given. ``tenant`` is an id or uid; without, it is
    the tenant of the relay's key, or of a shared database the default one. ``data_bytes_max`` is the server's setting.

    In a connection that commits each statement by itself the event is committed at once.
    Raises: InvalidInput, MalformedJson, TooLarge as a publish does, and then nothing was written; TypeError for
    another kind of connection; what the connection raises.
    """
    kind = kind_of(connection, is_async=False)
    given = (type, data, key, channels, occurred_at, metadata, uid, tenant)
    row = _checked(given, data_bytes_max)
    kind.run(connection, _insert(kind), _values(row))
    return row.uid


async def publish_async(
    connection: object,
    type: str,
    data: object,
    *,
    key: str | None = None,
    channels: Sequence[str] | None = None,
    occurred_at: datetime | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    uid: str | None = None,
    tenant: str | None = None,
    data_bytes_max: int = DATA_BYTES_MAX,
) -> str:
    """Do as ``publish``, through an async connection."""
    kind = kind_of(connection, is_async=True)
    given = (type, data, key, channels, occurred_at, metadata, uid, tenant)
    row = _checked(given, data_bytes_max)
    await kind.run(connection, _insert(kind), _values(row))
    return row.uid


@cache
def _insert(kind: Kind) -> str:
    places = ", ".join(kind.place(number) for number in range(1, len(_COLUMNS) + 1))
    return f"INSERT INTO {TABLE} ({', '.join(_COLUMNS)}) VALUES ({places})"  # noqa: S608 - constants only


def _values(row: OutboxRow) -> Values:
    return row.uid, row.tenant, row.type, row.key, row.channels, row.occurred_at, row.metadata, row.data


def _checked(given: tuple[Any, ...], data_bytes_max: int) -> OutboxRow:
    type, data, key, channels, occurred_at, metadata, uid, tenant = given
    if isinstance(metadata, Mapping):
        metadata = dict(metadata)
    row = OutboxRow(
        new_uid() if uid is None else uid,
        type,
        _json("data", data),
        key,
        None if channels is None else _written("channels", channels),
        _time(occurred_at) if isinstance(occurred_at, datetime) else occurred_at,
        None if metadata is None else _written("metadata", metadata),
        tenant,
    )
    check_row(row, Limits(data_bytes_max=data_bytes_max))
    return row


def _json(field: str, value: object) -> str:
    """Give JSON as text: what is text or bytes already as it is."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        return _written(field, value)
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise _refused(field, f"is not UTF-8 (byte {error.start})") from None


def _written(field: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(field, f"cannot be JSON: {error}") from error


def _time(occurred_at: datetime) -> str:
    if occurred_at.utcoffset() is None:
        raise _refused("occurred_at", "must have a time zone")
    return occurred_at.isoformat()


def _refused(field: str, text: str) -> InvalidInput:
    return InvalidInput(f"{field} {text}.", errors=[FieldError(("body", field), text)])
