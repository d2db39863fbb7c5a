"""Markdown as lines of spans, wrapped at words: headings, lists, quotes, tables and code as a terminal can show them.

No word is lost. HTML, images, escapes and link definitions are shown as they are written; a text of which anything is
missing once it is rendered, one that is very long and one whose tables have too many cells is shown as it is written,
too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, Any, ClassVar

from weft.exchange.exporters.turn_contents import TooManyCells, with_bounded_tables
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import safe_lines, wrapped

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.style import Style

LONGEST_CHARS = 50_000
MOST_CELLS = 3_000
"""Of all tables of a text: rich takes half a millisecond to lay out one cell."""
NOT_RENDERED = ("escape", "entity", "html_inline", "html_block", "image", "reference")
_CODE, _URL = "cyan", "blue"
THEME = {
    "markdown.code": _CODE,
    "markdown.code_block": _CODE,
    "markdown.link": "none",
    "markdown.link_url": _URL,
    "markdown.block_quote": "dim",
    "markdown.list": "none",
    "markdown.item.bullet": "none",
    "markdown.item.number": "none",
    "markdown.hr": "dim",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
    **{f"markdown.h{level}": "bold" for level in range(1, 7)},
}


def markdown_lines(text: str, columns: int) -> Iterator[Line]:
    """The text as it is meant to look, no wider than so many columns."""
    source = "\n".join(safe_lines(text))
    lines = _lossless(source, columns) if len(source) <= LONGEST_CHARS else None
    yield from ([line] for line in wrapped(source, columns)) if lines is None else lines


def _lossless(source: str, columns: int) -> list[Line] | None:
    """The rendered lines; None where letters are missing in them or tables have too many cells."""
    try:
        lines = list(_rendered(source, columns))
    except TooManyCells:
        return None
    shown = "".join(span if isinstance(span, str) else span.text for line in lines for span in line)
    return None if _letters(source) - _letters(shown) else lines


def _letters(text: str) -> Counter[str]:
    return Counter(re.sub(r"[\W_]+", "", text))


def _rendered(text: str, columns: int) -> Iterator[Line]:
    console = _console(columns)
    for segments in console.render_lines(_document(text), pad=False):
        spans = [Span(segment.text, _style_name(segment.style)) for segment in segments if not segment.control]
        yield _trimmed(spans)


def _trimmed(spans: list[Span]) -> list[Span]:
    """Without the blanks that fill the line."""
    while spans and not spans[-1].text.strip():
        spans.pop()
    if spans:
        spans[-1] = spans[-1]._replace(text=spans[-1].text.rstrip())
    return spans


def _style_name(style: Style | None) -> str:
    """The style of the screen that comes nearest."""
    if style is None:
        return ""
    colour = style.color.name if style.color else ""
    names = {_CODE: "code", _URL: "dim"}
    if colour in names:
        return names[colour]
    return "heading" if style.bold else "emphasis" if style.italic else "dim" if style.dim else ""


@cache
def _console(columns: int) -> Console:
    from rich.console import Console
    from rich.theme import Theme

    return Console(
        file=StringIO(),
        width=columns,
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        emoji=False,
        theme=Theme(THEME),
        _environ={},
    )


def _document(text: str) -> Markdown:
    document = _document_class()("", hyperlinks=False)
    document.parsed = _parser().parse(text)
    return document


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable(["strikethrough", "table"]).disable(list(NOT_RENDERED))
    return with_bounded_tables(parser, MOST_CELLS)


@cache
def _document_class() -> type[Markdown]:
    from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
    from rich.padding import Padding
    from rich.text import Text

    class PlainCode(CodeBlock):
        """Code without colours of its own, set in, below the name of its language."""

        @classmethod
        def create(cls, markdown: Markdown, token: Any) -> PlainCode:
            return cls(token.info or "", "")

        def __rich_console__(self, console: Any, options: Any) -> Any:
            if self.lexer_name.strip():
                yield Padding(Text(self.lexer_name.strip(), style="dim", overflow="fold"), (0, 0, 0, 2))
            yield Padding(Text(str(self.text).rstrip(), style=_CODE, overflow="fold"), (0, 0, 0, 2))

    class LeftHeading(Heading):
        def __rich_console__(self, console: Any, options: Any) -> Any:
            self.text.justify = "left"
            yield self.text

    class PlainMarkdown(Markdown):
        elements: ClassVar[dict[str, type[MarkdownElement]]] = {
            **Markdown.elements,
            "heading_open": LeftHeading,
            "fence": PlainCode,
            "code_block": PlainCode,
        }

    return PlainMarkdown
