"""What the client makes of an answer, and what its request looks like on the wire."""

from __future__ import annotations

import asyncio

import pytest

from ackpost.testing.script import Step
from tests.egress.support import HEADERS, LOOPS, one, pair, post, run


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_as_it_goes_over_the_wire(loop: str) -> None:
    """Method, path, Host, headers in order, Content-Length and body: framed, uncompressed, nothing else added."""

    async def main() -> None:
        async with pair() as (client, server):
            outcome = await post(client, server.url("/a%20b?c=d&e"), b'{"n":1}')
            [request] = await server.seen(1)
            assert (request.method, request.path, request.version) == ("POST", "/a%20b?c=d&e", "HTTP/1.1")
            assert request.headers == (
                ("Host", f"127.0.0.1:{server.port}"),
                ("content-type", "application/json"),
                ("webhook-id", "evt_1"),
                ("accept-encoding", "identity"),
                ("content-length", "7"),
            )
            assert request.body == b'{"n":1}'
            assert (outcome.code, outcome.status_code, outcome.response_body) == ("delivered", 200, b'{"ok":true}')
            assert outcome.remote_ip == "127.0.0.1"
            assert outcome.response_headers == (("content-type", "application/json"), ("content-length", "11"))
            assert (outcome.phase, outcome.detail, outcome.truncated) == (None, "", False)

    run(main, loop)


@pytest.mark.parametrize("size", [0, 1, 70_000, 1_048_576, 5_000_000])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_body_of_any_size_has_its_length(loop: str, size: int) -> None:
    """Empty and large bodies are sent with Content-Length, never chunked, byte for byte."""

    async def main() -> None:
        body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
        async with pair() as (client, server):
            assert (await post(client, server.url(), body)).code == "delivered"
            [request] = server.requests
            assert request.body == body
            assert request.header("content-length") == str(size)
            assert request.header("transfer-encoding") is None

    run(main, loop)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 226, 299])
def test_any_2xx_is_delivered(status: int) -> None:
    """A complete answer with any 2xx is success, with a body or without, and the connection is used again."""

    async def main() -> None:
        async with pair(str(status)) as (client, server):
            for _ in range(2):
                outcome = await post(client, server.url())
                assert (outcome.code, outcome.status_code) == ("delivered", status)
            assert server.connections == 1

    run(main)


@pytest.mark.parametrize(
    ("status", "code"),
    [(301, "redirect"), (302, "redirect"), (303, "redirect"), (304, "redirect"), (307, "redirect"), (308, "redirect"),
     (400, "status"), (404, "status"), (410, "status"), (413, "status"), (429, "status"), (500, "status"),
     (503, "status"), (999, "status")],
)  # fmt: skip
def test_other_statuses_are_failures_with_their_status(status: int, code: str) -> None:
    """3xx is a redirect that is not followed, the rest is status; in both cases no second request is made."""

    async def main() -> None:
        async with pair(str(status)) as (client, server):
            outcome = await post(client, server.url())
            assert (outcome.code, outcome.status_code) == (code, status)
            assert len(server.requests) == 1
            if code == "redirect" and status != 304:
                assert ("location", "/elsewhere") in outcome.response_headers

    run(main)


@pytest.mark.parametrize(
    ("status", "values", "raw"),
    [
        (429, ["2"], "2"),
        (503, ["Wed, 21 Oct 2015 07:28:00 GMT"], "Wed, 21 Oct 2015 07:28:00 GMT"),
        (503, ["-5"], "-5"),
        (429, [], None),
        (429, ["1", "2"], None),
        (200, ["2"], None),
        (500, ["2"], None),
    ],
)
def test_retry_after_is_handed_on_raw(status: int, values: list[str], raw: str | None) -> None:
    """Only 429 and 503 carry it, only when it came exactly once; what it means is decided elsewhere."""

    async def main() -> None:
        step = Step(status=status, headers=tuple(("Retry-After", value) for value in values))
        assert (await one((step,))).retry_after == raw

    run(main)


@pytest.mark.parametrize("count", [1, 16])
def test_interim_answers_are_skipped(count: int) -> None:
    """1xx answers before the final one do not count, and the connection stays usable."""

    async def main() -> None:
        async with pair(f"interim:{count}") as (client, server):
            for _ in range(2):
                outcome = await post(client, server.url())
                assert (outcome.code, outcome.status_code) == ("delivered", 200)
                assert [name for name, _ in outcome.response_headers] == ["content-type", "content-length"]
            assert server.connections == 1

    run(main)


@pytest.mark.parametrize("script", ["interim:17", "interim"])
def test_interim_answers_without_end_are_refused(script: str) -> None:
    """A server that only ever sends 1xx does not hold the attempt until its deadline."""

    async def main() -> None:
        outcome = await one(script, timeout_s=20)
        assert outcome.code == "bad_response"
        assert outcome.duration_ms < 10_000

    run(main)


@pytest.mark.parametrize("script", ["old", "unframed"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_body_may_end_with_the_connection(loop: str, script: str) -> None:
    """HTTP/1.0 and answers without framing are complete when the connection closes, and nothing is used again."""

    async def main() -> None:
        async with pair(script) as (client, server):
            for number in (1, 2):
                outcome = await post(client, server.url())
                assert (outcome.code, outcome.response_body, outcome.truncated) == ("delivered", b'{"ok":true}', False)
                assert server.connections == number
            assert client.stats().idle == 0

    run(main, loop)


def test_connection_close_is_respected() -> None:
    """After an answer with Connection: close the next request takes a new connection."""

    async def main() -> None:
        async with pair((Step(headers=(("connection", "close"),)),)) as (client, server):
            for number in (1, 2):
                assert (await post(client, server.url())).code == "delivered"
                assert server.connections == number

    run(main)


def test_bytes_behind_an_answer_end_the_connection() -> None:
    """What nobody asked for is never taken for the next request's answer."""

    async def main() -> None:
        async with pair("long,200:body=second") as (client, server):
            first, second = await post(client, server.url()), await post(client, server.url())
            assert (first.code, first.response_body) == ("delivered", b'{"ok":true}')
            assert second.response_body == b"second"
            assert server.connections == 2

    run(main)


def test_long_bodies_are_cut_for_keeping_and_for_reading() -> None:
    """16 KiB are kept and said to be cut; an answer above 64 KiB ends its connection, one below does not."""

    async def main() -> None:
        for size, kept, connections in [
            (16_384, 16_384, 1),
            (16_385, 16_384, 1),
            (60_000, 16_384, 1),
            (66_000, 16_384, 2),
        ]:
            body = b"ab" * (size // 2) + b"c" * (size % 2)
            async with pair((Step(body=body),)) as (client, server):
                for _ in range(2):
                    outcome = await post(client, server.url())
                    assert (outcome.code, outcome.response_body) == ("delivered", body[:kept])
                    assert outcome.truncated is (size > kept)
                assert server.connections == connections

    run(main)


def test_64_headers_are_kept_of_256() -> None:
    """Up to 256 headers are read, 64 of them kept; one more is too many."""

    async def main() -> None:
        outcome = await one("headers:254")
        assert outcome.code == "delivered"
        assert len(outcome.response_headers) == 64
        assert (await one("headers:255")).code == "response_too_large"

    run(main)


def test_odd_header_values_are_kept_as_they_are() -> None:
    """Empty values, repeated names and Latin-1 bytes arrive in order."""

    async def main() -> None:
        headers = (("x-empty", ""), ("Set-Cookie", "a"), ("Set-Cookie", "b"), ("x-latin", "caf\xe9"), ("x-last", "1"))
        outcome = await one((Step(headers=headers),))
        assert outcome.response_headers[1:-1] == headers

    run(main)


def test_time_is_told_by_phase() -> None:
    """Waiting for the first byte and reading are told apart; a reused connection has no connect time."""

    async def main() -> None:
        async with pair("200:delay=0.05,drip:every=0.005,200") as (client, server):
            waited = await post(client, server.url())
            dripped = await post(client, server.url())
            assert waited.phases_ms[3] >= 45
            assert waited.duration_ms >= waited.phases_ms[3]
            assert dripped.phases_ms[4] >= 40
            assert dripped.phases_ms[:3] == (0.0, 0.0, 0.0)
            quick = await post(client, server.url())
            assert quick.duration_ms < 1000

    run(main)


def test_many_requests_at_once_each_get_their_own_answer() -> None:
    """No answer is ever handed to another request."""

    async def main() -> None:
        def echo(request: object) -> Step:
            return Step(body=request.body)  # type: ignore[attr-defined]  # a SeenRequest

        async with pair(echo) as (client, server):
            for _ in range(3):
                bodies = [b"%d" % number for number in range(60)]
                outcomes = await asyncio.gather(*(post(client, server.url(), body, headers=HEADERS) for body in bodies))
                assert [outcome.response_body for outcome in outcomes] == bodies
            assert server.connections == 60

    run(main)
