"""Opening connections: one look-up, every answer judged, only judged addresses dialled, all inside one deadline."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ackpost.core.addresses import AddressPolicy
from ackpost.egress.client import HttpClient
from ackpost.egress.failures import AttemptFailed
from ackpost.egress.limits import Limits
from ackpost.testing.faults import FaultServer
from tests.egress.support import LOOPBACK, FixedResolver, client_on_loopback, pair, post, run, until


@contextmanager
def connects(
    monkeypatch: pytest.MonkeyPatch, instead: Callable[[str], asyncio.Future[None] | None]
) -> Iterator[list[str]]:
    """Watch each address dialled on asyncio's own loop; ``instead`` may raise or give something to await first."""
    dialled: list[str] = []
    real = asyncio.base_events.BaseEventLoop.create_connection

    async def watched(self: object, factory: object, host: str, port: int, **kwargs: object) -> object:
        dialled.append(host)
        waited_for = instead(host)
        if waited_for is not None:
            await waited_for
        return await real(self, factory, host, port, **kwargs)  # type: ignore[call-overload]  # passed on as given

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.base_events.BaseEventLoop, "create_connection", watched)
        yield dialled


def test_a_name_is_looked_up_once_a_connection_and_kept_in_the_host_header() -> None:
    """Two requests on one connection need one look-up; Host stays the name, the judged address is dialled."""

    async def main() -> None:
        resolver = FixedResolver({"hook.example": [["127.0.0.1"]]})
        async with pair("200*2,close:after,200", resolver=resolver) as (client, server):
            url = f"http://hook.example:{server.port}/"
            for _ in range(4):
                outcome = await post(client, url)
                assert (outcome.code, outcome.remote_ip) == ("delivered", "127.0.0.1")
            assert resolver.asked == ["hook.example"] * server.connections
            assert server.requests[0].header("host") == f"hook.example:{server.port}"
        assert resolver.closed

    run(main)


@pytest.mark.parametrize(
    "answer",
    [["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["::ffff:127.0.0.1"], ["64:ff9b::7f00:1"],
     ["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"], ["2606:4700::1111", "fd00::1"], ["0.0.0.0"], ["not-an-ip"]],
)  # fmt: skip
def test_a_name_with_one_refused_answer_is_refused_whole(answer: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order and however good the other answers, no connection is tried."""

    async def main() -> None:
        with connects(monkeypatch, lambda _: None) as dialled:
            client = HttpClient(AddressPolicy(), resolver=FixedResolver({"hook.example": [answer]}))
            outcome = await post(client, "https://hook.example/")
            assert outcome.code == "blocked_target"
            assert "--allow-target" in outcome.detail or "not an IP" in outcome.detail
            assert "hook.example" not in outcome.detail
            assert dialled == []
            await client.close()

    run(main, "asyncio")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "[64:ff9b::7f00:1]"])
def test_literals_are_judged_at_the_dial_too(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A literal that was stored before the policy changed is refused without a packet."""

    async def main() -> None:
        with connects(monkeypatch, lambda _: None) as dialled:
            client = HttpClient(AddressPolicy())
            assert (await post(client, f"http://{host}:9/")).code == "blocked_target"
            assert dialled == []
            await client.close()

    run(main, "asyncio")


def test_rebinding_never_reaches_a_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that answers public first and loopback next is dialled at what was judged, then refused: 0 of 1,000."""

    async def main() -> None:
        answers = [["198.20.0.1"], ["127.0.0.1"]] * 500
        with connects(monkeypatch, _refuse) as dialled:
            resolver = FixedResolver({"hook.example": answers})
            client = HttpClient(AddressPolicy(), resolver=resolver)
            codes = [(await post(client, "http://hook.example/")).code for _ in range(1_000)]
            assert codes == ["connect_refused", "blocked_target"] * 500
            assert dialled == ["198.20.0.1"] * 500
            assert len(resolver.asked) == 1_000
            await client.close()

    run(main, "asyncio")


def _refuse(host: str) -> None:
    raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")


def test_own_ports_are_refused_though_loopback_is_allowed() -> None:
    """The API's own port is no target, whatever ranges are open."""

    async def main() -> None:
        async with FaultServer() as server:
            client = HttpClient(AddressPolicy(LOOPBACK, own_ports=[server.port]))
            outcome = await post(client, server.url())
            assert (outcome.code, server.connections) == ("blocked_target", 0)
            await client.close()

    run(main)


def test_both_loopback_families_are_fine_where_allowed() -> None:
    """localhost with two answers works when the server listens on one of them only."""

    async def main() -> None:
        resolver = FixedResolver({"localhost": [["::1", "127.0.0.1"]]})
        async with pair(resolver=resolver) as (client, server):
            outcome = await post(client, f"http://localhost:{server.port}/")
            assert (outcome.code, outcome.remote_ip) == ("delivered", "127.0.0.1")

    run(main)


def test_a_silent_address_does_not_delay_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address is a black hole: the other family is tried beside it after a moment, and wins."""

    async def main() -> None:
        black_hole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        resolver = FixedResolver({"hook.example": [["::1", "127.0.0.2", "127.0.0.1"]]})
        with connects(monkeypatch, lambda host: black_hole if host == "::1" else None) as dialled:
            async with FaultServer(host="127.0.0.2") as server, client_on_loopback(resolver=resolver) as client:
                outcome = await post(client, f"http://hook.example:{server.port}/")
                assert (outcome.code, outcome.remote_ip) == ("delivered", "127.0.0.2")
                assert 240 <= outcome.phases_ms[1] < 2_000
                assert dialled == ["::1", "127.0.0.2"]

    run(main, "asyncio")


def test_a_connection_that_lost_the_race_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two addresses that connect at the same moment leave one connection."""

    async def main() -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def both(host: str) -> asyncio.Future[None]:
            if host == "127.0.0.1":
                gate.set_result(None)
            return gate

        resolver = FixedResolver({"hook.example": [["127.0.0.2", "127.0.0.1"]]})
        with connects(monkeypatch, both):
            async with (
                FaultServer() as a,
                FaultServer(host="127.0.0.2", port=a.port) as b,
                client_on_loopback(resolver=resolver) as client,
            ):
                assert (await post(client, f"http://hook.example:{a.port}/")).code == "delivered"
                await until(lambda: a.open_connections + b.open_connections == 1)
                assert client.stats().open == 1

    run(main, "asyncio")


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([errno.ECONNREFUSED], "connect_refused"),
        ([errno.ENETUNREACH], "connect_error"),
        ([errno.EHOSTUNREACH], "connect_error"),
        ([errno.EPROTO], "connect_error"),
        ([errno.ETIMEDOUT], "connect_timeout"),
        ([errno.EMFILE], "local_error"),
        ([errno.ENFILE], "local_error"),
        ([errno.EADDRNOTAVAIL], "local_error"),
        ([errno.ENETUNREACH, errno.ECONNREFUSED], "connect_refused"),
        ([errno.ECONNREFUSED, errno.EMFILE], "local_error"),
    ],
)
def test_connect_errors_have_codes(numbers: list[int], code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure of a connect is told apart; what this machine lacks is not the endpoint's fault."""

    async def main() -> None:
        left = iter(numbers)

        def fail(host: str) -> None:
            number = next(left)
            raise OSError(number, "x")

        answer = ["127.0.0.1", "::1"][: len(numbers)]
        with connects(monkeypatch, fail):
            async with client_on_loopback(resolver=FixedResolver({"hook.example": [answer]})) as client:
                outcome = await post(client, "http://hook.example/")
                assert (outcome.code, outcome.phase) == (code, "connect")

    run(main, "asyncio")


@pytest.mark.parametrize(("limit_s", "timeout_s"), [(0.1, 5.0), (5.0, 0.1)])
@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "::1"]])
def test_connecting_has_a_limit(
    limit_s: float, timeout_s: float, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets that are dropped: connect_timeout, by the limit of the phase or by the deadline."""

    async def main() -> None:
        hole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with connects(monkeypatch, lambda _: hole):
            resolver = FixedResolver({"hook.example": [addresses]})
            async with client_on_loopback(resolver=resolver, limits=Limits(connect_s=limit_s)) as client:
                outcome = await post(client, "http://hook.example/", timeout_s=timeout_s)
                assert (outcome.code, outcome.phase) == ("connect_timeout", "connect")
                assert 90 <= outcome.duration_ms < 2_000

    run(main, "asyncio")


def test_dns_is_inside_the_deadline() -> None:
    """A resolver that never answers costs the attempt's time, not more."""

    class Silent(FixedResolver):
        async def resolve(self, host: str) -> list[str]:
            await asyncio.get_running_loop().create_future()
            return []

    async def main() -> None:
        async with client_on_loopback(resolver=Silent({})) as client:
            outcome = await post(client, "http://hook.example/", timeout_s=0.1)
            assert (outcome.code, outcome.phase, outcome.remote_ip) == ("timeout", "dns", None)

    run(main)


def test_a_dns_failure_is_an_outcome_and_the_next_answer_counts() -> None:
    """NXDOMAIN now, an address later: a failed attempt, then a delivered one."""

    async def main() -> None:
        resolver = FixedResolver({"hook.example": [AttemptFailed("dns_error", "no", phase="dns"), ["127.0.0.1"]]})
        async with pair(resolver=resolver) as (client, server):
            url = f"http://hook.example:{server.port}/"
            assert [(await post(client, url)).code for _ in range(2)] == ["dns_error", "delivered"]

    run(main)


def test_an_unexpected_error_is_reported_and_still_ends_the_attempt() -> None:
    """A bug in a resolver reaches the event loop's handler, and the request ends as local_error."""

    class Broken(FixedResolver):
        async def resolve(self, host: str) -> list[str]:
            raise ZeroDivisionError

    async def main() -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        async with client_on_loopback(resolver=Broken({})) as client:
            assert (await post(client, "http://hook.example/")).code == "local_error"
        assert [type(error) for error in reported] == [ZeroDivisionError]

    run(main)


def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment does not change where requests go."""

    async def main() -> None:
        async with pair() as (client, server), FaultServer("500") as proxy:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
                monkeypatch.setenv(name, proxy.url())
            assert (await post(client, server.url())).code == "delivered"
            assert proxy.connections == 0

    run(main)


def test_an_ipv6_target() -> None:
    """A bracketed literal is dialled, with brackets in Host."""

    async def main() -> None:
        async with FaultServer(host="::1") as server, client_on_loopback() as client:
            outcome = await post(client, server.url("/x"))
            assert (outcome.code, outcome.remote_ip) == ("delivered", "::1")
            assert server.requests[0].header("host") == f"[::1]:{server.port}"

    assert socket.has_ipv6
    run(main)


def test_nothing_is_written_on_a_connection_that_opened_too_late() -> None:
    """A process may have stood still while a connection was opened, and own nothing any more: not a byte is sent."""

    async def main() -> None:
        allowed = True
        async with pair(may_write=lambda: allowed) as (client, server):
            sending = post(client, server.url())
            allowed = False
            outcome = await sending
            assert (outcome.code, outcome.detail) == ("local_error", "this server may not send any more")
            assert not server.requests

    run(main)


def test_nothing_is_written_on_a_connection_that_became_free_too_late() -> None:
    """The same for a request that waited for somebody else's connection."""

    async def main() -> None:
        allowed = True
        limits = Limits(connections_per_host_max=1)
        async with pair("200:delay=0.1", limits=limits, may_write=lambda: allowed) as (client, server):
            first, second = post(client, server.url("/first")), post(client, server.url("/second"))
            await server.seen(1)
            allowed = False
            assert (await first).code == "delivered"
            assert (await second).code == "local_error"
            assert [request.path for request in server.requests] == ["/first"]

    run(main)
