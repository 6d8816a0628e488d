"""The documents' code blocks do what the documents say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import Block, blocks, commands, matches
from tests.docs.server import fresh_server
from tests.docs.session import Session
from tests.tidy import tree

PAGES = [str(page.relative_to(tree.ROOT)) for page in tree.documents()]


def _blocks(page: str, info: str) -> list[Block]:
    return [block for block in blocks(tree.ROOT / page) if block.info == info]


@pytest.mark.parametrize("page", PAGES)
def test_console_blocks_run_as_printed(page: str, tmp_path: Path) -> None:
    """Each command of a page, in one shell beside a fresh server, ends well and prints what the page shows."""
    run_here = [block for block in _blocks(page, "console") if block.run_by is None]
    if not run_here:
        return
    with fresh_server(tmp_path) as server, Session(tmp_path, server.environment) as session:
        for command in (command for block in run_here for command in commands(block)):
            code, output = session.run(server.adapt(command.text))
            where = f"{page}:{command.line}: {command.text}"
            assert code == 0, f"{where}\nended with {code}:\n{output}"
            if command.shown:
                shown = tuple(server.adapt(line) for line in command.shown)
                assert matches(shown, output), f"{where}\nprinted:\n{output}"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_by_other_tests_name_one_that_exists(page: str) -> None:
    """A block excused from running here is run by a test that is there."""
    named = [block.run_by for block in blocks(tree.ROOT / page) if block.run_by is not None]
    assert [name for name in named if not (tree.ROOT / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str) -> None:
    """The Python blocks marked "run" of a page, together as one module, run without an error."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in _blocks(page, "python run"):
        exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES)
def test_other_python_blocks_compile(page: str) -> None:
    """A Python block that does not run here is at least Python."""
    for block in _blocks(page, "python"):
        compile("\n" * (block.line - 1) + block.text, page, "exec")
