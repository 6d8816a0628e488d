"""Which server the commands talk to, with which key, and what they say when that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.process.receiver import Receiver

KEY = "a-key-of-thirty-two-characters-or-more"


def test_without_a_key_the_command_says_how_to_give_one(shell: Shell, tmp_path: Path) -> None:
    """No key, no call."""
    shell.monkeypatch.chdir(tmp_path)
    assert shell.refused("events", "list") == (
        "ACKPOST_API_KEY is not set: export an API key of the server (serve --dev keeps its own in .ackpost/dev-key)"
    )


def test_a_developers_key_is_found_and_goes_to_this_machine_only(
    shell: Shell, receiver: Receiver, tmp_path: Path
) -> None:
    """The key file of ``ackpost serve --dev`` in this folder is used on loopback, and nowhere else."""
    shell.monkeypatch.chdir(tmp_path)
    (tmp_path / ".ackpost").mkdir()
    (tmp_path / ".ackpost/dev-key").write_text(f"{KEY}\n", encoding="ascii")
    url = receiver.hook("/v1/events")
    shell.monkeypatch.setenv("ACKPOST_URL", url.removesuffix("/v1/events"))
    assert "yes" in shell.ok("events", "list").out
    assert receiver.seen("/v1/events")[-1].header("authorization") == f"Bearer {KEY}"
    shell.monkeypatch.setenv("ACKPOST_URL", "http://ackpost.example")
    assert shell.refused("events", "list").startswith("ACKPOST_API_KEY is not set")


def test_the_tenant_and_a_path_before_the_api_are_sent(shell: Shell, receiver: Receiver) -> None:
    """``--tenant`` becomes the header, and a server below a path is found there."""
    url = receiver.hook("/below/v1/jobs?limit=5")
    shell.use(url.removesuffix("/v1/jobs?limit=5"), KEY)
    shell.ok("jobs", "list", "--tenant", "acme", "--limit", "5")
    assert receiver.seen("/below/v1/jobs?limit=5")[-1].header("ackpost-tenant") == "acme"


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "127.0.0.1:8080", "http://", "http://[::1", "http://h:99999", "http://a b/", "http://ü/"]
)
def test_a_url_that_is_none_is_refused(shell: Shell, url: str) -> None:
    """A mistyped ACKPOST_URL is named, not tried."""
    shell.use(url, KEY)
    assert shell.refused("jobs", "list").startswith(f"ACKPOST_URL: {url} is no server's URL")


@pytest.mark.parametrize(("key", "tenant"), [("a key", "acme"), ("k\nx: y", "acme"), (KEY, "a b"), (KEY, "é")])
def test_what_cannot_be_a_header_is_refused(shell: Shell, key: str, tenant: str) -> None:
    """Line ends and other scripts never get into a request's header, and the key is not printed."""
    shell.use("http://127.0.0.1:1", key)
    said = shell.refused("jobs", "list", "--tenant", tenant)
    assert said.endswith("must be printable ASCII without blanks")


def test_a_server_that_is_not_there_is_said(shell: Shell) -> None:
    """Nobody listens on port 1."""
    shell.use("http://127.0.0.1:1", KEY)
    assert shell.refused("jobs", "list").startswith("no answer from 127.0.0.1:1 ([Errno")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("500:body=oops", "500: this is no answer of Ackpost: 'oops'"),
        ("302", "302: "),
        ("reset", "no answer from 127.0.0.1:"),
        ("garbage", "no answer from 127.0.0.1:"),
        ("403:body={}", "403: refused"),
    ],
)
def test_answers_that_are_no_success_are_one_line(shell: Shell, receiver: Receiver, script: str, said: str) -> None:
    """Whatever answers at the URL, the command ends with one line; a redirect is not followed."""
    url = receiver.hook("/v1/jobs", script)
    shell.use(url.removesuffix("/v1/jobs"), KEY)
    assert shell.refused("jobs", "list").startswith(said)
