"""Pages over any list, and bodies in any number of parts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.api.params import Listing, PageRequest, provide_page, values_of
from ackpost.api.request import read_body
from ackpost.errors import InvalidInput, TooLarge

POSITIONS = st.lists(st.integers(min_value=1, max_value=40), unique=True, max_size=12)


def ask(rows: list[int], *, limit: int, order: str, after: str | None) -> Listing[int]:
    """Answer as the API does over a store with rows at these positions."""
    request: PageRequest = provide_page(limit, after, "asc" if order == "asc" else "desc")
    page = request.page()
    found = sorted(rows, reverse=not page.ascending)
    if page.after is not None:
        seen = page.after
        found = [row for row in found if (row > seen if page.ascending else row < seen)]
    return request.listing(found[: page.limit], lambda row: row, lambda row: row)


@given(POSITIONS, st.integers(min_value=1, max_value=5), st.sampled_from(["asc", "desc"]))
def test_pages_are_the_list_both_ways(rows: list[int], limit: int, order: str) -> None:
    """Forth and back give every row once, in order."""
    expected = sorted(rows, reverse=order == "desc")
    seen: list[int] = []
    page = ask(rows, limit=limit, order=order, after=None)
    while True:
        seen += page.data
        if page.next is None:
            break
        page = ask(rows, limit=limit, order=order, after=page.next)
    assert seen == expected
    back = [*page.data]
    while page.previous is not None:
        page = ask(rows, limit=limit, order=order, after=page.previous)
        back = [*page.data, *back]
    assert back == expected


@given(POSITIONS.filter(lambda rows: len(rows) >= 2), st.sampled_from(["asc", "desc"]))
def test_the_way_back_from_an_emptied_page_misses_no_row(rows: list[int], order: str) -> None:
    """Where all rows behind a cursor have gone, the row of the cursor itself is on the page before."""
    first = ask(rows, limit=1, order=order, after=None)
    left = first.data
    empty = ask(left, limit=1, order=order, after=first.next)
    assert empty.data == []
    assert ask(left, limit=1, order=order, after=empty.previous).data == left


def test_comma_lists_have_known_values_once() -> None:
    """Repeats count once; an empty or unknown value, or too many, are refused."""
    assert values_of("x", None) is None
    assert values_of("x", "b,a,b") == ("b", "a")
    for text in ("", ",", "a,", "c", ",".join(map(str, range(101)))):
        with pytest.raises(InvalidInput):
            values_of("x", text, ("a", "b"))


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.integers(min_value=0, max_value=100))
def test_a_body_is_read_whole_or_no_further_than_its_limit(parts: list[bytes], limit: int) -> None:
    """What fits is given whole; what does not is left as soon as that is known."""
    left = list(parts)

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    if sum(map(len, parts)) <= limit:
        assert asyncio.run(read_body(receive, [], limit)) == b"".join(parts)
        return
    with pytest.raises(TooLarge):
        asyncio.run(read_body(receive, [], limit))
    read = parts[: len(parts) - len(left)]
    assert sum(map(len, read[:-1])) <= limit


@pytest.mark.parametrize("length", [b"101", b"99999999999999999999", b"x", b"-1"])
def test_an_announced_length_over_the_limit_reads_nothing(length: bytes) -> None:
    """Nor does one that is no number."""

    async def receive() -> Any:
        raise AssertionError("was read")

    with pytest.raises(TooLarge):
        asyncio.run(read_body(receive, [(b"content-length", length)], 100))
