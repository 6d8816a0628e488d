"""``ackpost listen`` over real sockets: what it shows, how it answers, how it ends."""

from __future__ import annotations

import asyncio
import http.client
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ackpost.cli.received import Memory, as_text
from ackpost.core.signing import Signer, generate_secret
from ackpost.testing.faults import FaultServer, SeenRequest
from tests.cli.shell import Listener, Shell
from tests.process.server import KEY, Server, until

SECRET = generate_secret(bytes(range(32)))
NOW_S = 1_752_916_522


def _post(url: str, path: str, body: bytes = b"{}", headers: dict[str, str] | None = None) -> int:
    """Give the status; 0 when there was no answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.request("POST", path, body, headers or {})
        answer = connection.getresponse()
        answer.read()
    except (http.client.HTTPException, ConnectionError):
        return 0
    finally:
        connection.close()
    return answer.status


def test_answers_by_script_and_path(tmp_path: Path) -> None:
    """Each path follows its own script, the others the general one; a query does not make another path."""
    scripts = ["--script", "500*2,200", "--script", "/a=410", "--script", "/b=reset", "--script", "/c=close"]
    with Listener(tmp_path, "--json", *scripts) as listener:
        paths = ["/", "/a", "/b", "/x", "/c", "/", "/a?q=1"]
        assert [_post(listener.url, path) for path in paths] == [500, 410, 0, 500, 0, 200, 410]
        shown = listener.shown(len(paths))
        assert [(one["path"], one["answer"]) for one in shown] == [
            ("/", "500"), ("/a", "410"), ("/b", "reset"), ("/x", "500"), ("/c", "close"), ("/", "200"),
            ("/a?q=1", "410"),
        ]  # fmt: skip
        assert listener.end() == 0
    assert listener.errors.lines[-1] == "7 requests received"


def test_repeats_gaps_and_signatures_are_shown(tmp_path: Path) -> None:
    """A repeat names the first request of its id and the time since the last; an unsigned one says so."""
    with Listener(tmp_path, "--json", "--secret", SECRET) as listener:
        _post(listener.url, "/", b"[1]", {"webhook-id": "evt_1"})
        _post(listener.url, "/", b"[2]", {"webhook-id": "evt_2"})
        _post(listener.url, "/", b"[3]", {"webhook-id": "evt_1"})
        first, other, repeat = listener.shown(3)
        assert (first["repeat_of"], first["gap_s"], other["repeat_of"]) == (None, None, None)
        assert repeat["repeat_of"] == 1
        assert repeat["gap_s"] > 0
        assert first["verified"] is False
        assert first["fault"] == "not signed: no webhook-timestamp, webhook-signature"
        assert listener.end(signal.SIGTERM) == 0


def test_every_body_is_shown_whole(tmp_path: Path) -> None:
    """Text as text, other bytes as base64, chunked ones put together: nothing is parsed away."""
    parts = b"0123456789" * 30
    with Listener(tmp_path, "--json") as listener:
        _post(listener.url, "/", '{ "a" : 1.0,"ü":"\\u0061" }'.encode(), {"content-type": "text/plain"})
        _post(listener.url, "/", bytes(range(256)), {"content-type": "multipart/form-data; boundary=x"})
        parts_url = urlsplit(listener.url)
        connection = http.client.HTTPConnection(parts_url.hostname or "", parts_url.port, timeout=10)
        connection.request("POST", "/", iter([parts, parts]), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
        assert connection.getresponse().status == 200
        connection.close()
        text, binary, chunked = listener.shown(3)
        assert text["body"] == '{ "a" : 1.0,"ü":"\\u0061" }'
        assert binary["body_base64"].startswith("AAECAwQ")
        assert chunked["body"] == parts.decode() * 2
        listener.end()


def test_registered_it_gets_signed_events_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    """With ``--register`` it makes an endpoint, verifies what comes, and has deleted the endpoint at the end."""
    environment = {"ACKPOST_URL": server.url, "ACKPOST_API_KEY": KEY}
    for signature in ("standard", "standard-ed25519", "sha256-hex"):
        arguments = ["--register", "listened.*", "--signature", signature, "--json"]
        with Listener(tmp_path, *arguments, environment=environment) as listener:
            server.publish("listened.one", b'{"n":1}')
            (shown,) = listener.shown(1)
            assert (shown["signature"], shown["verified"], shown["fault"]) == (signature, True, None)
            assert listener.end(signal.SIGTERM) == 0
        assert server.get("/endpoints", event_type="listened.*")["data"] == []


def test_people_see_a_few_lines(server: Server, tmp_path: Path) -> None:
    """On a terminal's stream: number, time, path, type, answer; id, attempt, repeat; the verdict; the body."""
    environment = {"ACKPOST_URL": server.url, "ACKPOST_API_KEY": KEY}
    with Listener(
        tmp_path, "--register", "people.*", "--script", "429:retry-after=1,200", environment=environment
    ) as one:
        server.publish("people.one", b'{"big":123456789012345678901,"esc":"\\u001b[31m"}')
        until(lambda: sum(line.startswith("#") for line in one.out.lines) == 2, "two requests")
        one.end()
    text = "\n".join(one.out.lines)
    assert "POST / people.one → 429 retry-after: 1" in text
    assert "attempt 2, repeat of #1, 1." in text
    assert text.count("signature verified (standard)") == 2
    assert '"big": 123456789012345678901,' in text


def _seen(body: bytes, path: str = "/", headers: tuple[tuple[str, str], ...] = ()) -> SeenRequest:
    return SeenRequest(1, 1, "POST", path, "HTTP/1.1", headers, body, 0.0)


def test_nobodys_data_drives_the_terminal() -> None:
    """Escape sequences in path, headers and body are written out; a long body is cut and its size said."""
    hostile = _seen(b"\x1b[2J\xc2\x9b31m", "/\x1b[1m", (("x-a", "\x1b]0;title\x07"),))
    shown = as_text(Memory(None).note(hostile, NOW_S * 1000)).plain
    assert not any((ord(character) < 32 and character != "\n") or 127 <= ord(character) < 160 for character in shown)
    assert r"\x1b[2J" in shown
    long = as_text(Memory(None).note(_seen(b'{"a":"%b"}' % (b"x" * 50_000)), NOW_S * 1000)).plain
    assert len(long) < 1_000
    assert long.endswith("(50,008 bytes in all)")


def test_the_last_thousand_are_kept() -> None:
    """The memory for repeats and the server's list of requests do not grow with what comes."""
    memory = Memory(None)
    for number in range(1_005):
        memory.note(_seen(b"", headers=(("webhook-id", f"evt_{number}"),)), NOW_S * 1000)
    assert memory.note(_seen(b"", headers=(("webhook-id", "evt_4"),)), 0).repeat_of is None
    assert memory.note(_seen(b"", headers=(("webhook-id", "evt_1004"),)), 0).repeat_of == 1

    async def five_requests() -> list[int]:
        async with FaultServer(keep_max=3) as server:
            for _ in range(5):
                await asyncio.to_thread(_post, server.url(""), "/")
            assert server.received == 5
            return [one.number for one in server.requests]

    assert asyncio.run(five_requests()) == [3, 4, 5]


def test_a_verified_request_is_one_that_a_consumer_may_trust() -> None:
    """The verdict is the verifier's: the same request is refused when its body was changed."""
    from ackpost.cli.verifying import Verifier

    lines = Signer("standard", [(SECRET, None)]).headers("evt_1", NOW_S, b"{}", NOW_S * 1000).decode()
    headers = tuple((name, value) for name, _, value in (line.partition(": ") for line in lines.split("\r\n")) if name)
    memory = Memory(Verifier(SECRET))
    assert memory.note(_seen(b"{}", headers=headers), NOW_S * 1000).fault is None
    assert "wrong signature" in (memory.note(_seen(b"{ }", headers=headers), NOW_S * 1000).fault or "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--script", "50"], "script step '50': "),
        (["--script", "explode"], "script step 'explode': unknown; use a status or one of "),
        (["--script", "/a"], "--script /a: write /path=answers"),
        (["--secret", "whsec_x"], "not base64"),
        (["--secret", SECRET, "--register", "*"], "--secret and --register exclude each other"),
        (["--signature", "standard"], "--signature goes with --secret or --register"),
        (["--host", "203.0.113.9"], "port: cannot listen on 203.0.113.9:9000: "),
    ],
)
def test_what_it_cannot_do_is_one_line(shell: Shell, arguments: list[str], said: str) -> None:
    """A wrong script, secret or combination ends the command before it listens."""
    assert shell.refused("listen", *arguments).startswith(said)


def test_a_taken_port_is_one_line(shell: Shell) -> None:
    """The line names the address and the option."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = shell.refused("listen", "--port", str(port))
        assert said == f"port: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port"


def test_a_server_that_refuses_the_endpoint_ends_it(ackpost: Shell) -> None:
    """No endpoint, no listening: the refusal is the command's line."""
    said = ackpost.refused("listen", "--port", "0", "--register", "bad type")
    assert "422 invalid: " in said
