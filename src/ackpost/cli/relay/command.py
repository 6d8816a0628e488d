"""The commands ``ackpost relay`` and ``ackpost outbox schema``."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from typing import Annotated, Final

import typer

from ackpost import config, outbox
from ackpost.cli.app import FLAG, app
from ackpost.cli.client import connect
from ackpost.cli.relay.mover import DATA_BYTES_MAX, ROWS_MAX, Moved, Mover
from ackpost.cli.relay.postgres import PostgresSource
from ackpost.cli.relay.source import Source, SourceFailed
from ackpost.cli.relay.sqlite import SqliteSource
from ackpost.cli.show import plain
from ackpost.errors import AckpostError, ConfigError

_POLL_S: Final = 0.5
_PAUSE_FIRST_S: Final = 0.5
_PAUSE_MAX_S: Final = 30.0
_REFUSED_SHOWN_MAX: Final = 1_000_000
_DAY_MS: Final = 86_400_000

tables = typer.Typer(no_args_is_help=True, help="The table that an application writes events into.")
app.add_typer(tables, name="outbox")

_Url = Annotated[
    str,
    typer.Option(
        envvar="ACKPOST_OUTBOX_URL", show_default=False, help="The application's database: postgresql://… or sqlite:///…"
    ),
]


@tables.command("schema")
def print_schema(dialect: Annotated[str, typer.Option(help="postgresql or sqlite.")] = "postgresql") -> None:
    """Print the statement that makes the table, for the application's migrations."""
    print(outbox.schema(dialect), end="")


@app.command()
def relay(
    outbox_url: _Url,
    once: Annotated[bool, typer.Option("--once", metavar=FLAG, help="Move what waits now, then end.")] = False,
    tenant: Annotated[str | None, typer.Option(help="The tenant of rows that name none.")] = None,
    remembered_days: Annotated[
        int, typer.Option(min=1, max=3650, help="The server's retention_events_days; older rows are set aside.")
    ] = 30,
    refused: Annotated[bool, typer.Option("--refused", metavar=FLAG, help="List what was set aside.")] = False,
    again: Annotated[
        list[str] | None, typer.Option(help="Let a row that was set aside wait again: its number, or all (repeatable).")
    ] = None,
) -> None:
    """Move events from an application's outbox to the server until Ctrl-C, each exactly once.

    A row that the server refuses is set aside with the reason; nothing waits for it.
    """
    source = _source(outbox_url)
    if refused or again:
        asyncio.run(_look_after(source, again or []))
        return
    connect(tenant)  # a wrong setting is told before the first row
    mover = Mover(lambda name: connect(tenant if name is None else name), remembered_ms=remembered_days * _DAY_MS)
    asyncio.run(Relay(source, mover, config.without_password(outbox_url)).run(once=once))


def _source(url: str) -> Source:
    database = config.database(url, "--outbox-url")
    return PostgresSource(database.database_url) if database.is_shared else SqliteSource(database.database_path)


class Relay:
    """Looks, moves and waits, and tells in one line when something begins or ends to go wrong."""

    def __init__(self, source: Source, mover: Mover, shown: str) -> None:
        self._source = source
        self._mover = mover
        self._shown = shown
        self._ended = asyncio.Event()
        self._trouble: str | None = None
        self._accepted = self._refused = 0

    async def run(self, *, once: bool) -> None:
        """Move until a signal comes; ``once``: until nothing waits.

        Raises: AckpostError, when ``once`` and something keeps rows waiting.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._ended.set)
        if not once:
            _say(f"moving rows of {self._shown} until Ctrl-C")
        pause_s = _PAUSE_FIRST_S
        try:
            while not self._ended.is_set():
                moved = await self._turn()
                if moved is None:
                    await self._wait(_POLL_S)
                    continue
                if once and moved.trouble is not None:
                    raise AckpostError(f"rows still wait: {moved.trouble}")
                self._tell(moved.trouble)
                if moved.trouble is not None:
                    await self._wait(float(moved.retry_after_s or pause_s))
                    pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                    continue
                pause_s = _PAUSE_FIRST_S
                if moved.accepted or moved.refused:
                    continue
                if once:
                    break
                await self._wait(_POLL_S)
        finally:
            with suppress(SourceFailed):
                await self._source.close()
            aside = f", {self._refused:,} set aside (--refused lists them)" if self._refused else ""
            print(f"{self._accepted:,} event{'' if self._accepted == 1 else 's'} moved{aside}", flush=True)

    async def _turn(self) -> Moved | None:
        """Look once and move what is found; None while another relay does."""
        try:
            async with self._source.turn() as turn:
                if turn is None:
                    return None
                waiting = await turn.waiting(ROWS_MAX, DATA_BYTES_MAX)
                moved = await asyncio.to_thread(self._mover.move, waiting) if waiting.rows else Moved()
                if moved.accepted:
                    await turn.remove(moved.accepted)
                if moved.refused:
                    await turn.set_aside(moved.refused)
        except SourceFailed as error:
            return Moved(trouble=str(error))
        self._accepted += len(moved.accepted)
        self._refused += len(moved.refused)
        if moved.refused:
            number, reason = next(iter(moved.refused.items()))
            more = f" (and {len(moved.refused) - 1:,} more)" if len(moved.refused) > 1 else ""
            _say(f"row {number} was set aside: {reason}{more}")
        return moved

    async def _wait(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._ended.wait()

    def _tell(self, trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            _say(f"rows wait, and are tried again: {trouble}")
        elif trouble is None and self._trouble is not None:
            _say("rows are moved again")
        self._trouble = trouble


async def _look_after(source: Source, again: list[str]) -> None:
    """List what was set aside, or let it wait again."""
    try:
        found = await source.refused(_REFUSED_SHOWN_MAX)
        if again:
            wanted = set(again)
            unknown = wanted - {"all", *(str(one.row.number) for one in found)}
            if unknown:
                raise ConfigError(f"--again: no row {', '.join(sorted(unknown))} is set aside")
            chosen = [one.row for one in found if "all" in wanted or str(one.row.number) in wanted]
            await source.renew(chosen)
            print(f"{len(chosen):,} row{'' if len(chosen) == 1 else 's'} will be tried again")
            return
        for one in found:
            print(plain(f"{one.row.number}  {one.row.uid}  {one.row.type}  {one.reason}"))
    finally:
        await source.close()


def _say(text: str) -> None:
    print(f"ackpost: {plain(text)}", file=sys.stderr, flush=True)
