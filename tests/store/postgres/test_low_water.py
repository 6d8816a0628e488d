"""Windows beside a transaction that never ends: what is gone costs nothing, what is there is found (R17)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.ids import partition_of
from ackpost.ports.operations import Accept, Accepted, NewEvent
from ackpost.store.postgres import PostgresStore
from ackpost.store.postgres.connection import Place, connect
from ackpost.store.postgres.lowwater import LAG_MS, WHOLE_EACH_S, LowWater
from ackpost.store.postgres.reads_engine import WINDOW_SQL
from ackpost.testing.store_contract.world import World, target_of
from tests.store.harnesses import PostgresHarness

LANE = (7, 0)
T_MS = 1_700_000_000_000


@given(st.lists(st.integers(0, 3 * LAG_MS), max_size=30), st.lists(st.integers(0, 20), max_size=60))
def test_a_window_never_begins_behind_what_is_there(dues: list[int], steps: list[int]) -> None:
    """Rows that come with a due time of at most the lag ago are found by the next window, whatever left before."""
    low, rows, now_ms, now_s = LowWater(), sorted(T_MS + due for due in dues), T_MS, 0.0
    for step in steps:
        now_ms += step * 5000
        begin_ms = low.begin(LANE, now_s)
        assert not rows or begin_ms <= rows[0]
        low.note(LANE, begin_ms, rows[0] if rows else None, now_ms, now_s)
        now_s += step * 5
        if rows and step % 2:
            rows.pop(0)
        if step % 3 == 0:
            rows = sorted([*rows, now_ms - LAG_MS])


def test_all_of_a_lane_is_looked_at_now_and_then() -> None:
    """A row that is due before the bound, against all expectation, is found within the period of whole windows."""
    low = LowWater()
    low.note(LANE, 0, None, T_MS, 0.0)
    begin_ms = low.begin(LANE, 1.0)
    assert begin_ms == T_MS - LAG_MS
    low.note(LANE, begin_ms, None, T_MS + 1000, 1.0)
    assert low.begin(LANE, WHOLE_EACH_S - 1) > 0
    assert low.begin(LANE, WHOLE_EACH_S) == 0


async def _blocks(session: Any, endpoint: int, begin_ms: int) -> int:
    values = f"{partition_of(endpoint)}, {endpoint}, 0, 100, {begin_ms}"
    await session.execute(f"PREPARE hot AS {WINDOW_SQL}")
    plan = json.loads(await session.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE hot ({values})"))[0][
        "Plan"
    ]
    await session.execute("DEALLOCATE hot")
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_pinned_horizon_does_not_slow_windows() -> None:
    """With 10,000 delivered rows that PostgreSQL may not forget, a window begins behind them."""

    async def run() -> None:
        harness = PostgresHarness()
        world = await World.begin(harness)
        assert isinstance(world.store, PostgresStore)
        endpoint = await world.endpoint()
        routing = await world.store.routing(world.tenant)
        assert routing is not None
        session, other = [await connect(Place(world.store.dsn, world.store.schema)) for _ in range(2)]
        await session.execute("SET idle_in_transaction_session_timeout = 0")
        await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await session.fetchval("SELECT count(*) FROM tenant")
        events = [NewEvent("order.made", b"{}", targets=(target_of(endpoint),)) for _ in range(1000)]
        for _ in range(10):
            world.later(LAG_MS)
            accepted = await world.do(Accept(world.tenant, routing.version, events, world.now_ms, True), Accepted)
            await world.record(*(world.result(ref, "delivered") for ref in accepted.refs))
        world.later(3 * LAG_MS)
        await world.one()
        assert len(await world.store.load_window(endpoint.position, 0, after=None, limit=100)) == 1
        begin_ms = world.store._low_water.begin((endpoint.position, 0), asyncio.get_running_loop().time())
        assert await _blocks(other, endpoint.position, begin_ms) * 20 < await _blocks(other, endpoint.position, 0)
        await world.one()
        assert len(await world.store.load_window(endpoint.position, 0, after=None, limit=100)) == 2
        await session.close()
        await other.close()
        await harness.dispose(world.store)

    asyncio.run(run())
