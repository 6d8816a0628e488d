"""Behind a pooler that gives each transaction another session: no hints, no prepared statements, the same promises."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.cluster.cluster import Cluster, Load, told
from tests.cluster.pgbouncer import PgBouncer
from tests.process.receiver import Receiver
from tests.process.server import Server
from tests.tidy.tree import ROOT

PICKED_UP_S = 2.0
"""The promise; a busy machine gets more."""
PUBLISHED = 45


def set_on_role(database: str) -> None:
    """Run the statements of the how-to."""
    page = (ROOT / "docs/how-to/pgbouncer.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    name = urlsplit(database).path[1:]

    async def run() -> None:
        session = await asyncpg.connect(database)
        try:
            of = "ROLE ackpost IN DATABASE webhooks"
            await session.execute(block.replace(of, f"ROLE postgres IN DATABASE {name}"))
        finally:
            await session.close()

    asyncio.run(run())


POOLED = {"ACKPOST_DATABASE_POOLED": "true"}


@pytest.mark.timeout(60)
def test_a_role_without_the_settings_is_refused(tmp_path: Path, database: str) -> None:
    """One line names what is missing, before anything is made."""
    with PgBouncer(database) as pooler:
        code, complaint = Server(tmp_path, "--database-url", pooler.url, environment=POOLED).fail()
    assert (code, len(complaint)) == (1, 1)
    assert "the role has not the settings that it needs, wrong are statement_timeout, " in complaint[0]
    assert "docs/how-to/pgbouncer.md" in complaint[0]


@pytest.mark.timeout(180)
def test_nodes_work_behind_a_pooler(tmp_path: Path, database: str, receiver: Receiver) -> None:
    """Nothing is lost or repeated under load; an event accepted by one node is picked up by its owner within 2 s."""
    set_on_role(database)
    with PgBouncer(database) as pooler:
        cluster = Cluster(tmp_path, database, urls=lambda _: pooler.url, environments=lambda _: POOLED)
        with cluster:
            with Load(cluster, receiver, "pooled", connections=2) as load:
                load.flowing()
                load.__exit__(None, None, None)
                acknowledged, repeated = load.settle()
            assert repeated == 0
            took_s = sorted(_pick_up(cluster, receiver, number) for number in range(PUBLISHED))
            told(
                "behind PgBouncer, without NOTIFY", acknowledged=acknowledged, lost=0, repeated=0,
                picked_up_s={"p50": round(took_s[PUBLISHED // 2], 2), "p99": round(took_s[-1], 2)},
            )  # fmt: skip
            assert took_s[-1] < 5 * PICKED_UP_S


def _pick_up(cluster: Cluster, receiver: Receiver, number: int) -> float:
    """Publish at one of the nodes, for an endpoint of any of them."""
    node = cluster.nodes[number % 3]
    path = f"/picked/{number % 5}"
    if number < 5:
        node.endpoint(receiver.hook(path), f"picked.{number}")
    count = len(receiver.seen(path))
    published_at = time.monotonic()
    node.publish(f"picked.{number % 5}")
    receiver.wait(path, count + 1, 30)
    return time.monotonic() - published_at
