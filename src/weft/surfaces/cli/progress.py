"""Progress of long work: a bar on stderr once it takes a while, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

PATIENCE = 0.4


class Bar:
    """Shows nothing at first, then a bar for the stage that work is in. Called by the library as work goes on."""

    def __init__(self, title: str, *, shown: bool, in_bytes: bool = False) -> None:
        self._title, self._shown, self._in_bytes = title, shown, in_bytes
        self._since = time.monotonic()
        self._progress: Any = None
        self._task: Any = None
        self._stage = ""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def staged(self, stage: str, done: int, of: int) -> None:
        if self._shown and time.monotonic() - self._since >= PATIENCE:
            self._draw(f"{self._title} {stage}", done, of or None)

    def counted(self, done: int, of: int | None = None) -> None:
        if self._shown and time.monotonic() - self._since >= PATIENCE:
            self._draw(self._title, done, of)

    def _draw(self, stage: str, done: int, of: int | None) -> None:
        if self._progress is None:
            self._progress = _rich_progress(self._in_bytes)
            self._progress.start()
        if stage != self._stage:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._stage, self._task = stage, self._progress.add_task(stage, total=of)
        self._progress.update(self._task, completed=done, total=of)


def _rich_progress(in_bytes: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    done = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


class OutputOptions(Protocol):
    """The options of a call that leave no room for progress."""

    quiet: bool
    json: bool


@contextmanager
def progress(call: OutputOptions, title: str, *, in_bytes: bool = False) -> Iterator[Bar]:
    with Bar(title, shown=sys.stderr.isatty() and not (call.quiet or call.json), in_bytes=in_bytes) as bar:
        yield bar
