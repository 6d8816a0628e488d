"""Keys to principals: what is remembered, for how long, and what is not."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ackpost.core.model import ApiKey
from ackpost.errors import Unauthenticated, Unavailable
from ackpost.ports.operations import Done, Operation, TouchApiKeys
from ackpost.service.auth import Authenticator, Principal
from tests.api.world import ManualClock

KEY = "apk_" + "0" * 64
HEADER = f"Bearer {KEY}".encode()


class Keys:
    """A store of one key that counts look-ups; ``gate`` holds them up."""

    salt = 1

    def __init__(self) -> None:
        self.key: ApiKey | None = ApiKey(
            position=7, name="x", prefix=KEY[:8], digest=hashlib.sha256(KEY.encode()).digest(), role="admin",
            tenant=3, created_at_ms=0,
        )  # fmt: skip
        self.lookups = 0
        self.gate: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def api_key_by_digest(self, digest: bytes) -> ApiKey | None:
        """Find the key."""
        self.lookups += 1
        found = self.key if self.key is not None and self.key.digest == digest else None
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        return found


class Touches:
    """A committer that keeps what was noted."""

    def __init__(self) -> None:
        self.seen: list[dict[int, int]] = []
        self.failing = False

    async def submit(self, operation: Operation) -> Done:
        """Keep it."""
        assert isinstance(operation, TouchApiKeys)
        if self.failing:
            raise Unavailable("not now")
        self.seen.append(operation.last_used_ms)
        return Done()


class Scene:
    """An authenticator with its surroundings."""

    def __init__(self) -> None:
        self.keys, self.touches, self.clock = Keys(), Touches(), ManualClock()
        store: Any = self.keys
        committer: Any = self.touches
        self.auth = Authenticator(store, committer, self.clock)


def run(scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario."""

    async def whole() -> None:
        scene = Scene()
        await scenario(scene)
        await scene.auth.close()

    asyncio.run(whole())


@pytest.mark.parametrize(
    "header",
    [
        None, b"", b"Bearer", b"Bearer ", b"Basic " + KEY.encode(), KEY.encode(), b"Bearer " + KEY[:-1].encode(),
        b"Bearer " + KEY.upper().encode(), b"Bearer " + KEY.encode() + b"0", b"Bearer " + b"x" * 10_000,
        b"Bearer \xff\xfe", b"Bearer " + KEY.encode() + b" " + KEY.encode(),
    ],
)  # fmt: skip
def test_what_is_no_known_key_is_refused(header: bytes | None) -> None:
    """No spelling but the very key is let in, and the refusal does not repeat what was sent (S29, S30)."""

    async def scenario(scene: Scene) -> None:
        with pytest.raises(Unauthenticated) as refusal:
            await scene.auth.principal(header)
        assert KEY not in str(refusal.value)
        assert scene.auth.recall(header) is None

    run(scenario)


def test_a_known_key_is_looked_up_once_in_a_while() -> None:
    """In between it comes from memory; after 4 seconds it is looked up again, so a revocation elsewhere holds in 5."""

    async def scenario(scene: Scene) -> None:
        assert scene.auth.recall(HEADER) is None
        principal = await scene.auth.principal(HEADER)
        assert principal == Principal("admin", 3, 7)
        scene.clock.forward(3.9)
        assert scene.auth.recall(HEADER) == principal
        assert scene.keys.lookups == 1
        scene.keys.key = None
        scene.clock.forward(0.2)
        assert scene.auth.recall(HEADER) is None
        with pytest.raises(Unauthenticated):
            await scene.auth.principal(HEADER)

    run(scenario)


def test_an_unknown_key_is_not_remembered() -> None:
    """A key made a moment after somebody tried it works."""

    async def scenario(scene: Scene) -> None:
        key, scene.keys.key = scene.keys.key, None
        with pytest.raises(Unauthenticated):
            await scene.auth.principal(HEADER)
        scene.keys.key = key
        assert (await scene.auth.principal(HEADER)).key == 7

    run(scenario)


def test_many_requests_of_one_key_look_it_up_once() -> None:
    """A burst after a restart is one query."""

    async def scenario(scene: Scene) -> None:
        found = await asyncio.gather(*(scene.auth.principal(HEADER) for _ in range(100)))
        assert {principal.key for principal in found} == {7}
        assert scene.keys.lookups == 1

    run(scenario)


def test_a_revocation_during_a_look_up_is_not_overlooked() -> None:
    """What was read before the revocation is read again, not kept."""

    async def scenario(scene: Scene) -> None:
        scene.keys.gate = asyncio.Event()
        asking = asyncio.create_task(scene.auth.principal(HEADER))
        await scene.keys.asked.wait()
        scene.keys.key = None
        scene.auth.forget()
        scene.keys.gate.set()
        with pytest.raises(Unauthenticated):
            await asking
        assert scene.auth.recall(HEADER) is None

    run(scenario)


def test_uses_are_noted_once_a_minute_and_none_is_lost() -> None:
    """A writer in trouble only delays it."""

    async def scenario(scene: Scene) -> None:
        async def use() -> None:
            await scene.auth.principal(HEADER)
            await asyncio.sleep(0)

        await use()
        assert scene.touches.seen == [{7: scene.clock.ms}]
        scene.clock.forward(30)
        await use()
        assert len(scene.touches.seen) == 1
        scene.touches.failing = True
        scene.clock.forward(31)
        await use()
        last_ms = scene.clock.ms
        scene.touches.failing = False
        await scene.auth.close()
        assert scene.touches.seen[1:] == [{7: last_ms}]

    run(scenario)
