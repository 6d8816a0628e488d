"""Backups of a running server: each is a whole state of the queue, and what is restored from it delivers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until

BACKUPS = 2


def _ackpost(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "ackpost", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(120)
def test_a_backup_under_load_is_a_prefix_of_what_was_acknowledged(
    own_server: Server, receiver: Receiver, tmp_path: Path
) -> None:
    """Two copies while publishers go on, one after them: each holds all up to one moment, is undamaged, and serves."""
    server = own_server.start()
    server.endpoint(receiver.hook("/kept"), "backup.load")
    url = f"sqlite:///{server.database}"
    known: list[set[str]] = []
    with Publishers(server, "backup.load", pace_s=0.02, padding_bytes=2_000) as publishers:
        until(lambda: len(publishers.acknowledged) >= 300, "some acknowledged")
        began, before = time.monotonic(), len(publishers.acknowledged)
        until(lambda: time.monotonic() >= began + 1.5, "the usual rate")
        usual_per_s = (len(publishers.acknowledged) - before) / (time.monotonic() - began)
        began, before = time.monotonic(), len(publishers.acknowledged)
        for number in range(BACKUPS):
            known.append(set(publishers.acknowledged))
            _ackpost("backup", str(tmp_path / f"copy-{number}.db"), "--database-url", url)
        meanwhile_per_s = (len(publishers.acknowledged) - before) / (time.monotonic() - began)
        assert "undamaged" in _ackpost("check", "--database-url", url), "beside the running server, too"
    known.append(set(publishers.acknowledged))
    _ackpost("backup", str(tmp_path / f"copy-{BACKUPS}.db"), "--database-url", url)
    assert publishers.refusals == {}
    until(lambda: books.count(server.database, "delivery") == 0, "everything delivered")
    assert server.stop() == 0
    accepted = books.rows(server.database, "SELECT position, uid FROM event ORDER BY position")

    for number, acknowledged in enumerate(known):
        folder = tmp_path / f"restored-{number}"
        folder.mkdir()
        shutil.copy(tmp_path / f"copy-{number}.db", folder / "ackpost.db")
        assert "undamaged" in _ackpost("check", "--database-url", f"sqlite:///{folder}/ackpost.db")
        copied = books.rows(folder / "ackpost.db", "SELECT position, uid FROM event ORDER BY position")
        assert copied == accepted[: len(copied)], "not a prefix"
        assert acknowledged <= {uid for _, uid in copied}
    with Server(folder) as restored:
        until(lambda: books.count(restored.database, "delivery") == 0, "the rest delivered")
        restored.settled(restored.publish("backup.load")["id"])
        assert restored.stop() == 0
    assert meanwhile_per_s >= 0.5 * usual_per_s
    print(
        f"\nbackups {len(known)} of {len(accepted)} events, prefixes all; accepted {usual_per_s:.0f}/s before and "
        f"{meanwhile_per_s:.0f}/s meanwhile (a process of Python starts for each)"
    )
