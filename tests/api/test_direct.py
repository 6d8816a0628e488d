"""Publishes that go the direct way, past ASGI: they are answered exactly as those that do not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from ackpost.api.direct import DirectPublish
from ackpost.errors import Unavailable
from ackpost.wiring import http_server
from ackpost.wiring.http_server import BoundedProtocol, QuietServer, uvicorn_config
from tests.api.world import World, run

EVENT = b'{"type":"a.b","data":{"n":1}}'
THE_LONG_WAY = b"Ackpost-Tenant: default\r\n"
"""A header that changes nothing but the way."""


class Client:
    """One kept connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        """Write, a packet each."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def answer(self) -> tuple[bytes, bytes]:
        """Read one answer: its head (header lines in any order) and its body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return b"\r\n".join(sorted(head.split(b"\r\n"))), await self.reader.readexactly(length)

    async def publish(self, body: bytes, lines: bytes = b"", key: bytes = b"admin") -> tuple[bytes, bytes]:
        """Post one body and read the answer."""
        await self.send(request(body, lines, key))
        return await self.answer()


def request(body: bytes, lines: bytes = b"", key: bytes = b"admin", path: bytes = b"/v1/events") -> bytes:
    """Write a publish."""
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n%b" % (path, key, lines)
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


class Served:
    """The world's app behind the product's own server; ``direct`` counts the publishes that went the direct way."""

    def __init__(self, world: World, port: int, server: QuietServer) -> None:
        self.world = world
        self.port = port
        self.server = server
        self.direct = 0
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        """Open a connection and let the server learn key, tenant and routes."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        await client.publish(b'{"type":"warm.up","data":1}')
        return client


@contextlib.asynccontextmanager
async def served(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """Serve until the block ends; the end closes kept connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = QuietServer(uvicorn_config(world.app))
        one = Served(world, listener.getsockname()[1], server)
        take = DirectPublish.take

        def counted(self: DirectPublish, *arguments: Any) -> None:
            one.direct += 1
            take(self, *arguments)

        monkeypatch.setattr(DirectPublish, "take", counted)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield one
        server.should_exit = True
        await asyncio.wait_for(serving, 5)
        for client in one.clients:
            client.writer.close()


async def until(holds: Callable[[], bool]) -> None:
    """Let the server go on until something holds."""
    while not holds():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)


BODIES: Sequence[bytes] = (
    EVENT,
    b'{"type":"a","data":"\\ud800","metadata":{"a":[1]},"channels":["c"]}',
    b'{"type":"a","data":1,"sequence":7}',
    b'{"type":"a b","data":1}',
    b'{"type":"a"}',
    b'{"type":"a","data":1,"extra":1}',
    b'{"type":"a","data":NaN}',
    b'{"type":"a","data":' + b"[" * 70 + b"]" * 70 + b"}",
    b'{"type":"a","data":"\xff"}',
    b"{",
    b"",
    b'{"type":"a","data":"' + b"x" * 262_144 + b'"}',
    b'{"type":"a","data":"' + b"x" * 400_000 + b'"}',
)


def _without_id(answer: tuple[bytes, bytes]) -> tuple[bytes, Any]:
    """An accepted event's id is its own."""
    head, body = answer
    return head, {name: value for name, value in json.loads(body).items() if name != "id"}


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_both_ways_answer_alike(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the body, the direct way gives the same status, headers and problem as the long one."""

    async def test(world: World) -> None:
        await world.endpoint()
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            if len(body) < 300_000:
                fitting = await client.publish(body)
                assert one.direct == 1
                other = await one.connect()
                assert one.direct == 2
                assert _without_id(await other.publish(body, THE_LONG_WAY)) == _without_id(fitting)
                assert one.direct == 2
                if b"connection: close" in fitting[0]:
                    assert (await client.reader.read(), await other.reader.read()) == (b"", b"")
            else:  # refused before it is read
                assert (await client.publish(body))[0].count(b"HTTP/1.1 413") == 1
                assert one.direct == 0

    run(test)


def test_a_repeated_uid_is_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicates and conflicts of the commit itself come back on the direct way too."""

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            first = json.loads((await client.publish(b'{"type":"a","data":1,"uid":"u"}'))[1])
            again = json.loads((await client.publish(b'{"type":"a","data":1,"uid":"u"}'))[1])
            assert (first["duplicate"], again) == (False, {**first, "duplicate": True})
            head, body = await client.publish(b'{"type":"a","data":2,"uid":"u"}')
            assert (b"HTTP/1.1 409 Conflict" in head, json.loads(body)["code"]) == (True, "uid_conflict")
            assert one.direct == 3

    run(test)


def test_troubles_of_the_store_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that fails is a 503 with Retry-After, and the connection goes on."""

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            world.committer.failure = Unavailable("full", code="storage_full", retry_after_s=10)
            head, body = await client.publish(EVENT)
            assert (b"HTTP/1.1 503" in head, b"retry-after: 10" in head.lower()) == (True, True)
            assert json.loads(body)["code"] == "storage_full"
            world.committer.failure = None
            assert b"HTTP/1.1 202" in (await client.publish(EVENT))[0]
            assert one.direct == 2

    run(test)


def test_an_event_routed_by_what_is_out_of_date_is_routed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint made a moment ago gets its delivery though the routes in memory do not know it."""

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            stale = world.services.router.recall(world.default_tenant)
            assert stale is not None
            await world.endpoint()
            world.services.router._routes[world.default_tenant] = stale
            _, body = await client.publish(EVENT)
            assert (one.direct, json.loads(body)["deliveries"]) == (1, 1)

    run(test)


@pytest.mark.parametrize(
    ("lines", "key", "path"),
    [
        (THE_LONG_WAY, b"admin", b"/v1/events"),
        (b"Idempotency-Key: k\r\n", b"admin", b"/v1/events"),
        (b"Connection: close\r\n", b"admin", b"/v1/events"),
        (b"Proxy-Connection: close\r\n", b"admin", b"/v1/events"),
        (b"", b"reader", b"/v1/events"),
        (b"", b"nobody", b"/v1/events"),
        (b"", b"admin", b"/v1/events?a=1"),
        (b"", b"admin", b"/v1/endpoints"),
    ],
)
def test_what_is_out_of_the_ordinary_goes_the_long_way(
    lines: bytes, key: bytes, path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named tenants, repeatable requests, ending connections, keys without the right, queries, other paths."""

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            await client.send(request(EVENT, lines, key, path))
            await client.answer()
            assert one.direct == 0

    run(test)


def test_pipelined_publishes_are_answered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several requests in one packet, of both ways, on one connection."""

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            bodies = [b'{"type":"a","data":1,"key":"k","sequence":%d}' % number for number in range(1, 7)]
            lines = [b"", THE_LONG_WAY, b"", b"", THE_LONG_WAY, b""]
            await client.send(b"".join(map(request, bodies, lines)))
            answers = [json.loads((await client.answer())[1]) for _ in bodies]
            assert [answer["sequence"] for answer in answers] == [1, 2, 3, 4, 5, 6]
            assert one.direct >= 1

    run(test)


def test_a_body_may_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the network cuts a request, its event is whole."""

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            whole = request(b'{"type":"a","uid":"cut","data":"0123456789"}')
            await client.send(*(whole[start : start + 7] for start in range(0, len(whole), 7)))
            assert b"HTTP/1.1 202" in (await client.answer())[0]
            assert one.direct == 1
        [event] = (await world.get("/v1/events?uid=cut")).json["data"]
        assert (await world.get(f"/v1/events/{event['id']}/data")).body == b'"0123456789"'

    run(test)


def test_a_client_that_leaves_before_its_answer_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event is stored; the server goes on."""

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client, other = await one.connect(), await one.connect()
            reached, gone = asyncio.Event(), asyncio.Event()

            async def hold(_: Any) -> None:
                reached.set()
                await gone.wait()

            world.committer.before = hold
            await client.send(request(b'{"type":"left","data":1}'))
            await reached.wait()
            client.writer.transport.abort()
            await until(lambda: len(one.server.server_state.connections) == 1)
            gone.set()
            assert b"HTTP/1.1 202" in (await other.publish(EVENT))[0]
        assert len((await world.get("/v1/events?type=left")).json["data"]) == 1

    run(test)


def test_an_idle_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time without a request, as with every other call."""
    monkeypatch.setattr(http_server, "KEEP_ALIVE_S", 0.05)

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            await client.publish(EVENT)
            assert one.direct == 1
            assert await client.reader.read() == b""

    run(test)


def test_line_ends_do_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no request: the connection's idle time goes on."""

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            one.server.config.timeout_keep_alive = 0.2  # type: ignore[assignment]  # shorter than it can be set
            kept = await one.connect()
            await kept.publish(EVENT, THE_LONG_WAY)
            await kept.send(b"\r\n")
            assert await asyncio.wait_for(kept.reader.read(), 5) == b""
            client.writer.close()

    run(test)


def test_spaces_behind_a_length_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways take a Content-Length with white space behind it, as HTTP allows."""

    async def test(world: World) -> None:
        async with served(world, monkeypatch) as one:
            client = await one.connect()
            for lines in (b"", THE_LONG_WAY):
                spaced = request(EVENT, lines).replace(b"\r\n\r\n", b"  \r\n\r\n")
                await client.send(spaced)
                assert b"HTTP/1.1 202" in (await client.answer())[0]
            assert one.direct == 1

    run(test)


def test_the_end_of_the_server_waits_for_an_answer_and_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being committed is answered, with the word that the connection ends."""

    async def test(world: World) -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hold(_: Any) -> None:
            reached.set()
            await go_on.wait()

        async with served(world, monkeypatch) as one:
            client = await one.connect()
            world.committer.before = hold
            await client.send(request(EVENT))
            await reached.wait()
            [connection] = one.server.server_state.connections
            one.server.should_exit = True
            assert isinstance(connection, BoundedProtocol)
            await until(lambda: not connection.cycle.keep_alive)
            go_on.set()
            head, _ = await client.answer()
            assert (b"HTTP/1.1 202" in head, b"connection: close" in head, one.direct) == (True, True, 1)

    run(test)
