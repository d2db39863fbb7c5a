"""What every renderer needs of the page: how wide it is, which marks it can show, and how long parts are folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from weft.surfaces.cli.figures import size_text
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import cut, safe, safe_lines, width, wrapped

STEP = "  "
NARROWEST = 20
_HOME = re.compile(r"^/(?:home|Users)/[^/]+/")


class Marks(NamedTuple):
    """How outcomes and list items are marked."""

    ok: str
    failed: str
    stopped: str
    waiting: str
    doing: str
    arrow: str
    more: str


UNICODE = Marks("✓", "✗", "◍", "○", "▸", "→", "…")
ASCII = Marks("*", "x", "!", "o", ">", "->", "…")


class PageLayout(Struct, frozen=True):
    """Where lines go; `full` folds and cuts nothing."""

    columns: int
    full: bool = False
    marks: Marks = ASCII
    workspace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """What to type for sessions with long labels."""
    wraps: bool = False
    """Long lines are broken at words; else they are left as they are."""
    unfold: str = "--full"
    """What shows the lines that are folded."""

    def room(self, indent: int) -> int:
        return max(NARROWEST, self.columns - indent * len(STEP))

    def cut(self, text: str, columns: int) -> str:
        """One safe line of it, as long as there is room."""
        return safe(text) if self.full else cut(safe(text), max(NARROWEST, columns))

    def whole_text(self, text: str, indent: int) -> Iterator[Line]:
        """All of a text, its long lines broken at words where the page wraps."""
        lines = safe_lines(text)
        for line in wrapped("\n".join(lines), self.room(indent)) if self.wraps and lines else lines:
            yield [STEP * indent, line]

    def folded(self, lines: Sequence[Line], keep: int, indent: int) -> Iterator[Line]:
        """The first `keep` lines, and how many more there are; one line more is not worth a note."""
        shown = lines if self.full or len(lines) <= keep + 1 else lines[:keep]
        lead = STEP * indent
        yield from ([lead, *line] if line else [] for line in shown)
        if left := len(lines) - len(shown):
            yield [lead, Span(f"… {left:,}{' more' if shown else ''} lines ({self.unfold})", "dim")]

    def text(self, text: str, keep: int, indent: int, style: str = "dim", lead: str = "") -> Iterator[Line]:
        """A longer text, folded."""
        room = self.room(indent) - len(lead)
        lines: list[Line] = [[Span(line if self.full else cut(line, room), style)] for line in safe_lines(text)]
        if lead and lines:
            lines[0] = [Span(lead, style), *lines[0]]
        yield from self.folded(lines, keep, indent)

    def path(self, path: str) -> str:
        """As it is seen from the turn's workspace."""
        below = f"{self.workspace.rstrip('/')}/" if self.workspace else ""
        if below and path.startswith(below) and path != below:
            return path.removeprefix(below)
        return path if self.full else _HOME.sub("~/", path)

    def cut_left(self, text: str, columns: int) -> str:
        """The end of it, which of a path says most."""
        text, room = safe(text), max(NARROWEST, columns)
        return text if self.full or width(text) <= room else f"…{text[-(room - 1) :]}"


def image_text(url: str) -> str:
    """An image by its size, or by where it lies."""
    head, comma, data = url.partition(",")
    if head.startswith("data:") and comma:
        padding = len(data) - len(data.rstrip("="))
        size = len(data) * 3 // 4 - padding if head.endswith(";base64") else len(data)
        return f"[image, {size_text(size)}]"
    return f"[image {cut(safe(url), 80)}]"
