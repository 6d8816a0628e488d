"""Query parameters: known ones only, each given once; pages and cursors (contract §2)."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Generic, Literal, NoReturn, TypeVar
from urllib.parse import parse_qsl

import msgspec
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from ackpost.core.times import parse_rfc3339
from ackpost.errors import FieldError, InvalidInput
from ackpost.ports.store import Page

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 250
VALUES_MAX: Final = 100

_CURSOR: Final = re.compile(r"[np][0-9a-f]{1,16}")
_POSITION_MAX: Final = (1 << 63) - 1

Row = TypeVar("Row")
View = TypeVar("View")


class Listing(msgspec.Struct, Generic[View]):
    """One page of a list. ``next`` and ``previous`` are cursors to give as ``after``; null at the ends."""

    data: list[View]
    next: str | None
    previous: str | None


class PageRequest(msgspec.Struct):
    """How the caller wants a list. ``backwards``: the page before a position, not the one after it."""

    limit: int = LIMIT_DEFAULT
    after: int | None = None
    ascending: bool = False
    backwards: bool = False
    since_ms: int | None = None
    until_ms: int | None = None

    def page(self) -> Page:
        """Give the page to ask the store for: one row more than shown tells whether there are others."""
        return Page(
            limit=self.limit + 1,
            after=self.after,
            ascending=self.ascending != self.backwards,
            since_ms=self.since_ms,
            until_ms=self.until_ms,
        )

    def listing(
        self,
        rows: Sequence[Row],
        position_of: Callable[[Row], int],
        view_of: Callable[[Row], View],
        scanned_to: int | None = None,
    ) -> Listing[View]:
        """Make the answer of what the store gave for ``page``; ``scanned_to`` is where its scan bound stopped it."""
        shown = list(rows[: self.limit])
        more = len(rows) > self.limit
        end = position_of(shown[-1]) if more else scanned_to
        if self.backwards:
            shown.reverse()
        onward = None if end is None else _cursor("p" if self.backwards else "n", end)
        back = self._way_back(shown, position_of)
        data = [view_of(row) for row in shown]
        if self.backwards:
            return Listing(data, next=back, previous=onward)
        return Listing(data, next=onward, previous=back)

    def _way_back(self, shown: list[Row], position_of: Callable[[Row], int]) -> str | None:
        """Give the cursor of the page that the caller came from; None on the first page."""
        if self.after is None:
            return None
        kind = "n" if self.backwards else "p"
        if shown:
            return _cursor(kind, position_of(shown[-1 if self.backwards else 0]))
        # An empty page: the row of the cursor itself is the nearest one on the way back.
        step = 1 if self.ascending != self.backwards else -1
        return _cursor(kind, max(0, self.after + step))


PageQuery = NamedDependency[PageRequest]
"""The type of a handler's argument ``page`` or ``plain_page``."""


def _cursor(kind: str, position: int) -> str:
    return urlsafe_b64encode(f"{kind}{position:x}".encode()).decode().rstrip("=")


def _parse_cursor(text: str) -> tuple[int, bool]:
    """Give the position, and whether the page before it is meant."""
    try:
        plain = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except (Base64Error, ValueError):
        plain = ""
    if _CURSOR.fullmatch(plain) is None or int(plain[1:], 16) > _POSITION_MAX:
        refuse("after", "must be a cursor from next or previous of an earlier page")
    return int(plain[1:], 16), plain[0] == "p"


Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="How many rows to give.")]
After = Annotated[str | None, QueryParameter(description="A cursor: `next` or `previous` of an earlier page.")]
Order = Annotated[Literal["asc", "desc"], QueryParameter(description="desc: newest first; asc: oldest first.")]
Since = Annotated[str | None, QueryParameter(description="Only rows made at this time (RFC 3339) or later.")]
Until = Annotated[str | None, QueryParameter(description="Only rows made before this time (RFC 3339).")]


def provide_page(
    limit: Limit = LIMIT_DEFAULT, after: After = None, order: Order = "desc", since: Since = None, until: Until = None
) -> PageRequest:
    """Read a list's parameters (dependency ``page``).

    Raises: InvalidInput.
    """
    position, backwards = (None, False) if after is None else _parse_cursor(after)
    return PageRequest(limit, position, order == "asc", backwards, time_of("since", since), time_of("until", until))


def provide_plain_page(limit: Limit = LIMIT_DEFAULT, after: After = None, order: Order = "desc") -> PageRequest:
    """Read the parameters of a list that has no span of time (dependency ``plain_page``).

    Raises: InvalidInput.
    """
    return provide_page(limit, after, order)


def time_of(name: str, text: str | None) -> int | None:
    """Read a time parameter.

    Raises: InvalidInput.
    """
    if text is None:
        return None
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        hint = " (write + as %2B in a URL)" if " " in text else ""
        refuse(name, f"{error}{hint}")


def values_of(name: str, text: str | None, allowed: Sequence[str] | None = None) -> tuple[str, ...] | None:
    """Read a comma list, any of whose values may match; None when it was not given.

    Raises: InvalidInput for an empty or unknown value, or too many.
    """
    if text is None:
        return None
    values = tuple(dict.fromkeys(text.split(",")))
    if "" in values:
        refuse(name, "must be a value or a comma list of values, none of them empty")
    if len(values) > VALUES_MAX:
        refuse(name, f"must list at most {VALUES_MAX} values")
    if allowed is not None:
        unknown = [value for value in values if value not in allowed]
        if unknown:
            refuse(name, f"must be any of {', '.join(allowed)}")
    return values


def check_query(query_string: bytes, known: frozenset[str]) -> None:
    """Check the names of a query string.

    Raises: InvalidInput for a parameter that is unknown or given twice.
    """
    if not query_string:
        return
    seen: set[str] = set()
    errors: list[FieldError] = []
    for name, _ in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            shown = f"; known are {', '.join(sorted(known))}" if known else "; it has none"
            errors.append(FieldError(("query", name[:64]), f"is no parameter of this call{shown}"))
        elif name in seen:
            errors.append(FieldError(("query", name), "is given twice: use a comma list"))
        seen.add(name)
    if errors:
        first = errors[0]
        raise InvalidInput(f"The query parameter {first.loc[1]} {first.message}.", errors=errors[:20])


def refuse(name: str, message: str) -> NoReturn:
    """Raises: InvalidInput for a query parameter."""
    raise InvalidInput(f"The query parameter {name} {message}.", errors=[FieldError(("query", name), message)])


def query_names(handler_model: Any) -> frozenset[str]:
    """Give the query parameters that a handler and its dependencies take."""
    return frozenset(definition.field_alias for definition in handler_model.expected_query_params)
