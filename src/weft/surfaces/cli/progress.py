"""Progress of long work: a bar on stderr once it takes a while, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from types import TracebackType
from typing import Any, Protocol, TypeVar

PATIENCE = 0.4
T = TypeVar("T")


class Bar:
    """Shows nothing at first, then a bar for the stage that work is in. Called by the library as work goes on; with
    `by_itself` it appears also while the work says nothing, drawn by another thread."""

    def __init__(self, title: str, *, shown: bool, in_bytes: bool = False, by_itself: bool = False) -> None:
        self._title, self._shown, self._in_bytes = title, shown, in_bytes
        self._since = time.monotonic()
        self._progress: Any = None
        self._task: Any = None
        self._stage = ""
        self._drawing = Lock()
        self._is_over = False
        self._timer = Timer(PATIENCE, self._appear) if shown and by_itself else None

    def __enter__(self) -> Bar:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._drawing:
            self._is_over = True
            if self._progress is not None:
                self._progress.stop()

    def _appear(self) -> None:
        """Unless the work said something by now, or is over."""
        with self._drawing:
            if not self._is_over and self._progress is None:
                self._draw(self._title, 0, None)

    def staged(self, stage: str, done: int, of: int) -> None:
        self._draw_in_time(f"{self._title} {stage}", done, of or None)

    def counted(self, done: int, of: int | None = None) -> None:
        self._draw_in_time(self._title, done, of)

    def _draw_in_time(self, stage: str, done: int, of: int | None) -> None:
        if self._shown and time.monotonic() - self._since >= PATIENCE:
            with self._drawing:
                self._draw(stage, done, of)

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
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.text import Text

    class DoneColumn(MofNCompleteColumn):
        """How much is done, once the work has said it."""

        def render(self, task: Task) -> Text:
            return super().render(task) if task.completed or task.total is not None else Text()

    done = DownloadColumn() if in_bytes else DoneColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


class OutputOptions(Protocol):
    """The options of a call that leave no room for progress."""

    quiet: bool
    json: bool


@contextmanager
def progress(call: OutputOptions, title: str, *, in_bytes: bool = False, by_itself: bool = False) -> Iterator[Bar]:
    """`by_itself`: for work that does not say how far it is, or says so late. Not for work that may ask something or
    that prints: the bar would stand in the way."""
    is_shown = sys.stderr.isatty() and not (call.quiet or call.json)
    with Bar(title, shown=is_shown, in_bytes=in_bytes, by_itself=by_itself) as bar:
        yield bar


def awaited(call: OutputOptions, title: str, items: Iterable[T]) -> Iterator[T]:
    """A few items that are printed as they come, with a bar while the next one is awaited."""
    rest = iter(items)
    while True:
        with progress(call, title, by_itself=True):
            try:
                item = next(rest)
            except StopIteration:
                return
        yield item
