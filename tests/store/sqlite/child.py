"""Another process that opens a database; run as a script with the path, a node name and what to do."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import apsw

from ackpost.errors import StoreFull
from tests.store.sqlite.world import opened


def say(line: str) -> None:
    """Tell the test something, at once."""
    print(line, flush=True)


async def hold(path: Path, node: str) -> None:
    """Own the database until told to stop; a line ``busy`` begins a write that stays open."""
    world = await opened(path, node=node)
    say("open")
    for line in iter(sys.stdin.readline, ""):
        if line.strip() == "busy":
            world.store._ledger.connection.execute("BEGIN IMMEDIATE")  # type: ignore[union-attr] # it is open
            say("busy")
        else:
            break
    await world.store.close()
    say("closed")


async def commit_for_ever(path: Path, node: str) -> None:
    """Accept and record in turn; say which events were acknowledged, and which deliveries."""
    world = await opened(path, node=node)
    while True:
        refs = await world.accept(7)
        say("accepted " + " ".join(str(ref.event) for ref in refs))
        await world.deliver(refs[:4])
        say("delivered " + " ".join(str(ref.position) for ref in refs[:4]))


async def fill(path: Path, node: str) -> None:
    """Let files grow no further than a limit, run into it, and go on when it is lifted."""
    world = await opened(path, node=node)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, resource.RLIM_INFINITY))
    accepted = 0
    try:
        while True:
            accepted += len(await world.accept(20, size_bytes=5000))
    except StoreFull as error:
        say(str(error))
    count = next(iter(world.store._ledger.connection.execute("SELECT count(*) FROM event")))[0]  # type: ignore[union-attr] # it is open
    say(f"{accepted} {count}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await world.accept(20, size_bytes=5000)
    await world.store.close()
    check = next(iter(apsw.Connection(str(path)).execute("PRAGMA integrity_check")))[0]
    say(f"{check}")


if __name__ == "__main__":
    asyncio.run({"hold": hold, "commit": commit_for_ever, "fill": fill}[sys.argv[3]](Path(sys.argv[1]), sys.argv[2]))
