"""The settings of a server: command line > ``ACKPOST_*`` environment > ``ackpost.toml`` > default.

A wrong setting stops the start with one line that names it, its source and the fix. Settings never travel below
``wiring``: components receive the few typed values they need. The field metadata below is the one source of the
commented default file and of the table in ``docs/production.md``.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from ackpost.errors import ConfigError

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

FILE_NAME: Final = "ackpost.toml"
ENVIRONMENT_PREFIX: Final = "ACKPOST_"
CLIENT_VARIABLES: Final = frozenset({"ACKPOST_URL", "ACKPOST_API_KEY", "ACKPOST_OUTBOX_URL"})
"""Belong to the commands that talk to a server, which does not read them."""

LOOPBACK: Final[tuple[IPNetwork, ...]] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))

_POSTGRES: Final = ("postgresql://", "postgres://")
_PASSWORD: Final = re.compile(r"(://[^/@:?#\s]*:)[^/?#\s]*@")
_PASSWORD_PARAMETER: Final = re.compile(r"([?&]password=)[^&#\s\"]*")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\.[A-Za-z_][A-Za-z0-9_]{0,62}")
_OFF: Final = "off"
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")


# Each parser takes text (environment, command line) or a TOML value and raises ValueError with what would be right.


def _whole_number(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"use a whole number from {low} to {high}")
        return value

    return parse


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in _TRUE | _FALSE:
        raise ValueError("use true or false")
    return word in _TRUE


def _one_of(*choices: str) -> Callable[[object], Any]:
    def parse(value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in choices:
            raise ValueError(f"use {' or '.join(choices)}")
        return word

    return parse


def _text(pattern: re.Pattern[str], right: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value.strip()):
            raise ValueError(right)
        return value.strip()

    return parse


def _database_url(value: object) -> str:
    url = value.strip() if isinstance(value, str) else ""
    if url.startswith(_POSTGRES):
        return _postgres_url(url)
    path = url.removeprefix("sqlite:///")
    if path == url or not path or path.endswith("/") or ":memory:" in path or any(sign in path for sign in "?#\0"):
        raise ValueError("use sqlite:///PATH of a file (four slashes: absolute), or postgresql://USER@HOST/DATABASE")
    return url


def _postgres_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or not parts.path.strip("/") or parts.fragment:
        raise ValueError("use postgresql://USER@HOST/DATABASE with the name of a database that exists")
    return "postgresql://" + url.partition("://")[2]


def without_password(text: str) -> str:
    """Give a URL, or a text with one, as it may be shown."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))


def database(url: str, source: str) -> Settings:
    """Give settings that name a database and are otherwise the defaults; ``source`` is where the URL was written.

    Raises: ConfigError.
    """
    return Settings(database_url=_parsed("database_url", url, source))


def sqlite_path(url: str) -> Path:
    """Give the file of a ``database_url``. Raises: ConfigError with one line, as for a setting."""
    try:
        checked = _database_url(url)
    except ValueError as error:
        raise ConfigError(f"database_url: {error}") from error
    if checked.startswith(_POSTGRES):
        raise ConfigError("database_url: this works on an SQLite file only; PostgreSQL has its own tools (pg_dump)")
    return Path(checked.removeprefix("sqlite:///"))


def _outbox_table(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if text != _OFF and not _TABLE.fullmatch(text):
        raise ValueError(f"use schema.table with letters, digits and underscores, or {_OFF}")
    return text


def _operator_key(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]*", value):
        raise ValueError("use printable ASCII characters without blanks")
    if len(value) < 32:
        raise ValueError(f"it has {len(value)} characters: use 32 or more, or leave it out and a key is made")
    return value


def _folder(value: object) -> Path:
    text = str(value).strip() if isinstance(value, str | Path) else ""
    if not text or "\0" in text:
        raise ValueError("use the path of a folder")
    return Path(text)


def _networks(value: object) -> tuple[IPNetwork, ...]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError("use a JSON list or a comma list of address ranges") from None
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError('use a list of address ranges such as "10.0.0.0/8"')
    return tuple(_network(entry.strip()) for item in value for entry in item.split(",") if entry.strip())


def _network(text: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        meant = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f'"{text}" is no address range: use CIDR notation such as 10.0.0.0/8') from None
    raise ValueError(f'"{text}" has bits set behind its mask: use {meant}')


def _setting(default: Any, parse: Callable[[object], Any], doc: str, **more: Any) -> Any:
    """A field; ``more``: ``option`` (command line), ``secret``, ``mask`` (what of it may be shown), ``shown`` and
    ``example`` (for a computed default).
    """
    hidden = more.get("secret") or more.get("mask")
    return field(default=default, metadata={"parse": parse, "doc": doc, **more}, repr=not hidden)


_STATE_DIR: Final = Path(".ackpost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A checked set of settings; make it with `load`."""

    database_url: str = _setting(
        "sqlite:///ackpost.db",
        _database_url,
        "The database: sqlite:///PATH of a file (relative to the working directory, absolute with four slashes) for "
        "one server, or postgresql://USER:PASSWORD@HOST/DATABASE for as many as wanted.",
        option="--database-url",
        mask=without_password,
    )
    node_role: Literal["all", "api", "engine"] = _setting(
        "all",
        _one_of("all", "api", "engine"),
        "What this server does where several share a PostgreSQL: api accepts and answers, engine delivers, all does "
        "both.",
        option="--node-role",
    )
    host: str = _setting(
        "127.0.0.1",
        _text(_HOST, "use a host name or an address"),
        "The address to listen on. Put a TLS-terminating proxy in front of anything but loopback.",
        option="--host",
    )
    port: int = _setting(8080, _whole_number(0, 65535), "The port to listen on; 0 takes a free one.", option="--port")
    dev: bool = _setting(
        default=False,
        parse=_boolean,
        doc="For a developer's machine: http and loopback targets allowed, listens on loopback only, readable logs.",
        option="--dev",
    )
    allow_http: bool = _setting(
        default=False, parse=_boolean, doc="Accept endpoints with http:// URLs.", option="--allow-http"
    )
    allow_target: tuple[IPNetwork, ...] = _setting(
        (),
        _networks,
        "Address ranges (CIDR) to which delivery is allowed although they are private, loopback or otherwise reserved.",
        option="--allow-target",
    )
    operator_key: str | None = _setting(
        None,
        _operator_key,
        "The operator's API key, 32 characters or more.",
        secret=True,
        shown="made at the first start, which shows it or says where it is",
        example="",
    )
    data_bytes_max: int = _setting(
        262_144, _whole_number(1, 1_048_576), "The largest `data` of an event, in bytes (at most 1 MiB)."
    )
    endpoints_max: int = _setting(1_000, _whole_number(1, 1_000_000), "The most endpoints a tenant may have.")
    retention_events_days: int = _setting(
        30, _whole_number(1, 3_650), "How long ended events and their attempts are kept, in days."
    )
    retention_dead_letters_days: int = _setting(
        90, _whole_number(1, 3_650), "How long dead letters and their data are kept, in days."
    )
    retention_keys_days: int = _setting(
        400,
        _whole_number(1, 36_500),
        "How long a key's last sequence is kept after its last use, in days. A sequence that begins anew makes "
        "consumers discard events as stale: keep it longer than any consumer remembers.",
    )
    slots: int = _setting(1_000, _whole_number(1, 20_000), "The most requests in flight to endpoints at a time.")
    connections_per_host: int = _setting(
        100, _whole_number(1, 10_000), "The most connections to one host, over all endpoints there."
    )
    dns_threads: int = _setting(8, _whole_number(1, 64), "Threads that resolve host names.")
    log_format: Literal["json", "console"] = _setting(
        "json",
        _one_of("json", "console"),
        "One JSON object a line, or lines for people.",
        shown="json (console with dev)",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", _one_of("debug", "info", "warning", "error"), "The least severe log lines to write."
    )
    node_name: str | None = _setting(
        None,
        _text(_NAME, "use 1 to 64 letters, digits, dots, dashes or underscores"),
        "This server's name in attempts, logs and the list of nodes. On PostgreSQL no two servers may have the same.",
        shown="the machine's host name, on PostgreSQL with the port behind it",
        example="node-1",
    )
    state_dir: Path = _setting(  # noqa: RUF009 - a field, like the others; a path cannot be changed
        _STATE_DIR,
        _folder,
        "The folder for what a server on PostgreSQL keeps on its own machine: which requests were under way when it "
        "last died.",
        shown=".ackpost",
        example=".ackpost",
    )
    database_connections: int = _setting(
        8,
        _whole_number(2, 200),
        "The most connections to PostgreSQL for reading; a server has three more, for writing, its lease and hints.",
    )
    database_pooled: bool = _setting(
        default=False,
        parse=_boolean,
        doc="A pooler that shares sessions lies before PostgreSQL (PgBouncer with pool_mode transaction): nothing is "
        "set for a session, no statement is kept prepared, no LISTEN. See docs/how-to/pgbouncer.md.",
    )
    outbox_table: str = _setting(
        "public.ackpost_outbox",
        _outbox_table,
        "Where the database is a PostgreSQL that applications share: the table, as schema.table, that they write "
        "events into in their own transactions; its rows are picked up if it exists. off: never.",
    )
    metrics_public: bool | None = _setting(
        None,
        _boolean,
        "Serve /metrics without a key.",
        shown="true on a loopback host, else false",
        example=True,
    )

    @property
    def database_path(self) -> Path:
        """The SQLite file of ``database_url``."""
        return sqlite_path(self.database_url)

    @property
    def outbox(self) -> str | None:
        """The table to pick events up from."""
        return None if self.outbox_table == _OFF else self.outbox_table

    @property
    def is_shared(self) -> bool:
        """Whether other servers may use the same database."""
        return self.database_url.startswith(_POSTGRES)

    @property
    def database_shown(self) -> str:
        """The database's name for people: a path, or a URL without its password."""
        return without_password(self.database_url) if self.is_shared else str(self.database_path)

    @property
    def listens_on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def metrics_are_public(self) -> bool:
        """Whether /metrics needs no key."""
        return self.listens_on_loopback if self.metrics_public is None else self.metrics_public


_FIELDS = {one.name: one for one in fields(Settings)}


def load(
    command_line: Mapping[str, object], environment: Mapping[str, str], folder: Path, file: Path | None = None
) -> Settings:
    """Merge and check all sources. ``None`` on the command line means not given.

    ``file`` must exist; without it ``ackpost.toml`` in ``folder`` is read if there is one.

    Raises: ConfigError with one line for a person.
    """
    values: dict[str, Any] = {}
    path = file if file is not None else folder / FILE_NAME
    if file is not None or path.exists():
        for name, value in _read_file(path).items():
            values[name] = _parsed(name, value, f"{name} in {path}")
    for variable, text in _variables(environment).items():
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        values[name] = _parsed(name, text, f"environment variable {variable}")
    for name, value in command_line.items():
        if value is not None:
            values[name] = _parsed(name, value, _FIELDS[name].metadata["option"])
    settings = Settings(**values)
    if settings.node_role != "all" and not settings.is_shared:
        raise ConfigError(
            f"node_role: {settings.node_role} is for servers that share a PostgreSQL; one on a file does everything"
        )
    return _for_developers(settings, values)


def _for_developers(settings: Settings, given: Mapping[str, object]) -> Settings:
    """Apply what ``dev`` implies (contract §1)."""
    if not settings.dev:
        return settings
    if not settings.listens_on_loopback:
        raise ConfigError(
            f"host: {settings.host} can be reached by other machines and dev allows http and loopback targets; "
            "use 127.0.0.1, or leave dev out"
        )
    ranges = settings.allow_target + tuple(one for one in LOOPBACK if one not in settings.allow_target)
    log_format = settings.log_format if "log_format" in given else "console"
    return replace(settings, allow_http=True, allow_target=ranges, log_format=log_format)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for name in values:
        if name not in _FIELDS:
            raise ConfigError(f"{name} in {path} is no setting of Ackpost{_hint(name)}")
    return values


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    found = {
        name: text
        for name, text in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in CLIENT_VARIABLES
    }
    for name in sorted(found):
        setting = name.removeprefix(ENVIRONMENT_PREFIX)
        if setting.lower() not in _FIELDS or not setting.isupper():
            raise ConfigError(f"environment variable {name} is no setting of Ackpost{_hint(setting)}")
    return found


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), sorted(_FIELDS), n=1)
    return f"; did you mean {close[0]}?" if close else "; remove it (docs/production.md lists all)"


def _parsed(name: str, value: object, source: str) -> Any:
    metadata = _FIELDS[name].metadata
    try:
        return metadata["parse"](value)
    except ValueError as error:
        text = without_password(json.dumps(value, default=str, ensure_ascii=False))[:200]
        shown = "" if metadata.get("secret") else f"{text} is refused, "
        raise ConfigError(f"{source}: {shown}{error}") from None


# What people read about settings, made from the same metadata.


def summary(settings: Settings) -> dict[str, str]:
    """All settings in effect as text, secrets masked: for the log line of a start."""
    shown = {}
    for name, one in _FIELDS.items():
        value = getattr(settings, name)
        masked = one.metadata.get("secret") and value is not None
        mask = one.metadata.get("mask")
        shown[name] = "***" if masked else mask(value) if mask else _as_text(value)
    return shown


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def default_file() -> str:
    """A commented ``ackpost.toml`` with each setting at its default."""
    parts = [f"# Settings of Ackpost. {ENVIRONMENT_PREFIX}<NAME> in the environment wins over a value here.\n"]
    for name, one in _FIELDS.items():
        words = one.metadata.get("shown")
        default = f" Default: {words}." if words else ""
        value = _as_toml(one.metadata.get("example", one.default))
        parts.append(f"# {one.metadata['doc']}{default}\n# {name} = {value}\n")
    return "\n".join(parts)


def _as_toml(value: object) -> str:
    if isinstance(value, bool | int):
        return str(value).lower()
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def settings_table() -> str:
    """The Markdown table of ``docs/production.md``."""
    rows = ["| setting | command line | default | meaning |", "|---|---|---|---|"]
    for name, one in _FIELDS.items():
        option = f"`{one.metadata['option']}`" if "option" in one.metadata else "–"
        default = one.metadata.get("shown") or f"`{_as_toml(one.default)}`"
        rows.append(f"| `{name}` | {option} | {default} | {one.metadata['doc']} |")
    return "\n".join(rows) + "\n"
