"""Several real servers on one real PostgreSQL, under load, with books of what was promised and what came."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import asyncpg

from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until
from tests.tidy.tree import ROOT

LEASE_MS: Final = 4_000
"""Short enough to be outwaited; the real one is 20 s."""
TAKEN_S: Final = 40.0
"""Within so long of a loss all partitions are owned again, on a busy machine; a lease and a look are most of it."""
DRAINED_S: Final = 60.0
POLICY: Final = {"retry": {"base_s": 0.05, "cap_s": 0.5}, "circuit": {"enabled": False}, "max_in_flight": 20}


class Cluster:
    """``count`` servers on ``database``; use as a context. ``urls`` gives each its own way to the database."""

    def __init__(
        self,
        folder: Path,
        database: str,
        count: int = 3,
        *,
        urls: Callable[[int], str] | None = None,
        environments: Callable[[int], dict[str, str]] | None = None,
    ) -> None:
        self.database = database
        self.nodes = [
            Server(
                folder, "--database-url", database if urls is None else urls(number),
                module="tests.process.short_lease",
                environment={
                    "ACKPOST_NODE_NAME": name_of(number), "ACKPOST_STATE_DIR": str(folder / "state"),
                    "LEASE_MS": str(LEASE_MS), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
                    **({} if environments is None else environments(number)),
                },
            )
            for number in range(count)
        ]  # fmt: skip

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        self.until_balanced()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            if node.running:
                node.process.send_signal(signal.SIGCONT)
                node.kill()

    def owned(self) -> list[int]:
        """How many partitions each running node says it owns."""
        return [int(books.metric(node, "ackpost_partitions_owned")) for node in self.running()]

    def running(self) -> list[Server]:
        """Those that have a process."""
        return [node for node in self.nodes if node.running]

    def until_balanced(self, nodes: int | None = None) -> None:
        """Wait until the running nodes, or that many, own everything evenly."""
        count = len(self.running()) if nodes is None else nodes

        def balanced() -> bool:
            owned = [share for share in self.owned() if share]
            return len(owned) == count and sum(owned) == 256 and max(owned) - min(owned) <= 1

        until(balanced, f"{count} nodes that own all partitions evenly", TAKEN_S)

    def slots_left(self, number: int) -> int:
        """How many requests the file of a node marks as under way."""
        marks = (self.nodes[number].folder / "state" / f"{name_of(number)}.inflight").read_bytes()
        return sum(1 for position, _, _ in struct.iter_unpack("<qII", marks) if position)

    def ask(self, sql: str, *values: Any) -> list[Any]:
        """Read the database itself."""

        async def read() -> list[Any]:
            session = await asyncpg.connect(self.database, server_settings={"search_path": "ackpost"})
            try:
                return [tuple(row) for row in await session.fetch(sql, *values)]
            finally:
                await session.close()

        return asyncio.run(read())

    def count(self, source: str) -> int:
        """Count rows of a table, given with its condition if it has one."""
        return int(self.ask(f"SELECT count(*) FROM {source}")[0][0])

    def attempts(self) -> int:
        """How many attempts are recorded; a delivery that the first one delivered is its own record."""
        return self.count("attempt") + self.count("history WHERE attempt_position IS NOT NULL")


def name_of(number: int) -> str:
    """What a node is called."""
    return "abcdefgh"[number]


class Load:
    """Publishers at each node for as long as the context lasts, and endpoints enough that every node owns some."""

    def __init__(
        self, cluster: Cluster, receiver: Receiver, type: str, *, endpoints: int = 8, script: str = "200",
        connections: int = 3, pace_s: float = 0.01,
    ) -> None:  # fmt: skip
        self._cluster, self._receiver, self._type = cluster, receiver, type
        self.paths = [f"/{type}/{number}" for number in range(endpoints)]
        for path in self.paths:
            cluster.nodes[0].endpoint(receiver.hook(path, script), type, policy=POLICY)
        self.publishers = [
            Publishers(node, type, connections=connections, pace_s=pace_s, name=f"{name_of(number)}-")
            for number, node in enumerate(cluster.nodes)
        ]

    def __enter__(self) -> Self:
        for publishers in self.publishers:
            publishers.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for publishers in self.publishers:
            publishers._stop.set()
        for publishers in self.publishers:
            publishers.stop()

    def flowing(self, more: int = 20, within_s: float = TAKEN_S) -> None:
        """Wait until each endpoint has got so many requests more."""
        for path, count in {path: len(self._receiver.seen(path)) for path in self.paths}.items():
            self._receiver.wait(path, count + more, within_s)

    def turn(self, away_from: int, to: int) -> None:
        """Let the publishers of a node make new connections to another."""
        self.publishers[away_from].turn_to(self._cluster.nodes[to])

    @property
    def acknowledged(self) -> dict[str, str]:
        """From uid to id, all that any node has acknowledged."""
        return {uid: id for publishers in self.publishers for uid, id in publishers.acknowledged.items()}

    def settle(self) -> tuple[int, int]:
        """Wait until all is delivered; give how many events there were and how many requests too many.

        Raises: AssertionError when an acknowledged event, or one of its deliveries, is missing.
        """
        acknowledged = set(self.acknowledged.values())
        node = self._cluster.running()[0]
        until(lambda: self._cluster.count("delivery") == 0, "everything delivered", DRAINED_S)
        stored = books.events(node, self._type)
        assert {uid: event["id"] for uid, event in stored.items() if uid in self.acknowledged} == self.acknowledged
        came: Counter[str] = Counter()
        for path in self.paths:
            ids = Counter(request.header("webhook-id") for request in self._receiver.seen(path))
            assert acknowledged <= ids.keys(), f"{path} got {len(ids)} of {len(acknowledged)}"
            assert ids.keys() <= {event["id"] for event in stored.values()}
            came.update(str(id) for id in ids.elements())
        repeated = sum(came.values()) - len(stored) * len(self.paths)
        return len(acknowledged), repeated


def told(row: str, **figures: object) -> None:
    """Print a row of the table of faults."""
    print(f"\n{row}: {json.dumps(figures, default=str)}")
