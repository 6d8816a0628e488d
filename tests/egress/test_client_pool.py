"""The pool: connections are used again, bounded, replaced when stale, and never leaked."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ackpost.core.outcome import Outcome
from ackpost.core.target import parse_target
from ackpost.egress.client import HttpClient, _Host
from ackpost.egress.connection import Connection
from ackpost.egress.failures import AttemptFailed
from ackpost.egress.limits import Limits
from ackpost.egress.request import Request
from ackpost.testing.faults import FaultServer
from ackpost.testing.script import Step
from tests.egress.support import HEADERS, LOOPS, client_on_loopback, pair, post, run, until


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_are_used_again(loop: str) -> None:
    """One after the other needs one connection; the one used last is taken first."""

    async def main() -> None:
        async with pair() as (client, server):
            for _ in range(5):
                await post(client, server.url())
            assert server.connections == 1
            await asyncio.gather(post(client, server.url()), post(client, server.url()))
            assert client.stats().idle == 2
            for _ in range(4):
                await post(client, server.url())
            assert len({request.connection for request in list(server.requests)[-4:]}) == 1

    run(main, loop)


def test_the_bound_per_host_queues_in_order_and_starts_clocks_late() -> None:
    """More requests than connections wait in turn; their time starts when they are sent, not when they are queued."""

    async def main() -> None:
        async with pair("200:delay=0.2", limits=Limits(connections_per_host_max=1)) as (client, server):
            waiting = [post(client, server.url(f"/{number}"), timeout_s=0.7) for number in range(5)]
            assert (client.stats().in_flight, client.stats().queued) == (1, 4)
            outcomes = await asyncio.gather(*waiting)
            assert [outcome.code for outcome in outcomes] == ["delivered"] * 5
            assert [request.path for request in server.requests] == [f"/{number}" for number in range(5)]
            assert server.connections == 1
            assert client.stats().queued == 0

    run(main)


def test_the_bound_in_all_makes_room_by_closing_what_is_idle() -> None:
    """At the bound an idle connection of another host gives way, the one idle longest first."""

    async def main() -> None:
        limits = Limits(connections_max=2)
        async with (
            FaultServer() as a,
            FaultServer() as b,
            FaultServer() as c,
            client_on_loopback(limits=limits) as client,
        ):
            await post(client, a.url())
            await post(client, b.url())
            assert (await post(client, c.url())).code == "delivered"
            assert client.stats().open == 2
            await until(lambda: a.open_connections == 0)
            assert b.open_connections == 1

    run(main)


def test_the_bound_in_all_is_shared_by_hosts_that_wait() -> None:
    """When all connections are busy another host's request waits, and gets the next one that is free."""

    async def main() -> None:
        limits = Limits(connections_max=1)
        async with FaultServer("200:delay=0.05") as a, FaultServer() as b, client_on_loopback(limits=limits) as client:
            first, second = post(client, a.url()), post(client, b.url())
            assert (client.stats().open, client.stats().queued) == (1, 1)
            assert [(await one).code for one in (first, second)] == ["delivered"] * 2
            third, fourth = post(client, b.url()), post(client, a.url())
            assert [(await one).code for one in (third, fourth)] == ["delivered"] * 2
            assert client.stats().open == 1

    run(main)


def test_a_failed_connection_lets_the_next_request_try() -> None:
    """A connect that fails frees its place for what waits."""

    async def main() -> None:
        async with FaultServer() as server, client_on_loopback(limits=Limits(connections_max=1)) as client:
            url = server.url()
            async with FaultServer() as gone:
                closed_url = gone.url()
            outcomes = await asyncio.gather(*(post(client, closed_url) for _ in range(3)), post(client, url))
            assert [outcome.code for outcome in outcomes] == ["connect_refused"] * 3 + ["delivered"]

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("script", ["close:after", "200,close:before,200", "200,reset:before,200"])
def test_a_connection_closed_while_idle_is_replaced(loop: str, script: str) -> None:
    """What the server closed between two requests is not used: no attempt is lost by it."""

    async def main() -> None:
        async with pair(script) as (client, server):
            assert (await post(client, server.url())).code == "delivered"
            await until(lambda: client.stats().open == 0)
            assert (await post(client, server.url())).code == "delivered"
            assert server.connections == 2

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("script", ["200,reset,200", "200,close,200", "200,reset:header,200", "200,garbage,200"])
def test_what_was_written_is_never_written_again(loop: str, script: str) -> None:
    """A used connection that is lost behind a request is a failed attempt: the policy decides on the next."""

    async def main() -> None:
        async with pair(script) as (client, server):
            codes = [(await post(client, server.url())).code for _ in range(2)]
            assert (codes[0], codes[1] == "delivered") == ("delivered", False)
            assert (len(server.requests), server.connections) == (2, 1)

    run(main, loop)


def _answer_and_close(listener: socket.socket, count: int) -> None:
    """Answer ``count`` connections once each, the answer and the end of stream in one packet."""
    for _ in range(count):
        connection, _ = listener.accept()
        with connection:
            while not connection.recv(65_536).endswith(b"{}"):
                pass
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
            connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", getattr(socket, "MSG_MORE", 0))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_that_closes_behind_its_answer_is_replaced_at_once(loop: str) -> None:
    """The end of stream is noticed even if the event loop has had no time to tell: no request goes into the void."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(5)
            server = asyncio.create_task(asyncio.to_thread(_answer_and_close, listener, 30))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            async with client_on_loopback(limits=Limits(connections_per_host_max=1)) as client:
                for _ in range(10):
                    outcomes = await asyncio.gather(*(post(client, url, b"{}") for _ in range(3)))
                    assert [outcome.code for outcome in outcomes] == ["delivered"] * 3
            await server
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main, loop)


def test_a_connection_that_speaks_while_idle_is_dropped() -> None:
    """Bytes between two requests spoil a connection."""

    async def main() -> None:
        async with pair("200,garbage:before,200") as (client, server):
            await post(client, server.url())
            await until(lambda: client.stats().open == 0)
            assert (await post(client, server.url())).response_body == b'{"ok":true}'

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_idle_connections_are_closed_after_their_limit(loop: str) -> None:
    """An idle connection goes after the limit, though its timer was set by a request."""

    async def main() -> None:
        async with pair(limits=Limits(idle_s=0.05)) as (client, server):
            await post(client, server.url(), timeout_s=0.02)
            await until(lambda: server.open_connections == 0)
            await until(lambda: client.stats().open == 0)
            await post(client, server.url(), timeout_s=0.02)
            assert server.connections == 2

    run(main, loop)


def test_a_connection_past_its_idle_limit_is_not_used() -> None:
    """Even before its timer fires, a connection that was idle too long is replaced."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with pair(limits=Limits(idle_s=0.03)) as (client, server):
            await post(client, server.url(), timeout_s=30)
            end = loop.time() + 0.035
            await until(lambda: loop.time() > end)
            assert client.stats().idle == 1
            await post(client, server.url(), timeout_s=30)
            assert server.connections == 2

    run(main)


def test_a_shorter_deadline_on_a_used_connection_holds() -> None:
    """The timer of an earlier, more patient request does not delay the next one's deadline."""

    async def main() -> None:
        async with pair("200,hang") as (client, server):
            await post(client, server.url(), timeout_s=30)
            outcome = await post(client, server.url(), timeout_s=0.1)
            assert (outcome.code, server.connections) == ("timeout", 1)
            assert 90 <= outcome.duration_ms < 2_000

    run(main)


def test_a_longer_deadline_on_a_used_connection_holds() -> None:
    """The timer of an earlier, less patient request does not cut the next one short."""

    async def main() -> None:
        async with pair("200,200:delay=0.15") as (client, server):
            await post(client, server.url(), timeout_s=0.1)
            assert (await post(client, server.url(), timeout_s=5)).code == "delivered"
            assert server.connections == 1

    run(main)


def test_the_servers_keep_alive_limit_is_heeded() -> None:
    """A server that says how long it keeps a connection is not raced at the end of that time."""

    async def main() -> None:
        for value, connections in [
            ("timeout=1, max=5", 2),
            ("timeout=60", 1),
            ("nonsense, timeout=x", 1),
            ("max=3", 1),
        ]:
            async with pair((Step(headers=(("Keep-Alive", value),)),)) as (client, server):
                await post(client, server.url())
                await post(client, server.url())
                assert server.connections == connections, value

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_abort_closes_the_socket_and_reports_nothing(loop: str) -> None:
    """Under way, being dialled or queued: an aborted request never calls back and holds nothing."""

    async def main() -> None:
        outcomes: list[Outcome] = []
        async with pair("hang", limits=Limits(connections_per_host_max=1)) as (client, server):
            target = parse_target(server.url(), allow_http=True)
            sent = client.send(target, HEADERS, b"{}", 5.0, outcomes.append)
            queued = client.send(target, HEADERS, b"{}", 5.0, outcomes.append)
            await server.seen(1)
            queued.abort()
            sent.abort()
            sent.abort()
            await until(lambda: server.open_connections == 0 and client.stats().open == 0)
            assert server.connections == 1
            dialled = client.send(target, HEADERS, b"{}", 5.0, outcomes.append)
            dialled.abort()
            await until(lambda: client.stats().open == 0)
            late = client.send(target, HEADERS, b"{}", 5.0, outcomes.append)
            await server.seen(2)
            late.abort()
            await until(lambda: client.stats().open == 0)
            assert client.stats().queued == 0
        assert outcomes == []

    run(main, loop)


@pytest.mark.parametrize("how", ["abort", "close"])
@pytest.mark.parametrize("loop", LOOPS)
def test_giving_up_in_the_moment_a_connection_stands(loop: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort, or the client's end, between the connect and the first byte: nothing is sent, nothing is left open."""

    async def main() -> None:
        outcomes: list[Outcome] = []
        async with pair() as (client, server):
            connect = client._connect
            ends: list[asyncio.Task[None]] = []

            async def connect_and_give_up(host: _Host, request: Request) -> Connection | AttemptFailed:
                result = await connect(host, request)
                if how == "abort":
                    asyncio.get_running_loop().call_soon(request.abort)
                else:
                    ends.append(asyncio.create_task(client.close()))
                return result

            monkeypatch.setattr(client, "_connect", connect_and_give_up)
            client.send(parse_target(server.url(), allow_http=True), HEADERS, b"{}", 5.0, outcomes.append)
            await until(lambda: server.connections == 1 and client.stats().open == 0)
            await until(lambda: server.open_connections == 0)
            await asyncio.gather(*ends)
            assert server.received == 0
        assert outcomes == []

    run(main, loop)


def test_an_abort_after_the_end_changes_nothing() -> None:
    """A connection that went on to another request is not closed by the handle of an older one."""

    async def main() -> None:
        async with pair() as (client, server):
            done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            old = client.send(parse_target(server.url(), allow_http=True), HEADERS, b"{}", 5.0, done.set_result)
            await done
            other = post(client, server.url())
            old.abort()
            assert (await other).code == "delivered"
            assert server.connections == 1

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_close_ends_everything_in_silence(loop: str) -> None:
    """Idle, sending, dialling and queued requests: all sockets are closed, nobody is called back."""

    async def main() -> None:
        outcomes: list[Outcome] = []
        async with (
            FaultServer({"/": "200", "/hang": "hang"}) as server,
            client_on_loopback(limits=Limits(connections_per_host_max=3)) as client,
        ):
            await asyncio.gather(post(client, server.url()), post(client, server.url()))
            target = parse_target(server.url("/hang"), allow_http=True)
            for _ in range(2):
                client.send(target, HEADERS, b"{}", 5.0, outcomes.append)
            await server.seen(4)
            for _ in range(3):
                client.send(target, HEADERS, b"{}", 5.0, outcomes.append)
            await client.close()
            assert client.stats().open == 0
            await until(lambda: server.open_connections == 0)
            client.send(target, HEADERS, b"{}", 5.0, outcomes.append).abort()
            assert (await post(client, server.url())).code == "local_error"
        assert outcomes == []

    run(main, loop)


def test_the_callback_may_send_at_once() -> None:
    """The next request from within the callback takes the very connection that was just freed."""

    async def main() -> None:
        async with pair() as (client, server):
            target = parse_target(server.url(), allow_http=True)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            seen: list[str] = []

            def again(outcome: Outcome) -> None:
                seen.append(outcome.code)
                if len(seen) < 20:
                    client.send(target, HEADERS, b"{}", 5.0, again)
                else:
                    done.set_result(None)

            client.send(target, HEADERS, b"{}", 5.0, again)
            await done
            assert seen == ["delivered"] * 20
            assert server.connections == 1

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_left_of_many_mixed_requests(loop: str) -> None:
    """Hundreds of answers, resets, hangs and refusals: one outcome each, and every connection accounted for."""

    async def main() -> None:
        script = "200*3,500,reset,200,close,hang,garbage,204,headers:300,close:after"
        limits = Limits(connections_per_host_max=7, connections_max=12)
        async with FaultServer(",".join([script] * 30)) as server, client_on_loopback(limits=limits) as client:
            outcomes = await asyncio.gather(*(post(client, server.url(), timeout_s=0.1) for _ in range(330)))
            assert len(outcomes) == 330
            stats = client.stats()
            assert stats.open - stats.idle == stats.in_flight
            await until(lambda: client.stats().in_flight == 0)
            _assert_accounts(client)

    run(main, loop)


def _assert_accounts(client: HttpClient) -> None:
    hosts = client._hosts.values()
    assert client.stats().open == len(client._connections) == sum(host.open for host in hosts)
    assert client.stats().idle == sum(len(host.idle) for host in hosts)
    assert not client._dials
    assert not client._starved


def test_hosts_that_are_done_with_are_forgotten() -> None:
    """A host without connections and requests leaves nothing behind."""

    async def main() -> None:
        async with pair("close:after") as (client, server):
            await post(client, server.url())
            await until(lambda: client.stats().open == 0)
            assert client._hosts == {}

    run(main)
