"""What the tests of the HTTP client share: event loops, a client on loopback, one POST as an awaitable."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import uvloop

from ackpost.core.addresses import AddressPolicy
from ackpost.core.outcome import Outcome
from ackpost.core.target import parse_target
from ackpost.egress.client import HttpClient
from ackpost.egress.failures import AttemptFailed
from ackpost.testing.faults import FaultServer

LOOPS: Final = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
HEADERS: Final = b"content-type: application/json\r\nwebhook-id: evt_1\r\n"


def run(main: Callable[[], Coroutine[object, object, None]], loop: str = "uvloop") -> None:
    """Run a test's coroutine; afterwards no task, socket or unheard exception may be left."""
    unheard: list[str] = []

    async def guarded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(str(context)))
        async with asyncio.timeout(30):
            await main()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.sleep(0))  # the first loop of a process opens files that stay
    gc.collect()
    gc.freeze()  # what is there already need not be looked at again: a full collection takes 0.1 s
    before = _open_files()
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(guarded())
    gc.collect()
    assert unheard == [], unheard
    assert _open_files() == before


def _open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop go on until a condition holds."""
    while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0)


class FixedResolver:
    """Answers from a table, the last answer again and again; counts what it was asked."""

    def __init__(self, table: dict[str, Sequence[Sequence[str] | AttemptFailed]]) -> None:
        self._table = table
        self.asked: list[str] = []
        self.closed = False

    async def resolve(self, host: str) -> Sequence[str]:
        """Give the next answer for this name."""
        answers = self._table[host]
        answer = answers[min(self.asked.count(host), len(answers) - 1)]
        self.asked.append(host)
        await asyncio.sleep(0)
        if isinstance(answer, AttemptFailed):
            raise answer
        return answer

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


def post(
    client: HttpClient, url: str, body: bytes = b'{"n":1}', *, headers: bytes = HEADERS, timeout_s: float = 5.0
) -> Awaitable[Outcome]:
    """Start a POST; awaiting it gives the outcome. A second outcome would raise."""
    done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    client.send(parse_target(url, allow_http=True), headers, body, timeout_s, done.set_result)
    assert not done.done()
    return done


@asynccontextmanager
async def client_on_loopback(**settings: object) -> AsyncIterator[HttpClient]:
    """A client that may dial loopback; when closed it has no socket left."""
    client = HttpClient(AddressPolicy(LOOPBACK), **settings)  # type: ignore[arg-type]  # passed on as given
    try:
        yield client
    finally:
        await client.close()
        assert client.stats().open == 0


@asynccontextmanager
async def pair(script: object = "200", **settings: object) -> AsyncIterator[tuple[HttpClient, FaultServer]]:
    """A client, and a server that answers by script."""
    async with FaultServer(script) as server, client_on_loopback(**settings) as client:  # type: ignore[arg-type]  # as given
        yield client, server


async def one(script: object, *, body: bytes = b'{"n":1}', timeout_s: float = 5.0, **settings: object) -> Outcome:
    """The outcome of one POST to a server that answers by script."""
    async with pair(script, **settings) as (client, server):
        return await post(client, server.url("/hook"), body, timeout_s=timeout_s)
