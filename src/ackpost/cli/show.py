"""How answers are shown: tables for people, the API's own bytes for scripts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_UNBOUNDED: Final = 10_000
_SHOWN_CHARS_MAX: Final = 4_000
_LINE_CHARS: Final = 80
# What could move the cursor, recolour or reorder a terminal's text: endpoints and publishers choose some of it.
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# Lists inside one object that get a table of their own, with its columns.
_INNER: Final[Mapping[str, Sequence[str]]] = {
    "deliveries": ("id", "endpoint_id", "status", "attempt_count", "next_attempt_at", "held_by", "last_error"),
    "attempts": ("number", "started_at", "trigger", "outcome", "status_code", "error", "duration_ms"),
}
_INNER_ONE: Final[Mapping[str, str]] = {"attempt": "attempts", "last_failure": "attempts"}


def print_bytes(answer: bytes) -> None:
    """Print an answer as it came."""
    sys.stdout.flush()
    sys.stdout.buffer.write(answer + (b"" if answer.endswith(b"\n") else b"\n"))
    sys.stdout.buffer.flush()


def print_answer(answer: Any, columns: Sequence[str]) -> None:
    """Print a list as a table, anything else field by field."""
    if answer is None:
        print("done")
    elif isinstance(answer, dict) and isinstance(answer.get("data"), list):
        _print_list(answer, columns)
    elif isinstance(answer, dict):
        _print_object(answer)
    else:
        print(plain(cell(answer)))


def _print_list(answer: dict[str, Any], columns: Sequence[str]) -> None:
    if not answer["data"]:
        print("nothing found")
        return
    _console().print(_table(answer["data"], columns))
    if answer.get("next"):
        print(f"there are more: --after {answer['next']}")


def _print_object(answer: dict[str, Any]) -> None:
    inner = {name: (_INNER[name], rows) for name in _INNER if (rows := _rows(answer.get(name)))}
    inner |= {name: (_INNER[kind], rows) for name, kind in _INNER_ONE.items() if (rows := _rows([answer.get(name)]))}
    fields = Table.grid(padding=(0, 2))
    for name, value in answer.items():
        if name not in inner:
            fields.add_row(Text(name, style="dim"), Text(_long(value), overflow="fold"))
    console = _console()
    console.print(fields)
    for name, (columns, rows) in inner.items():
        console.print(Text(f"\n{name}", style="bold"))
        console.print(_table(rows, columns))


def _rows(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) and value and isinstance(value[0], dict) else []


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        identity = name.rpartition(".")[2] in {"id", "delivery_id", "event_id", "endpoint_id"}
        table.add_column(name, overflow="fold", no_wrap=identity)
    for row in rows:
        table.add_row(*(Text(plain(cell(_at(row, name)))) for name in columns))
    return table


def _at(row: Any, path: str) -> Any:
    for name in path.split("."):
        row = row.get(name) if isinstance(row, dict) else None
    return row


def cell(value: Any) -> str:
    """Write a value in one line; null is a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value) or "–"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _long(value: Any) -> str:
    """Write a value with as many lines as it needs: what is long goes member by member."""
    if not isinstance(value, dict | list) or len(json.dumps(value)) <= _LINE_CHARS:
        text = plain(cell(value))
    elif isinstance(value, dict):
        text = "\n".join(plain(f"{name}: {cell(one)}") for name, one in value.items())
    else:
        pairs = all(isinstance(one, list) and len(one) == 2 for one in value)
        text = "\n".join(plain(": ".join(map(cell, one)) if pairs else cell(one)) for one in value)
    return text[:_SHOWN_CHARS_MAX] + ("…" if len(text) > _SHOWN_CHARS_MAX else "")


def plain(text: str) -> str:
    r"""Write control characters as ``\x1b``, so that nobody's data drives the reader's terminal."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _console() -> Console:
    """A terminal's own width; a pipe or file gets whole lines."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_UNBOUNDED)
