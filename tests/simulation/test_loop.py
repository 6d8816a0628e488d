"""The virtual loop: time jumps, the order is drawn by seed, processes die and freeze between two callbacks."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.simulation.loop import Process, Stuck, VirtualLoop, run

DAY_S = 86400
SECOND_S = 1.0


def _order(seed: int) -> tuple[list[str], int]:
    """Three tasks of a virtual day each; gives the order they ran in and the steps it took."""
    loop, seen = VirtualLoop(seed), []

    async def worker(name: str) -> None:
        for _ in range(20):
            await asyncio.sleep(DAY_S / 20)
            seen.append(name)

    async def main() -> float:
        await asyncio.gather(*(worker(name) for name in "abcd"))
        return asyncio.get_running_loop().time()

    assert run(loop, main()) == pytest.approx(DAY_S)
    return seen, loop.steps


def test_days_pass_at_once_in_an_order_drawn_by_the_seed() -> None:
    """The same seed gives the same order, another seed another one."""
    assert _order(1) == _order(1)
    assert _order(1)[0] != _order(2)[0]
    assert any(left != right for left, right in pairwise(_order(1)[0]))


def test_a_wait_for_nothing_is_an_error() -> None:
    """A main task that nothing can wake ends the run instead of hanging it."""

    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run(VirtualLoop(1), main())


def test_timeouts_are_virtual() -> None:
    """``asyncio.timeout`` ends a wait of an hour at once, an hour later."""

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(VirtualLoop(1), main()) == 3600


def test_executors_run_inline() -> None:
    """Work for threads runs on the loop, results and errors alike."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, lambda left, right: left + right, 2, 3) == 5
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)

    run(VirtualLoop(1), main())


def test_a_killed_process_does_nothing_more() -> None:
    """Tasks, timers and callbacks of it stop where they are, without cleaning up; others go on."""
    loop, log = VirtualLoop(3), []

    async def work(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(0.7 * SECOND_S)
                log.append(name)
        finally:
            log.append(f"{name} cleaned up")

    async def main() -> list[str]:
        process = Process("a")
        task = loop.create_task(work("a"), context=process.context)
        other = loop.create_task(work("b"))
        await asyncio.sleep(SECOND_S)
        process.alive = False
        await asyncio.sleep(SECOND_S)
        other.cancel()
        assert not task.done()
        return list(log)

    assert sorted(run(loop, main())) == ["a", "b", "b"]


def test_a_process_can_be_killed_at_any_callback() -> None:
    """``before`` sees each callback of a process, and what it kills does not run that one."""
    loop, seen = VirtualLoop(4), list[int]()
    process = Process("a")

    def before(one: Process) -> None:
        seen.append(len(seen))
        one.alive = len(seen) < 5

    async def work() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    async def main() -> None:
        loop.before = before
        task = loop.create_task(work(), context=process.context)
        await asyncio.sleep(SECOND_S)

        assert not task.done()

    run(loop, main())
    assert (len(seen), process.alive) == (5, False)


def test_a_frozen_process_goes_on_later() -> None:
    """Nothing of it happens while it is frozen; its timers ring when it thaws."""
    loop, at = VirtualLoop(5), []

    async def work() -> None:
        for _ in range(2):
            await asyncio.sleep(SECOND_S)
            at.append(loop.time())

    async def main() -> None:
        process = Process("a")
        task = loop.create_task(work(), context=process.context)
        await asyncio.sleep(SECOND_S / 2)
        process.frozen = True
        await asyncio.sleep(9.5 * SECOND_S)
        assert at == []
        loop.thaw(process)
        await task

    run(loop, main())
    assert at == [10, 11]
