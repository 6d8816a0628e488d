"""Other processes that read the file for long, or without a pause: publishers notice nothing, the log stays bounded."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.process import books
from tests.process.load import Publishers
from tests.process.receiver import Receiver
from tests.process.server import Server, until

LOG_BYTES_MAX = 64 * 1024 * 1024
PADDING_BYTES = 200_000


def _log_bytes(server: Server) -> int:
    return server.database.with_name(f"{server.database.name}-wal").stat().st_size


@contextmanager
def _reading_without_pause(database: Path) -> Iterator[list[int]]:
    """Read on two connections in turn, each beginning before the other one ends; count the reads."""
    stop = threading.Event()
    reads = [0]

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)

    def read() -> None:
        with closing(connect()) as one, closing(connect()) as other:
            ending, beginning = one, other
            ending.execute("BEGIN")
            while not stop.wait(0.002):
                beginning.execute("BEGIN")
                beginning.execute("SELECT max(position) FROM event").fetchall()
                ending.execute("COMMIT")
                ending, beginning = beginning, ending
                reads[0] += 1

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield reads
    finally:
        stop.set()
        thread.join()


@pytest.mark.timeout(120)
def test_readers_without_a_pause_do_not_let_the_log_grow(own_server: Server, receiver: Receiver) -> None:
    """While somebody always reads, three times the log's limit is written, and the log never passes the limit."""
    server = own_server.start()
    server.endpoint(receiver.hook("/never-idle"), "never.idle")
    longest = 0
    with _reading_without_pause(server.database) as reads, ExitStack() as stack:
        publishers = stack.enter_context(Publishers(server, "never.idle", connections=8, padding_bytes=PADDING_BYTES))

        def written() -> bool:
            nonlocal longest
            longest = max(longest, _log_bytes(server))
            return len(publishers.acknowledged) * PADDING_BYTES > 3 * LOG_BYTES_MAX

        until(written, "enough written", 90)
    assert publishers.refusals == {}
    assert longest <= LOG_BYTES_MAX
    assert reads[0] > 100
    until(lambda: books.count(server.database, "delivery") == 0, "everything delivered", 30)
    assert server.stop() == 0
    print(f"\nreaders without a pause: {reads[0]} reads, log at most {longest / 2**20:.0f} MiB")


@pytest.mark.timeout(120)
def test_a_reader_that_stays_is_told_of_and_the_log_shrinks_after_it(own_server: Server, receiver: Receiver) -> None:
    """Somebody looks at one state while much is written: nobody is refused, a warning tells, and it ends by itself."""
    server = own_server.start()
    server.endpoint(receiver.hook("/stays"), "reader.stays")
    server.settled(server.publish("reader.stays")["id"])
    with (
        closing(sqlite3.connect(f"file:{server.database}?mode=ro", uri=True, isolation_level=None)) as reader,
        Publishers(server, "reader.stays", connections=8, padding_bytes=PADDING_BYTES) as publishers,
    ):
        reader.execute("BEGIN")
        seen = reader.execute("SELECT count(*) FROM event").fetchall()
        (told,) = until(lambda: server.logged("store.warning"), "the warning", 90)
        assert "64 MiB" in told["reason"]
        longest = _log_bytes(server)
        assert longest > LOG_BYTES_MAX
        assert reader.execute("SELECT count(*) FROM event").fetchall() == seen
        reader.execute("COMMIT")
        until(lambda: server.logged("store.warning_over"), "the warning's end", 30)
        until(lambda: _log_bytes(server) <= LOG_BYTES_MAX, "a short log")
    assert publishers.refusals == {}
    until(lambda: books.count(server.database, "delivery") == 0, "everything delivered", 30)
    assert server.stop() == 0
    print(f"\na reader that stays: log {longest / 2**20:.0f} MiB when told, at most {LOG_BYTES_MAX >> 20} MiB after it")
