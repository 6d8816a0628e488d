"""``python -m tests.power_cut.unsafe serve …``: Ackpost whose commits do not wait for the disk.

What a power cut does to it shows that the tests of the real one can fail.
"""

from __future__ import annotations

import apsw

from ackpost.cli import main
from ackpost.store.sqlite import store
from ackpost.store.sqlite.connection import open_writer


def _open_unsafe(path: str, busy_timeout_ms: int) -> apsw.Connection:
    connection = open_writer(path, busy_timeout_ms)
    connection.pragma("synchronous", "normal")
    return connection


if __name__ == "__main__":
    store.open_writer = _open_unsafe  # type: ignore[attr-defined] # it is imported there, not exported
    main()
