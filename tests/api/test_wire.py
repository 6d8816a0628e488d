"""The app behind a real server on a loopback socket: what only the wire shows."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator

import uvicorn

from tests.api.world import World, run

HEAD = b"Host: localhost\r\nAuthorization: Bearer admin\r\n"
EVENT = b'{"type":"a.b","data":{"n":1}}'


@contextlib.asynccontextmanager
async def served(world: World) -> AsyncIterator[int]:
    """Serve the world's app; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            world.app, http="httptools", loop="asyncio", lifespan="off", log_config=None, server_header=False
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield int(listener.getsockname()[1])
        server.should_exit = True
        await serving


async def exchange(port: int, *parts: bytes) -> tuple[int, bytes]:
    """Send bytes as they are and read until the server closes; gives status and all that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
    except ConnectionError:
        pass
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1]) if answer else 0, answer


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/events") -> bytes:
    """Write a POST that closes the connection."""
    lines = b"".join(header + b"\r\n" for header in headers)
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST " + path + b" HTTP/1.1\r\n" + HEAD + length + b"Connection: close\r\n" + lines + b"\r\n" + body


def test_a_publish_over_a_socket() -> None:
    """Whole, in chunks, and twice over one connection."""

    async def test(world: World) -> None:
        async with served(world) as port:
            status, answer = await exchange(port, post(EVENT))
            assert status == 202, answer
            assert b"\r\nserver:" not in answer
            chunked = b"POST /v1/events HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n"
            chunked += b"Transfer-Encoding: chunked\r\n\r\n"
            parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in (EVENT[:5], EVENT[5:])]
            assert (await exchange(port, chunked, *parts, b"0\r\n\r\n"))[0] == 202
            kept = post(EVENT).replace(b"Connection: close\r\n", b"")
            _, answer = await exchange(port, kept, post(EVENT))
            assert answer.count(b"HTTP/1.1 202") == 2
        assert len((await world.get("/v1/events")).json["data"]) == 4

    run(test)


def test_head_is_get_without_a_body() -> None:
    """Load balancers ask like this."""

    async def test(world: World) -> None:
        async with served(world) as port:
            for path in (b"/healthz", b"/v1/events"):
                asked = b"HEAD " + path + b" HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"
                status, answer = await exchange(port, asked)
                head, _, body = answer.partition(b"\r\n\r\n")
                assert (status, body) == (200, b"")
                assert b"content-length: " in head

    run(test)


def test_a_large_body_is_refused_before_it_is_sent() -> None:
    """Announced: at once. Endless in chunks: after the limit; then the connection is closed (S43)."""

    async def test(world: World) -> None:
        async with served(world) as port:
            for path in (b"/v1/events", b"/v1/endpoints"):
                head = b"POST " + path + b" HTTP/1.1\r\n" + HEAD
                status, answer = await exchange(port, head + b"Content-Length: 1000000000\r\n\r\n")
                assert (status, b"connection: close" in answer, b"too_large" in answer) == (413, True, True)
                chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
                endless = [chunk] * 400
                status, answer = await exchange(port, head + b"Transfer-Encoding: chunked\r\n\r\n", *endless)
                assert status in {413, 0}, answer

    run(test)


def test_requests_that_two_parsers_could_read_differently_are_refused() -> None:
    """Two lengths, length and chunks, unknown codings, bare line feeds: 400 and an end of the connection (S47)."""

    async def test(world: World) -> None:
        async with served(world) as port:
            head = b"POST /v1/events HTTP/1.1\r\n" + HEAD
            for lines in (
                b"Content-Length: 29\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"Content-Length: 29\r\nContent-Length: 30\r\n\r\n",
                b"Transfer-Encoding: xchunked\r\n\r\n",
                b"Content-Length: +29\r\n\r\n",
                b"X: a\r\n b\r\nContent-Length : 29\r\n\r\n",
            ):
                status, answer = await exchange(port, head + lines + EVENT)
                assert status == 400, (lines, answer)
        assert (await world.get("/v1/events")).json["data"] == []

    run(test)


def test_a_compressed_body_is_not_json() -> None:
    """It is read as it is, never unpacked."""

    async def test(world: World) -> None:
        async with served(world) as port:
            status, answer = await exchange(port, post(gzip.compress(EVENT), b"Content-Encoding: gzip"))
            assert status == 400
            assert b"malformed_json" in answer

    run(test)


def test_parallel_copies_of_one_request_make_one_event() -> None:
    """64 at once under one Idempotency-Key: all get the first one's answer (S48)."""

    async def test(world: World) -> None:
        await world.endpoint()
        async with served(world) as port:
            request = post(EVENT, b"Idempotency-Key: same")
            answers = await asyncio.gather(*(exchange(port, request) for _ in range(64)))
        assert {status for status, _ in answers} == {202}
        assert len({answer.partition(b"\r\n\r\n")[2] for _, answer in answers}) == 1
        assert len((await world.get("/v1/events")).json["data"]) == 1

    run(test)


def test_a_client_that_goes_away_leaves_nothing_behind() -> None:
    """Half a body is no event, and no failure of the server."""

    async def test(world: World) -> None:
        async with served(world) as port:
            for path in (b"/v1/events", b"/v1/endpoints"):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST " + path + b" HTTP/1.1\r\n" + HEAD + b"Content-Length: 100\r\n\r\n{")
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            assert (await exchange(port, post(EVENT)))[0] == 202
        assert len((await world.get("/v1/events")).json["data"]) == 1
        assert not world.services.counters.notes

    run(test)


def test_names_of_any_script_arrive_whole() -> None:
    """Keys and channels in paths, queries and bodies are UTF-8."""

    async def test(world: World) -> None:
        async with served(world) as port:
            body = json.dumps({"type": "a", "data": 1, "key": "ключ 🔑"}, ensure_ascii=False).encode()
            assert (await exchange(port, post(body)))[0] == 202
            path = "/v1/events?key=%D0%BA%D0%BB%D1%8E%D1%87%20%F0%9F%94%91"
            asked = f"GET {path} HTTP/1.1\r\n".encode() + HEAD + b"Connection: close\r\n\r\n"
            status, answer = await exchange(port, asked)
            assert status == 200
            [event] = json.loads(answer.partition(b"\r\n\r\n")[2])["data"]
            assert event["key"] == "ключ 🔑"

    run(test)
