"""The bytes of good and bad HTTP answers, one function a kind of step (``testing.script``)."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from functools import cache
from http import HTTPStatus
from typing import Final

from ackpost.testing.script import Step

# How the connection goes on after an answer.
KEEP: Final = "keep"
CLOSE: Final = "close"
RESET: Final = "reset"
HANG: Final = "hang"

_STATUSES_WITHOUT_BODY: Final = (204, 304)
_PIECE: Final = b"x" * 1024


async def answer(step: Step, writer: asyncio.StreamWriter) -> str:
    """Write what ``step`` says; give how the connection goes on."""
    act = _ACTS.get(step.kind)
    if act is not None:
        return await act(step, writer)
    end, data = _FIXED[step.kind](step)
    writer.write(data)
    await writer.drain()
    return end


def head(step: Step, *, length: int | None, version: str = "1.1", more: str = "") -> bytes:
    """The status line and headers, up to the empty line."""
    reason = HTTPStatus(step.status).phrase if step.status in set(HTTPStatus) else ""
    names = {name for name, _ in step.headers}
    lines = [f"HTTP/{version} {step.status} {reason}"]
    if "content-type" not in names:
        lines.append("content-type: application/json")
    if 300 <= step.status < 400 and "location" not in names:
        lines.append("location: /elsewhere")
    lines += [f"{name}: {value}" for name, value in step.headers]
    if length is not None:
        lines.append(f"content-length: {length}")
    return ("\r\n".join(lines) + "\r\n" + more + "\r\n").encode("latin-1")


def whole(step: Step) -> bytes:
    """A complete, framed answer."""
    if step.status in _STATUSES_WITHOUT_BODY:
        return head(step, length=None)
    return head(step, length=len(step.body)) + step.body


def _status(step: Step) -> tuple[str, bytes]:
    asked_to_close = any(name == "connection" and value == "close" for name, value in step.headers)
    return CLOSE if asked_to_close else KEEP, whole(step)


def _cut(step: Step) -> tuple[str, bytes]:
    """Break off at ``where``: reset, close and hang."""
    data = whole(step)
    parts = {"header": data[: data.index(b"\r\n") + 8], "body": head(step, length=len(step.body) + 1), "after": data}
    return {"reset": RESET, "close": CLOSE, "hang": HANG}[step.kind], parts.get(step.where, b"")


def _garbage(step: Step) -> tuple[str, bytes]:
    if step.where == "body":
        return CLOSE, head(step, length=None, more="transfer-encoding: chunked\r\n") + b"zz\r\nno chunk\r\n"
    return HANG, b"SSH-2.0-OpenSSH_9.2\r\n"


def _headers(step: Step) -> tuple[str, bytes]:
    more = "".join(f"x-{number}: y\r\n" for number in range(int(step.number)))
    return KEEP, head(step, length=len(step.body), more=more) + step.body


def _header_bytes(step: Step) -> tuple[str, bytes]:
    more = f"x-big: {'y' * int(step.number)}\r\n"
    return KEEP, head(step, length=len(step.body), more=more) + step.body


def _short(step: Step) -> tuple[str, bytes]:
    return CLOSE, head(step, length=len(step.body) + 10) + step.body


def _long(step: Step) -> tuple[str, bytes]:
    return KEEP, whole(step) + b"bytes nobody asked for"


def _two_lengths(step: Step) -> tuple[str, bytes]:
    return KEEP, head(step, length=len(step.body), more="content-length: 3\r\n") + step.body


def _gzip(step: Step) -> tuple[str, bytes]:
    bomb = _bomb()
    return KEEP, head(step, length=len(bomb), more="content-encoding: gzip\r\n") + bomb


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(100_000_000))


def _early(step: Step) -> tuple[str, bytes]:
    return RESET, whole(step)


def _old(step: Step) -> tuple[str, bytes]:
    return CLOSE, head(step, length=None, version="1.0") + step.body


def _unframed(step: Step) -> tuple[str, bytes]:
    return CLOSE, head(step, length=None) + step.body


async def _drip(step: Step, writer: asyncio.StreamWriter) -> str:
    data = whole(step)
    at_once = 0 if step.where == "header" else data.index(b"\r\n\r\n") + 4
    writer.write(data[:at_once])
    for number in range(at_once, len(data)):
        await writer.drain()
        await asyncio.sleep(step.every_s)
        writer.write(data[number : number + 1])
    return KEEP


async def _interim(step: Step, writer: asyncio.StreamWriter) -> str:
    left = int(step.number)
    while step.number == 0 or left > 0:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n")
        await writer.drain()
        left -= 1
    writer.write(whole(step))
    return KEEP


async def _endless(step: Step, writer: asyncio.StreamWriter) -> str:
    if step.where == "length":
        writer.write(head(step, length=5_000_000_000))
        piece = _PIECE
    else:
        writer.write(head(step, length=None, more="transfer-encoding: chunked\r\n"))
        piece = b"400\r\n" + _PIECE + b"\r\n"
    if step.where == "trailer":
        writer.write(b"0\r\nx-trailer: ")
        piece = _PIECE
    while True:
        writer.write(piece)
        await writer.drain()


_ACTS: Final[dict[str, Callable[[Step, asyncio.StreamWriter], Awaitable[str]]]] = {
    "drip": _drip,
    "endless": _endless,
    "interim": _interim,
}
_FIXED: Final[dict[str, Callable[[Step], tuple[str, bytes]]]] = {
    "status": _status,
    "reset": _cut,
    "close": _cut,
    "hang": _cut,
    "garbage": _garbage,
    "headers": _headers,
    "header-bytes": _header_bytes,
    "short": _short,
    "long": _long,
    "twolengths": _two_lengths,
    "gzip": _gzip,
    "early": _early,
    "old": _old,
    "unframed": _unframed,
}
