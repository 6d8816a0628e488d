"""``ackpost publish``: the data's own bytes, one event or a file of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.process.receiver import Receiver
from tests.process.server import KEY, Server

ODD = b'{ "n" : 1.50e0,"big":123456789012345678901234567890, "a":1,"a":2,\n "t":"\\u0061\xf0\x9f\x90\xbe" }'


def test_data_goes_as_it_was_given(ackpost: Shell, server: Server, tmp_path: Path) -> None:
    """From an argument, a file or standard input: not one byte of the data is changed."""
    (tmp_path / "data.json").write_bytes(ODD)
    ways = [(ODD.decode(), b""), (f"@{tmp_path / 'data.json'}", b""), ("-", ODD)]
    for data, stdin in ways:
        event_id = ackpost.ok("publish", "odd.data", data, "--json", stdin=stdin).json["id"]
        assert server.api.call_bytes("GET", f"/v1/events/{event_id}/data") == ODD


def test_what_an_event_can_have(ackpost: Shell, server: Server) -> None:
    """Key, uid, sequence, channels, time and metadata reach the event; what came of it is said in a line."""
    said = ackpost.ok(
        "publish", "whole.event", "null", "--key", "k", "--uid", "whole-1", "--sequence", "7", "--channel", "a",
        "--channel", "b", "--occurred-at", "2026-03-13T10:30:00Z", "--metadata", '{"from": "shell"}',
    ).out  # fmt: skip
    event = server.get("/events/whole-1")
    assert said == f"{event['id']} accepted: 0 deliveries, number 7 of its key\n"
    assert (event["key"], event["sequence"], event["channels"]) == ("k", 7, ["a", "b"])
    assert (event["occurred_at"], event["metadata"]) == ("2026-03-13T10:30:00.000Z", {"from": "shell"})
    again = ackpost.ok("publish", "whole.event", "null", "--key", "k", "--uid", "whole-1", "--sequence", "7",
                       "--channel", "a", "--channel", "b", "--occurred-at", "2026-03-13T10:30:00Z",
                       "--metadata", '{"from": "shell"}').out  # fmt: skip
    assert again.endswith("(known already: nothing was published anew)\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.b", "hello"], "DATA is not JSON ("),
        (["a.b", '1,"key":"smuggled"'], "DATA is not JSON ("),
        (["a.b", ""], "DATA is not JSON ("),
        (["a.b"], "name a type and its data"),
        ([], "name a type and its data"),
        (["a b", "1"], "422 invalid: "),
        (["a.b", "1", "--file", "x"], "--file has whole events"),
        (["--file", "none.ndjson"], "--file: none.ndjson cannot be read: No such file or directory"),
        (["--file", "/"], "--file: / cannot be read: Is a directory"),
    ],
)
def test_what_cannot_be_published_is_one_line(ackpost: Shell, arguments: list[str], said: str) -> None:
    """Each mistake ends the command with a line that names it; nothing is published."""
    assert ackpost.refused("publish", *arguments).startswith(said)


def _lines(count: int, type: str) -> list[bytes]:
    return [b'{"type":"%b","uid":"%b-%d","data":%d}' % (type.encode(), type.encode(), n, n) for n in range(count)]


def test_a_file_goes_in_batches(ackpost: Shell, server: Server, tmp_path: Path) -> None:
    """More lines than a batch takes, with blank ones and none at the end, are all published; a second run repeats
    nothing.
    """
    file = tmp_path / "events.ndjson"
    file.write_bytes(b"\n\n".join(_lines(1_203, "bulk")))
    assert ackpost.ok("publish", "--file", str(file)).out == "1,203 events accepted: 0 deliveries\n"
    assert server.get("/events/bulk-1202")["type"] == "bulk"
    again = ackpost.ok("publish", "--file", "-", stdin=file.read_bytes()).out
    assert again == "1,203 events accepted (1,203 known already): 0 deliveries\n"
    shown = ackpost.ok("publish", "--file", str(file), "--json").out.splitlines()
    assert len(shown) == 1_203
    assert json.loads(shown[0])["duplicate"] is True


def test_large_lines_stay_below_a_batchs_bytes(ackpost: Shell, tmp_path: Path) -> None:
    """Thirty events of 250 kB are 7.5 MB: two batches."""
    file = tmp_path / "events.ndjson"
    file.write_bytes(b"\n".join(b'{"type":"large","data":"%b"}' % (b"x" * 250_000) for _ in range(30)))
    assert ackpost.ok("publish", "--file", str(file)).out == "30 events accepted: 0 deliveries\n"


def test_a_refused_line_is_named(ackpost: Shell, server: Server, tmp_path: Path) -> None:
    """The server's index becomes the file's line; what is published and what is not is said."""
    lines = _lines(700, "named")
    lines[610] = b'{"type":"named type","data":1}'
    said = ackpost.refused("publish", "--file", "-", stdin=b"\n".join(lines))
    assert said.startswith("standard input line 611: type must be an event type")
    assert said.endswith("; lines before 501 of standard input are published, nothing from there on")
    assert server.get("/events/named-499")["type"] == "named"
    assert server.refused("GET", "/events/named-500").status == 404


def test_a_line_that_is_no_event_is_named(ackpost: Shell) -> None:
    """A broken line ends the command before its batch is sent."""
    for line in (b'{"type":"a"', b"[1]", b"\xff", b'{"type":"a","data":1} {"type":"b","data":2}'):
        said = ackpost.refused("publish", "--file", "-", stdin=b"\n".join([*_lines(2, "broken"), line]))
        assert said.startswith("standard input line 3 is no event as JSON object (")


def test_a_busy_server_is_asked_again_with_the_same_key(shell: Shell, receiver: Receiver) -> None:
    """After 503 and a lost answer the same batch goes again under one Idempotency-Key: no event twice."""
    url = receiver.hook("/v1/events/batch", "503:retry-after=0,reset,413")
    shell.use(url.removesuffix("/v1/events/batch"), KEY)
    said = shell.refused("publish", "--file", "-", stdin=b'{"type":"a","data":1}')
    assert said.startswith("standard input 413")
    tries = receiver.seen("/v1/events/batch")
    assert len(tries) == 3
    assert len({(one.header("idempotency-key"), one.body) for one in tries}) == 1
