"""Between a store and its PostgreSQL: passes all on, until it is told to swallow an answer and hang up."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

_SOCKET = ".s.PGSQL.5432"


class Proxy:
    """A socket like PostgreSQL's own; ``cut_answer_to`` names the statement whose answer never arrives."""

    def __init__(self, folder: Path) -> None:
        self._target = folder / _SOCKET
        self._own = tempfile.TemporaryDirectory(prefix="ackpost-proxy-")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_answer_to: bytes | None = None

    @property
    def dsn(self) -> str:
        """Where it is."""
        return f"postgresql://postgres@/postgres?host={self._own.name}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, Path(self._own.name) / _SOCKET)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._own.cleanup()

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_unix_connection(self._target)
        swallowing = asyncio.Event()
        both = (
            asyncio.ensure_future(self._ask(reader, questions, swallowing)),
            asyncio.ensure_future(self._answer(answers, writer, swallowing)),
        )
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in both:
                half.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.close()
            questions.close()

    async def _ask(
        self, reader: asyncio.StreamReader, questions: asyncio.StreamWriter, swallowing: asyncio.Event
    ) -> None:
        while chunk := await reader.read(65_536):
            if self.cut_answer_to is not None and self.cut_answer_to in chunk:
                self.cut_answer_to = None
                swallowing.set()
            questions.write(chunk)
            await questions.drain()

    async def _answer(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, swallowing: asyncio.Event
    ) -> None:
        while chunk := await answers.read(65_536):
            if swallowing.is_set():
                return
            writer.write(chunk)
            await writer.drain()
