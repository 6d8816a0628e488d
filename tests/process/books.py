"""What a test compares after trouble: the API's lists, the file's rows, the marks of requests in flight."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.process.server import Server


def in_flight(database: Path) -> int:
    """How many deliveries the file beside the database marks as in flight."""
    marks = database.with_name(f"{database.name}-inflight").read_bytes()
    return sum(1 for position, _, _ in struct.iter_unpack("<qII", marks) if position)


def rows(database: Path, sql: str) -> list[tuple[Any, ...]]:
    """Read the file beside a running server, as any other process may."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as reader:
        return reader.execute(sql).fetchall()


def count(database: Path, table: str) -> int:
    """Count the rows of a table, given with its condition if it has one."""
    return int(rows(database, f"SELECT count(*) FROM {table}")[0][0])


def events(server: Server, type: str) -> dict[str, Any]:
    """Give all events of a type by uid, page by page."""
    found: dict[str, Any] = {}
    after: str | None = None
    while True:
        page = server.get("/events", type=type, limit=250, after=after)
        found |= {event["uid"]: event for event in page["data"]}
        after = page["next"]
        if after is None:
            return found


def metric(server: Server, name: str) -> float:
    """Give one value of /metrics by its name with labels."""
    text = server.api.call_bytes("GET", "/metrics").decode()
    (value,) = (line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} "))
    return float(value)
