"""``ackpost publish``: one event, or a file of them in batches."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from ackpost.cli.app import FLAG, app
from ackpost.cli.client import ApiClient, ApiFailed, Unreachable, connect, decoded
from ackpost.cli.show import print_bytes
from ackpost.cli.verbs import bytes_given, json_given
from ackpost.errors import AckpostError, ConfigError
from ackpost.wiring.system import SystemEntropy

_BATCH_EVENTS_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024 - 64
_TRIES: Final = 10
_PASSING: Final = frozenset({429, 503})


@app.command()
def publish(
    type: Annotated[str | None, typer.Argument(help="The event's type, like order.created.")] = None,
    data: Annotated[str | None, typer.Argument(help="Its data: JSON, @FILE, or - for standard input.")] = None,
    key: Annotated[str | None, typer.Option(help="What it is about; events of a key are numbered.")] = None,
    uid: Annotated[str | None, typer.Option(help="Your own id; published again, it changes nothing.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Your own number in the key, rising.")] = None,
    channel: Annotated[list[str] | None, typer.Option(help="Channels (repeatable).")] = None,
    occurred_at: Annotated[str | None, typer.Option(help="When it happened (RFC 3339).")] = None,
    metadata: Annotated[str | None, typer.Option(help="Kept, not sent: JSON or @FILE.")] = None,
    file: Annotated[
        str | None, typer.Option(help="Publish a file: one event as JSON on each line, - for standard input.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant that is meant.")] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print the API's answer.")] = False,
) -> None:
    """Publish an event, its data byte for byte; or a file of events."""
    members = {
        "type": type, "key": key, "uid": uid, "sequence": sequence, "channels": channel, "occurred_at": occurred_at,
        "metadata": None if metadata is None else json_given("--metadata", metadata),
    }  # fmt: skip
    given = {name: value for name, value in members.items() if value is not None}
    if file is not None:
        if given or data is not None:
            raise ConfigError("--file has whole events: leave out type, data and their options")
        _publish_file(connect(tenant), file, as_json=as_json)
        return
    if type is None or data is None:
        raise ConfigError("name a type and its data (ackpost publish order.created '{\"id\":1}'), or a --file")
    answer = connect(tenant).call_bytes("POST", "/v1/events", raw=_event(given, bytes_given("DATA", data)))
    if as_json:
        print_bytes(answer)
        return
    accepted = decoded(answer)
    known = " (known already: nothing was published anew)" if accepted["duplicate"] else ""
    numbered = f", number {accepted['sequence']} of its key" if "sequence" in accepted else ""
    print(f"{accepted['id']} accepted: {_count(accepted['deliveries'], 'delivery', 'deliveries')}{numbered}{known}")


def _event(given: dict[str, Any], data: bytes) -> bytes:
    """Splice the data's own bytes in."""
    try:
        json.loads(data)
    except ValueError as error:
        raise ConfigError(f"DATA is not JSON ({error}); text needs double quotes: '\"text\"'") from None
    return json.dumps(given).encode()[:-1] + b',"data":' + data + b"}"


class _Batch(msgspec.Struct):
    """Lines that go together; ``numbers`` are theirs in the file, from 1."""

    lines: list[bytes]
    numbers: list[int]
    end: int

    def body(self) -> bytes:
        return b'{"events":[%b]}' % b",".join(self.lines)


def _publish_file(api: ApiClient, name: str, *, as_json: bool) -> None:
    accepted = known = deliveries = 0
    shown = "standard input" if name == "-" else name
    run = SystemEntropy().token(16).hex()
    total = Path(name).stat().st_size if name != "-" and Path(name).is_file() else None
    with (
        _opened(name) as source,
        Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress,
    ):
        task = progress.add_task("publishing", total=total)
        for batch in _batches(source, shown):
            answers = _publish_batch(api, batch, f"{run}-{batch.numbers[0]}", shown)
            accepted += len(answers)
            known += sum(one["duplicate"] for one in answers)
            deliveries += sum(one["deliveries"] for one in answers)
            if as_json:
                print("\n".join(json.dumps(one, separators=(",", ":")) for one in answers))
            progress.update(task, completed=batch.end, description=f"{accepted:,} events")
    if not as_json:
        already = f" ({known:,} known already)" if known else ""
        print(f"{_count(accepted, 'event', 'events')} accepted{already}: "
              f"{_count(deliveries, 'delivery', 'deliveries')}")  # fmt: skip


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ConfigError(f"--file: {name} cannot be read: {error.strerror}") from error


def _batches(source: BinaryIO, name: str) -> Iterator[_Batch]:
    lines: list[bytes] = []
    numbers: list[int] = []
    size = end = 0
    for number, line in enumerate(source, start=1):
        text = line.strip()
        if text:
            _check(text, number, name)
            if lines and (len(lines) == _BATCH_EVENTS_MAX or size + len(text) + 1 > _BATCH_BYTES_MAX):
                yield _Batch(lines, numbers, end)
                lines, numbers, size = [], [], 0
            lines.append(text)
            numbers.append(number)
            size += len(text) + 1
        end += len(line)
    if lines:
        yield _Batch(lines, numbers, end)


def _check(text: bytes, number: int, name: str) -> None:
    """A line must be one JSON object, or a batch's index would not name its line."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} line {number} is no event as JSON object ({error}); "
                          "lines of earlier batches are published") from None  # fmt: skip


def _publish_batch(api: ApiClient, batch: _Batch, idempotency_key: str, name: str) -> list[dict[str, Any]]:
    """Publish all or none; repeated with the same key when the server is busy or away for a moment."""
    for left in reversed(range(_TRIES)):
        try:
            answer = api.call(
                "POST", "/v1/events/batch", raw=batch.body(), headers={"Idempotency-Key": idempotency_key}
            )
        except ApiFailed as failed:
            if failed.status not in _PASSING or not left:
                raise _located(failed, batch, name) from failed
            time.sleep(1 if failed.retry_after_s is None else failed.retry_after_s)
        except Unreachable as error:
            if not left:
                raise AckpostError(f"{error}; {_published_before(batch, name)}") from error
            time.sleep(0.5)
        else:
            events: list[dict[str, Any]] = answer["events"]
            return events
    raise AssertionError("the last try returns or raises")


def _located(failed: ApiFailed, batch: _Batch, name: str) -> AckpostError:
    """Say which line was refused, and what is published already."""
    what = str(failed)
    for error in failed.problem.get("errors", ())[:1]:
        match error["loc"]:
            case ["body", "events", int(index), *path] if index < len(batch.numbers):
                field = ".".join(map(str, path)) or "event"
                what = f"line {batch.numbers[index]}: {field} {error['message']}"
            case _:
                pass
    return AckpostError(f"{name} {what}; {_published_before(batch, name)}, nothing from there on")


def _published_before(batch: _Batch, name: str) -> str:
    return f"lines before {batch.numbers[0]} of {name} are published"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
