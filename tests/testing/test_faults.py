"""The fault server itself: what it records and how it answers, seen by a plain client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ackpost.testing.faults import FaultServer, SeenRequest
from ackpost.testing.script import Step, parse_script

_REQUEST = b"POST /hook?a=1 HTTP/1.1\r\nHost: x\r\nX-Two: b\r\nx-two:  c \r\nContent-Length: 4\r\n\r\nbody"
_GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine in a fresh loop, for 20 s at most."""
    asyncio.run(asyncio.wait_for(main(), 20))


async def talk(server: FaultServer, data: bytes) -> bytes:
    """Send bytes, give everything that comes back until the server closes (which it is asked to)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


async def whole_answer(reader: asyncio.StreamReader) -> bytes:
    """Read one answer with a Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


def test_requests_are_recorded_raw() -> None:
    """Line, headers in order and case, body, connection and time; waiters wake at their count."""

    async def main() -> None:
        heard: list[SeenRequest] = []
        async with FaultServer("200,close", on_request=heard.append) as server:
            waiter = asyncio.create_task(server.seen(2))
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(_REQUEST)
            answer = await whole_answer(reader)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert not waiter.done()
            writer.write(_GET)
            assert await reader.read() == b""
            writer.close()
            first, second = await waiter
            assert (first.method, first.path, first.version, first.body) == ("POST", "/hook?a=1", "HTTP/1.1", b"body")
            assert first.headers == (("Host", "x"), ("X-Two", "b"), ("x-two", "c"), ("Content-Length", "4"))
            assert (first.header("X-TWO"), first.header("absent")) == ("b", None)
            assert (second.number, second.connection, second.method) == (2, 1, "GET")
            assert second.at_s >= first.at_s
            assert heard == [first, second]
            assert server.received == 2

    run(main)


def test_a_script_for_each_path() -> None:
    """Paths (queries aside) have their own scripts and counts; what has none is 404."""

    async def main() -> None:
        async with FaultServer({"/hook": "500,close", "/x": (Step(status=418),)}) as server:
            assert (await talk(server, _REQUEST + _REQUEST)).startswith(b"HTTP/1.1 500 ")
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(_GET)
            assert (await whole_answer(reader)).startswith(b"HTTP/1.1 404 ")
            writer.close()

    run(main)


def test_a_function_may_answer() -> None:
    """A function from request to step decides, with the request at hand."""

    async def main() -> None:
        def answer(request: SeenRequest) -> Step:
            return Step(status=201, body=request.body, headers=(("connection", "close"),))

        async with FaultServer(answer) as server:
            data = await talk(server, _REQUEST)
            assert data.startswith(b"HTTP/1.1 201 Created\r\n")
            assert data.endswith(b"\r\n\r\nbody")

    run(main)


@pytest.mark.parametrize(
    ("script", "parts"),
    [
        ("close", [b""]),
        ("close:header", [b"HTTP/1.1 200 OK\r\nconten"]),
        ("close:body", [b"content-length: 12\r\n\r\n"]),
        ("close:after", [b"content-length: 11\r\n", b'{"ok":true}']),
        ("short", [b"content-length: 21\r\n", b'{"ok":true}']),
        ("garbage:body", [b"transfer-encoding: chunked\r\n", b"zz\r\n"]),
        ("old", [b"HTTP/1.0 200 OK\r\n", b'\r\n\r\n{"ok":true}']),
        ("unframed:body=hi", [b"HTTP/1.1 200 OK\r\n", b"\r\n\r\nhi"]),
        ("interim:2,close", [b"HTTP/1.1 103 Early Hints\r\n", b"HTTP/1.1 200 OK\r\n"]),
        ("drip:every=0:body=abc,close", [b"\r\n\r\nabc"]),
        ("drip:header:every=0,close", [b"HTTP/1.1 200 OK\r\n"]),
        ("302,close", [b"HTTP/1.1 302 Found\r\n", b"location: /elsewhere\r\n"]),
        ("999,close", [b"HTTP/1.1 999 \r\n"]),
        ("204,close", [b"HTTP/1.1 204 No Content\r\n"]),
        ("twolengths,close", [b"content-length: 11\r\ncontent-length: 3\r\n"]),
        ("headers:3,close", [b"x-0: y\r\nx-1: y\r\nx-2: y\r\n"]),
        ("header-bytes:5,close", [b"x-big: yyyyy\r\n"]),
        ("long,close", [b'{"ok":true}bytes nobody asked for']),
        ("200:type=text/plain:body=x,close", [b"content-type: text/plain\r\n", b"\r\n\r\nx"]),
    ],
)
def test_answers_by_script(script: str, parts: list[bytes]) -> None:
    """What each kind puts on the wire (a second request is answered by a plain close)."""

    async def main() -> None:
        async with FaultServer(script) as server:
            data = await talk(server, _REQUEST + _GET)
            for part in parts:
                assert part in data
            if parts == [b""]:
                assert data == b""

    run(main)


@pytest.mark.parametrize("script", ["reset", "reset:before", "reset:body", "early:413"])
def test_a_reset_is_a_reset(script: str) -> None:
    """The other side sees a reset, not an orderly end."""

    async def main() -> None:
        async with FaultServer(script) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(_REQUEST)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1_000_000)
            writer.close()

    run(main)


def test_stopping_cuts_what_hangs() -> None:
    """Hanging, endless and unread connections end when the server stops, and it forgets them."""

    async def main() -> None:
        server = FaultServer({"/hook": "hang", "/": "endless"})
        await server.start()
        one, two = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        one[1].write(_REQUEST)
        two[1].write(_GET)
        await server.seen(2)
        assert server.open_connections == 2
        await server.stop()
        assert server.open_connections == 0
        assert await one[0].read() == b""
        one[1].close()
        two[1].close()

    run(main)


@pytest.mark.parametrize("data", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n"])
def test_nonsense_is_answered_with_400(data: bytes) -> None:
    """A request that cannot be read ends the connection, with a status."""

    async def main() -> None:
        async with FaultServer() as server:
            assert (await talk(server, data)).startswith(b"HTTP/1.1 400 ")
            assert len(server.requests) == 0

    run(main)


def test_a_chunked_request_is_read_too() -> None:
    """Other senders may send chunks: the recorded body is what they mean."""

    async def main() -> None:
        async with FaultServer("close:after") as server:
            chunks = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nt: u\r\n\r\n"
            await talk(server, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
            assert server.requests[0].body == b"abcde"

    run(main)


def test_idle_connections_are_closed() -> None:
    """A connection that asks for nothing does not stay."""

    async def main() -> None:
        async with FaultServer(idle_s=0.05) as server:
            assert await talk(server, b"") == b""
            assert await talk(server, b"POST /half") == b""

    run(main)


def test_only_the_newest_requests_are_kept_if_asked() -> None:
    """A receiver that runs for long does not grow."""

    async def main() -> None:
        async with FaultServer(parse_script("200*4,close"), keep_max=2) as server:
            await talk(server, _REQUEST * 5)
            assert [request.number for request in server.requests] == [4, 5]
            assert server.received == 5

    run(main)
