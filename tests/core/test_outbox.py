"""Rows of the outbox: what they publish, and what is refused where they are written."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest

from ackpost.core.limits import Limits
from ackpost.core.outbox import OutboxRow, after_refusal, check_row
from ackpost.errors import InvalidInput, MalformedJson, TooLarge

_LIMITS = Limits()


def _row(**changed: object) -> OutboxRow:
    return msgspec.structs.replace(OutboxRow("row-1", "order.created", '{"id":1}'), **changed)


def test_a_row_is_published_byte_for_byte() -> None:
    """The data stays as it is, spaces and escapes included, and so does the metadata."""
    row = _row(data='{ "a" : "\\ud800" }', metadata='{ "b": 1 }', key="k", channels='["x"]', tenant="acme")
    event = check_row(row, _LIMITS)
    assert event.data == b'{ "a" : "\\ud800" }'
    assert event.metadata == b'{ "b": 1 }'
    assert (event.uid, event.type, event.key, event.channels) == ("row-1", "order.created", "k", ("x",))


def test_an_event_occurred_when_its_row_was_written_if_not_told() -> None:
    """The time of writing is the event's, unless the row has one of its own."""
    assert json.loads(_row().body()).keys() == {"type", "data", "uid"}
    assert json.loads(_row(created_ms=1_000).body())["occurred_at"] == "1970-01-01T00:00:01.000Z"
    told = _row(created_ms=1_000, occurred_at="2026-01-31T12:00:00Z")
    assert check_row(told, _LIMITS).occurred_at_ms == 1_769_860_800_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "ackpost.test"), ("type", "a b"), ("data", '1,"key":"x"'), ("data", '1,"data":2'), ("key", ""),
        ("key", 5), ("channels", '["x"],"key":"y"'), ("channels", '"x"'), ("channels", '["a b"]'),
        ("metadata", '{},"metadata":{"b":1}'), ("metadata", "[]"), ("occurred_at", "yesterday"), ("uid", "a b"),
        ("tenant", "a b"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    """Each field is checked as by the API, and a text cannot smuggle in other members."""
    with pytest.raises(InvalidInput) as refusal:
        check_row(_row(**{field: value}), _LIMITS)
    assert refusal.value.errors[0].loc[:2] == ("body", field)


@pytest.mark.parametrize("data", ["", "{", "{'a':1}", "1}", '1},{"a":1'])
def test_data_must_be_json(data: str) -> None:
    """Whatever is no JSON is refused, and so is more than one value."""
    with pytest.raises(MalformedJson, match="the event is not JSON"):
        check_row(_row(data=data), _LIMITS)


def test_text_must_be_unicode() -> None:
    """Half of a surrogate pair cannot be stored, wherever it stands."""
    for field in ("type", "data", "key", "metadata", "channels"):
        with pytest.raises(InvalidInput, match="surrogate"):
            check_row(_row(**{field: "\ud800"}), _LIMITS)


def test_data_has_the_size_that_the_server_allows() -> None:
    """What the server would refuse as too large is refused before."""
    with pytest.raises(TooLarge):
        check_row(_row(data='"' + "x" * 20 + '"'), Limits(data_bytes_max=21))
    assert check_row(_row(data='"' + "x" * 20 + '"'), Limits(data_bytes_max=22)).uid == "row-1"


def _rows(count: int) -> list[OutboxRow]:
    return [_row(uid=f"row-{number}", number=number) for number in range(1, count + 1)]


def test_rows_that_a_refusal_names_are_set_aside() -> None:
    """The others go again in one batch, in their order; a place outside the batch names nobody."""
    errors: list[tuple[Sequence[str | int], str]] = [
        (("body", "events", 1, "type"), "is wrong"), (["body", "events", 1, "key"], "is long"),
        (("body", "events", 9, "key"), "is long"), (("body",), "is odd"), (("body", "events", 3), "is late"),
    ]  # fmt: skip
    refused, again = after_refusal(_rows(5), "invalid", "Many things.", errors)
    assert refused == {2: "invalid: type is wrong; key is long", 4: "invalid: is late"}
    assert [[row.number for row in part] for part in again] == [[1, 3, 5]]


def test_a_refusal_that_names_nobody_is_narrowed_down() -> None:
    """A batch goes again in halves; a row alone is meant itself, and so are all rows of a tenant that is unknown."""
    refused, again = after_refusal(_rows(5), "too_many_deliveries", "Too many.", [])
    assert refused == {}
    assert [[row.number for row in part] for part in again] == [[1, 2], [3, 4, 5]]
    assert after_refusal(_rows(1), "too_large", "Too large.", []) == ({1: "too_large: Too large."}, [])
    assert after_refusal(_rows(2), "unknown_tenant", "Who?", [])[0].keys() == {1, 2}
