"""What SQLite plans to do for the statements that run often: nothing may walk a whole table or sort one."""

from __future__ import annotations

from importlib import resources
from typing import Any

import apsw
import pytest

from ackpost.ports.store import DeliveryFilter, EventFilter, Page
from ackpost.store.sqlite import (
    announcing,
    attempts,
    deliveries,
    ordering,
    reads_attempts,
    reads_deliveries,
    reads_engine,
    reads_events,
    record,
    retention,
    rows,
)
from ackpost.store.sqlite.ledger import integers


@pytest.fixture(name="connection")
def _connection() -> apsw.Connection:
    """An empty database: plans must be good before there is anything to count."""
    connection = apsw.Connection(":memory:")
    script = resources.files("ackpost.store.sqlite").joinpath("migrations", "0001.sql")
    connection.execute(script.read_text(encoding="utf-8"))
    return connection


def plan(connection: apsw.Connection, sql: str, count: int | None = None) -> list[str]:
    """Give the steps of the plan."""
    values = (None,) * (sql.count("?") if count is None else count)
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


HOT = {
    "find first results": (record.DELETE_FIRST, 1),
    "load rows": (rows.SELECT_HOT, 1),
    "scan work": (reads_engine.SCAN_SQL, 2),
    "load window": (reads_engine.WINDOW_SQL, 3),
    "load the next window": (reads_engine.WINDOW_AFTER_SQL, 5),
    "earliest due": (reads_attempts.EARLIEST_SQL, 1),
    "count due": (reads_engine.DUE_SQL, 2),
    "load payloads": (rows.PAYLOAD_SQL, 1),
    "find the next of a key": (ordering.SELECT_NEXT, 1),
    "let go": (ordering.LET_GO, 2),
    "see what blocks": (ordering.IS_BLOCKED, 3),
    "find stuck rows": (deliveries.STUCK_SQL, 1),
    "find an event's deliveries": (deliveries.DELIVERIES_OF_EVENT, 2),
    "count deliveries of events": (reads_events.COUNTS_SQL, 1),
    "find who hears announcements": (announcing.HEARING_SQL, 1),
    "cut old bodies": (attempts.CUT_OLD_BODY, 2),
    "find events to remove": (retention.FREE_EVENTS, 4),
    "find deliveries to remove": (retention.ENDED_OF_EVENTS, 1),
    "find keys to forget": (retention.OLD_KEYS, 4),
}
TABLES = (
    "event", "delivery", "history", "dead_letter", "attempt", "late_delivery", "key_state", "key_hold", "endpoint",
)  # fmt: skip


def walks(steps: list[str]) -> list[str]:
    """Give the steps that walk a stored table from end to end."""
    connected = [step.split(" USING ")[0].split(" AS ")[0].split() for step in steps if step.startswith("SCAN ")]
    names = {*TABLES, "d", "e", "h", "b", "k", "l", "n", "x", "p"}
    return [" ".join(words) for words in connected if words[1] in names]


@pytest.mark.parametrize("name", HOT)
def test_hot_statements_use_indexes(connection: apsw.Connection, name: str) -> None:
    """No statement of the hot path or of housekeeping walks a table."""
    sql, count = HOT[name]
    steps = plan(connection, sql, count)
    # A scan of one of the subqueries, which are bounded, or of the index of waiting rows is no walk.
    bounded = {"e", "k"} if sql in {retention.FREE_EVENTS, retention.OLD_KEYS} else set()
    found = [step for step in walks(steps) if step.split()[1] not in bounded]
    if sql == deliveries.STUCK_SQL:
        assert "SCAN d USING INDEX delivery_waiting" in steps
        found.remove("SCAN d")
    assert found == [], steps


@pytest.mark.parametrize("name", ["scan work", "load window", "load the next window"])
def test_windows_are_read_in_order(connection: apsw.Connection, name: str) -> None:
    """The engine's windows come out of the hot index as they are: nothing is sorted."""
    steps = plan(connection, *HOT[name])
    assert not [step for step in steps if "TEMP B-TREE" in step]
    assert [step for step in steps if "delivery_hot" in step]


def _steps_taken(connection: apsw.Connection, sql: str, values: tuple[Any, ...]) -> int:
    """Run a statement and count what SQLite's machine did."""
    taken = 0

    def count() -> bool:
        nonlocal taken
        taken += 1
        return False

    connection.set_progress_handler(count, 1)
    connection.execute(sql, values).fetchall()
    connection.set_progress_handler(None)
    return taken


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("scan work", (0, 100)),
        ("load window", (2, 0, 10)),
        ("load the next window", (2, 0, 50, 0, 10)),
        ("earliest due", (2,)),
        ("count due", (integers((1, 2, 3)), 10)),
    ],
)
def test_the_engine_reads_cost_the_same_however_much_waits(
    connection: apsw.Connection, name: str, values: tuple[Any, ...]
) -> None:
    """A plan may look like a search and walk all rows of an endpoint: so the steps are counted, at 100 and 20,000."""
    sql, _ = HOT[name]
    taken = []
    for first, last in ((1, 100), (101, 20_000)):
        connection.executemany(
            "INSERT INTO delivery (position, event_offset, tenant, endpoint, rev, due_ms, age_start_ms, pin, trigger,"
            " waiting, klass) VALUES (?, 1, 1, ?, 1, ?, 0, 'standard', 0, 0, ?)",
            ((position, position % 3 + 1, position, position // 3 % 3) for position in range(first, last + 1)),
        )
        taken.append(_steps_taken(connection, sql, values))
    assert taken[1] < 2 * taken[0], taken


class _Spy:
    """Takes the statements that a read runs, and answers nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def execute(self, sql: str, values: tuple[object, ...] = ()) -> _Spy:
        """Note the statement."""
        self.asked.append((sql, len(values)))
        return self

    def fetchall(self) -> list[tuple[object, ...]]:
        """Nothing."""
        return []

    def __iter__(self) -> _Spy:
        return self

    def __next__(self) -> tuple[object, ...]:
        raise StopIteration


LISTS = {
    "all deliveries": lambda spy: reads_deliveries.deliveries(spy, 1, DeliveryFilter(), Page(), 10_000),
    "deliveries of an endpoint": lambda spy: reads_deliveries.deliveries(
        spy, 1, DeliveryFilter(endpoint=1, statuses=("delivered", "dead")), Page(after=5), 10_000
    ),
    "deliveries of an event": lambda spy: reads_deliveries.deliveries(spy, 1, DeliveryFilter(event=1), Page(), 10_000),
    "deliveries of a key": lambda spy: reads_deliveries.deliveries(spy, 1, DeliveryFilter(key="k"), Page(), 10_000),
    "events by type": lambda spy: reads_events.events(spy, 1, EventFilter(types=("a.*",)), Page(), 10_000),
    "events of a key": lambda spy: reads_events.events(spy, 1, EventFilter(key="k"), Page(ascending=True), 10_000),
    "event of a uid": lambda spy: reads_events.events(spy, 1, EventFilter(uid="u"), Page(), 10_000),
    "events of an endpoint": lambda spy: reads_events.events(spy, 1, EventFilter(endpoint=1), Page(), 10_000),
    "attempts of an endpoint": lambda spy: reads_attempts.attempts(spy, 1, None, 1, Page()),
    "attempts of a delivery": lambda spy: reads_attempts.attempts(spy, 1, 1, None, Page()),
    "latest event of a key": lambda spy: reads_events.latest_event(spy, 1, "k", None),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_read_a_page_and_no_more(connection: apsw.Connection, name: str) -> None:
    """Lists walk by position, or an index of what they filter by, and sort at most what an event or a key has."""
    spy = _Spy()
    LISTS[name](spy)  # type: ignore[no-untyped-call] # a spy in place of a connection
    assert spy.asked
    for sql, count in spy.asked:
        steps = plan(connection, sql, count)
        # The bounded subquery itself is scanned, once.
        assert walks(steps) in ([], ["SCAN d"], ["SCAN e"]), (sql, steps)
        chosen = "of a key" in name or "of an event" in name or "of a delivery" in name
        assert chosen or not [step for step in steps if "TEMP B-TREE" in step], (sql, steps)
