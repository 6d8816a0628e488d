"""A server that cannot start says why in one line and ends with a code; keys made beside a stopped one."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ackpost.cli.client import ApiClient
from tests.cli.shell import Shell
from tests.process.server import Lines, Server, until

START_S = 30


def _refused(folder: Path, *arguments: str, **environment: str) -> str:
    """Start a server that must end by itself with one line; give the line."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ACKPOST_")}
    done = subprocess.run(
        [sys.executable, "-m", "ackpost", "serve", *arguments],
        cwd=folder,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 1, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ackpost: ")
    return lines[0].removeprefix("ackpost: ")


def test_a_taken_port(tmp_path: Path) -> None:
    """The line names the address and the option; the database is not even made."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = _refused(tmp_path, "--port", str(port))
    assert said == f"port: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port"
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_another_server(tmp_path: Path) -> None:
    """The line names the file and its owner; the owner goes on."""
    with Server(tmp_path) as server:
        said = _refused(tmp_path, "--port", "0", "--database-url", f"sqlite:///{server.database}")
        assert said.startswith(f"The database {server.database} is in use: by node ")
        server.publish("still.here")
        assert server.stop() == 0


def test_a_corrupt_file(tmp_path: Path) -> None:
    """A file that is no database is named and left as it is."""
    file = tmp_path / "ackpost.db"
    file.write_bytes(b"not a database, whatever it is" * 1_000)
    said = _refused(tmp_path, "--port", "0")
    assert "ackpost.db" in said
    assert file.read_bytes() == b"not a database, whatever it is" * 1_000


@pytest.mark.parametrize("path", ["file/ackpost.db", "none/ackpost.db", "folder"])
def test_a_folder_in_which_no_file_can_be_made(tmp_path: Path, path: str) -> None:
    """Below a file, below nothing, or a folder in its place: the line names the path."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    assert path in _refused(tmp_path, "--port", "0", "--database-url", f"sqlite:///{path}")


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ([], {"ACKPOST_OPERATOR_KEY": "short"}, "environment variable ACKPOST_OPERATOR_KEY: it has 5 characters"),
        ([], {"ACKPOST_OPERATOR_KEY": ""}, "environment variable ACKPOST_OPERATOR_KEY: it has 0 characters"),
        ([], {"ACKPOST_PROT": "1"}, "environment variable ACKPOST_PROT is no setting of Ackpost; did you mean port?"),
        (["--port", "http"], {}, '--port: "http" is refused, use a whole number'),
        (["--dev", "--host", "0.0.0.0"], {}, "host: 0.0.0.0 can be reached by other machines"),
        (["--config", "none.toml"], {}, "none.toml cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_setting(tmp_path: Path, arguments: list[str], environment: dict[str, str], said: str) -> None:
    """The line names the setting, where it stands and what would be right; a key is never printed."""
    assert _refused(tmp_path, *arguments, **environment).startswith(said)
    assert not (tmp_path / "ackpost.db").exists()


def test_an_operator_key_made_beside_a_stopped_server(shell: Shell, tmp_path: Path) -> None:
    """With the server stopped a new key is written and works afterwards; beside a running one it is refused."""
    shell.monkeypatch.chdir(tmp_path)
    server = Server(tmp_path)
    database = f"sqlite:///{server.database}"
    shell.ok("migrate", "--database-url", database)
    made = shell.ok("api-keys", "create", "--role", "operator", "--offline", "--database-url", database)
    key = made.out.strip()
    assert made.error == "The new operator key:\n"
    with server:
        listed = ApiClient(server.url, key).call("GET", "/v1/api-keys")["data"]
        assert "made on the command line" in [one["name"] for one in listed]
        said = shell.refused("api-keys", "create", "--role", "operator", "--offline", "--database-url", database)
        assert "is in use" in said
        assert "is in use" in shell.refused("migrate", "--database-url", database)
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--role", "admin", "--offline"], "--offline makes operator keys only"),
        (["--role", "operator", "--offline", "--tenant", "a"], "--offline makes operator keys only"),
        (["--role", "admin", "--database-url", "sqlite:///x"], "--database-url and --config go with --offline"),
    ],
)
def test_options_that_do_not_go_together(shell: Shell, arguments: list[str], said: str) -> None:
    """Nothing is opened or called."""
    assert shell.refused("api-keys", "create", *arguments).startswith(said)


def _serve(folder: Path, *arguments: str) -> tuple[str, str]:
    """Start a server, call it with the key that it made, and stop it; give its log and the key."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ACKPOST_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "ackpost", "serve", "--port", "0", *arguments],
        cwd=folder,
        env={**inherited, "ACKPOST_LOG_FORMAT": "json"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    log = Lines(process.stdout)
    try:
        started = until(lambda: [line for line in log.lines if '"server.started"' in line], "the server's start")
        file = folder / (".ackpost/dev-key" if "--dev" in arguments else "operator.key")
        key = until(lambda: file.read_text(encoding="ascii").strip() if file.exists() else None, "the key's file")
        assert ApiClient(json.loads(started[0])["url"], key).call("GET", "/v1/tenants")["data"][0]["uid"] == "default"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_S) == 0
    finally:
        process.kill()
        lines = log.join()
    return "\n".join(lines), key


def test_the_first_start_makes_a_key_and_tells_only_its_path(tmp_path: Path) -> None:
    """Without a terminal the operator's key goes into a file of its owner; the next start makes no other."""
    log, key = _serve(tmp_path)
    assert key not in log
    assert str(tmp_path / "operator.key") in log
    log, again = _serve(tmp_path)
    assert again == key
    assert "operator_key.written" not in log


def test_a_developers_key_is_kept_over_restarts(tmp_path: Path) -> None:
    """``serve --dev`` shows the same key each time, in a curl that can be pasted."""
    log, key = _serve(tmp_path, "--dev")
    assert f"Authorization: Bearer {key}" in log
    assert _serve(tmp_path, "--dev")[1] == key


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_well(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it with code 0 and not a word on stderr but its greeting."""
    with Server(tmp_path) as server:
        server.process.send_signal(number)
        code, said = server.wait()
    assert code == 0
    assert not any("Traceback" in line for line in said)
