"""What people see of an answer."""

from __future__ import annotations

import sys

import pytest

from ackpost.cli.client import decoded
from ackpost.cli.show import plain, print_answer

ROWS = {"data": [{"id": "ep_1", "url": "https://a.example/" + "x" * 60}, {"id": "ep_2", "url": None}], "next": "abc"}


def test_a_pipe_gets_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are aligned, lines whole and without blanks at their ends, however long; how to go on comes last."""
    print_answer(ROWS, ("id", "url"))
    assert capsys.readouterr().out == (
        f"id    url\nep_1  https://a.example/{'x' * 60}\nep_2  –\nthere are more: --after abc\n"
    )


def test_a_narrow_terminal_gets_field_by_field(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table wider than the terminal becomes readable blocks, not columns of single letters."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    print_answer(ROWS, ("id", "url"))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["id   ep_1", f"url  https://a.example/{'x' * 60}"]
    assert lines[2:5] == ["", "id   ep_2", "url  –"]


def test_one_object_is_shown_with_all_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Nested values in one line if short, member by member if long; lists of attempts as a table below."""
    print_answer(
        {
            "id": "dlv_1",
            "yes": True,
            "none": None,
            "short": {"a": 1},
            "long": {"first": "x" * 50, "second": ["y" * 50]},
            "headers": [["content-type", "application/json"], ["x-name", "z" * 60]],
            "attempts": [{"number": 1, "outcome": "failed", "status_code": 503}],
        },
        (),
    )
    out = capsys.readouterr().out
    assert "none     –\n" in out
    assert 'short    {"a": 1}\n' in out
    assert f"long     first: {'x' * 50}\n         second: {'y' * 50}\n" in out
    assert f"headers  content-type: application/json\n         x-name: {'z' * 60}\n" in out
    assert out.splitlines()[-3:-1] == [
        "attempts",
        "number  started_at  trigger  outcome  status_code  error  duration_ms",
    ]


def test_nothing_and_done(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list and an answer without content are said, too."""
    print_answer({"data": [], "next": None}, ("id",))
    print_answer(None, ())
    assert capsys.readouterr().out == "nothing found\ndone\n"


def test_control_characters_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, line ends and reversed text in anybody's data reach the terminal as letters."""
    assert plain("a\x1b[2J\n\u202eb") == "a\\x1b[2J\\n\\u202eb"
    print_answer({"data": [{"type": "\x1b]0;x\x07"}]}, ("type",))
    print_answer({"response_body": "\x1b[31m", "metadata": {"\x1b": "\x1b[31m"}}, ())
    assert "\x1b" not in capsys.readouterr().out


def test_numbers_of_any_length_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A number longer than Python reads does not end the command."""
    print_answer(decoded(b'{"data":{"m":123456789012345678901,"n":%b}}' % (b"9" * 5_000)), ())
    assert "m: 123456789012345678901\n" in capsys.readouterr().out
