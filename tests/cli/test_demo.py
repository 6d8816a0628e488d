"""``ackpost demo``: the promises on a real server, with the samples of two real systems."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path

import msgspec
import pytest

from ackpost.cli import samples
from ackpost.cli.client import ApiClient
from ackpost.cli.demo import scenes
from ackpost.cli.demo.receiver import Receiver
from ackpost.cli.verifying import Verifier
from ackpost.core.jsondata import decode_publish
from ackpost.core.signing import generate_secret
from ackpost.errors import AckpostError
from ackpost.wiring.system import SystemClock
from tests.process.server import KEY, Lines, Server, until

SHOWN = (
    "delivered at first", "delivered after retries", "circuit opened and closed", "dead-lettered",
    "repaired and replayed",
)  # fmt: skip
ONCE_S = 40


def _start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ackpost", "demo", *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_once_shows_each_promise_and_ends_well(tmp_path: Path) -> None:
    """Within 40 seconds: five kept promises, each with the curl that repeats it; exit 0, and nothing is left.

    Settings of the user's own server do not reach the demo's.
    """
    process = _start(tmp_path, "--once", ACKPOST_PORT="no port", ACKPOST_URL="http://127.0.0.1:1")
    out, error = process.communicate(timeout=ONCE_S)
    assert process.returncode == 0, error
    lines = out.decode().splitlines()
    kept = [line for line in lines if line.startswith("✔ ")]
    assert [line[2:29].strip() for line in kept] == list(SHOWN)
    assert sum(line.startswith("  curl -s ") for line in lines) == len(SHOWN)
    assert re.fullmatch(r"All promises kept, in [0-9.]+ s\.", lines[-1])
    assert error == b""
    assert list(tmp_path.iterdir()) == []


def test_it_goes_on_until_it_is_ended_and_its_curls_work(tmp_path: Path) -> None:
    """Without ``--once`` server and receiver stay: each printed curl runs; Ctrl-C ends all with exit 0."""
    process = _start(tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    out, errors = Lines(process.stdout), Lines(process.stderr)
    try:
        until(lambda: any("Ctrl-C ends it" in line for line in out.lines), "the demo goes on", ONCE_S)
        exports = next(line for line in out.lines if line.startswith("export "))
        for curl in [line for line in out.lines if line.startswith("  curl ")]:
            script = f"{exports}\n{curl} --fail-with-body"
            done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
            assert done.returncode == 0, (curl, done.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 0
    finally:
        process.kill()
        out.join()
        said = errors.join()
    assert said == []
    assert list(tmp_path.iterdir()) == []


def _first_scene(server: Server) -> str:
    """Play it; give the broken promise."""

    async def play() -> str:
        receiver = Receiver(SystemClock())
        await receiver.start()
        stage = scenes.Stage(ApiClient(server.url, KEY), receiver)
        try:
            await scenes.delivered_at_first(stage)
        except AckpostError as error:
            return str(error)
        finally:
            await receiver.stop()
            for uid in ("demo-messages", "demo-store", "demo-archive"):
                await stage.call("DELETE", f"/v1/endpoints/{uid}")
        return "all kept"

    return asyncio.run(play())


def test_other_bytes_break_a_promise(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the bytes is real: one changed digit on the way fails the scene."""
    publish = scenes.Stage.publish

    def changed(stage: scenes.Stage, type: str, data: bytes, key: str | None = None) -> Awaitable[str]:
        return publish(stage, type, data.replace(b"user-456", b"user-457"), key)

    monkeypatch.setattr(scenes.Stage, "publish", changed)
    assert "got other bytes than were published" in _first_scene(server)


def test_a_wrong_signature_breaks_a_promise(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the signatures is real: a receiver with another secret fails the scene."""
    monkeypatch.setattr(scenes, "Verifier", lambda _secret, _kind: Verifier(generate_secret(bytes(32))))
    assert re.search("got event evt_.* with a (wrong signature|not signed)", _first_scene(server))


def test_without_a_fault_the_scene_holds(server: Server) -> None:
    """What the two tests above break is whole without them."""
    assert _first_scene(server) == "all kept"


@pytest.mark.parametrize("name", samples.NAMES)
def test_each_sample_can_be_published_as_it_stands(name: str) -> None:
    """The samples pass the service's own reading, their data byte for byte."""
    sample = samples.load(name)
    head = {"type": sample.type} if sample.key is None else {"type": sample.type, "key": sample.key}
    body = msgspec.json.encode(head)[:-1] + b',"data":' + bytes(sample.data) + b"}"
    read = decode_publish(body)
    assert (read.type, read.key, bytes(read.data)) == (sample.type, sample.key, bytes(sample.data))


def test_the_samples_are_what_the_systems_send() -> None:
    """All events of the pet store and the messages' states; a nested order of 20 kB, other scripts, large integers."""
    loaded = {name: samples.load(name) for name in samples.NAMES}
    assert {sample.type for sample in loaded.values()} >= {
        "message.delivered", "pet.adopted", "pet.status_changed", "order.created", "order.completed",
        "payment.succeeded", "payment.failed",
    }  # fmt: skip
    files = {path.stem for path in Path(samples.__file__).parent.glob("*.json")}
    assert files == set(samples.NAMES)
    assert len(bytes(loaded["order_created"].data)) > 20_000
    assert "مرحبا".encode() in bytes(loaded["message_received"].data)
    assert b"9007199254740993" in bytes(loaded["payment_succeeded"].data)
