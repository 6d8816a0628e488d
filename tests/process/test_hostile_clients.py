"""Clients and readers that misbehave: the server stays small, answers others, and says no early."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from ackpost.wiring.http_server import HEADER_S
from tests.process import books
from tests.process.receiver import Receiver
from tests.process.server import KEY, Server, until

MIB = 1024 * 1024
AUTHORIZED = f"authorization: Bearer {KEY}\r\n"


@contextmanager
def _connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        yield connection


def _answer(connection: socket.socket) -> bytes:
    """Read one answer, by its Content-Length."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = connection.recv(65536)
        assert part, f"closed after {answer!r}"
        answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        part = connection.recv(65536)
        assert part, f"closed after {answer!r}"
        answer, body = answer + part, body + part
    return answer


def _rest(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass  # it did not read all that was sent, and says so
    return b"".join(parts)


def _flood(connection: socket.socket, piece: bytes, bytes_max: int) -> int:
    """Send until the server closes; give how much it took (in the system's buffers too)."""
    sent = 0
    try:
        while sent < bytes_max:
            sent += connection.send(piece)
    except (ConnectionResetError, BrokenPipeError):
        pass
    return sent


def _memory_mib(server: Server) -> float:
    pid = str(server.process.pid)
    status = Path("/proc", pid, "status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024
    return int(subprocess.run(["ps", "-o", "rss=", "-p", pid], capture_output=True, check=True).stdout) / 1024


def _problem(answer: bytes) -> tuple[int, str]:
    """Give status and code of an answer, which must be problem+json."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower(), answer
    problem = json.loads(body)
    assert head.startswith(b"HTTP/1.1 %d " % problem["status"])
    return problem["status"], problem["code"]


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"POST /v1/events HTTP/1.1\r\nhost: a\r\n", b"x-flood: 1\r\n" * 1000),
        (b"POST /v1/events HTTP/1.1\r\nhost: a\r\nx-flood: ", b"1" * 16384),
        (b"POST /v1/", b"events" * 4096),
        (b"", b"\r\n" * 8192),
    ],
    ids=["many headers", "one header", "a long path", "nothing"],
)
def test_a_flood_of_header_is_cut_off(server: Server, begin: bytes, piece: bytes) -> None:
    """A header without end is refused after 32 KiB, whoever sends it, and costs no memory."""
    before = _memory_mib(server)
    with _connected(server) as connection:
        connection.sendall(begin)
        assert _flood(connection, piece, 100 * MIB) < 20 * MIB
    assert _memory_mib(server) - before < 20
    server.publish("still.here")


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 20_000 + b"\r\n", (431, "too_large")),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 33_000 + b"\r\n\r\n", (431, "too_large")),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", (400, "invalid")),
        (b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n", (400, "invalid")),
        (b"POST /v1/events HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}", (400, "invalid")),
        (b"POST /v1/events HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", (400, "invalid")),
    ],
)
def test_what_is_no_proper_request_gets_a_problem(server: Server, request_: bytes, refusal: tuple[int, str]) -> None:
    """Too much header, other protocols and broken framing are answered as every refusal is, and closed."""
    with _connected(server) as connection:
        connection.sendall(request_)
        assert _problem(_rest(connection)) == refusal
    assert server.complaint().count("\n") == 3  # the greeting


def test_requests_ahead_of_their_turn_cost_no_memory(server: Server) -> None:
    """Small requests by the thousand on one connection wait outside, whether or not the client reads the answers."""
    before = _memory_mib(server)
    one = b"GET / HTTP/1.1\r\n\r\n"
    with _connected(server) as connection:
        connection.setblocking(False)
        for _ in range(20):
            with suppress(BlockingIOError):
                while True:
                    connection.send(one * 4096)
            server.publish("still.here")
        assert _memory_mib(server) - before < 40


def test_what_is_no_request_is_not_taken_for_an_earlier_ones_answer(server: Server) -> None:
    """Bytes that are no request, behind a publish whose answer is due, never make the publish look refused."""
    for lines in ("", "ackpost-tenant: default\r\n"):
        data = b'{"type":"a.b","data":1}'
        head = f"POST /v1/events HTTP/1.1\r\nhost: a\r\n{AUTHORIZED}{lines}content-length: {len(data)}\r\n\r\n"
        too_large = b"GET / HTTP/1.1\r\nx: " + b"y" * 33_000 + b"\r\n\r\n"
        for behind in (b"junk", too_large):
            with _connected(server) as connection:
                connection.sendall(head.encode() + data + behind)
                assert _rest(connection)[:13] in (b"", b"HTTP/1.1 202 ")


def test_requests_in_one_piece_are_all_answered(server: Server) -> None:
    """Several requests sent at once, with bodies larger than a header may be, are no flood."""
    data = b'{"type":"piped.event","data":"%b"}' % (b"x" * 40_000)
    one = f"POST /v1/events HTTP/1.1\r\nhost: a\r\n{AUTHORIZED}content-length: {len(data)}\r\n\r\n".encode() + data
    last = f"GET /v1/events?limit=1 HTTP/1.1\r\nhost: a\r\n{AUTHORIZED}connection: close\r\n\r\n".encode()
    with _connected(server) as connection:
        connection.sendall(one * 5 + last)
        answer = _rest(connection)
    assert answer.count(b"HTTP/1.1 202 ") == 5
    assert answer.count(b"HTTP/1.1 200 ") == 1


def test_a_wish_for_another_protocol_is_ignored(server: Server) -> None:
    """Java's HTTP client asks for h2c with its first request: that is served as it is, whole, however it is cut."""
    wish = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n"
    data = b'{"type":"upgraded.event","data":1}'
    head = f"POST /v1/events HTTP/1.1\r\nhost: a\r\n{AUTHORIZED}content-length: {len(data)}\r\n".encode()
    last = f"GET /v1/events HTTP/1.1\r\nhost: a\r\n{AUTHORIZED}connection: close, upgrade\r\nupgrade: h2c\r\n\r\n"
    asked = (head + wish + b"\r\n" + data) * 2 + head + b"\r\n" + data + last.encode()
    for cuts in ((len(asked),), (150, len(asked)), (len(head + wish) + 5, len(asked))):
        with _connected(server) as connection:
            begin = 0
            for end in cuts:
                connection.sendall(asked[begin:end])
                begin = end
            answer = _rest(connection)
        assert (answer.count(b"HTTP/1.1 202 "), answer.count(b"HTTP/1.1 200 ")) == (3, 1)


def test_a_trailer_without_end_is_cut_off(server: Server) -> None:
    """What follows a chunked body is bounded like a header."""
    before = _memory_mib(server)
    head = f"POST /v1/events HTTP/1.1\r\nhost: a\r\n{AUTHORIZED}transfer-encoding: chunked\r\n\r\n"
    with _connected(server) as connection:
        connection.sendall(head.encode() + b"2\r\n{}\r\n0\r\n")
        assert _flood(connection, b"x-trailer: 1\r\n" * 1000, 100 * MIB) < 20 * MIB
    assert _memory_mib(server) - before < 20


@pytest.mark.parametrize("path", ["/v1/events", "/v1/events/batch", "/v1/endpoints"])
def test_a_huge_body_is_refused_before_it_is_read(server: Server, path: str) -> None:
    """1 GB is refused with 413 by its announced length; whoever sends on all the same is cut off."""
    before = _memory_mib(server)
    with _connected(server) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\n{AUTHORIZED}content-length: {10**9}\r\n\r\n"
        connection.sendall(head.encode())
        assert _problem(_answer(connection)) == (413, "too_large")
        assert _flood(connection, b"x" * 65536, 10**9) < 100 * MIB
    assert _memory_mib(server) - before < 30


def test_a_huge_body_without_a_length_is_refused_early(server: Server) -> None:
    """A chunked body is refused when it passes the limit, not at its end."""
    before = _memory_mib(server)
    head = f"POST /v1/events HTTP/1.1\r\nhost: a\r\n{AUTHORIZED}transfer-encoding: chunked\r\n\r\n"
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with _connected(server) as connection:
        connection.sendall(head.encode())
        for _ in range(40):
            connection.sendall(piece)
        assert _problem(_answer(connection)) == (413, "too_large")
        assert _flood(connection, piece, 10**9) < 100 * MIB
    assert _memory_mib(server) - before < 30


def test_who_sends_a_little_too_much_gets_to_read_why(server: Server) -> None:
    """A client that sends its whole body before it reads gets the 413, not a broken connection."""
    for _ in range(20):
        refused = server.refused("POST", "/events", {"type": "a", "data": "x" * 2_000_000})
        assert (refused.status, refused.problem["code"]) == (413, "too_large")


def test_slow_headers_are_cut_off_while_others_are_served(server: Server) -> None:
    """Two hundred connections that send their header byte by byte, or nothing, are closed; others go on meanwhile."""
    with ExitStack() as stack:
        slow = [stack.enter_context(_connected(server)) for _ in range(200)]
        for connection in slow[:100]:
            connection.sendall(b"POST /v1/events HTTP/1.1\r\nx-slow: ")
        began_at = time.monotonic()

        def dripped_out() -> bool:
            server.publish("still.here")
            for connection in slow[:100]:
                _flood(connection, b"y", 1)
            return time.monotonic() - began_at >= HEADER_S + 1

        until(dripped_out, "the time of a header", HEADER_S + 20)
        for connection in slow:
            assert _rest(connection) == b""


STALLED_READER = "import os,sys; os.write(2, b'.'); sys.stdin.buffer.read()"


def test_a_stalled_reader_of_the_log_stalls_nothing_else(own_server: Server, receiver: Receiver) -> None:
    """With nobody reading its output the server accepts, delivers and stops as ever, in bounded memory."""
    server = own_server
    reader = subprocess.Popen([sys.executable, "-c", STALLED_READER], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reader.stdin is not None
    assert reader.stderr is not None
    reader.stderr.read(1)
    reader.send_signal(signal.SIGSTOP)
    try:
        server.port = _free_port()
        server.launch(stdout=reader.stdin.fileno())
        reader.stdin.close()
        until(lambda: _answers(server), "the server's start", 30)
        server.endpoint(receiver.hook("/unread"), "unread.log")
        for _ in range(20):
            events = [{"type": "unread.log", "data": number} for number in range(100)]
            server.post("/events/batch", {"events": events})
        receiver.wait("/unread", 2000, within_s=30)
        assert _memory_mib(server) < 300
        until(lambda: books.count(server.database, "delivery") == 0, "everything recorded")
        assert server.get("/events", limit=1)["data"]
        assert server.stop() == 0
    finally:
        reader.kill()
        reader.wait()
        reader.stderr.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(server: Server) -> bool:
    assert server.process.poll() is None, server.complaint()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=1):
            return bool(server.api.call("GET", "/readyz"))
    except OSError:
        return False
