"""Settings: where they come from, which one wins, and how a wrong one stops the start."""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ackpost import config
from ackpost.config import Settings, load
from ackpost.errors import ConfigError

KEY = "k" * 31 + "!"


def settings(
    folder: Path, toml: str | None = None, environment: Mapping[str, str] | None = None, **command_line: object
) -> Settings:
    if toml is not None:
        (folder / "ackpost.toml").write_text(toml, encoding="utf-8")
    return load(command_line, environment or {}, folder)


def refusal(
    folder: Path, toml: str | None = None, environment: Mapping[str, str] | None = None, **given: object
) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(folder, toml, environment, **given)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_nothing_given_means_the_defaults(tmp_path: Path) -> None:
    """Without any source the defaults hold."""
    assert settings(tmp_path) == Settings()


def test_the_command_line_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    """Each source wins over the next one, setting by setting."""
    merged = settings(
        tmp_path,
        'port = 1\nhost = "127.0.0.1"\nslots = 5\n',
        {"ACKPOST_PORT": "2", "ACKPOST_SLOTS": "6"},
        port=3,
        host=None,
    )
    assert (merged.port, merged.slots, merged.host) == (3, 6, "127.0.0.1")


def test_a_named_file_is_read_instead_of_the_folders_one(tmp_path: Path) -> None:
    """With a file given, the one in the working directory does not count."""
    (tmp_path / "ackpost.toml").write_text("port = 1\n", encoding="utf-8")
    other = tmp_path / "other.toml"
    other.write_text("slots = 7\n", encoding="utf-8")
    merged = load({}, {}, tmp_path, other)
    assert (merged.port, merged.slots) == (8080, 7)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A file asked for by name and not there stops the start with its path."""
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read: No such file"):
        load({}, {}, tmp_path, tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"port = \n", "is not TOML: Invalid value (at line 1"), (b'host = "\xff"\n', "is not UTF-8 text")],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    """A broken file stops the start and says what is wrong with it."""
    (tmp_path / "ackpost.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(f"ackpost.toml {says}")):
        load({}, {}, tmp_path)


@pytest.mark.parametrize(
    ("toml", "environment", "says"),
    [
        ("prot = 1\n", {}, r"^prot in .*ackpost\.toml is no setting of Ackpost; did you mean port\?$"),
        ("[server]\nport = 1\n", {}, r"^server in .*ackpost\.toml is no setting of Ackpost"),
        (None, {"ACKPOST_PROT": "1"}, r"^environment variable ACKPOST_PROT is no .*did you mean port\?$"),
        (None, {"ACKPOST_port": "1"}, r"^environment variable ACKPOST_port is no setting of Ackpost"),
        (None, {"ACKPOST_": "1"}, r"^environment variable ACKPOST_ is no setting .*remove it"),
    ],
)
def test_an_unknown_setting_stops_the_start(
    tmp_path: Path, toml: str | None, environment: dict[str, str], says: str
) -> None:
    """A setting that does not exist is refused, with the one that was probably meant."""
    assert re.search(says, refusal(tmp_path, toml, environment))


def test_variables_of_the_client_commands_are_not_the_servers(tmp_path: Path) -> None:
    """ACKPOST_URL and ACKPOST_API_KEY may stand in the environment of a server."""
    assert settings(tmp_path, None, {"ACKPOST_URL": "http://x", "ACKPOST_API_KEY": "y", "PATH": "z"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("port", "70000", "use a whole number from 0 to 65535"),
        ("port", "-1", "use a whole number from 0 to 65535"),
        ("port", "80.5", "use a whole number from 0 to 65535"),
        ("port", "", "use a whole number from 0 to 65535"),
        ("port", "٣", "use a whole number from 0 to 65535"),
        ("data_bytes_max", "1048577", "use a whole number from 1 to 1048576"),
        ("retention_events_days", "0", "use a whole number from 1 to 3650"),
        ("allow_http", "maybe", "use true or false"),
        ("log_format", "xml", "use json or console"),
        ("log_level", "", "use debug or info or warning or error"),
        ("node_name", "a b", "use 1 to 64 letters"),
        ("host", "http://x/", "use a host name or an address"),
        ("database_url", "postgresql://db/", "use postgresql://USER@HOST/DATABASE with the name of"),
        ("database_url", "sqlite://", "use sqlite:///PATH of a file"),
        ("database_url", "sqlite:///", "use sqlite:///PATH of a file"),
        ("database_url", "sqlite:///:memory:", "use sqlite:///PATH of a file"),
        ("database_url", "sqlite:///a.db?mode=ro", "use sqlite:///PATH of a file"),
        ("database_url", "ackpost.db", "use sqlite:///PATH of a file"),
    ],
)
def test_a_bad_value_names_source_value_and_fix(tmp_path: Path, name: str, value: str, fix: str) -> None:
    """A refused value is told with where it stands and what would be right."""
    variable = f"ACKPOST_{name.upper()}"
    text = refusal(tmp_path, None, {variable: value})
    shown = json.dumps(value, ensure_ascii=False)
    assert text.startswith(f"environment variable {variable}: {shown} is refused, ")
    assert fix in text


@pytest.mark.parametrize(
    "toml", ["port = true\n", "port = 1.0\n", 'allow_http = "x"\n', "allow_target = 5\n", "host = 1\n"]
)
def test_a_toml_value_of_the_wrong_type_is_refused(tmp_path: Path, toml: str) -> None:
    """TOML's types are not bent: true is no number."""
    name = toml.partition(" ")[0]
    assert refusal(tmp_path, toml).startswith(f"{name} in {tmp_path / 'ackpost.toml'}: ")


def test_a_refusal_on_the_command_line_names_the_option(tmp_path: Path) -> None:
    """What was typed is told back as typed."""
    assert refusal(tmp_path, port=99999).startswith("--port: 99999 is refused, ")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("ON", True), ("1", True), (" no ", False), ("0", False)])
def test_words_for_true_and_false(tmp_path: Path, text: str, value: bool) -> None:
    """The environment's usual words for yes and no are understood."""
    assert settings(tmp_path, None, {"ACKPOST_METRICS_PUBLIC": text}).metrics_public is value


@pytest.mark.parametrize(
    "text",
    [" 192.168.3.207 ,10.0.0.0/8 ", "192.168.3.207/32,10.0.0.0/8,", '["192.168.3.207", " 10.0.0.0/8"]'],
)
def test_blanks_around_the_commas_of_a_list_do_not_matter(tmp_path: Path, text: str) -> None:
    """A list is the same with blanks, as JSON and with a comma at its end."""
    wanted = (ipaddress.ip_network("192.168.3.207/32"), ipaddress.ip_network("10.0.0.0/8"))
    assert settings(tmp_path, None, {"ACKPOST_ALLOW_TARGET": text}).allow_target == wanted


def test_lists_from_toml_and_from_a_repeated_option(tmp_path: Path) -> None:
    """A TOML array and a repeated option give the same list."""
    wanted = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))
    assert settings(tmp_path, 'allow_target = ["10.0.0.0/8", "fd00::/8"]\n').allow_target == wanted
    assert settings(tmp_path, "", allow_target=["10.0.0.0/8", "fd00::/8"]).allow_target == wanted
    assert settings(tmp_path, "", {"ACKPOST_ALLOW_TARGET": ""}).allow_target == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10.0.0.0/8, a.example", '"a.example" is no address range'),
        ("10.0.0.1/8", '"10.0.0.1/8" has bits set behind its mask: use 10.0.0.0/8'),
        ("10.0.0.0/33", '"10.0.0.0/33" is no address range'),
        ("[10.0.0.0/8]", "use a JSON list or a comma list"),
        ("[5]", "use a list of address ranges"),
    ],
)
def test_one_invalid_entry_stops_the_start_with_its_text(tmp_path: Path, text: str, says: str) -> None:
    """An entry that is no range is named; the rest is not taken in its stead."""
    assert says in refusal(tmp_path, None, {"ACKPOST_ALLOW_TARGET": text})


@pytest.mark.parametrize("key", ["", "short-secret", "ü" * 40, "with blank " * 4])
def test_a_weak_operator_key_is_refused_without_being_shown(tmp_path: Path, key: str) -> None:
    """A key that is too short, empty or not sendable stops the start, and is not in the message."""
    text = refusal(tmp_path, None, {"ACKPOST_OPERATOR_KEY": key})
    assert text.startswith("environment variable ACKPOST_OPERATOR_KEY: ")
    assert not key or key not in text


def test_the_operator_key_is_in_no_text(tmp_path: Path) -> None:
    """Neither repr nor the summary for the log shows the key."""
    made = settings(tmp_path, None, {"ACKPOST_OPERATOR_KEY": KEY})
    assert made.operator_key == KEY
    assert KEY not in repr(made) + str(made) + str(config.summary(made))
    assert config.summary(made)["operator_key"] == "***"
    assert config.summary(Settings())["operator_key"] == ""


def test_roles_are_for_servers_that_share(tmp_path: Path) -> None:
    """On a file there is one server, which does everything; on PostgreSQL it may do a part."""
    assert refusal(tmp_path, node_role="engine").startswith("node_role: engine is for servers that share a PostgreSQL")
    shared = settings(tmp_path, None, {}, node_role="api", database_url="postgresql://u@h/d")
    assert shared.node_role == "api"


def test_dev_opens_http_and_loopback_and_nothing_else(tmp_path: Path) -> None:
    """With dev the loopback ranges are allowed beside those given, and logs are for people."""
    made = settings(tmp_path, None, {"ACKPOST_ALLOW_TARGET": "10.0.0.0/8,127.0.0.0/8"}, dev=True)
    assert made.allow_http
    assert [str(one) for one in made.allow_target] == ["10.0.0.0/8", "127.0.0.0/8", "::1/128"]
    assert made.log_format == "console"
    assert settings(tmp_path, None, {"ACKPOST_LOG_FORMAT": "json"}, dev=True).log_format == "json"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_dev_listens_on_loopback_only(tmp_path: Path, host: str) -> None:
    """With dev a host that others can reach stops the start."""
    assert refusal(tmp_path, dev=True, host=host).startswith(f"host: {host} can be reached by other machines")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_dev_on_any_loopback_address_is_fine(tmp_path: Path, host: str) -> None:
    """All loopback addresses are this machine's own."""
    assert settings(tmp_path, dev=True, host=host).listens_on_loopback


def test_metrics_are_open_on_loopback_unless_said_otherwise(tmp_path: Path) -> None:
    """Without a setting /metrics is open where only this machine can ask."""
    assert settings(tmp_path).metrics_are_public
    assert not settings(tmp_path, host="0.0.0.0").metrics_are_public
    assert settings(tmp_path, "metrics_public = true\n", host="0.0.0.0").metrics_are_public
    assert not settings(tmp_path, "metrics_public = false\n").metrics_are_public


@pytest.mark.parametrize(
    ("url", "path"), [("sqlite:///ackpost.db", "ackpost.db"), ("sqlite:////var/lib/a.db", "/var/lib/a.db")]
)
def test_the_database_path(tmp_path: Path, url: str, path: str) -> None:
    """Three slashes and a relative path, four and an absolute one."""
    assert settings(tmp_path, database_url=url).database_path == Path(path)


def test_the_default_file_is_valid_and_changes_nothing_when_uncommented(tmp_path: Path) -> None:
    """Every line of the commented file is TOML, names a setting and holds its default."""
    text = config.default_file()
    assert tomllib.loads(text) == {}
    lines = re.findall(r"^# ([a-z_]+ = .*)$", text, flags=re.MULTILINE)
    values: dict[str, Any] = tomllib.loads("\n".join(lines))
    assert list(values) == [one.name for one in fields(Settings)]
    for example in ("operator_key", "node_name", "metrics_public"):
        del values[example]
    toml = "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
    assert settings(tmp_path, toml) == Settings()


def test_every_setting_has_words_and_an_option_named_like_it() -> None:
    """No setting without a sentence; an option is the setting's name with dashes."""
    for one in fields(Settings):
        assert one.metadata["doc"].endswith(".")
        assert one.metadata.get("option", f"--{one.name.replace('_', '-')}") == f"--{one.name.replace('_', '-')}"
