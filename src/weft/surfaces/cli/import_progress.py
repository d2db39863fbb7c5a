"""How far an import is: sessions, bytes, speed and the time left, on stderr of a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weft.surfaces.cli.call import Call

if TYPE_CHECKING:
    from weft.exchange.importing.run import ImportStep

SHORTEST_BAR, LONGEST_BAR, BESIDE_THE_BAR = 4, 40, 62


def _silent(step: ImportStep) -> None:
    """Nobody watches."""


@contextmanager
def import_progress(call: Call) -> Iterator[Callable[[ImportStep], None]]:
    if not sys.stderr.isatty() or call.quiet or call.json:
        yield _silent
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("import {task.fields[sessions]} sessions"),
        BarColumn(bar_width=max(SHORTEST_BAR, min(LONGEST_BAR, console.width - BESIDE_THE_BAR))),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("import", total=None, sessions=0)

        def show(step: ImportStep) -> None:
            bar.update(task, completed=step.bytes, total=step.of_bytes, sessions=f"{step.sessions:,}")

        yield show
