"""Data in memory (rule E12): what waits, is read, goes out or failed is bounded in bytes, and all is delivered."""

from __future__ import annotations

import pytest

from ackpost.engine import budget as budgets
from tests.engine.rig import Rig, answer, play

DATA_BYTES_MAX = 100
QUEUED_BYTES_MAX = 40
DATA_BYTES = 9
"""Of ``{"n":123}``."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is small enough for the rig's small data to fill it."""
    for name, value in (
        ("DATA_BYTES_MAX", DATA_BYTES_MAX), ("QUEUED_BYTES_MAX", QUEUED_BYTES_MAX), ("READ_BYTES", 30),
        ("LARGE_BYTES", 1), ("NOT_KEPT_BYTES", 10_000), ("_AT_FIRST_BYTES", 10),
    ):  # fmt: skip
        monkeypatch.setattr(budgets, name, value)
    monkeypatch.setattr("ackpost.engine.loader.QUEUED_BYTES_MAX", QUEUED_BYTES_MAX)


async def _backlog(rig: Rig, endpoints: int, count: int) -> None:
    """So many endpoints have so much to send, none of it in memory."""
    made = [await rig.endpoint(f"/e{number}", max_in_flight=100) for number in range(endpoints)]
    for endpoint in made:
        await rig.state(endpoint, "pause")
        await rig.publish(endpoint, count=count)
    for endpoint in made:
        await rig.state(endpoint, "resume")


def _held_bytes(rig: Rig) -> int:
    return rig.engine.budget.payload_bytes


def test_data_under_way_is_bounded_in_bytes() -> None:
    """However many slots are free, requests stop at the bound; answers let the next ones go, in order."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (1.0, answer())
        await _backlog(rig, 3, 100)
        most = most_bytes = 0
        while len(rig.wire.requests) < 300:
            await rig.pass_s(0.05)
            most = max(most, rig.engine.requests_in_flight())
            most_bytes = max(most_bytes, _held_bytes(rig))
            assert rig.loop.time() < 200
        assert DATA_BYTES_MAX // DATA_BYTES // 2 <= most <= DATA_BYTES_MAX // DATA_BYTES + 2
        assert most_bytes <= DATA_BYTES_MAX + 3 * DATA_BYTES
        for path in ("/e0", "/e1", "/e2"):
            numbers = [request.n for request in rig.wire.requests if request.target.url.endswith(path)]
            assert numbers == sorted(numbers)
        await rig.pass_s(3)
        assert (rig.engine.budget.refs, _held_bytes(rig), rig.engine.budget.large_bytes) == (0, 0, 0)

    play(story)


def test_what_has_to_wait_keeps_no_more_data_than_there_is_room_for() -> None:
    """What has to wait gives its data up once memory is full, and it is read again when it goes out."""

    async def story(rig: Rig) -> None:
        rig.wire.reply = lambda _: (0.01, answer(500))
        await _backlog(rig, 3, 60)
        quiet = 0
        while rig.loop.time() < 300:
            sent = len(rig.wire.requests)
            await rig.pass_s(2)
            assert _held_bytes(rig) <= DATA_BYTES_MAX + 3 * DATA_BYTES
            if len(rig.wire.requests) == sent:
                assert _held_bytes(rig) <= QUEUED_BYTES_MAX
                quiet += 1
        assert quiet > 5
        rig.wire.reply = lambda _: (0.01, answer())
        await rig.until(lambda: not rig.engine.budget.refs, within_s=10_000)
        assert (rig.engine.budget.refs, _held_bytes(rig), rig.engine.budget.large_bytes) == (0, 0, 0)

    play(story)
