"""Do words of a withheld text stand in what is disclosed?

A stretch of a withheld text is six words in a row; the whole of a text that has fewer; or one word that tells by
itself, also inside a longer word: six letters or more with a digit among them, twenty letters or more, or six letters
or more that are the whole text. Words are as search knows them: without
case, signs and spaces do not count, scripts without spaces go letter by letter. JSON is looked at value by value, as it
reads once unpacked. A text without any word counts only as a whole.

What was put in other words, translated or encoded is not noticed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from weft.kernel.contents import json_value
from weft.kernel.message_text import folded, pattern

RUN = 6
DISTINCTIVE_LETTERS, LONG, PLAIN_VALUE = 6, 20, 8
_escape = re.compile(r"\\(?:[nrtbf\"'/\\]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})")


class Stretches:
    """The stretches of some withheld texts."""

    def __init__(self) -> None:
        self._by_length: dict[int, set[tuple[str, ...]]] = {}
        self._distinctive_words: set[str] = set()
        self._sizes: set[int] = set()
        self._wordless: set[str] = set()

    def add(self, data: bytes) -> None:
        text = readable(data)
        if text is None:
            return
        value = _json(text)
        if isinstance(value, dict | list):
            for each in _strings(value):
                self._add(each, is_value=True)
        else:
            self._add(value if isinstance(value, str) else text)

    def _add(self, text: str, is_value: bool = False) -> None:
        words = list(words_of(text))
        distinctive = {
            word for word in words if _is_distinctive(word) or (len(words) == 1 and len(word) >= DISTINCTIVE_LETTERS)
        }
        self._distinctive_words |= distinctive
        self._sizes |= {len(word) for word in distinctive}
        if len(words) >= RUN:
            runs = self._by_length.setdefault(RUN, set())
            runs.update(tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1))
        elif len(words) > 1 or (words and not (is_value and len(words[0]) < PLAIN_VALUE)):
            self._by_length.setdefault(len(words), set()).add(tuple(words))
        elif text.strip() and not words:
            self._wordless.add(text.strip())

    def found_in(self, text: str) -> bool:
        """Does one of them stand in this text?"""
        return any(self._found(spelled) for spelled in spellings(text))

    def _found(self, text: str) -> bool:
        if text.strip() in self._wordless:
            return True
        lengths = sorted(self._by_length)
        last = deque[str](maxlen=RUN)
        for word in words_of(text):
            last.append(word)
            if self._holds_distinctive_word(word):
                return True
            recent = tuple(last)
            if any(n <= len(recent) and recent[-n:] in self._by_length[n] for n in lengths):
                return True
        return False

    def _holds_distinctive_word(self, word: str) -> bool:
        """Does a distinctive word stand in this one?"""
        return word in self._distinctive_words or any(
            word[i : i + size] in self._distinctive_words for size in self._sizes for i in range(len(word) - size + 1)
        )


def words_of(text: str) -> Iterator[str]:
    return (folded(match[0]) for match in pattern("[U][M]*|[S][SM]*").finditer(text))


def _is_distinctive(word: str) -> bool:
    return len(word) >= LONG or (len(word) >= DISTINCTIVE_LETTERS and any(letter.isdigit() for letter in word))


def readable(data: bytes) -> str | None:
    """Its text; None where it is none."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None


def spellings(text: str) -> Iterator[str]:
    """The text as it stands, as JSON reads, and as it reads where something in it was escaped once more."""
    yield text
    value = _json(text)
    unpacked = text if value is None else "\n".join(_strings(value))
    if value is not None:
        yield unpacked
    if "\\" in unpacked:
        yield _escape.sub(_unescaped, unpacked)


def _unescaped(match: re.Match[str]) -> str:
    spelled = match[0]
    return chr(int(spelled[2:], 16)) if spelled[1] in "ux" else " "


def _json(text: str) -> Any:
    """The value that a text spells, where it may be JSON at all."""
    if not text.lstrip()[:1].startswith(("{", "[", '"')):
        return None
    try:
        return json_value(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def _strings(value: Any) -> Iterator[str]:
    """Names and values, in order."""
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [part for pair in reversed(each.items()) for part in reversed(pair)]
        elif isinstance(each, list):
            waiting += reversed(each)
        elif each is not None and not isinstance(each, bool):
            yield str(each)


def matches(wanted: re.Pattern[str], text: str) -> bool:
    return any(map(wanted.search, spellings(text)))


def windows(pieces: Iterable[bytes], size: int, overlap: int) -> Iterator[str]:
    """A content as texts that can be looked at one by one: whole, or cut where it is large, with what is near a cut
    in both."""
    held = b""
    for piece in pieces:
        held += piece
        if len(held) > size:
            yield held.decode("utf-8", "replace")
            held = held[-overlap:]
    if (text := readable(held)) is not None:
        yield text
