"""Progress of long work, a bar on stderr once it takes a while, on a terminal only; sizes,
money, counts and bars as people read them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from weft.ledger.api import Spending


# --- Progress of long work: a bar on stderr once it takes a while, on a terminal only.

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


# --- Sizes, money, counts and bars as people read them.


def size_text(count: int) -> str:
    """`12.3 MB`, as file managers say it."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} B"


def dollars(*rows: Spending) -> str:
    """`$12.34`, of all of them; with `+` where some tokens have no price, `?` where none has."""
    costs = [row.cost for row in rows if row.cost is not None]
    if not costs:
        return "?"
    return dollar_text(sum(costs)) + ("+" if any(row.unpriced for row in rows) else "")


def dollar_text(micro: int) -> str:
    """Small sums with more digits."""
    amount = micro / 1_000_000
    return f"${amount:,.2f}" if micro == 0 or amount >= 0.1 else f"${amount:,.4f}"


BLOCKS = " ▏▎▍▌▋▊▉█"


def bar(value: int, most: int, columns: int, unicode: bool) -> str:
    """At most so many columns; in eighths of one where the terminal has the signs for it. What is not nothing shows."""
    if value <= 0 or most <= 0 or columns <= 0:
        return ""
    if not unicode:
        return "#" * max(1, columns * value // most)
    whole, eighths = divmod(max(1, 8 * columns * value // most), 8)
    return BLOCKS[8] * whole + BLOCKS[eighths].strip()


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    """`2 summaries`; of `part of a tool call`, several parts."""
    head, of, rest = noun.partition(" of ")
    ends_in_y = head.endswith("y") and head[-2:-1] not in "aeiou"
    return f"{head[:-1]}ies{of}{rest}" if ends_in_y else f"{head}s{of}{rest}"


def abbreviated(count: int) -> str:
    """12,345 as 12k: how much it is, not how many."""
    for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            shown = count / unit
            return f"{shown:.1f}{letter}" if shown < 10 else f"{shown:.0f}{letter}"
    return str(count) if count else ""
