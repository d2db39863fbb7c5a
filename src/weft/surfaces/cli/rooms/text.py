"""Rooms as people read them: a name to type, what was said with mentions as `@name`, and notices of the system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from zlib import crc32

from weft.kernel.message_text import find_mentions, shown_name
from weft.surfaces.cli.screen import STYLES, Line, Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.plain_text import TAB

if TYPE_CHECKING:
    from weft.ledger.api import Room, RoomMessage

SHORT_ID_LETTERS = 8
INDENT = " " * 6
NAME_STYLES = tuple(style for style in STYLES if style.startswith("name-"))


def short_id(id: str) -> str:
    """The end of a room's id, which names it as the whole does."""
    return id[-SHORT_ID_LETTERS:]


def name_style(name: str) -> str:
    """The colour of a name: everywhere and always the same one."""
    return NAME_STYLES[crc32(name.casefold().encode(errors="replace")) % len(NAME_STYLES)]


def room_name(room: Room) -> str:
    """What to type for a room."""
    return room.title or short_id(room.id)


def plain_text(text: str, names: Mapping[str, str]) -> str:
    """A text with its mentions as `@name`, by the names that those have now."""
    return "".join(span.text for span in mention_spans(text, names))


def mention_spans(text: str, names: Mapping[str, str], style: str = "") -> Iterator[Span]:
    """The same in pieces, so that mentions can be seen."""
    end = 0
    for mention in find_mentions(text):
        yield Span(text[end : mention.start], style)
        name = names.get(mention.id, mention.name)
        yield Span(f"@{shown_name(name)}", style or name_style(name))
        end = mention.end
    yield Span(text[end:], style)


def message_lines(message: RoomMessage, participants: Mapping[str, str]) -> list[Line]:
    """A message: at which position, who said it and when, and below it what. A notice is dim and has no author.
    `participants` are names by id."""
    names = {**participants, **{mention.id: mention.name for mention in message.mentions}}
    position = Span(f"{message.position:>4}  ", "dim")
    if message.kind == "system" and message.author_name is None:
        lines = list(_text_lines(message.text, names, "dim"))
        return [[position if number == 0 else INDENT, *line] for number, line in enumerate(lines)]
    head: Line = [
        position,
        Span(shown_name(message.author_name or "somebody"), name_style(message.author_name or "")),
        Span(f"  {local_time(message.posted_at)}", "dim"),
        Span("  interrupted" if {"turn", "interrupted"} <= message.meta.keys() else "", "warn"),
    ]
    return [head, *([INDENT, *line] for line in _content_lines(message, names))]


def _content_lines(message: RoomMessage, names: Mapping[str, str]) -> Iterator[Line]:
    from weft.ledger.model import ImagePart, TextPart

    for part in message.content:
        if isinstance(part, TextPart) and isinstance(part.text, str):
            yield from _text_lines(part.text, names)
        elif isinstance(part, TextPart):
            yield [Span("(erased)" if message.is_erased else "(its text is not there)", "dim")]
        elif isinstance(part, ImagePart):
            yield [Span("[image]", "dim")]


def _text_lines(text: str, names: Mapping[str, str], style: str = "") -> Iterator[Line]:
    """The lines of a text, each with its mentions as spans of their own."""
    line: list[Span | str] = []
    shown = text.replace("\r\n", "\n").rstrip("\n").replace("\t", TAB)
    for words, kind in mention_spans(shown, names, style):
        first, *more = words.split("\n")
        line.append(Span(first, kind))
        for next_line in more:
            yield line
            line = [Span(next_line, kind)]
    yield line
