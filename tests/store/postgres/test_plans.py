"""Plans of the statements that run often: prepared while everything is empty, run when much is there (rule E9)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from ackpost.store.postgres import (
    accept,
    announcing,
    answers,
    attempts,
    commit,
    connection,
    deliveries,
    moves,
    ordering,
    reads_deliveries,
    reads_engine,
    reads_events,
    record,
    retention,
    rows,
)
from ackpost.testing.store_contract.world import START_MS
from tests.store.harnesses import PostgresHarness

ROWS = 200_000
ENDPOINTS = 200
BASE = START_MS << 20

# Nothing may touch more blocks than the few it needs: a probe has four, and the scan for work makes 500 of them.
BLOCKS_MAX = 2_000


def _array(values: Iterable[object]) -> str:
    return "'{" + ",".join(map(str, values)) + "}'"


SOME = _array(BASE + 6 * n + 1 for n in range(1000, 31_000, 1000))
EVENTS = _array(BASE + 6 * n for n in range(1000, 31_000, 1000))
SMALL = _array(range(1, 31))
DAY = START_MS // (24 * 3600 * 1000)

# A position each 6: an event, its delivery behind it. Every tenth delivery keeps the order of a key.
FILL = f"""
INSERT INTO event (position, day, tenant, type, fanout, key_id, sequence, uid, data)
SELECT {BASE} + 6 * n, {DAY}, 1, 'order.made', 1, CASE WHEN n % 10 = 0 THEN n % 20000 END, n, 'u' || n, 'x'
FROM generate_series(1, {ROWS}) n;
INSERT INTO event_uid SELECT 1, 'u' || n, {BASE} + 6 * n, 'd' FROM generate_series(1, {ROWS}) n;
INSERT INTO key_state SELECT n, 1, 'k' || n, 1, {BASE} FROM generate_series(1, 20000) n;
INSERT INTO idempotency SELECT 1, 'i' || n, n, 'd', 'r' FROM generate_series(1, {ROWS}) n;
INSERT INTO delivery (position, event_offset, tenant, endpoint, rev, due_ms, age_start_ms, key_id, partition, trigger,
    waiting, pin)
SELECT {BASE} + 6 * n + 1, 1, 1, n % {ENDPOINTS}, 1, n, 0, CASE WHEN n % 10 = 0 THEN n % 20000 END,
    n % {ENDPOINTS} % 256, 0, CASE WHEN n % 100 = 0 THEN 1 ELSE 0 END, 'standard' FROM generate_series(1, {ROWS}) n;
INSERT INTO history (position, day, event_offset, tenant, endpoint, ended_ms, attempt_position)
SELECT {BASE} + 6 * n + 2, {DAY}, 2, 1, n % {ENDPOINTS}, 1, {BASE} + n FROM generate_series(1, {ROWS}) n;
INSERT INTO attempt (position, delivery, day, event, tenant, endpoint, started_ms, duration_ms, round, number, trigger,
    code, detail)
SELECT {BASE} + n, {BASE} + 6 * n + 1, {DAY}, {BASE} + 6 * n, 1, n % {ENDPOINTS}, 1, 1, 1, 1, 0, 'status', 'x'
FROM generate_series(1, {ROWS}) n;
INSERT INTO dead_letter SELECT {BASE} + 6 * n + 3, 3, 1, n % {ENDPOINTS}, 0, 'gone', 1, 1, NULL, NULL, n, 1
FROM generate_series(1, {ROWS}) n;
INSERT INTO key_hold SELECT n % {ENDPOINTS}, n, {BASE} + 6 * n + 1, 1, {BASE} + 6 * n FROM generate_series(1, {ROWS}) n;
"""

PAIRS = f"{_array([0] * 30)}, {_array(range(200, 6200, 200))}"


def _named(letter: str) -> str:
    return f"{_array([1] * 30)}, {_array(f'{letter}{n}' for n in range(1, 31))}"


HOT: dict[str, tuple[str, str]] = {
    "the fence": (commit.FENCE, "'a', 1, '{1}'"),
    "first results": (record.DELETE_FIRST, SOME),
    "lock rows": (rows.LOCK_HOT, SOME),
    "keys of rows": (rows.KEYS_OF_HOT, SOME),
    "delete rows": (rows.DELETE_HOT, SOME),
    "lock keys": (rows.LOCK_KEYS, SMALL),
    "ended rows": (rows.SELECT_ENDED, SOME),
    "lock endpoints": (rows.LOCK_ENDPOINTS, SMALL),
    "known uids": (accept.SELECT_UIDS, _named("u")),
    "named keys": (accept.LOCK_NAMED_KEYS, _named("k")),
    "busy keys": (accept.SELECT_BUSY, PAIRS),
    "known answers": (answers.SELECT_ANSWERS, _named("i")),
    "who hears": (announcing.HEARING_SQL, "'{1}'"),
    "cut bodies": (attempts.CUT_OLD_BODIES, f"{SOME}, 2"),
    "next of a key": (ordering.SELECT_NEXT, PAIRS),
    "let go": (ordering.LET_GO, f"5, {SOME}"),
    "what blocks": (ordering.IS_BLOCKED, f"0, 200, {BASE * 2}"),
    "holds": (ordering.RELEASE_HOLDS, SOME),
    "keys of events": (moves.KEYS_OF_EVENTS, EVENTS),
    "deliveries of an event": (deliveries.DELIVERIES_OF_EVENT, f"{BASE + 600}, 1"),
    "scan work": (reads_engine.SCAN_SQL, f"0, 600, {_array(range(256))}"),
    "window": (reads_engine.WINDOW_SQL, "7, 7, 0, 100, 0"),
    "next window": (reads_engine.WINDOW_AFTER_SQL, "7, 7, 0, 100, 100000, 0"),
    "payloads": (reads_engine.PAYLOAD_SQL, f"{EVENTS}, {DAY}, {DAY}"),
    "counts of events": (reads_events.COUNTS_SQL, EVENTS),
    "pending ones of events": (reads_deliveries.OF_EVENTS["delivery"], f"{EVENTS}, 9"),
    "dead ones of events": (reads_deliveries.OF_EVENTS["dead_letter"], f"{EVENTS}, 9"),
    "ended ones of events": (reads_deliveries.OF_EVENTS["history"], f"{EVENTS}, 9"),
    "old answers": (retention.OLD_ANSWERS, "100, 100"),
    "old events": (retention.FREE_EVENTS, f"0, {BASE * 2}, 100, 50"),
}  # fmt: skip


def _tables(plan: dict[str, Any]) -> set[str]:
    """Tables that are read from end to end."""
    found = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" and plan["Actual Rows"] > 1 else set()
    return found.union(*(_tables(part) for part in plan.get("Plans", ())))


def _blocks(plan: dict[str, Any]) -> int:
    return int(sum(plan[f"{kind} {what} Blocks"] for kind in ("Shared", "Local") for what in ("Hit", "Read")))


async def _explain() -> dict[str, tuple[int, set[str]]]:
    harness = PostgresHarness()
    store = harness.make()
    await store.open(node="a", now_ms=START_MS, lease_ms=1000)
    session = await connection.connect(store.place)  # type: ignore[attr-defined] # the harness's own kind
    try:
        await session.execute("SET plan_cache_mode = force_generic_plan")
        for number, (sql, values) in enumerate(HOT.values()):
            await session.execute(f"PREPARE hot_{number} AS {sql}")
            await session.execute(f"EXECUTE hot_{number} ({values})")
        await session.execute(FILL, timeout=60)
        found: dict[str, tuple[int, set[str]]] = {}
        for number, (name, (_, values)) in enumerate(HOT.items()):
            await session.execute("BEGIN")
            explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE hot_{number} ({values})"
            plan = json.loads(await session.fetchval(explained))[0]["Plan"]
            await session.execute("ROLLBACK")
            found[name] = (_blocks(plan), _tables(plan))
        return found
    finally:
        await session.close()
        await harness.dispose(store)


@pytest.mark.timeout(120)
def test_plans_made_while_empty_are_good_when_much_is_there() -> None:
    """Each hot statement, prepared on empty tables, touches few blocks of 200,000 rows and reads no table whole."""
    found = asyncio.run(_explain())

    assert {name: blocks for name, (blocks, _) in found.items() if blocks > BLOCKS_MAX} == {}
    assert {name: tables for name, (_, tables) in found.items() if tables} == {}
