"""Receivers in a network of bytes: they answer by script (``testing.script``), well or badly, and close at will."""

from __future__ import annotations

import asyncio
import random
from functools import cache
from typing import TYPE_CHECKING, Final

from ackpost.testing import answers
from ackpost.testing.script import Step, parse_script

if TYPE_CHECKING:
    from tests.simulation.network import Network
    from tests.simulation.wire import End

GOOD: Final = ("200", "200", "200", "202", "204", "200:body=ok")
SCRIPTS: Final[dict[str, tuple[str, ...]]] = {
    "good": GOOD,
    "slow": ("delay:0.5", "delay:2", "delay:4", "drip:every=0.01", "drip:every=0.05", "drip:header:every=0.01"),
    "failing": ("500", "500", "502", "404", "500:body=no"),
    "throttling": (
        *GOOD, "429:retry-after=1", "503:retry-after=3", "429:retry-after=8", "429:retry-after=0", "503:retry-after=-1",
        "429:retry-after=soon", "503",
    ),
    "hanging": (*GOOD[:3], "hang", "hang", "hang:header", "hang:body", "drip:header:every=0.2", "unread"),
    "resetting": (
        *GOOD[:4], "reset", "reset:header", "reset:body", "close", "close:header", "close:body", "early:413",
        "early:200", "dropped",
    ),
    "refusing": GOOD,
    "gone": (*GOOD * 2, "410"),
    "odd": (
        *GOOD[:4], "garbage", "garbage:body", "twolengths", "headers:300", "headers:200", "header-bytes:20000",
        "header-bytes:9000", "302", "unframed", "old", "short", "long", "interim:3", "interim:16", "interim:20",
        "interim", "endless", "endless:length", "endless:trailer", "500:connection=x",
    ),
    "closing": (*GOOD[:3], "close:after", "200:keep-alive=1", "200:connection=close", "vanish:after", "500"),
}  # fmt: skip
MIXED: Final = ("good", "good", "good", "slow", "failing", "resetting", "odd", "closing", "throttling")
KINDS: Final = (*SCRIPTS, "flapping", "mixed")
GREETINGS: Final = ("", "", "", "", "garbage:before", "reset:before", "close:before", "hang:before")
DIALS: Final = ("dns_error", "local_dns", "blocked", "refused", "unreachable", "no_descriptor", "silent", "tls_alert",
                "tls_silent", "tls_lost", "")  # fmt: skip
_ADDED: Final[dict[str, Step]] = {
    "200:keep-alive=1": Step(headers=(("keep-alive", "timeout=2"),)),
    "200:connection=close": Step(headers=(("connection", "close"),)),
    "500:connection=x": Step(status=500, headers=(("connection", "keep-alive, x"),)),
    "unread": Step(kind="unread"),
    "dropped": Step(kind="dropped"),
    "vanish:after": Step(kind="vanish", where="after"),
}


@cache
def _step(text: str) -> Step:
    return _ADDED.get(text) or parse_script(text)[0]


UNREAD_S = 30.0
ARRIVAL_S = 0.3


class Receiver:
    """What answers on one path."""

    def __init__(self, kind: str, rng: random.Random, heals_at_s: float) -> None:
        self.kind = kind
        self._random = rng
        self._heals_at_s = heals_at_s
        self._up_s, self._down_s = rng.uniform(2, 20), rng.uniform(2, 20)

    def step(self, now_s: float) -> Step:
        """Draw how the next request is answered."""
        kind = self.kind
        if now_s >= self._heals_at_s:
            kind = "good"
        elif kind == "flapping":
            kind = "good" if now_s % (self._up_s + self._down_s) < self._up_s else "failing"
        elif kind == "mixed":
            kind = self._random.choice(MIXED)
        return _step(self._random.choice(SCRIPTS[kind]))


class Site:
    """A host: its addresses, what happens to who connects, and the conversation on each connection."""

    def __init__(self, network: Network, ip: str, rng: random.Random, heals_at_s: float) -> None:
        self.ip = ip
        self.dead_ip: str | None = None
        self.receivers: dict[str, Receiver] = {}
        self._network = network
        self._random = rng
        self._heals_at_s = heals_at_s
        self._idle_s = rng.choice([0.05, 0.5, 2.0, 60.0])
        self._greets_badly = rng.random() < 0.15

    def _is_well(self) -> bool:
        return self._network.world.loop.time() >= self._heals_at_s

    def dial_fault(self, kinds: tuple[str, ...]) -> str:
        """Draw whether a phase of a dial fails, and how; "" when it does not."""
        if self._is_well() or not any(one.kind in ("refusing", "mixed") for one in self.receivers.values()):
            return ""
        fault = self._random.choice(DIALS)
        if fault not in kinds or self._random.random() < 0.3:
            return ""
        self._network.see(f"dial {fault}")
        return fault

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer request after request until somebody has enough."""
        try:
            greeting = self._random.choice(GREETINGS) if self._greets_badly and not self._is_well() else ""
            if greeting:
                self._network.see(f"wire {greeting}")
                await self._end(await _act(_step(greeting), writer), reader, writer)
                return
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        idle_s = 60.0 if self._is_well() else self._idle_s
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), idle_s)
        path = head.split(b" ", 2)[1].decode()
        step = self.receivers[path].step(self._network.world.loop.time())
        self._network.see(f"wire {step.kind}{':' + step.where if step.where else ''}")
        if step.kind == "unread":
            writer.transport.pause_reading()  # type: ignore[attr-defined] # a stream's transport reads too
            await asyncio.sleep(UNREAD_S)
            return False
        if step.kind != "early":
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length))
            self._network.request_arrived(head, body)
        if step.delay_s:
            await asyncio.sleep(step.delay_s)
        return await self._end(await _act(step, writer), reader, writer)

    async def _end(self, end: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        transport: End = writer.transport  # type: ignore[assignment] # here it is
        if end == answers.HANG:
            while await reader.read(65536):
                pass
        elif end == answers.RESET:
            transport.abort()
        elif end == "vanish":
            transport.is_cut = True
        return end == answers.KEEP


async def _act(step: Step, writer: asyncio.StreamWriter) -> str:
    if step.kind == "dropped":
        writer.transport.is_cut = True  # type: ignore[attr-defined] # the simulated line
        return "vanish"
    if step.kind == "vanish":
        writer.write(answers.whole(Step()))
        await asyncio.sleep(ARRIVAL_S)  # what was sent arrives first
        return "vanish"
    return await answers.answer(step, writer)
