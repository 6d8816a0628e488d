"""The reader of code blocks and the shell that runs them, on small pages of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block, Command, blocks, commands, matches
from tests.docs.session import Session, SessionEnded

PAGE = """\
# A page

```console
$ echo one \\
    two
one two
$ true
```

1. Indented:

   ```python run
   value = 1
   ```

<!-- run by: tests/cli/test_demo.py -->

```console
$ make demo
```
"""


def test_blocks_are_found_with_their_lines(tmp_path: Path) -> None:
    """Fences, indentation, info strings and the comment before a block are understood."""
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    assert blocks(page) == [
        Block("console", "$ echo one \\\n    two\none two\n$ true", 4),
        Block("python run", "value = 1", 13),
        Block("console", "$ make demo", 19, "tests/cli/test_demo.py"),
    ]


def test_an_open_block_is_an_error(tmp_path: Path) -> None:
    """A block that never ends would hide the rest of the page."""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ true\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"page\.md:1: this block is never closed"):
        blocks(page)


def test_commands_and_what_they_show(tmp_path: Path) -> None:
    """A command goes on after a backslash; what follows is its output, without the empty lines at its end."""
    block = Block("console", "$ echo one \\\n    two\none two\n\n$ true", 4)
    assert commands(block) == [
        Command("echo one \\\n    two", ("one two",), 4),
        Command("true", (), 8),
    ]


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        (("a b",), "a b\n\n", True),
        (("a b",), "a  b\n", False),
        (("id: …, n: 1",), "id: evt_1, n: 1\n", True),
        (("id: …, n: 1",), "id: evt_1, n: 2\n", False),
        (("id: …",), "id: 1\nid: 2\n", False),
        (("first", "…", "last"), "first\nlast\n", True),
        (("first", "…", "last"), "first\n1\n2\nlast\n", True),
        (("first", "…", "last"), "first\n1\n2\n", False),
        (("a.c",), "abc\n", False),
    ],
)
def test_output_is_compared_with_what_is_shown(shown: tuple[str, ...], output: str, same: bool) -> None:
    """Three dots stand for any text of a line or, alone, for any lines; everything else is literal."""
    assert matches(shown, output) is same


def test_a_session_keeps_folder_and_variables(tmp_path: Path) -> None:
    """Commands of a page run in one shell; output and error output come together."""
    with Session(tmp_path, {"GIVEN": "yes"}) as session:
        assert session.run("name=value; mkdir inner; cd inner") == (0, "")
        assert session.run('printf %s "$name $GIVEN $(basename "$PWD")"; echo "!" >&2') == (0, "value yes inner!\n")
        assert session.run("(exit 3)") == (3, "")
        assert session.run("cat") == (0, "")


def test_a_session_tells_when_its_shell_ends(tmp_path: Path) -> None:
    """A page whose command ends the shell fails with what it printed."""
    with Session(tmp_path) as session, pytest.raises(SessionEnded, match="last words"):
        session.run("echo last words; exit 1")
