"""``ackpost copy``: moving from one database to another."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from ackpost import config
from ackpost.cli.app import app
from ackpost.errors import StoreError
from ackpost.wiring import copying
from ackpost.wiring.copying import Compared


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="sqlite:///PATH or postgresql://…", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TO", help="postgresql://… of an empty one.", show_default=False)],
) -> None:
    """Copy all that a database holds into an empty one; no server may run on either.

    What was written is read back and compared. FROM keeps what it holds.
    """
    here, there = config.database(source, "FROM"), config.database(target, "TO")
    began_s = monotonic()
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        task = progress.add_task("copying", total=None)

        def show(table: str, done: int, total: int) -> None:
            progress.update(task, description=table, completed=done, total=total)

        compared = copying.copy(here, there, show)
    print(_table(compared))
    rows = sum(one.target for one in compared)
    wrong = [one.table for one in compared if not one.same]
    if wrong:
        raise StoreError(f"The copy differs from its source in {', '.join(wrong)}. No server takes the target.")
    took_s = max(monotonic() - began_s, 0.001)
    print(f"{there.database_shown} holds all that {here.database_shown} held.")
    print(f"{rows:,} rows, each read back and compared, in {took_s:.1f} s ({rows / took_s:,.0f} rows/s).")


def _table(compared: list[Compared]) -> str:
    lines = [f"{'table':16} {'FROM':>12} {'TO':>12}  contents"]
    for one in compared:
        contents = "equal" if one.same else "DIFFERENT"
        lines += [f"{one.table:16} {one.source:>12,} {one.target:>12,}  {contents}"]
    return "\n".join(lines)
