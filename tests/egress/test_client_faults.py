"""Servers that misbehave: each fault ends in one outcome with its own code, in bounded time and memory."""

from __future__ import annotations

import asyncio
import socket
import threading
import tracemalloc

import pytest

from ackpost.core.outcome import Outcome
from ackpost.testing.script import Step
from tests.egress.support import LOOPS, client_on_loopback, one, pair, post, run

_BIG_BODY = b"x" * 8_000_000


@pytest.mark.parametrize(
    ("script", "code", "phase"),
    [
        ("reset", "reset", "wait"),
        ("close", "reset", "wait"),
        ("reset:header", "reset", "read"),
        ("close:header", "reset", "read"),
        ("garbage", "bad_response", "read"),
        ("twolengths", "bad_response", "read"),
        ("headers:1000", "response_too_large", "read"),
        ("headers:200000", "response_too_large", "read"),
        ("header-bytes:17000", "response_too_large", "read"),
        ("header-bytes:5000000", "response_too_large", "read"),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_no_answer_has_a_code_and_a_phase(loop: str, script: str, code: str, phase: str) -> None:
    """What is no complete answer says what it was instead; no part of it is taken for an answer."""

    async def main() -> None:
        outcome = await one(script)
        assert (outcome.code, outcome.phase, outcome.status_code) == (code, phase, None)
        assert outcome.detail
        assert "hook" not in outcome.detail

    run(main, loop)


@pytest.mark.parametrize(
    ("script", "kept", "truncated"),
    [
        ("reset:body", b"", True),
        ("close:body", b"", True),
        ("short", b'{"ok":true}', True),
        ("garbage:body", b"", True),
        ("long", b'{"ok":true}', False),
        ("close:after", b'{"ok":true}', False),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_complete_header_decides_whatever_follows(loop: str, script: str, kept: bytes, truncated: bool) -> None:
    """2xx then reset, wrong lengths, broken bodies: delivered, and the body is said to be cut."""

    async def main() -> None:
        outcome = await one(script)
        assert (outcome.code, outcome.status_code) == ("delivered", 200)
        assert (outcome.response_body, outcome.truncated) == (kept, truncated)
        assert bool(outcome.detail) is truncated

    run(main, loop)


@pytest.mark.parametrize("where", ["body", "header"])
@pytest.mark.parametrize("loop", LOOPS)
def test_one_deadline_covers_header_and_body(loop: str, where: str) -> None:
    """A dripping body does not undo a 2xx, a dripping header never becomes one; both end at the deadline."""

    async def main() -> None:
        script = "drip:every=0.15" if where == "body" else "drip:header:every=0.15"
        outcome = await one(script, timeout_s=0.4)
        assert 390 <= outcome.duration_ms < 3_000
        if where == "body":
            assert (outcome.code, outcome.truncated) == ("delivered", True)
            assert len(outcome.response_body) < 11
        else:
            assert (outcome.code, outcome.phase) == ("timeout", "read")

    run(main, loop)


@pytest.mark.parametrize(
    ("script", "body", "code", "phase"),
    [
        ("hang", b"{}", "timeout", "wait"),
        ("hang:header", b"{}", "timeout", "read"),
        ("hang:body", b"{}", "delivered", None),
        ("hang:before", _BIG_BODY, "timeout", "send"),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_timeout_says_its_phase_and_closes(loop: str, script: str, body: bytes, code: str, phase: str | None) -> None:
    """At the deadline the slot is free, the connection closed, and the outcome says what was waited for."""

    async def main() -> None:
        async with pair(script) as (client, server):
            outcome = await post(client, server.url(), body, timeout_s=0.4)
            assert (outcome.code, outcome.phase) == (code, phase)
            assert 390 <= outcome.duration_ms < 3_000
            assert client.stats().idle == 0

    run(main, loop)


@pytest.mark.parametrize("status", [410, 500])
def test_another_status_stands_too_when_its_body_breaks_off(status: int) -> None:
    """The status of a complete header is known for failures as well: 410 is gone even if its body hangs."""

    async def main() -> None:
        for script in (f"{status}:delay=0", "hang:body", "reset:body"):
            step = Step(kind=script.partition(":")[0], where="body", status=status)
            outcome = await one((step,) if "body" in script else script, timeout_s=0.5)
            assert (outcome.code, outcome.status_code) == ("status", status)

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_early_answer_is_seen_before_the_body_is_sent(loop: str) -> None:
    """413 sent before the request's body is read, then silence: the status is recorded, nothing used again."""

    async def main() -> None:
        async def reject(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport reads too
            await gone.wait()
            writer.transport.abort()

        gone = asyncio.Event()
        server = await asyncio.start_server(reject, "127.0.0.1", 0)
        async with client_on_loopback() as client:
            port = server.sockets[0].getsockname()[1]
            outcome = await post(client, f"http://127.0.0.1:{port}/", _BIG_BODY)
            assert (outcome.code, outcome.status_code) == ("status", 413)
            assert client.stats().idle == 0
            gone.set()
        server.close()

    run(main, loop)


def test_a_small_request_survives_an_early_answer_and_reset() -> None:
    """The status of an early answer counts although a reset follows at once."""

    async def main() -> None:
        outcome = await one("early:413", body=b"")
        assert (outcome.code, outcome.status_code) == ("status", 413)

    run(main)


def test_a_server_that_speaks_first_is_no_http_server() -> None:
    """A banner before the request is never taken for an answer."""

    async def main() -> None:
        outcome = await one("garbage:before")
        assert outcome.code == "bad_response"

    run(main)


@pytest.mark.parametrize("script", ["reset:before", "close:before"])
def test_a_connection_lost_at_once_is_a_reset(script: str) -> None:
    """Whether the request was under way or not: the attempt failed, and is not repeated by the client."""

    async def main() -> None:
        async with pair(f"{script},200") as (client, server):
            outcome = await post(client, server.url())
            assert outcome.code == "reset"
            assert server.requests == []
            assert (await post(client, server.url())).code == "delivered"

    run(main)


@pytest.mark.parametrize("script", ["endless", "endless:length", "endless:trailer", "gzip"])
def test_endless_answers_and_bombs_cost_no_memory(script: str) -> None:
    """20 at once: read to the cap, never unpacked, connection closed, memory flat."""

    async def main() -> None:
        async with pair(script) as (client, server):
            first = await post(client, server.url(), timeout_s=30)
            tracemalloc.start()
            outcomes: list[Outcome] = await asyncio.gather(
                *(post(client, server.url(), timeout_s=30) for _ in range(20))
            )
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert {outcome.code for outcome in outcomes} == {first.code}
            assert first.code == "delivered"
            assert all(len(outcome.response_body) <= 16_384 for outcome in outcomes)
            assert peak_bytes < 30 * 1024 * 1024

    run(main)


def test_a_refused_connection() -> None:
    """Nobody listens: said as such, with the address."""

    async def main() -> None:
        async with pair() as (client, server):
            url = server.url()
            await server.stop()
            outcome = await post(client, url)
            assert (outcome.code, outcome.phase, outcome.remote_ip) == ("connect_refused", "connect", "127.0.0.1")

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("answer", "code"), [(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "delivered"), (b"", "timeout")]
)
def test_an_answer_that_came_while_the_process_stood_still_counts(loop: str, answer: bytes, code: str) -> None:
    """A process that was stopped past a deadline reads what came in time before it says that nothing came."""

    async def main() -> None:
        async with client_on_loopback() as client:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                attempt = post(client, f"http://127.0.0.1:{listener.getsockname()[1]}/hook", timeout_s=0.3)
                listener.setblocking(False)
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                with connection:
                    await asyncio.get_running_loop().sock_recv(connection, 10_000)
                    connection.setblocking(True)
                    connection.sendall(answer)
                    threading.Event().wait(0.5)  # nothing of this process runs meanwhile
                    assert (await attempt).code == code

    run(main, loop)
