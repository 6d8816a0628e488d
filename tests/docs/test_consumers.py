"""The receiver of docs/consumers.md, as a real server, against requests signed by the code that signs deliveries."""

from __future__ import annotations

import http.client
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ackpost.core.signing import Signer, generate_ed25519, generate_secret
from tests.docs.blocks import blocks
from tests.tidy import tree


def _page() -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(tree.DOCS / "consumers.md"):
        if block.info == "python run":
            exec(compile(block.text, "consumers.md", "exec"), namespace)
    return namespace


def _lines(signer: Signer, event_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    lines = signer.headers(event_id, timestamp_s, body, timestamp_s * 1000).decode().split("\r\n")
    return dict(line.split(": ", 1) for line in lines if line)


class Receiver(NamedTuple):
    port: int
    database: Path
    signer: Signer

    def post(self, event: dict[str, Any], event_id: str, *, age_s: int = 0, body: bytes | None = None) -> int:
        sent = json.dumps(event).encode()
        headers = _lines(self.signer, event_id, int(time.time()) - age_s, sent)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", "/hook", sent if body is None else body, headers)
        status = connection.getresponse().status
        connection.close()
        return status

    def messages(self) -> dict[str, str]:
        database = sqlite3.connect(self.database)
        rows = dict(database.execute("SELECT id, state FROM message").fetchall())
        database.close()
        return rows


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    page = _page()
    handler = page["Receiver"]
    handler.database_path = str(tmp_path / "consumer.db")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Receiver(server.server_address[1], tmp_path / "consumer.db", Signer("standard", [(page["SECRET"], None)]))
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_event_is_applied_once_and_never_over_a_newer_one(receiver: Receiver) -> None:
    """Repeats and older events are acknowledged and change nothing."""
    assert receiver.post({"type": "message.sent", "key": "m1", "sequence": 1}, "evt_1") == 200
    assert receiver.post({"type": "message.delivered", "key": "m1", "sequence": 3}, "evt_3") == 200
    assert receiver.post({"type": "message.buffered", "key": "m1", "sequence": 2}, "evt_2") == 200
    assert receiver.post({"type": "message.sent", "key": "m1", "sequence": 1}, "evt_1") == 200
    assert receiver.messages() == {"m1": "message.delivered"}


def test_forged_changed_and_old_requests_are_refused(receiver: Receiver) -> None:
    """A wrong signature is 401, an old or unsigned request 400, and nothing of them is applied."""
    event = {"type": "message.sent", "key": "m1", "sequence": 1}
    stranger = receiver._replace(signer=Signer("standard", [(generate_secret(bytes(32)), None)]))
    assert stranger.post(event, "evt_1") == 401
    assert receiver.post(event, "evt_1", body=b'{"type":"message.paid","key":"m1"}') == 401
    assert receiver.post(event, "evt_1", age_s=310) == 400
    assert receiver.post(event, "evt_1", age_s=-310) == 400
    assert receiver.post(event, "evt_1", age_s=290) == 200
    assert receiver.messages() == {"m1": "message.sent"}


def test_a_secret_can_be_changed_without_a_refusal(receiver: Receiver) -> None:
    """While two secrets sign, a consumer that knows the older one accepts."""
    page = _page()
    both = Signer("standard", [(generate_secret(bytes(32)), None), (page["SECRET"], 1 << 62)])
    assert receiver._replace(signer=both).post({"type": "t"}, "evt_1") == 200


def test_concurrent_copies_are_applied_once(receiver: Receiver) -> None:
    """Two copies of a request at the same time are both acknowledged, and one of them is applied."""
    statuses: list[int] = []
    event = {"type": "message.sent", "key": "m1", "sequence": 1}
    threads = [
        threading.Thread(target=lambda: statuses.append(receiver.post(event, "evt_1"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 8
    assert receiver.messages() == {"m1": "message.sent"}


def test_the_other_signatures_verify_as_the_page_says() -> None:
    """The page's functions for ed25519 and hex signatures accept what is sent and refuse a changed body."""
    page = _page()
    private, public = generate_ed25519(bytes(range(32)))
    headers = _lines(Signer("standard-ed25519", [(private, None)]), "evt_1", 1, b"{}")
    assert page["verify_ed25519"](public, headers, b"{}")
    assert not page["verify_ed25519"](public, headers, b"{ }")
    old, new = "o" * 24, "n" * 24
    headers = _lines(Signer("sha256-hex", [(new, None), (old, 1 << 62)]), "evt_1", 1, b"{}")
    assert page["verify_hex"](new, headers, b"{}")
    assert page["verify_hex"](old, headers, b"{}")
    assert not page["verify_hex"](new, headers, b"{ }")
