"""What several calls take in their bodies: no fields at all, times, and ids or uids of other objects."""

from __future__ import annotations

import msgspec

from ackpost.core import ids
from ackpost.core.times import parse_rfc3339
from ackpost.errors import FieldError, InvalidInput, NotFound


class NoFields(msgspec.Struct, forbid_unknown_fields=True):
    """A body may be left out; if there is one it has no fields."""


def body_time(name: str, text: str | None, *above: str) -> int | None:
    """Read a time of a body; ``above`` are the fields around it.

    Raises: InvalidInput.
    """
    if text is None:
        return None
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise InvalidInput(f"{name} {error}", errors=[FieldError(("body", *above, name), str(error))]) from None


def body_types(event_types: list[str] | None) -> tuple[str, ...] | None:
    """Give type filters as services take them."""
    return None if event_types is None else tuple(event_types)


def path_id(prefix: str, text: str, salt: int, what: str) -> int:
    """Read the id in a path.

    Raises: NotFound when it is none of ours.
    """
    position = ids.parse_id(prefix, text, salt)
    if position is None:
        raise NotFound(f"There is no such {what}.")
    return position
