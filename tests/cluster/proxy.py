"""A way to PostgreSQL that can be cut, made deaf in one direction, or slow, while nodes use it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

_SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Listens on a port of loopback and passes on to a socket of PostgreSQL; use as a context.

    ``is_cut``: connections end, and new ones do at once. ``swallows_questions`` and ``swallows_answers``: bytes of that
    direction vanish while all connections stay. ``delay_s``: each piece is late by that.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = Path(parse_qs(parts.query)["host"][0]) / _SOCKET
        self._database = parts.path
        self.swallows_questions = self.swallows_answers = False
        self.delay_s = 0.0
        self._is_cut = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0

    @property
    def url(self) -> str:
        """Where the database is, this way."""
        return f"postgresql://postgres@127.0.0.1:{self._port}{self._database}"

    def cut(self) -> None:
        """End all connections, and each new one."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._end_all)

    def heal(self) -> None:
        """Pass everything on again; what vanished stays so, on connections that nobody can use any more."""
        deaf = self.swallows_questions or self.swallows_answers
        self._is_cut = self.swallows_questions = self.swallows_answers = False
        self.delay_s = 0.0
        if deaf:
            self._loop.call_soon_threadsafe(self._end_all)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._is_cut = True
        self._end_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    def _end_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        answers, questions = await asyncio.open_unix_connection(self._target)
        both = {writer, questions}
        self._writers |= both
        try:
            await asyncio.gather(
                self._pass(reader, questions, lambda: self.swallows_questions),
                self._pass(answers, writer, lambda: self.swallows_answers),
            )
        except OSError:
            # One side is gone; so is the other, now.
            return
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallows: object) -> None:
        assert callable(swallows)
        while chunk := await reader.read(65_536):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if not swallows():
                writer.write(chunk)
                await writer.drain()
        writer.transport.abort()
