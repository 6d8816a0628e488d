"""The response path under any bytes in any pieces: never an unhandled exception, always exactly one outcome."""

from __future__ import annotations

import asyncio
import ssl
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ackpost.core.outcome import ERROR_CODES, Outcome
from ackpost.core.target import parse_target
from ackpost.egress.connection import Connection
from ackpost.egress.request import Request

_TARGET = parse_target("https://hook.example/", allow_http=False)


class Wire(asyncio.Transport):
    """A transport that only remembers how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Remember what was sent."""
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Has no buffer."""

    def is_closing(self) -> bool:
        """Closed, in either way."""
        return self.closed

    def close(self) -> None:
        """Close."""
        self.closed = True

    def abort(self) -> None:
        """Close."""
        self.closed = True


class Scene:
    """One connection on a wire, with one request; it is the pool as well."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.outcomes: list[Outcome] = []
        self.released_count = self.lost_count = 0
        self.wire = Wire()
        self.connection = Connection(self, "key", self.loop, 30.0)
        self.connection.connection_made(self.wire)
        self.send()

    def send(self) -> None:
        """Start a request."""
        request = Request(_TARGET, b"", b"{}", 5.0, self.outcomes.append)
        request.begin(self.loop.time())
        self.connection.start(request, self.loop.time())

    def released(self, connection: Connection) -> None:
        """Count."""
        self.released_count += 1

    def lost(self, connection: Connection) -> None:
        """Count."""
        self.lost_count += 1

    def unusable(self, connection: Connection) -> None:
        """Nothing to do: the pool is empty."""

    def receive(self, pieces: list[bytes]) -> None:
        """Let pieces arrive as long as the connection stands."""
        for piece in pieces:
            if piece and not self.wire.closed:
                self.connection.data_received(piece)

    def end(self, error: Exception | None, *, eof: bool) -> Outcome:
        """End the connection; give the one outcome."""
        if eof and not self.wire.closed:
            self.connection.eof_received()
        self.connection.connection_lost(error)
        self.loop.close()
        assert self.lost_count == 1
        assert len(self.outcomes) == 1
        outcome = self.outcomes[0]
        assert outcome.code == "delivered" or outcome.code in ERROR_CODES
        assert len(outcome.response_body) <= 16_384
        assert len(outcome.response_headers) <= 64
        assert (outcome.status_code is not None) == (outcome.code in ("delivered", "status", "redirect"))
        return outcome


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut data at these places."""
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


_CUTS = st.lists(st.integers(min_value=0, max_value=100_000), max_size=12)
_ENDS = st.sampled_from([None, ConnectionResetError(104, "x"), ssl.SSLError(1, "x"), OSError(5, "x")])
_PARTS = st.sampled_from(
    [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 103 Early\r\n\r\n", b"HTTP/1.1 101 Switch\r\n", b"HTTP/1.0 500 \r\n",
     b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.1 999\r\n", b"HTTP/1.1 099 x\r\n\r\n", b"HTTP/0.9 200 OK\r\n",
     b"HTTP/2 200\r\n",
     b"content-length: 5\r\n", b"content-length: 0\r\n", b"Content-Length: 99999999999999999999999\r\n",
     b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n",
     b"retry-after: 5\r\n", b"x: \r\n", b"x:\r\n", b" folded\r\n", b"\r\n", b"\n", b"\r",
     b"5\r\nabcde\r\n", b"0\r\n\r\n",
     b"0\r\nx-trailer: 1\r\n\r\n", b"ffffffffffffffffffff\r\n", b"hello", b"\x00", b"\xff\xfe", b"a" * 20_000, b"HTTP",
     b"x: " + b"y" * 9_000 + b"\r\n", b"x: y\r\n" * 260, b"4000\r\n" + b"z" * 16_384 + b"\r\n"]
)  # fmt: skip


@given(st.lists(_PARTS, max_size=10).map(b"".join), _CUTS, _ENDS, st.booleans())
@example(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nmore", [], None, True)
@settings(max_examples=1_500)
def test_any_mixture_of_answers_gives_one_outcome(
    data: bytes, cuts: list[int], error: Exception | None, eof: bool
) -> None:
    """Well-formed and broken parts of answers in any order, cut anywhere, ended in any way."""
    scene = Scene()
    scene.receive(split(data, cuts))
    scene.end(error, eof=eof)


@given(st.binary(max_size=300), _CUTS, _ENDS, st.booleans())
@settings(max_examples=500)
def test_any_bytes_give_one_outcome(data: bytes, cuts: list[int], error: Exception | None, eof: bool) -> None:
    """Plain noise, alone and behind a good beginning."""
    for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"):
        scene = Scene()
        scene.receive(split(start + data, cuts))
        scene.end(error, eof=eof)


_ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\na: 1\r\nb:\r\ncontent-length: 11\r\n\r\nhello world",
    "chunked": b"HTTP/1.1 503 Later\r\ntransfer-encoding: chunked\r\nretry-after: 7\r\n\r\n"
    b"5\r\nhello\r\n6\r\n world\r\n0\r\nt: x\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\n"
    b"HTTP/1.1 201 Made\r\ncontent-length: 3\r\n\r\nabc",
    "empty": b"HTTP/1.1 204 No Content\r\ndate: now\r\n\r\n",
    "large": b"HTTP/1.1 200 OK\r\ncontent-length: 40000\r\n\r\n" + b"0123456789" * 4_000,
    "many": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n" + b"x: y\r\n" * 200 + b"\r\n",
}


@pytest.mark.parametrize("name", _ANSWERS)
@given(cuts=_CUTS)
@settings(max_examples=60)
def test_pieces_do_not_matter(name: str, cuts: list[int]) -> None:
    """However an answer is cut, the outcome is the same, and the connection is used again."""
    whole, cut = Scene(), Scene()
    whole.receive([_ANSWERS[name]])
    cut.receive(split(_ANSWERS[name], cuts))
    assert (whole.released_count, cut.released_count) == (1, 1)
    first, second = whole.end(None, eof=True), cut.end(None, eof=True)
    for outcome in (first, second):
        outcome.duration_ms = 0.0
        outcome.phases_ms = (0.0, 0.0, 0.0, 0.0, 0.0)
    assert first == second


def test_byte_by_byte_and_a_second_answer() -> None:
    """The parser goes on to the next answer on the same connection as if it were new."""
    scene = Scene()
    for name in ("chunked", "interim", "length"):
        data = _ANSWERS[name]
        scene.receive([data[at : at + 1] for at in range(len(data))])
        scene.send()
    scene.connection.abort()
    scene.connection.connection_lost(None)
    scene.loop.close()
    assert [outcome.response_body for outcome in scene.outcomes] == [b"hello world", b"abc", b"hello world"]
    assert [outcome.status_code for outcome in scene.outcomes] == [503, 201, 200]
    assert scene.outcomes[0].retry_after == "7"
    assert scene.outcomes[1].response_headers == (("content-length", "3"),)


@pytest.mark.parametrize("size", [65_536, 65_537, 65_000, 80_000])
@pytest.mark.parametrize("piece", [1_000, 16_384, 100_000])
def test_the_cap_of_an_answer_is_exact(size: int, piece: int) -> None:
    """An answer of 64 KiB on the wire is read whole, one byte more ends the connection; pieces do not matter."""
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
    body = b"x" * (size - len(head % 65_536))
    data = head % len(body) + body
    assert len(data) == size
    scene = Scene()
    scene.receive([data[at : at + piece] for at in range(0, size, piece)])
    assert (scene.released_count == 1) is (size <= 65_536)
    assert scene.wire.closed is (size > 65_536)
    outcome = scene.end(None, eof=False)
    assert (outcome.code, outcome.truncated, len(outcome.response_body)) == ("delivered", True, 16_384)


@pytest.mark.parametrize("body_bytes", [2, 20_000])
@pytest.mark.parametrize("more_bytes", [5, 20_000, 200_000])
def test_bytes_behind_an_answer_in_one_piece(body_bytes: int, more_bytes: int) -> None:
    """The answer counts whole, what follows is dropped with the connection, wherever the caps fall."""
    scene = Scene()
    scene.receive([b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % body_bytes + b"x" * (body_bytes + more_bytes)])
    assert scene.released_count == 0
    assert scene.wire.closed
    outcome = scene.end(None, eof=False)
    assert (outcome.code, outcome.detail, outcome.truncated) == ("delivered", "", body_bytes > 16_384)


@pytest.mark.parametrize("more", [_ANSWERS["length"], _ANSWERS["empty"], b"HTTP/1.1 2", b"H"])
def test_a_second_answer_is_nobodys(more: bytes) -> None:
    """A well-formed answer behind the first is not mixed into it, and the connection that sent it is not used again."""
    scene = Scene()
    scene.receive([_ANSWERS["interim"] + more])
    assert scene.released_count == 0
    assert scene.wire.closed
    outcome = scene.end(None, eof=False)
    assert (outcome.status_code, outcome.response_body, len(outcome.response_headers)) == (201, b"abc", 1)
