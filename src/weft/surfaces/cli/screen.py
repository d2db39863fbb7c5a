"""Where people read: lines of styled spans, colour and a pager on a terminal, plain text
when piped; times as the person at this machine reads and writes them.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypedDict

import click

from weft.surfaces.plain_text import cut, pad, safe, width, wrapped_line

if TYPE_CHECKING:
    from weft.ledger.api import Session


# --- Where people read: lines of styled spans, colour and a pager on a terminal, plain text when piped.

PIPED_WIDTH = 200
PIPED_LINES = 64
LEAST_ROOM = 20
NAME_COLORS = ("blue", "green", "cyan", "magenta", "yellow", "red", "bright_blue", "bright_green", "bright_magenta")
"""Of those who speak in a room."""
STYLES: dict[str, dict[str, Any]] = {
    "": {},
    "id": {"fg": "yellow"},
    "label": {"fg": "cyan", "bold": True},
    "heading": {"bold": True},
    "dim": {"dim": True},
    "good": {"fg": "green"},
    "bad": {"fg": "red"},
    "warn": {"fg": "magenta"},
    "user": {"fg": "blue", "bold": True},
    "assistant": {"fg": "green", "bold": True},
    "tool": {"fg": "magenta"},
    "line": {"fg": "bright_black"},
    "emphasis": {"italic": True},
    "code": {"fg": "cyan"},
    "match": {"fg": "red", "bold": True},
    **{f"name-{number}": {"fg": color, "bold": True} for number, color in enumerate(NAME_COLORS)},
}


class Span(NamedTuple):
    """A piece of a line with one style."""

    text: str
    style: str = ""


Line = Sequence[Span | str]


class Screen:
    """One output with what it can show."""

    def __init__(self, *, color: bool, unicode: bool, terminal: bool, columns: int, rows: int, paging: bool) -> None:
        self.color, self.unicode, self.terminal = color, unicode, terminal
        self.columns, self.rows, self.paging = columns, rows, paging

    def render(self, line: Line) -> str:
        return "".join(self._styled_text(span) for span in line)

    def _styled_text(self, span: Span | str) -> str:
        text, style = (span, "") if isinstance(span, str) else span
        return click.style(safe(text), **STYLES[style]) if self.color and style and text else safe(text)

    def wrap(self, line: Line, *, breaks_styles: bool = False) -> list[Line]:
        """The line in pieces that fit, broken at words; a long word stays whole, and so does a line with styles in it,
        unless it is to be broken, too."""
        if not breaks_styles and any(span.style for span in map(as_span, line)):
            return [line]
        spans = [Span(safe(span.text), span.style) for span in map(as_span, line)]
        text = "".join(span.text for span in spans)
        lines: list[Line] = []
        at = 0
        for piece in wrapped_line(text, max(LEAST_ROOM, self.columns), breaks_words=False):
            words = piece.lstrip(" ")
            start = text.index(words, at)
            at = start + len(words)
            lines.append([Span(piece[: len(piece) - len(words)]), *_spans_between(spans, start, at)])
        return lines

    def show(self, *line: Span | str) -> None:
        click.echo(self.render(line), color=self.color)

    def page(self, lines: Iterable[Line]) -> None:
        """Through a pager if this is a terminal and they are more than it holds; else as they become known, a few at a
        time."""
        texts = (self.render(line) for line in lines)
        if not (self.terminal and self.paging):
            while some := list(islice(texts, PIPED_LINES)):
                click.echo("\n".join(some), color=self.color)
            return
        first = list(islice(texts, self.rows - 1))
        if len(first) < self.rows - 1:
            click.echo("\n".join(first), color=self.color, nl=bool(first))
            return
        pager_words()
        os.environ.setdefault("LESS", "-FRX")
        click.echo_via_pager(_with_line_ends(chain(first, texts)), color=None if self.color else False)

    def table(
        self,
        rows: Iterable[Sequence[Span | str]],
        header: Sequence[str],
        *,
        numbers: Collection[str] = (),
        spare: Sequence[str] = (),
        least: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Aligned columns under a header on a terminal; tabs between them, and no header, when piped.

        Columns that are numbers stand to the right. On a terminal that is too narrow the last column is cut, and so are
        those of which `least` says how many columns of the terminal they need. Where that is not enough, it does
        without the spare ones, the first of them first.
        """
        if not self.terminal:
            for row in rows:
                click.echo("\t".join(self.render([Span(as_span(cell).text)]) for cell in row))
            return
        cells = [[Span(name.upper(), "dim") for name in header], *([as_span(cell) for cell in row] for row in rows)]
        widths = [max(width(safe(row[i].text)) for row in cells) for i in range(len(header))]
        shown = fitting(header, widths, self.columns, spare, {header[-1]: LEAST_ROOM, **least})
        last = max(shown)
        self.page(
            [_aligned_cell(row[i], wide, right=header[i] in numbers, is_last=i == last) for i, wide in shown.items()]
            for row in cells
        )


def _spans_between(spans: Sequence[Span], start: int, end: int) -> Iterator[Span]:
    """What stands between two places of a line, with its styles."""
    at = 0
    for text, style in spans:
        if part := text[max(0, start - at) : max(0, end - at)]:
            yield Span(part, style)
        at += len(text)


def fitting(
    header: Sequence[str], widths: Sequence[int], columns: int, spare: Sequence[str], least: Mapping[str, int]
) -> dict[int, int]:
    """The columns that a terminal has room for, by their places, each with its width. Those that `least` names are made
    narrower down to that, the widest first, before a spare one is left out."""
    shown = dict(enumerate(widths))
    smallest = {i: min(wide, least.get(header[i], wide)) for i, wide in shown.items()}
    for name in spare:
        if _total_width(smallest[i] for i in shown) <= columns:
            break
        shown = {i: wide for i, wide in shown.items() if header[i] != name}
    for widest in range(columns, 0, -1):
        narrow = {i: max(smallest[i], min(wide, widest)) for i, wide in shown.items()}
        if _total_width(narrow.values()) <= columns:
            return narrow
    return {i: smallest[i] for i in shown}


def _total_width(widths: Iterable[int]) -> int:
    """Of columns beside each other."""
    return sum(wide + 2 for wide in widths) - 2


def _aligned_cell(cell: Span, wide: int, *, right: bool, is_last: bool) -> Span:
    """A cell as wide as its column; the last one ends where its text does."""
    text = cut(safe(cell.text), wide)
    if right:
        text = " " * (wide - width(text)) + text
    elif not is_last:
        text = pad(text, wide)
    return Span(text if is_last else text + "  ", cell.style)


def plain_line(line: Line) -> str:
    """A line without its styles, made safe."""
    return "".join(safe(as_span(span).text) for span in line)


def as_span(cell: Span | str) -> Span:
    return cell if isinstance(cell, Span) else Span(cell)


def pager_words() -> list[str]:
    """The words of PAGER, which is looked for where agents do not work. Where its quotation marks do not close, it is
    taken out of the environment, so that the usual pager runs."""
    from weft.surfaces.cli.user_files import look_outside_of_work

    look_outside_of_work()
    try:
        return shlex.split(os.environ.get("PAGER", ""))
    except ValueError:
        del os.environ["PAGER"]
        return []


def _with_line_ends(texts: Iterable[str]) -> Iterator[str]:
    """Every line with its end but the last, after which the pager puts one itself."""
    lead = ""
    for text in texts:
        yield lead + text
        lead = "\n"


def stdout_screen(*, no_color: bool, no_pager: bool) -> Screen:
    """What standard output can show."""
    terminal = sys.stdout.isatty()
    columns, rows = terminal_size()
    return Screen(
        color=terminal and not no_color and colours_wanted(),
        unicode=terminal and speaks_unicode(sys.stdout),
        terminal=terminal,
        columns=columns if terminal else PIPED_WIDTH,
        rows=rows,
        paging=not no_pager,
    )


def terminal_size(stream: TextIO | None = None) -> tuple[int, int]:
    """Columns and rows of a stream, standard output by default; COLUMNS and LINES win over what the terminal says."""
    try:
        size = os.get_terminal_size((stream or sys.stdout).fileno())
    except (OSError, ValueError):
        size = os.terminal_size((80, 24))
    variables = [os.environ.get(name, "") for name in ("COLUMNS", "LINES")]
    columns, rows = (int(word) if word.isdecimal() else length for word, length in zip(variables, size, strict=True))
    return columns or 80, rows or 24


def colours_wanted() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"


def speaks_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


# --- Times as the person at this machine reads and writes them.

UTC = timezone.utc  # noqa: UP017 - the alias hides what it is
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = len("2026-11-15 09:30")
NO_DATE = "unknown"
NO_TIME = "unknown: its origin gives no time"


class LocalZone(tzinfo):
    """The zone that the machine is set to, with the offset that holds at each moment, summer and winter."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def fromutc(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=self)


def local_time(ms: int) -> str:
    """`2026-11-15 09:30:12 +0100`."""
    return f"{(EPOCH + timedelta(milliseconds=ms)).astimezone():%Y-%m-%d %H:%M:%S %z}"


def local_minute(ms: int) -> str:
    """`2026-11-15 09:30`, as tables on a terminal show times."""
    return local_time(ms)[:MINUTE]


def session_time(session: Session) -> str:
    """When a session last changed, as far as anybody knows."""
    return local_time(session.updated_at) if session.time_known else NO_DATE


class Period(TypedDict):
    since: int | None
    until: int | None


def read_period(since: str | None, until: str | None) -> Period:
    from weft.kernel.clock import SystemClock
    from weft.ledger.api import read_moment

    now = SystemClock().now_ms()
    return {
        "since": read_moment(since, "since", now, LocalZone()),
        "until": read_moment(until, "until", now, LocalZone()),
    }
