"""How answers are shown: tables for people, the API's own bytes for scripts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

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
    _print_table(answer["data"], columns)
    if answer.get("next"):
        print(f"there are more: --after {answer['next']}")


def _print_object(answer: dict[str, Any]) -> None:
    inner = {name: (_INNER[name], rows) for name in _INNER if (rows := _rows(answer.get(name)))}
    inner |= {name: (_INNER[kind], rows) for name, kind in _INNER_ONE.items() if (rows := _rows([answer.get(name)]))}
    _print_fields({name: _long(value) for name, value in answer.items() if name not in inner})
    for name, (columns, rows) in inner.items():
        _print_line(Text(f"\n{name}", style="bold"))
        _print_table(rows, columns)


def _rows(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) and value and isinstance(value[0], dict) else []


def _print_fields(fields: Mapping[str, str]) -> None:
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        for label, line in zip_longest([name], value.split("\n"), fillvalue=""):
            _print_line(Text(f"{label:<{width}}  ", style="dim").append(Text(line, style="not dim")))


def _print_table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print rows below each other; on a terminal that is too narrow, each field by field."""
    lines = [[plain(cell(_at(row, name))) for name in columns] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *lines, strict=True)]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) > Console().width:
        for number, line in enumerate(lines):
            if number:
                print()
            _print_fields(dict(zip(columns, line, strict=True)))
        return
    for number, line in enumerate([list(columns), *lines]):
        text = "  ".join(set_cell_size(one, width) for one, width in zip(line, widths, strict=True))
        _print_line(Text(text.rstrip(), style="" if number else "dim"))


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


def _print_line(text: Text) -> None:
    """Print a line whole: terminals wrap it, pipes and files get it as it is."""
    text.rstrip()
    Console(highlight=False, soft_wrap=True).print(text)
