"""Stored text made harmless: what could drive, recolour or reorder a terminal is shown escaped.

Whatever a model or a tool wrote passes through here before a person sees it. The exact text is in `--json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from unicodedata import category, combining, east_asian_width

from weft.kernel.typed_names import is_visible

JOINERS = "\u200c\u200d"  # hold emoji and scripts together, and move nothing
TAB = "    "
_WORDS = re.compile(r"\s+|\S+")


def safe(text: str) -> str:
    """The text on one line, without anything that a terminal would obey."""
    return text if text.isprintable() else _escaped_text(text, _backslash)


def safe_lines(text: str) -> list[str]:
    """The lines of a longer text, each of them safe; tabs become spaces."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return [safe(line.replace("\t", TAB)) for line in lines]


def safe_json(document: str) -> str:
    """The same JSON document with what is not printable inside its strings as `\\u` escapes."""
    return "\n".join(line if line.isprintable() else _escaped_text(line, _json_escape) for line in document.split("\n"))


def exact_lines(text: str) -> list[str]:
    """The lines of a text that somebody decides by: every character of them that cannot be seen is escaped, joiners,
    tabs and unusual spaces included."""
    return [_visible_text(line, _backslash) for line in text.split("\n")]


def exact_json(document: str) -> str:
    """A JSON document on one line in which every character can be seen. Read as JSON it is the same document."""
    return _visible_text(document, _json_escape)


def _visible_text(text: str, escape: Callable[[str], str]) -> str:
    return text if is_visible(text) else "".join(c if is_visible(c) else escape(c) for c in text)


def _escaped_text(text: str, escape: Callable[[str], str]) -> str:
    return "".join(c if c.isprintable() or c in JOINERS or category(c) == "Zs" else escape(c) for c in text)


def _backslash(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if combining(character) or character in JOINERS:
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """At most so many columns of it, with an ellipsis where something was left out."""
    if width(text) <= columns:
        return text
    taken, room = [], columns - 1
    for character in text:
        room -= _columns(character)
        if room < 0:
            break
        taken.append(character)
    return "".join(taken) + "…"


def wrapped(text: str, columns: int) -> list[str]:
    """The lines of a text that is safe already, broken at words where they are wider than so many columns."""
    return [piece for line in text.split("\n") for piece in wrapped_line(line, columns)]


def wrapped_line(line: str, columns: int, *, breaks_words: bool = True) -> list[str]:
    """One line in pieces, each set in as the first. A word that is wider than a line is broken anywhere, or not at
    all."""
    if width(line) <= columns:
        return [line]
    words = line.lstrip(" ")
    indent = " " * min(len(line) - len(words), columns // 2)
    pieces, piece, gap, room = [], "", "", max(1, columns - len(indent))
    for word in _WORDS.findall(words):
        if word.isspace():
            gap = word
            continue
        if piece and width(piece) + width(gap) + width(word) > room:
            pieces.append(piece)
            piece = gap = ""
        *full, piece = _broken_pieces(piece + gap + word, room) if breaks_words else [piece + gap + word]
        pieces += full
        gap = ""
    return [f"{indent}{piece}" for piece in (*pieces, piece)]


def _broken_pieces(text: str, columns: int) -> list[str]:
    """Pieces of at most so many columns."""
    pieces, start, room = [], 0, columns
    if width(text) <= columns:
        return [text]
    for at, character in enumerate(text):
        wide = _columns(character)
        if wide > room and at > start:
            pieces.append(text[start:at])
            start, room = at, columns
        room -= wide
    return [*pieces, text[start:]]


def cut_at_word(text: str, columns: int) -> str:
    """At most so many columns of it, up to the end of a word where one ends not far before."""
    shown = cut(text, columns)
    if shown == text:
        return text
    whole = shown[:-1].rpartition(" ")[0].rstrip()
    return f"{whole}…" if 2 * width(whole) >= columns else shown


def pad(text: str, columns: int) -> str:
    return text + " " * max(0, columns - width(text))
