"""The project's own files, as the tidy tests read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "ackpost"
TESTS = ROOT / "tests"
DOCS = ROOT / "docs"

_TREES = ("src/ackpost", "tests", "docs", "examples", "requirements", ".ci")
_TEXT = {".py", ".md", ".toml", ".txt", ".in", ".sql", ".html", ".css", ".js", ".json", ".yaml", ".yml", ".sh", ""}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: Path) -> list[Path]:
    """All Python files below the folders (default: of the project), in a fixed order."""
    chosen = folders or (SRC, TESTS, ROOT / "examples", ROOT / "requirements")
    return sorted(file for folder in chosen for file in folder.rglob("*.py") if "__pycache__" not in file.parts)


def text_files() -> list[Path]:
    """All files of the project that people read."""
    inside = (file for tree in _TREES for file in (ROOT / tree).rglob("*") if "__pycache__" not in file.parts)
    found = (file for file in [*ROOT.iterdir(), *inside] if file.is_file() and file.suffix in _TEXT)
    return sorted(file for file in found if not file.name.startswith(".coverage"))


def documents() -> list[Path]:
    """All Markdown files."""
    return [file for file in text_files() if file.suffix == ".md"]


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def functions(file: Path) -> Iterator[Function]:
    """All functions of a file, inner ones and methods included."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, Function):
            yield node


def dotted(node: ast.expr) -> str:
    """``asyncio.sleep`` of the expression that names it, empty when it is no plain name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}" if dotted(value) else ""
        case _:
            return ""


def calls(file: Path) -> Iterator[ast.Call]:
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call):
            yield node


def imports(file: Path) -> Iterator[tuple[str, int]]:
    """Each imported module's (and member's) dotted name, with its line."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def at(file: Path, line: int) -> str:
    return f"{file.relative_to(ROOT)}:{line}"
