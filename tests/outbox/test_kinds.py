"""The outbox in the transactions of each kind of connection, on real databases."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from ackpost import outbox
from ackpost.core.limits import Limits
from ackpost.core.outbox import OutboxRow, check_row
from ackpost.errors import ConfigError, InvalidInput, RequestError
from tests.outbox.kinds import POSTGRESQL, SQLITE, Face, Opened, engine, rows, sqlite_file
from tests.store.postgres.server import own_database

_COLUMNS = "uid, type, data, key, channels, occurred_at, metadata, tenant, number, created_ms"
_NAMES = [*(f"postgresql: {name}" for name in POSTGRESQL), *(f"sqlite: {name}" for name in SQLITE)]


class _UndoneError(Exception):
    pass


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with own_database() as url:
        yield url


@pytest.fixture(params=_NAMES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Callable[[str], Opened]]:
    """A database without the table, and how the kind opens it."""
    where, _, name = request.param.partition(": ")
    if where == "sqlite":
        return sqlite_file(tmp_path), SQLITE[name]
    url: str = request.getfixturevalue("database")
    _drop(url)
    return url, POSTGRESQL[name]


def _drop(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS ackpost_outbox")


async def _undone(face: Face, type: str) -> None:
    with suppress(_UndoneError):
        async with face.transaction():
            await face.publish(type, 1)
            raise _UndoneError


def test_a_row_is_as_durable_as_the_transaction(place: tuple[str, Callable[[str], Opened]]) -> None:
    """Committed it is there, rolled back it never was; a savepoint that is undone takes its events along."""
    url, opened = place

    async def main() -> None:
        async with opened(url) as face:
            async with face.transaction():
                await face.create()
            async with face.transaction():
                await face.create()  # again: nothing happens
                await face.publish("a", 1)
                await _undone(face, "b")
                async with face.transaction():
                    await face.publish("c", 1)
                assert rows(url) == []
            await _undone(face, "d")
            async with face.transaction():
                await face.publish("e", 1)

    asyncio.run(main())
    assert rows(url) == [("a",), ("c",), ("e",)]


def test_all_that_is_given_arrives(place: tuple[str, Callable[[str], Opened]]) -> None:
    """Each argument stands in the row, text of any script and raw JSON unchanged."""
    url, opened = place
    data = '{ "name": "Zoë 🐈", "percent": "100% :x $1 ?", "nul": "\\u0000" }'

    async def main() -> None:
        async with opened(url) as face:
            async with face.transaction():
                await face.create()
            async with face.transaction():
                at = datetime(2026, 1, 31, 12, tzinfo=UTC)
                uid = await face.publish(
                    "order.created", data, key="schlüssel %s", channels=("a", "b"), occurred_at=at,
                    metadata={"m": "é"}, uid="mine", tenant="acme",
                )  # fmt: skip
                assert uid == "mine"
                made = await face.publish("plain", {"a": [1, None]})
            assert len(made) == 36

    asyncio.run(main())
    first, second = (OutboxRow(*row) for row in rows(url, _COLUMNS))
    event = check_row(first, Limits())
    assert (event.data, event.key, event.channels) == (data.encode(), "schlüssel %s", ("a", "b"))
    assert (event.occurred_at_ms, event.metadata, first.tenant) == (1_769_860_800_000, '{"m":"é"}'.encode(), "acme")
    assert json.loads(second.body())["data"] == {"a": [1, None]}
    assert first.number < second.number
    assert 1_700_000_000_000 < first.created_ms <= second.created_ms


def test_a_bad_event_fails_in_the_transaction(place: tuple[str, Callable[[str], Opened]]) -> None:
    """What the API would refuse is refused before anything is written, and the transaction can go on."""
    url, opened = place

    async def main() -> None:
        async with opened(url) as face:
            async with face.transaction():
                await face.create()
            async with face.transaction():
                for type, data in (("a b", 1), ("ackpost.x", 1), ("a", "{"), ("a", object()), ("a", float("nan"))):
                    with pytest.raises(RequestError):
                        await face.publish(type, data)
                await face.publish("good", 1)

    asyncio.run(main())
    assert rows(url) == [("good",)]


@pytest.mark.parametrize(
    "more",
    [
        {"key": ""}, {"channels": "abc"}, {"channels": ["a b"]},
        {"occurred_at": datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)},
        {"metadata": {"x": "y" * 5000}}, {"uid": "a b"}, {"tenant": ""}, {"metadata": {"x": {1, 2}}},
    ],
)  # fmt: skip
def test_each_argument_is_checked(more: dict[str, object]) -> None:
    """A wrong argument is named by the refusal."""
    connection = sqlite3.connect(":memory:")
    outbox.create(connection)
    with pytest.raises(InvalidInput) as refusal:
        outbox.publish(connection, "a", 1, **more)  # type: ignore[arg-type] # wrong on purpose
    assert refusal.value.errors[0].loc[1] == next(iter(more))
    assert connection.execute("SELECT count(*) FROM ackpost_outbox").fetchone() == (0,)
    connection.close()


def test_what_is_no_connection_is_refused(tmp_path: Path) -> None:
    """A pool or engine would write outside the caller's transaction; an async connection has its own function."""
    made = engine(sqlite_file(tmp_path))
    for wrong in (made, "postgresql://", None, object()):
        with pytest.raises(TypeError, match="is no connection known here"):
            outbox.publish(wrong, "a", 1)
    connection = sqlite3.connect(":memory:")
    with pytest.raises(TypeError, match="without _async"):
        asyncio.run(outbox.publish_async(connection, "a", 1))
    connection.close()
    with pytest.raises(TypeError, match="ending in _async"):
        outbox.publish(AsyncSession(), "a", 1)
    made.dispose()


def test_there_is_a_schema_for_each_dialect() -> None:
    """Another dialect is refused with those that there are."""
    assert "IDENTITY" in outbox.schema("postgresql")
    assert "AUTOINCREMENT" in outbox.schema("sqlite")
    with pytest.raises(ConfigError, match="postgresql or sqlite"):
        outbox.schema("mysql")


def test_it_needs_one_package_only() -> None:
    """An application that publishes loads msgspec, and neither a driver nor anything of the server."""
    code = (
        "import sys; from ackpost import outbox\n"
        "tops = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(tops - set(sys.stdlib_module_names) - {'__main__', 'ackpost'}))"
    )
    ended = subprocess.run([sys.executable, "-S", "-c", code], env=_paths(), capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()) - {"typing_extensions"} == {"msgspec"}  # which loads the other if it is there


def _paths() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
