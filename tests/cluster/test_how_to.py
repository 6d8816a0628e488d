"""docs/how-to/postgresql.md does what it says."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks, commands, matches
from tests.docs.session import Session
from tests.tidy import tree

PAGE = tree.ROOT / "docs/how-to/postgresql.md"


@pytest.mark.timeout(180)
def test_the_how_to_works_as_printed(tmp_path: Path, database: str) -> None:
    """Three servers share the work; one that is stopped leaves its part to the others."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = {f"{8081 + number}": str(probe.getsockname()[1]) for number, probe in enumerate(probes)}
    for probe in probes:
        probe.close()

    def adapted(text: str) -> str:
        text = re.sub(r"'postgresql://[^']*'", f"'{database}'", text)
        return re.sub(r"\b808[123]\b", lambda found: ports[found[0]], text)

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with Session(tmp_path, {"PATH": path}) as session:
        listed = ""
        for command in (command for block in blocks(PAGE) if block.run_by for command in commands(block)):
            text = adapted(command.text)
            code, output = session.run(text)
            assert code == 0, f"{text}\nended with {code}:\n{output}"
            assert not command.shown or matches(command.shown, output), f"{text}\nprinted:\n{output}"
            listed = output if text == "ackpost nodes" else listed
        assert listed.count("alive") == 3, listed
