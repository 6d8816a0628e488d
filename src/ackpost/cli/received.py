"""One received request as a person, or a script, wants to see it."""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from typing import Any, Final

import msgspec
from rich.text import Text

from ackpost.cli.show import plain
from ackpost.cli.verifying import Verifier
from ackpost.core.times import rfc3339_ms
from ackpost.testing.faults import SeenRequest
from ackpost.testing.script import Step

REMEMBERED_MAX: Final = 1_000
_BODY_LINES_MAX: Final = 24
_BODY_CHARS_MAX: Final = 1_500
_LINE_CHARS_MAX: Final = 160
# Headers that every client sends and that say nothing here.
_DULL: Final = frozenset(
    {"host", "content-length", "content-type", "user-agent", "accept", "accept-encoding", "connection",
     "webhook-id", "webhook-timestamp", "webhook-signature", "x-webhook-id", "x-webhook-timestamp", "ackpost-attempt"}
)  # fmt: skip


class Received(msgspec.Struct):
    """A request and what is noteworthy about it. ``fault``: why its signature is refused; None also when not asked."""

    request: SeenRequest
    at_ms: int
    event_id: str | None
    repeat_of: int | None
    gap_s: float | None
    signature: str
    fault: str | None

    @property
    def answer(self) -> str:
        """What was answered, as a script says it."""
        return "" if self.request.step is None else step_text(self.request.step)


class Memory:
    """Sees repeats of an id, back to the last 1,000 ids."""

    def __init__(self, verifier: Verifier | None) -> None:
        self.verifier = verifier
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def note(self, request: SeenRequest, now_ms: int) -> Received:
        """Judge one request."""
        event_id = request.header("webhook-id") or request.header("x-webhook-id")
        first, last_s = self._seen.get(event_id, (None, None)) if event_id is not None else (None, None)
        if event_id is not None:
            self._seen[event_id] = (first or request.number, request.at_s)
            self._seen.move_to_end(event_id)
            if len(self._seen) > REMEMBERED_MAX:
                self._seen.popitem(last=False)
        fault = None if self.verifier is None else self.verifier.fault(request, now_ms // 1000)
        return Received(
            request, now_ms, event_id, first,
            None if last_s is None else round(request.at_s - last_s, 3),
            "unchecked" if self.verifier is None else self.verifier.kind,
            fault,
        )  # fmt: skip


def as_json(received: Received) -> str:
    """One line; the body as text when it is UTF-8, else as base64."""
    request = received.request
    line: dict[str, Any] = {
        "number": request.number,
        "at": rfc3339_ms(received.at_ms),
        "method": request.method,
        "path": request.path,
        "id": received.event_id,
        "repeat_of": received.repeat_of,
        "gap_s": received.gap_s,
        "signature": received.signature,
        "verified": None if received.signature == "unchecked" else received.fault is None,
        "fault": received.fault,
        "answer": received.answer,
        "headers": request.headers,
    }
    try:
        line["body"] = request.body.decode()
    except UnicodeDecodeError:
        line["body_base64"] = base64.b64encode(request.body).decode()
    return json.dumps(line)


def as_text(received: Received) -> Text:
    """A few lines: what came, whether it may be trusted, what was answered, the body."""
    request = received.request
    text = Text(f"#{request.number} {rfc3339_ms(received.at_ms)[11:23]} ", style="bold")
    text.append(plain(f"{request.method} {request.path} {_type_of(request.body)}").rstrip(), style="bold")
    if received.answer:
        text.append(f" → {received.answer}", style="green" if received.answer.startswith("2") else "yellow")
    facts = [f"id {plain(received.event_id)}"] if received.event_id else []
    attempt = request.header("ackpost-attempt")
    facts += [f"attempt {plain(attempt)}"] if attempt else []
    if received.repeat_of is not None:
        facts.append(f"repeat of #{received.repeat_of}, {received.gap_s:.3f} s after the last")
    if facts:
        text.append("\n   " + ", ".join(facts))
    if received.fault is not None:
        text.append(f"\n   NOT VERIFIED: {plain(received.fault)}", style="red")
    elif received.signature != "unchecked":
        text.append(f"\n   signature verified ({received.signature})", style="green")
    for name, value in request.headers:
        if name.lower() not in _DULL and not value.startswith("sha256="):
            text.append("\n   " + plain(f"{name}: {value}")[:_LINE_CHARS_MAX], style="dim")
    return text.append(_body_text(request.body))


class _Named(msgspec.Struct):
    """What formats call an event's type."""

    type: str = ""
    event: str = ""


def _type_of(body: bytes) -> str:
    try:
        named = msgspec.json.decode(body, type=_Named)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return (named.type or named.event)[:_LINE_CHARS_MAX]


def _body_text(body: bytes) -> str:
    if not body:
        return "\n   (no body)"
    try:
        shown = msgspec.json.format(body, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        shown = body.decode(errors="backslashreplace")
    lines = [plain(line)[:_LINE_CHARS_MAX] for line in shown[:_BODY_CHARS_MAX].split("\n")[:_BODY_LINES_MAX]]
    cut = len(shown) > _BODY_CHARS_MAX or shown.count("\n") >= _BODY_LINES_MAX
    return "".join(f"\n   {line}" for line in lines) + (f"\n   … ({len(body):,} bytes in all)" if cut else "")


def step_text(step: Step) -> str:
    """Write a step as a script would."""
    kind = str(step.status) if step.kind == "status" else step.kind
    where = f":{step.where}" if step.where else ""
    delay = f" after {step.delay_s:g} s" if step.delay_s else ""
    headers = "".join(f" {name}: {value}" for name, value in step.headers)
    return f"{kind}{where}{delay}{headers}"
