"""Reads the code blocks of a Markdown page.

A ``console`` block holds commands after ``$ `` (a trailing backslash continues one on the next line) and, between
them, the output a reader will see. In output ``…`` stands for any text within a line, and a line of ``…`` alone for any
lines.
A block that cannot run against a fresh server says, in a comment right before it, which test runs it instead:
``<!-- run by: tests/cli/test_demo.py -->``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)$")
_RUN_BY = re.compile(r"^<!-- run by: (\S+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is that of its first line of content, from 1."""

    info: str
    text: str
    line: int
    run_by: str | None = None


@dataclass(frozen=True)
class Command:
    """One command and the output lines shown below it (none: anything may come)."""

    text: str
    shown: tuple[str, ...]
    line: int


def blocks(page: Path) -> list[Block]:
    """Give all fenced blocks of a page in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    start: tuple[int, str, int, str | None] | None = None
    run_by = None
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if fence and start is None:
            start = (number, fence["info"].strip(), len(fence["indent"]), run_by)
        elif fence and start is not None and not fence["info"]:
            first, info, indent, by = start
            text = "\n".join(one[indent:] for one in lines[first : number - 1])
            found.append(Block(info, text, first + 1, by))
            start = run_by = None
        elif start is None and line.strip():
            said = _RUN_BY.match(line.strip())
            run_by = said[1] if said else None
    if start is not None:
        raise ValueError(f"{page.name}:{start[0]}: this block is never closed")
    return found


def commands(block: Block) -> list[Command]:
    """Give the commands of a console block, each with its output."""
    found: list[tuple[int, list[str], list[str]]] = []
    continued = False
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if continued:
            found[-1][1].append(line)
        elif line.startswith("$ "):
            found.append((number, [line[2:]], []))
        elif found:
            found[-1][2].append(line)
        elif line.strip():
            raise ValueError(f"line {number}: a console block begins with a command")
        else:
            continue
        continued = (continued or line.startswith("$ ")) and line.endswith("\\")
    return [Command("\n".join(text), _trimmed(shown), number) for number, text, shown in found]


def _trimmed(shown: list[str]) -> tuple[str, ...]:
    while shown and not shown[-1].strip():
        shown.pop()
    return tuple(shown)


def matches(shown: tuple[str, ...], output: str) -> bool:
    """Say whether real output is what a page shows; blanks at line ends and empty lines at the end do not count."""
    parts = []
    for line in shown:
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*")
        else:
            parts.append(".*".join(re.escape(piece) for piece in line.rstrip().split("…")) + r"\n")
    real = "".join(f"{line.rstrip()}\n" for line in output.rstrip().splitlines())
    return re.fullmatch("".join(parts), real) is not None
