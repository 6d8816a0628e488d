"""The server keeps to its own description: generated requests for every call, answers checked against the document."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from ackpost.api.openapi import Document
from ackpost.api.resources import ROUTES
from tests.api.world import World

EXAMPLES = 10

load_all_checks()
WANTED = [
    CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    )
]
SCHEMA = schemathesis.openapi.from_dict(Document(ROUTES).content)
FOUND = [result.ok() for result in SCHEMA.get_all_operations() if isinstance(result, Ok)]
OPERATIONS = {operation.definition.raw["operationId"]: operation for operation in FOUND}


async def _serve(listener: socket.socket, servers: list[uvicorn.Server], started: threading.Event) -> None:
    world = World()
    await world.start()
    config = uvicorn.Config(world.app, http="httptools", loop="asyncio", lifespan="off", log_config=None)
    servers.append(uvicorn.Server(config))
    started.set()
    await servers[0].serve(sockets=[listener])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server of its own thread; gives its URL."""
    servers: list[uvicorn.Server] = []
    started = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(_serve(listener, servers, started)))
        thread.start()
        started.wait(10)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        servers[0].should_exit = True
        thread.join(10)


def test_every_call_is_generated() -> None:
    """The whole document is understood by a foreign reader."""
    assert len(OPERATIONS) >= 55


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_answers_are_as_described(name: str, server: str) -> None:
    """Right and wrong requests: no 5xx, a documented status, media type, headers and body."""
    operation = OPERATIONS[name]
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode])

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, key=st.sampled_from(["operator", "admin", "reader"]))
    def check(case: Any, key: str) -> None:
        case.headers["Authorization"] = f"Bearer {key}"
        try:
            answer = case.call(base_url=server, timeout=10)
        except requests.exceptions.InvalidHeader:
            return
        case.validate_response(answer, checks=WANTED)

    check()
