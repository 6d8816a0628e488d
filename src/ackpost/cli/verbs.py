"""From a line of a table to a command: a verb names its call, what it takes and what it shows (``cli.resources``)."""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from ackpost.cli.app import FLAG
from ackpost.cli.client import ApiClient, connect, decoded
from ackpost.cli.show import print_answer, print_bytes
from ackpost.errors import AckpostError, ConfigError

Kind = Literal["text", "flag", "whole", "number", "many", "json", "file"]
Where = Literal["path", "query", "body"]

_TYPES: Final[Mapping[Kind, object]] = {
    "text": str | None,
    "flag": bool,
    "whole": int | None,
    "number": float | None,
    "many": list[str] | None,
    "json": str | None,
    "file": str | None,
}
_JOB_POLL_S: Final = 0.2


class Opt(msgspec.Struct, frozen=True):
    """One argument or option. ``json`` and ``file`` take ``@FILE`` or ``-`` too; ``many`` may be repeated.

    ``field`` is where it goes in the body (dots nest) or query when that is not its name.
    """

    name: str
    help: str
    kind: Kind = "text"
    field: str = ""
    where: Where | None = None
    default: float | None = None

    @property
    def python_name(self) -> str:
        """As a parameter is called."""
        return self.name.replace("-", "_")

    @property
    def target(self) -> str:
        """As the API calls it."""
        return self.field or self.python_name


class Verb(msgspec.Struct, frozen=True):
    """One call of the API. Names in braces of ``path`` are arguments; ``extra`` are further ones, into the body.

    ``job``: the member of the answer that names a job, for ``--wait``. ``whole_body``: takes ``--body`` and, to reset
    fields, ``--unset``. ``verbatim``: prints the answer's bytes. ``failed``: says why the answer is no success.
    """

    name: str
    method: str
    path: str
    help: str
    options: Sequence[Opt] = ()
    extra: Sequence[Opt] = ()
    columns: Sequence[str] = ()
    job: str = ""
    whole_body: bool = False
    patch: bool = False
    verbatim: bool = False
    failed: Callable[[Any], str | None] | None = None

    @property
    def where(self) -> Where:
        """Where options go if they do not say."""
        return "body" if self.method in {"POST", "PATCH", "PUT"} else "query"

    @property
    def path_names(self) -> list[str]:
        """The arguments in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


_BODY: Final = Opt("body", "The whole body as JSON, @FILE or -; options win over it.", "json")
_UNSET: Final = Opt("unset", "Reset this field to its default (repeatable).", "many")
_TENANT: Final = Opt("tenant", "The tenant that is meant; * for all in lists.")
_JSON: Final = Opt("json", "Print the API's answer.", "flag")
_WAIT: Final = Opt("wait", "Wait until the job is done.", "flag")


def add(group: typer.Typer, verb: Verb) -> None:
    """Make a verb a command of its group."""
    more = [*verb.options]
    more += [_BODY] if verb.whole_body else []
    more += [_UNSET] if verb.patch else []
    more += [_WAIT] if verb.job else []
    more += [_TENANT, _JSON]
    arguments = [Opt(name, f"The {name.removesuffix('_id')}'s id or uid.") for name in verb.path_names]

    def command(**given: Any) -> None:
        _run(verb, given)

    parameters = [_argument(one) for one in arguments] + [_argument(one) for one in verb.extra]
    parameters += [_option(one) for one in more]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads options from
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    group.command(verb.name, help=verb.help)(command)


def _argument(opt: Opt) -> inspect.Parameter:
    required = opt.kind == "text"
    return inspect.Parameter(
        opt.python_name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[str if required else _TYPES[opt.kind], typer.Argument(help=opt.help)],
    )


def _option(opt: Opt) -> inspect.Parameter:
    return inspect.Parameter(
        opt.python_name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if opt.kind == "flag" else opt.default,
        annotation=Annotated[
            _TYPES[opt.kind],
            typer.Option(f"--{opt.name}", metavar=FLAG if opt.kind == "flag" else None, help=opt.help),
        ],
    )


def _run(verb: Verb, given: dict[str, Any]) -> None:
    api = connect(given["tenant"])
    path = verb.path.format(**{name: quote(given[name], safe="") for name in verb.path_names})
    query, body = _placed(verb, given)
    answer = api.call_bytes(verb.method, path, body or None, query=query)
    if verb.job and given["wait"]:
        answer = _awaited(api, decoded(answer), verb.job) or answer
    if given["json"] or verb.verbatim:
        if answer:
            print_bytes(answer)
    else:
        print_answer(decoded(answer), verb.columns)
    failure = verb.failed(decoded(answer)) if verb.failed else None
    if failure is not None:
        raise AckpostError(failure)


def _placed(verb: Verb, given: dict[str, Any]) -> tuple[dict[str, object], dict[str, Any]]:
    """Put what was given into query and body."""
    query: dict[str, object] = {}
    body: dict[str, Any] = {}
    if verb.whole_body and given["body"] is not None:
        body = json_given("--body", given["body"])
        if not isinstance(body, dict):
            raise ConfigError("--body must be a JSON object")
    for name in given.get("unset") or ():
        body[name] = None
    for opt in (*verb.options, *verb.extra):
        value = given[opt.python_name]
        if value is None or value is False:
            continue
        if opt.kind == "json":
            value = json_given(f"--{opt.name}", value)
        elif opt.kind == "file":
            value = bytes_given(f"--{opt.name}", value).decode().strip()
        if (opt.where or verb.where) == "query":
            query[opt.target] = ",".join(value) if isinstance(value, list) else value
        else:
            _put(body, opt.target, value)
    return query, body


def _put(body: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        body = body.setdefault(name, {})
    body[last] = value


def bytes_given(name: str, text: str) -> bytes:
    """Give ``TEXT``, the content of ``@FILE``, or standard input for ``-``. Raises: ConfigError."""
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode(errors="surrogateescape")
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: {text[1:]} cannot be read: {error.strerror}") from error


def json_given(name: str, text: str) -> Any:
    """Read JSON from ``TEXT``, ``@FILE`` or ``-``. Raises: ConfigError."""
    try:
        return json.loads(bytes_given(name, text))
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON ({error}); text needs double quotes: '\"text\"'") from None


def _awaited(api: ApiClient, answer: Any, member: str) -> bytes | None:
    """Follow the job that an answer names, and give its last state; None when it names none (a dry run).

    Raises: AckpostError when the job did not come to its end.
    """
    job_id = answer.get(member) if isinstance(answer, dict) else None
    if job_id is None:
        return None
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        task = progress.add_task("waiting", total=None)
        while True:
            text = api.call_bytes("GET", f"/v1/jobs/{job_id}")
            job = decoded(text)
            handled = job["done"] + job["skipped"] + job["failed"]
            progress.update(task, description=job["kind"], total=job["total"], completed=handled)
            if job["state"] not in {"queued", "running"}:
                break
            time.sleep(_JOB_POLL_S)
    if job["state"] != "done":
        raise AckpostError(f"job {job_id} ended as {job['state']}{': ' + job['error'] if job['error'] else ''}")
    return text
