"""docs/how-to/move-to-postgresql.md does what it says."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

from tests.docs.blocks import blocks, commands, matches
from tests.docs.session import Session
from tests.process.server import KEY, Server
from tests.store.postgres.server import own_database
from tests.tidy import tree

PAGE = tree.ROOT / "docs/how-to/move-to-postgresql.md"


def test_the_how_to_works_as_printed(tmp_path: Path) -> None:
    """A stopped server's file is copied, and a server on PostgreSQL lists what was published before."""
    with Server(tmp_path) as file:
        event = file.publish("moved.event")["id"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ACKPOST_PORT": str(port), "ACKPOST_URL": f"http://127.0.0.1:{port}", "ACKPOST_API_KEY": KEY,
    }  # fmt: skip
    with own_database() as url, Session(tmp_path, environment) as session:
        for command in (command for block in blocks(PAGE) for command in commands(block)):
            text = re.sub(r"'postgresql://[^']*'", f"'{url}'", command.text).replace(":8080", f":{port}")
            code, output = session.run(text)
            assert code == 0, f"{text}\nended with {code}:\n{output}"
            assert not command.shown or matches(command.shown, output), f"{text}\nprinted:\n{output}"
        assert event in output
        assert session.run("kill %1; wait %1; cat ackpost.log")[0] == 0
