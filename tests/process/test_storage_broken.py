"""A disk that does not keep what it was given: nothing is acknowledged on its word, nothing acknowledged is lost."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.needs import need_program
from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until

SOURCE = Path(__file__).with_name("broken_disk.c")
POLICY = {"retry": {"base_s": 0.05, "cap_s": 0.2}, "circuit": {"enabled": False}}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lets a flush fail."""
    library = tmp_path_factory.mktemp("shim") / "broken_disk.so"
    compiler = need_program("cc", "gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@pytest.mark.timeout(90)
@pytest.mark.parametrize("file", ["ackpost.db-wal", "ackpost.db"], ids=["log", "database"])
def test_a_failed_flush_ends_the_server_and_loses_nothing(
    tmp_path: Path, shim: Path, receiver: Receiver, file: str
) -> None:
    """EIO from one fsync: no acknowledgement any more, exit 1 with one clear line; a new start has every event."""
    order = tmp_path / "order"
    environment = {"LD_PRELOAD": str(shim), "BROKEN_DISK": str(order)}
    path = f"/{file}"
    with Server(tmp_path, environment=environment) as server:
        server.endpoint(receiver.hook(path), "broken.disk", policy=POLICY)
        with Publishers(server, "broken.disk", connections=8, padding_bytes=5_000) as publishers:
            receiver.wait(path, 50)
            order.with_name("next").write_text(file, encoding="utf-8")
            order.with_name("next").rename(order)
            code, complaint = server.wait()
            acknowledged = dict(publishers.acknowledged)
            assert not order.exists()
            assert code == 1
            assert complaint[-1].startswith("ackpost: the server had to stop: The disk did not keep what was written")
            assert "Input/output error" in complaint[-1]
            assert [line for line in complaint if "Traceback" in line] == []
            assert acknowledged == publishers.acknowledged, "somebody was answered after the server's end"
            server.start()
            stored = books.events(server, "broken.disk")
            assert {uid: stored[uid]["id"] for uid in acknowledged} == acknowledged
            until(lambda: len(publishers.acknowledged) > len(acknowledged) + 50, "publishing goes on")
            publishers.stop()
            until(lambda: books.count(server.database, "delivery") == 0, "everything delivered")
            requests = Counter(request.header("webhook-id") for request in receiver.seen(path))
            assert requests.keys() >= set(publishers.acknowledged.values())
            assert books.rows(server.database, "PRAGMA integrity_check") == [("ok",)]
            again = requests.total() - len(requests)
            print(f"\nfailed flush of {file}: acknowledged {len(publishers.acknowledged)}, lost 0, sent again {again}")
            print(f"refusals: {publishers.refusals}")
            assert server.stop() == 0
