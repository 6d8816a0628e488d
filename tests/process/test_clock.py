"""Clocks that are set while a server runs, and over its restarts: nothing is lost, early, late or out of order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process import books
from tests.process.clock import Clock
from tests.process.receiver import Receiver
from tests.process.server import Server, until

HOUR_S: Final = 3600
YEARS_S: Final = 10 * 365 * 86400
DELAYS_S: Final = [1.5] * 5


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """The clock of a test's server."""
    return Clock(tmp_path)


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    """A server with that clock; the test starts it."""
    made = Server(tmp_path, environment=clock.environment)
    yield made
    if made.running:
        made.kill()


def _policy(max_age_s: float) -> dict[str, Any]:
    retry = {"schedule_s": DELAYS_S, "jitter_ratio": 0, "max_age_s": max_age_s}
    return {"retry": retry, "circuit": {"enabled": False}}


def _listed(server: Server, type: str) -> list[Any]:
    found: list[Any] = server.get("/events", type=type, order="asc", limit=250)["data"]
    return found


def _times_of(receiver: Receiver, path: str) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for request in receiver.seen(path):
        times.setdefault(request.header("webhook-id") or "", []).append(request.at_s)
    return times


def _check_order(server: Server, type: str, published: list[str]) -> None:
    """The list shows everything in the order in which it was accepted, and times that never go back."""
    events = _listed(server, type)
    assert [event["id"] for event in events] == published
    created = [event["created_at"] for event in events]
    assert created == sorted(created)
    assert [event["id"] for event in server.get("/events", type=type, limit=250)["data"]] == published[::-1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S, YEARS_S], ids=["an hour back", "an hour ahead", "ten years"])
def test_a_clock_that_is_set_moves_no_delivery(server: Server, clock: Clock, receiver: Receiver, step_s: int) -> None:
    """Retries keep their distance, ages do not end, and order holds; it is told, and consumers get the true time."""
    path = f"/stepped{step_s}"
    server.start()
    server.endpoint(receiver.hook(path, "500*20,200"), "clock.step", policy=_policy(30))
    published = [server.publish("clock.step", uid=f"before-{n}")["id"] for n in range(10)]
    receiver.wait(path, 10)
    clock.set(step_s)
    stepped_at = receiver.seen(path)[-1].at_s
    published += [server.publish("clock.step", uid=f"after-{n}")["id"] for n in range(10)]
    for event in published:
        assert server.settled(event)["attempt_count"] <= 1 + len(DELAYS_S)
    _check_order(server, "clock.step", published)

    times = _times_of(receiver, path)
    assert times.keys() == set(published), "lost"
    waits_s = [after - before for one in times.values() for before, after in pairwise(one)]
    assert min(waits_s) >= 0.5, "more than a second early"
    assert max(waits_s) <= 11.5, "more than ten seconds late"
    assert max(sum(1 for at in one if at > stepped_at) for one in times.values()) >= 1
    shown_s = int(receiver.seen(path)[-1].header("webhook-timestamp") or 0)
    assert abs(shown_s - clock.shown_s()) < 15, "the signed time is that of the wall"

    (told,) = until(lambda: server.logged("clock.stepped"), "the step is told")
    assert abs(told["step_ms"] / 1000 - step_s) < 2
    assert books.metric(server, 'ackpost_notes_total{name="clock.stepped"}') == 1
    print(
        f"\nclock set by {step_s:+d} s: acknowledged {len(published)}, lost 0, sent again 0, waits of 1.5 s took "
        f"{min(waits_s):.2f} to {max(waits_s):.2f} s"
    )
    assert server.stop() == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("step_s", [-HOUR_S, YEARS_S], ids=["an hour back", "ten years ahead"])
def test_a_wrong_clock_that_is_set_right_by_a_restart_loses_and_delays_nothing(
    server: Server, clock: Clock, receiver: Receiver, step_s: int
) -> None:
    """Started with a wrong clock, killed, started with the right one, then stopped in order and started again."""
    path = f"/restarted{step_s}"
    clock.set(step_s)
    server.start()
    server.endpoint(receiver.hook(path, "500*10,200"), "clock.restart", policy=_policy(2 * HOUR_S))
    published = [server.publish("clock.restart")["id"] for _ in range(10)]
    receiver.wait(path, 10)
    clock.set(0)
    server.restart()
    published += [server.publish("clock.restart")["id"] for _ in range(10)]
    for event in published:
        server.settled(event, within_s=20)
    behind_s = [line["behind_ms"] / 1000 for line in server.logged("clock.behind_store")]
    assert len(behind_s) == (1 if step_s > 0 else 0)
    assert all(abs(one_s - step_s) < 60 for one_s in behind_s)
    assert server.stop() == 0
    server.start()
    published += [server.publish("clock.restart")["id"] for _ in range(3)]
    for event in published[-3:]:
        server.settled(event)
    _check_order(server, "clock.restart", published)
    assert _times_of(receiver, path).keys() == set(published), "lost"
    waits_s = [after - before for one in _times_of(receiver, path).values() for before, after in pairwise(one)]
    assert max(waits_s) < 15
    late_s = max(waits_s) - DELAYS_S[0]
    print(f"\nclock off by {step_s:+d} s until a restart: acknowledged {len(published)}, lost 0, late ≤ {late_s:.1f} s")
    assert server.stop() == 0


@pytest.mark.timeout(120)
def test_a_clock_set_back_over_a_restart_repeats_no_time(server: Server, clock: Clock, receiver: Receiver) -> None:
    """Positions, sequences and times go on rising though the clock shows the same hour again, after a crash too."""
    server.start()
    server.endpoint(receiver.hook("/again", "200"), "clock.again", policy={"ordering": "by-key"})
    published: list[str] = []
    sequences: list[int] = []
    for back_s in (0, -HOUR_S, -2 * HOUR_S):
        clock.set(back_s)
        server.restart()
        for _ in range(5):
            answer = server.publish("clock.again", key="k")
            published.append(answer["id"])
            sequences.append(answer["sequence"])
    for event in published:
        server.settled(event)
    _check_order(server, "clock.again", published)
    assert sequences == list(range(1, len(published) + 1))
    positions = [row[0] for row in books.rows(server.database, "SELECT position FROM event ORDER BY sequence")]
    assert positions == sorted(positions)
    assert list(dict.fromkeys(request.header("webhook-id") for request in receiver.seen("/again"))) == published
    assert server.stop() == 0
