"""The limits of contract §7: what an event and an endpoint may look like.

Each check takes the place of its input (``loc``) and a list to which it adds every refusal it finds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from ackpost.core import headers as header_rules
from ackpost.core.formats import FLAT_NAMES
from ackpost.core.ids import valid_uid
from ackpost.core.jsondata import BatchBody, Loc, PublishBody
from ackpost.core.matching import RESERVED_PREFIX
from ackpost.core.times import parse_rfc3339
from ackpost.errors import FieldError, InvalidInput, TooLarge

TYPE_CHARS_MAX: Final = 256
KEY_BYTES_MAX: Final = 256
SEQUENCE_MAX: Final = (1 << 53) - 1
EVENT_CHANNELS_MAX: Final = 5
ENDPOINT_CHANNELS_MAX: Final = 10
METADATA_BYTES_MAX: Final = 4096
DESCRIPTION_CHARS_MAX: Final = 1024
HEADERS_MAX: Final = 20
FILTERS_MAX: Final = 500
ERRORS_SHOWN_MAX: Final = 100

_TYPE: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_CHANNEL: Final = re.compile(r"[A-Za-z0-9_\-.:]{1,128}")
_KEY_FIELD: Final = re.compile(r"[A-Za-z0-9_\-.]{1,64}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROL_BUT_LINES: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TYPE_WORDS: Final = "letters, digits, - and _, in parts joined by dots"


class Limits(msgspec.Struct, frozen=True):
    """The limits that an operator sets."""

    data_bytes_max: int = 256 * 1024
    batch_events_max: int = 500


class EventInput(msgspec.Struct, gc=False):
    """A publish that passed every check. ``metadata`` is the JSON object as it was written."""

    type: str
    data: bytes
    uid: str | None = None
    key: str | None = None
    sequence: int | None = None
    channels: tuple[str, ...] = ()
    occurred_at_ms: int | None = None
    metadata: bytes | None = None


def check_publish(body: PublishBody, limits: Limits) -> EventInput:
    """Check one published event.

    Raises: InvalidInput with every refused field; TooLarge.
    """
    errors: list[FieldError] = []
    event = check_event(body, ("body",), limits, errors)
    refuse(errors)
    return event


def check_batch(body: BatchBody, limits: Limits) -> list[EventInput]:
    """Check a batch: all of it or nothing.

    Raises: InvalidInput with the refused fields of all events (at most 100); TooLarge.
    """
    errors: list[FieldError] = []
    if not 1 <= len(body.events) <= limits.batch_events_max:
        errors.append(FieldError(("body", "events"), f"must hold 1 to {limits.batch_events_max} events"))
        refuse(errors)
    events = [check_event(event, ("body", "events", index), limits, errors) for index, event in enumerate(body.events)]
    refuse(errors)
    return events


def refuse(errors: Sequence[FieldError]) -> None:
    """End a check.

    Raises: InvalidInput when ``errors`` has any.
    """
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        detail = f"{'.'.join(map(str, first.loc))} {first.message}{more}"
        raise InvalidInput(detail, errors=errors[:ERRORS_SHOWN_MAX])


def check_event(body: PublishBody, loc: Loc, limits: Limits, errors: list[FieldError]) -> EventInput:
    """Check one event; what is returned is of use only if ``errors`` did not grow.

    Raises: TooLarge for its data.
    """
    data = bytes(body.data)
    if len(data) > limits.data_bytes_max:
        message = f"is longer than {limits.data_bytes_max} bytes"
        where = (*loc, "data")
        raise TooLarge(f"{'.'.join(map(str, where))} {message}", errors=[FieldError(where, message)])
    fault = _published_type_fault(body.type) if len(body.type) <= TYPE_CHARS_MAX else type_fault(body.type)
    if fault is not None:
        errors.append(FieldError((*loc, "type"), fault))
    event = EventInput(body.type, data, body.uid, body.key, body.sequence)
    if body.uid is not None:
        check_uid(body.uid, (*loc, "uid"), errors)
    if body.key is not None:
        _check_key(body.key, (*loc, "key"), errors)
    if body.sequence is not None:
        _check_sequence(body, (*loc, "sequence"), errors)
    if body.channels:
        event.channels = check_channels(body.channels, EVENT_CHANNELS_MAX, (*loc, "channels"), errors)
    if body.occurred_at is not None:
        try:
            event.occurred_at_ms = parse_rfc3339(body.occurred_at)
        except ValueError as error:
            errors.append(FieldError((*loc, "occurred_at"), str(error)))
    event.metadata = check_metadata(bytes(body.metadata), (*loc, "metadata"), errors)
    return event


def type_fault(event_type: str) -> str | None:
    """Say what is wrong with an event type (reserved ones are types too); None when nothing is."""
    if len(event_type) > TYPE_CHARS_MAX:
        return f"is longer than {TYPE_CHARS_MAX} characters"
    if _TYPE.fullmatch(event_type) is None:
        return f"must be an event type: {_TYPE_WORDS}, like order.created"
    return None


def pattern_fault(pattern: str) -> str | None:
    """Say what is wrong with a filter: an exact type, ``order.*`` or ``*``; None when nothing is."""
    if pattern == "*" or type_fault(pattern.removesuffix(".*")) is None:
        return None
    return f"must be * or an event type ({_TYPE_WORDS}; at most {TYPE_CHARS_MAX} characters), or one followed by .*"


def check_uid(uid: str, loc: Loc, errors: list[FieldError]) -> None:
    """Check a caller's own id."""
    if not valid_uid(uid):
        errors.append(FieldError(loc, "must be 1 to 256 letters, digits, -, _ or ."))


def check_channels(channels: Sequence[str], count_max: int, loc: Loc, errors: list[FieldError]) -> tuple[str, ...]:
    """Check channel names; gives them without repeats, in their order."""
    distinct = tuple(dict.fromkeys(channels))
    if len(distinct) > count_max:
        errors.append(FieldError(loc, f"must hold at most {count_max} channels"))
    for index, channel in enumerate(channels):
        if _CHANNEL.fullmatch(channel) is None:
            errors.append(FieldError((*loc, index), "must be 1 to 128 letters, digits, -, _, . or :"))
    return distinct


def check_event_types(patterns: Sequence[str], loc: Loc, errors: list[FieldError]) -> tuple[str, ...]:
    """Check an endpoint's filters; gives them without repeats, in their order."""
    distinct = tuple(dict.fromkeys(patterns))
    if not 1 <= len(distinct) <= FILTERS_MAX:
        errors.append(FieldError(loc, f'must hold 1 to {FILTERS_MAX} filters; ["*"] takes every type'))
    for index, pattern in enumerate(patterns):
        fault = pattern_fault(pattern)
        if fault is not None:
            errors.append(FieldError((*loc, index), fault))
    return distinct


def check_headers(
    headers: Mapping[str, str],
    secret_headers: Mapping[str, str],
    signature_header: str | None,
    loc: Loc,
    errors: list[FieldError],
) -> None:
    """Check an endpoint's own headers, open and secret ones together; ``loc`` is the endpoint's."""
    if len(headers) + len(secret_headers) > HEADERS_MAX:
        errors.append(FieldError((*loc, "headers"), f"must be at most {HEADERS_MAX}, secret ones included"))
    taken: set[str] = set()
    if signature_header is not None:
        taken.update((signature_header.lower(), f"{signature_header.lower()}-previous"))
    for field, values in (("headers", headers), ("secret_headers", secret_headers)):
        for name, value in values.items():
            where = (*loc, field, name)
            fault = header_rules.name_fault(name) or header_rules.value_fault(value)
            if fault is None and name.lower() in taken:
                fault = "is set twice (the case of a name does not count)"
            taken.add(name.lower())
            if fault is not None:
                errors.append(FieldError(where, fault))


def check_signature_header(name: str | None, signature: str, loc: Loc, errors: list[FieldError]) -> None:
    """Check the renaming of the header that carries ``sha256-hex`` signatures."""
    if name is None:
        return
    fault = header_rules.signature_name_fault(name)
    if signature != "sha256-hex":
        fault = "can be set for signature sha256-hex only: the others' names are those of Standard Webhooks"
    if fault is not None:
        errors.append(FieldError(loc, fault))


def check_key_field(name: str | None, loc: Loc, errors: list[FieldError]) -> None:
    """Check the name of the member that carries the key in format ``flat``."""
    if name is None:
        return
    if _KEY_FIELD.fullmatch(name) is None:
        errors.append(FieldError(loc, "must be 1 to 64 letters, digits, -, _ or ."))
    elif name in FLAT_NAMES:
        errors.append(FieldError(loc, f"must not be one of {', '.join(FLAT_NAMES)}"))


def check_text(text: str, chars_max: int, loc: Loc, errors: list[FieldError]) -> None:
    """Check a text for people, a description or a name: line ends and tabs are its only control characters."""
    if len(text) > chars_max:
        errors.append(FieldError(loc, f"is longer than {chars_max} characters"))
    if _CONTROL_BUT_LINES.search(text) is not None:
        errors.append(FieldError(loc, "has control characters"))


def check_metadata(metadata: bytes, loc: Loc, errors: list[FieldError]) -> bytes | None:
    """Check metadata, given as valid JSON or nothing; gives None for nothing and for null."""
    if metadata in {b"", b"null"}:
        return None
    if not metadata.startswith(b"{"):
        errors.append(FieldError(loc, "must be an object"))
    elif len(metadata) > METADATA_BYTES_MAX:
        errors.append(FieldError(loc, f"is longer than {METADATA_BYTES_MAX} bytes"))
    return metadata


@lru_cache(maxsize=4096)
def _published_type_fault(event_type: str) -> str | None:
    """Say what is wrong with a publisher's type, remembered; only for types of at most 256 characters."""
    if event_type.startswith(RESERVED_PREFIX):
        return f"must not begin with {RESERVED_PREFIX}: such events are Ackpost's own"
    return type_fault(event_type)


def _check_key(key: str, loc: Loc, errors: list[FieldError]) -> None:
    if not key or len(key.encode()) > KEY_BYTES_MAX:
        errors.append(FieldError(loc, f"must be 1 to {KEY_BYTES_MAX} bytes in UTF-8"))
    elif _CONTROL.search(key) is not None:
        errors.append(FieldError(loc, "has control characters"))


def _check_sequence(body: PublishBody, loc: Loc, errors: list[FieldError]) -> None:
    if body.key is None:
        errors.append(FieldError(loc, "needs a key: a sequence orders the events of one key"))
    if body.sequence is not None and not 1 <= body.sequence <= SEQUENCE_MAX:
        errors.append(FieldError(loc, f"must be 1 to {SEQUENCE_MAX}"))
