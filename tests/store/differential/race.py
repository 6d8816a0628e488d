"""Drive the oracle and another store through the same random history and compare them after every step."""

from __future__ import annotations

from typing import Any

from ackpost.ports.operations import Operation, Promoted
from ackpost.ports.store import Store
from ackpost.testing.reference import ReferenceStore
from ackpost.testing.store_contract import StoreHarness
from ackpost.testing.store_contract.world import LEASE_MS, START_MS
from tests.store.differential.generator import DAY_MS, Generator
from tests.store.differential.snapshot import Questions, shown, snapshot
from tests.store.harnesses import ReferenceHarness


class Race:
    """One seed's history."""

    def __init__(self, seed: int, harness: StoreHarness) -> None:
        self.seed = seed
        self.harness = harness
        self.now_ms = START_MS
        self.oracle = ReferenceHarness().make()
        self.store = harness.make()
        self.old: list[Store] = []
        assert isinstance(self.oracle, ReferenceStore)
        self.state = self.oracle.durable
        self.generator = Generator(seed, self.state, self.now_ms)
        self.history: list[list[Operation] | str] = []

    async def run(self, steps: int) -> None:
        """Go on until the stores differ or the history is long enough."""
        await self._open()
        try:
            for _ in range(steps):
                await self._step()
        finally:
            for store in (*self.old, self.store):
                await self.harness.dispose(store)

    async def _open(self) -> None:
        incarnations = [
            await store.open(node="a", now_ms=self.now_ms, lease_ms=LEASE_MS) for store in (self.oracle, self.store)
        ]
        self._compare("incarnation", *incarnations)

    async def _step(self) -> None:
        draw = self.generator
        self.now_ms += DAY_MS if draw.chance(0.01) else draw.random.choice((0, 1, 700, 4000))
        draw.now_ms = self.now_ms
        if draw.chance(0.02):
            await self._restart(is_clean=draw.chance(0.5))
        operations = [draw.draw() for _ in range(draw.random.choice((1, 1, 1, 2, 4)))]
        self.history.append(operations)
        expected = [shown(answer) for answer in await self.oracle.commit(operations)]
        found = [shown(answer) for answer in await self.store.commit(operations)]
        for index, operation in enumerate(operations):
            self._compare(f"answer to {type(operation).__name__}", expected[index], found[index])
            if isinstance(expected[index], Promoted) and not self._is_switching():
                self._compare("rows nobody would have woken", [], expected[index].refs)
        await self._look()

    async def _restart(self, *, is_clean: bool) -> None:
        self.history.append("closed" if is_clean else "crashed")
        if is_clean:
            await self.oracle.close()
            await self.store.close()
        self.old.append(self.store)
        self.oracle = ReferenceHarness().reopen(self.oracle)
        self.store = self.harness.reopen(self.store)
        await self._open()

    async def _look(self) -> None:
        expected, found = await snapshot(self.oracle, self.state), await snapshot(self.store, self.state)
        for name, value in expected.items():
            self._compare(name, value, found[name])
        seed = self.generator.random.randrange(2**32)
        answers = [await Questions(seed, self.state, self.now_ms).ask(store) for store in (self.oracle, self.store)]
        for index, (wanted, given) in enumerate(zip(*answers, strict=True)):
            self._compare(f"question {index} of {seed}", wanted, given)

    def _is_switching(self) -> bool:
        return any(job.kind == "switch_ordering" for job in self.state.jobs.values())

    def _compare(self, what: str, expected: Any, found: Any) -> None:
        """Stop at the first difference: the history up to here is the shortest prefix that shows it."""
        if expected == found:
            return
        told = "\n".join(f"  {index}: {step}" for index, step in enumerate(self.history))
        raise AssertionError(
            f"seed {self.seed}, step {len(self.history)}, {self.harness.name}: {what}\n"
            f"expected {_difference(expected, found)}\nfound    {_difference(found, expected)}\n{told[-6000:]}"
        )


def _difference(value: Any, other: Any) -> str:
    """Only what differs, of lists (pages: rows with a cursor)."""
    if isinstance(value, tuple) and isinstance(other, tuple) and value and isinstance(value[0], list):
        return f"{_difference(value[0], other[0])} {value[1:]}"
    if isinstance(value, list) and isinstance(other, list):
        return str([item for item in value if item not in other] or value)
    return str(value)
