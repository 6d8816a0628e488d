"""What a sudden end of the process leaves behind."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import apsw

from tests.store.sqlite.processes import child, hear
from tests.store.sqlite.world import opened

_LINES_BEFORE_DEATH = (1, 2, 9, 24, 61)


def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    """Killed in the middle of commits, again and again: every event and every result that was told is there."""
    path = tmp_path / "a.db"
    accepted: set[int] = set()
    delivered: set[int] = set()
    for lines in _LINES_BEFORE_DEATH:
        with child(path, "a", "commit") as process:
            heard = [hear(process) for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            rest, _ = process.communicate()
            heard += [line for line in rest.split("\n")[:-1] if line]
        for line in heard:
            word, *positions = line.split()
            (accepted if word == "accepted" else delivered).update(map(int, positions))
    connection = apsw.Connection(str(path))
    events = {row[0] for row in connection.execute("SELECT position FROM event")}
    history = {row[0] for row in connection.execute("SELECT position FROM history WHERE status = 1")}
    pending = {row[0] for row in connection.execute("SELECT position FROM delivery")}
    assert accepted <= events
    assert delivered <= history
    assert history.isdisjoint(pending)
    assert {event + 1 for event in events} == history | pending
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_positions_go_on_rising_after_a_crash(tmp_path: Path) -> None:
    """No position is given twice, though the clock of the next start is behind."""
    path = tmp_path / "a.db"
    with child(path, "a", "commit") as process:
        heard = [hear(process) for _ in range(6)]
        process.kill()
        process.wait()
    last = max(int(word) for line in heard for word in line.split()[1:])

    async def scenario() -> None:
        world = await opened(path)
        (ref,) = await world.accept(1)
        assert ref.event > last
        await world.store.close()

    asyncio.run(scenario())
