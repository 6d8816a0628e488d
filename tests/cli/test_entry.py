"""The entry point: what a base install says, and how errors end."""

from __future__ import annotations

import sys

import pytest

from ackpost import __version__, cli
from ackpost.errors import ConfigError


def test_a_base_install_says_how_to_get_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the command ends with the line that installs it, not with a traceback."""
    for name in [name for name in sys.modules if name.startswith("ackpost.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == "This command needs the server's dependencies: pip install 'ackpost[server]'"


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command tells the package's version and ends well."""
    monkeypatch.setattr(sys, "argv", ["ackpost", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert capsys.readouterr().out == f"ackpost {__version__}\n"


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours ends the command with its text; exit code 1 and no traceback."""
    from ackpost import config

    def refuse() -> str:
        raise ConfigError("port: wrong")

    monkeypatch.setattr(config, "default_file", refuse)
    monkeypatch.setattr(sys, "argv", ["ackpost", "config"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == "ackpost: port: wrong"
