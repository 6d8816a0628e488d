"""TLS: verified always, at least 1.2; each way it can fail is told apart."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from ackpost.core.addresses import AddressPolicy
from ackpost.egress.client import HttpClient
from ackpost.egress.limits import Limits
from ackpost.testing.faults import FaultServer
from tests.egress.certificates import Authority, self_signed_context
from tests.egress.support import LOOPBACK, LOOPS, FixedResolver, client_on_loopback, post, run, until

_AUTHORITY = Authority("Test authority")
_RESOLVER = {"hook.example": [["127.0.0.1"]]}


@asynccontextmanager
async def tls_pair(
    server_context: ssl.SSLContext | None, script: str = "200", **settings: object
) -> AsyncIterator[tuple[HttpClient, str, FaultServer]]:
    """A client that trusts the authority, and the URL of a server with this context."""
    async with (
        FaultServer(script, ssl_context=server_context) as server,
        client_on_loopback(
            resolver=FixedResolver(dict(_RESOLVER)), ssl_context=_AUTHORITY.trusting_context(), **settings
        ) as client,
    ):
        yield client, f"https://hook.example:{server.port}/", server


@pytest.mark.parametrize("loop", LOOPS)
def test_a_trusted_certificate_for_the_name(loop: str) -> None:
    """The name is sent (SNI) and checked although the vetted address is dialled; the connection is used again."""

    async def main() -> None:
        context = _AUTHORITY.server_context("hook.example")
        names: list[str | None] = []
        context.sni_callback = lambda _sock, name, _context: names.append(name)
        async with tls_pair(context) as (client, url, server):
            for _ in range(3):
                outcome = await post(client, url, b"x" * 100_000)
                assert (outcome.code, outcome.remote_ip) == ("delivered", "127.0.0.1")
            assert names == ["hook.example"]
            assert server.connections == 1
            assert [request.body for request in server.requests] == [b"x" * 100_000] * 3

    run(main, loop)


def test_a_trusted_certificate_for_an_address() -> None:
    """A literal target is checked against the addresses in the certificate."""

    async def main() -> None:
        async with tls_pair(_AUTHORITY.server_context("127.0.0.1")) as (client, _, server):
            assert (await post(client, f"https://127.0.0.1:{server.port}/")).code == "delivered"
        async with tls_pair(_AUTHORITY.server_context("127.0.0.2")) as (client, _, server):
            outcome = await post(client, f"https://127.0.0.1:{server.port}/")
            assert (outcome.code, outcome.detail) == ("tls_error", "the certificate is for another IP address")

    run(main)


_BAD_CERTIFICATES = {
    "self-signed": lambda: self_signed_context("hook.example"),
    "expired": lambda: _AUTHORITY.server_context("hook.example", years=(2020, 2021)),
    "not valid yet": lambda: _AUTHORITY.server_context("hook.example", years=(2100, 2101)),
    "another host": lambda: _AUTHORITY.server_context("other.example"),
    "intermediate": lambda: Authority("Intermediate", _AUTHORITY).server_context("hook.example"),
    "not trusted": lambda: Authority("Stranger").server_context("hook.example", send_own=True),
}


@pytest.mark.parametrize("reason", _BAD_CERTIFICATES)
@pytest.mark.parametrize("loop", LOOPS)
def test_each_bad_certificate_has_its_own_reason(loop: str, reason: str) -> None:
    """Self-signed, expired, wrong name, missing intermediate, unknown authority: refused, and told apart."""

    async def main() -> None:
        async with tls_pair(_BAD_CERTIFICATES[reason]()) as (client, url, server):
            outcome = await post(client, url)
            assert (outcome.code, outcome.phase) == ("tls_error", "tls")
            assert reason in outcome.detail
            assert "hook.example" not in outcome.detail
            assert len(server.requests) == 0

    run(main, loop)


def _old_tls_only() -> ssl.SSLContext:
    context = _AUTHORITY.server_context("hook.example")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def _wants_client_certificate() -> ssl.SSLContext:
    context = _AUTHORITY.server_context("hook.example")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _shake_hands(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Accept once and shake hands; what fails is told to the other side by an alert, as real servers do."""
    connection, _ = listener.accept()
    connection.settimeout(5)
    with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as secured:
        with suppress(ssl.SSLError):
            secured.do_handshake()
        # A close with bytes unread would be a reset, which may overtake the alert: read what came, below TLS.
        with suppress(ConnectionResetError):
            socket.socket.shutdown(secured, socket.SHUT_WR)
            while socket.socket.recv(secured, 65_536):
                pass


@pytest.mark.parametrize(
    ("make_context", "reason"), [(_old_tls_only, "version"), (_wants_client_certificate, "certificate required")]
)
@pytest.mark.parametrize("loop", LOOPS)
def test_an_alert_is_told(loop: str, make_context: Callable[[], ssl.SSLContext], reason: str) -> None:
    """Only old TLS, or a client certificate wanted: the other side's alert is the reason."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(5)
            server = asyncio.create_task(asyncio.to_thread(_shake_hands, listener, make_context()))
            resolver = FixedResolver(dict(_RESOLVER))
            async with client_on_loopback(resolver=resolver, ssl_context=_AUTHORITY.trusting_context()) as client:
                outcome = await post(client, f"https://hook.example:{listener.getsockname()[1]}/")
                assert outcome.code == "tls_error"
                assert reason in outcome.detail
            await server
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main, loop)


def test_the_system_trusts_no_test_authority() -> None:
    """Without an own context the system's authorities decide, and TLS 1.2 is the floor."""

    async def main() -> None:
        async with FaultServer(ssl_context=_AUTHORITY.server_context("127.0.0.1")) as server:
            client = HttpClient(AddressPolicy(LOOPBACK))
            assert client._dialer._context.minimum_version == ssl.TLSVersion.TLSv1_2
            assert client._dialer._context.verify_mode == ssl.CERT_REQUIRED
            assert client._dialer._context.check_hostname
            assert (await post(client, server.url())).code == "tls_error"
            await client.close()

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_no_tls_on_the_other_side(loop: str) -> None:
    """A server that speaks in plain text, or a reset during the handshake: tls_error, in phase tls."""

    async def main() -> None:
        for script in ("garbage:before", "reset:before", "close:before"):
            async with tls_pair(None, script) as (client, url, _):
                outcome = await post(client, url)
                assert (outcome.code, outcome.phase) == ("tls_error", "tls"), script

    run(main, loop)


@pytest.mark.parametrize(
    ("limit_s", "timeout_s", "code"), [(0.1, 5.0, "tls_error"), (5.0, 0.15, "timeout")], ids=["limit", "deadline"]
)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_stalled_handshake_ends(loop: str, limit_s: float, timeout_s: float, code: str) -> None:
    """A server that accepts and says nothing holds the attempt no longer than the limit or the deadline."""

    async def main() -> None:
        async with tls_pair(None, "hang:before", limits=Limits(tls_s=limit_s)) as (client, url, _):
            outcome = await post(client, url, timeout_s=timeout_s)
            assert (outcome.code, outcome.phase) == (code, "tls")
            assert 90 <= outcome.duration_ms < 2_000

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_faults_behind_tls(loop: str) -> None:
    """The rules of the answer hold over TLS too: reset, hang, missing end, unframed body, caps."""

    async def main() -> None:
        context = _AUTHORITY.server_context("hook.example")
        expected = {
            "reset": "reset", "close": "reset", "hang": "timeout", "hang:body": "delivered", "reset:body": "delivered",
            "unframed": "delivered", "old": "delivered", "garbage": "bad_response", "endless": "delivered",
            "headers:300": "response_too_large", "short": "delivered", "410": "status",
        }  # fmt: skip
        for script, code in expected.items():
            async with tls_pair(context, script) as (client, url, _):
                outcome = await post(client, url, timeout_s=0.6 if "hang" in script else 5)
                assert outcome.code == code, script
                if script in ("unframed", "old"):
                    assert (outcome.response_body, outcome.truncated) == (b'{"ok":true}', False)

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_closing_and_aborting_over_tls(loop: str) -> None:
    """Idle, busy and half-open TLS connections leave nothing behind when the client closes."""

    async def main() -> None:
        context = _AUTHORITY.server_context("hook.example")
        async with tls_pair(context, "200,hang") as (client, url, server):
            assert (await post(client, url)).code == "delivered"
            waiting = asyncio.ensure_future(post(client, url))
            also = asyncio.ensure_future(post(client, url))
            await server.seen(3)
            await client.close()
            await until(lambda: server.open_connections == 0)
            waiting.cancel()
            also.cancel()

    run(main, loop)
