"""What a fault server does, request by request, as one line of text: ``500*2,200`` or ``delay:3,reset,410``.

    script  = step *("," step)          the last step holds for all further requests
    step    = kind *(":" option) ["*" times]
    option  = word | number | name "=" value

| kind                        | does                                                                                |
|-----------------------------|-------------------------------------------------------------------------------------|
| ``200`` … ``999``           | that status; options ``retry-after=2``, ``body=text``, ``type=text/plain``          |
| ``delay:3``                 | status 200 after 3 s (any kind takes ``delay=3``)                                   |
| ``reset``                   | connection reset when the request is read; ``:before`` unread, ``:header`` in the   |
|                             | middle of the answer's header, ``:body`` after a complete header                    |
| ``close``                   | the same with an orderly close; ``:after`` a whole answer that promised keep-alive  |
| ``hang``                    | no answer; ``:header`` half a header, ``:body`` a header, then silence;             |
|                             | ``:before`` does not even read                                                      |
| ``drip``                    | the body byte by byte, ``every=0.05`` s; ``:header`` already the header             |
| ``garbage``                 | no HTTP; ``:body`` a broken body after a good header; ``:before`` speaks unasked    |
| ``interim:20``              | that many 103 answers, then 200; ``interim`` alone: for ever                        |
| ``headers:300``             | an answer with that many headers                                                    |
| ``header-bytes:20000``      | an answer with one header of that size                                              |
| ``endless``                 | a chunked body without end; ``:length`` says 5 GB, ``:trailer`` a trailer without   |
|                             | end                                                                                 |
| ``short`` · ``long``        | a body shorter (then close) or longer than its Content-Length                       |
| ``twolengths``              | two different Content-Length headers                                                |
| ``gzip``                    | a small gzip body that unpacks to 100 MB                                            |
| ``early:413``               | that status before the request's body is read, then a reset                         |
| ``old`` · ``unframed``      | HTTP/1.0, or 1.1 without framing: the body ends with the connection                 |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ackpost.errors import ConfigError

# Each kind with the words it takes, and whether a plain number after it means something.
_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "status": frozenset(),
    "delay": frozenset(),
    "reset": frozenset({"before", "header", "body"}),
    "close": frozenset({"before", "header", "body", "after"}),
    "hang": frozenset({"before", "header", "body"}),
    "drip": frozenset({"header"}),
    "garbage": frozenset({"before", "body"}),
    "interim": frozenset(),
    "headers": frozenset(),
    "header-bytes": frozenset(),
    "endless": frozenset({"length", "trailer"}),
    "short": frozenset(),
    "long": frozenset(),
    "twolengths": frozenset(),
    "gzip": frozenset(),
    "early": frozenset(),
    "old": frozenset(),
    "unframed": frozenset(),
}
_NEEDS_NUMBER: Final = frozenset({"delay", "headers", "header-bytes", "early"})
_TAKES_NUMBER: Final = _NEEDS_NUMBER | {"interim"}
_NAMES: Final = frozenset({"delay", "every", "retry-after", "body", "type"})


class Step(msgspec.Struct, frozen=True):
    """One answer, or fault. ``number`` is the kind's own (count, size, status); times are seconds."""

    kind: str = "status"
    status: int = 200
    where: str = ""
    number: float = 0.0
    times: int = 1
    delay_s: float = 0.0
    every_s: float = 0.05
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b'{"ok":true}'


Script = tuple[Step, ...]


def parse_script(text: str) -> Script:
    """Read a script.

    Raises:
        ConfigError: naming the step that is not understood, and what would be.
    """
    return tuple(_parse_step(part.strip()) for part in text.split(","))


def step_for(script: Script, seen: int) -> Step:
    """Give the step for the request after ``seen`` earlier ones; the last step never ends."""
    for step in script[:-1]:
        if seen < step.times:
            return step
        seen -= step.times
    return script[-1]


def _parse_step(text: str) -> Step:
    head, star, times_text = text.partition("*")
    name, *options = head.split(":")
    times = _whole(times_text, text) if star else 1
    if times < 1:
        raise ConfigError(f"script step {text!r}: the number after * must be at least 1")
    kind = "status" if name.isdigit() else name
    if kind not in _WORDS:
        raise ConfigError(f"script step {text!r}: unknown; use a status or one of {', '.join(sorted(_WORDS))}")
    fields: dict[str, object] = {"kind": kind, "times": times}
    if kind == "status":
        fields["status"] = _status(name, text)
    headers: list[tuple[str, str]] = []
    for option in options:
        _read_option(option, kind, text, fields, headers)
    if kind in _NEEDS_NUMBER and "number" not in fields:
        raise ConfigError(f"script step {text!r}: a number must follow, as in {kind}:3")
    if kind == "early":
        fields["status"] = _status(f"{fields['number']:g}", text)
    if kind == "delay":
        fields |= {"kind": "status", "delay_s": fields.pop("number")}
    return msgspec.convert(fields | {"headers": tuple(headers)}, Step)


def _read_option(option: str, kind: str, step: str, fields: dict[str, object], headers: list[tuple[str, str]]) -> None:
    name, equals, value = option.partition("=")
    if not equals and option in _WORDS[kind]:
        fields["where"] = option
    elif not equals and kind in _TAKES_NUMBER:
        fields["number"] = _seconds(option, step)
    elif not equals or name not in _NAMES:
        known = sorted(_WORDS[kind]) + [f"{known}=…" for known in sorted(_NAMES)]
        raise ConfigError(f"script step {step!r}: {option!r} is unknown; use one of {', '.join(known)}")
    elif name in ("delay", "every"):
        fields[f"{name}_s"] = _seconds(value, step)
    elif name == "body":
        fields["body"] = value.encode()
    else:
        headers.append(("content-type" if name == "type" else name, value))


def _status(text: str, step: str) -> int:
    if len(text) != 3 or not "200" <= text <= "999":
        raise ConfigError(f"script step {step!r}: a status has three digits and is at least 200")
    return int(text)


def _whole(text: str, step: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"script step {step!r}: {text!r} is not a whole number")
    return int(text)


def _seconds(text: str, step: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise ConfigError(f"script step {step!r}: {text!r} is not a number of 0 or more")
    return number
