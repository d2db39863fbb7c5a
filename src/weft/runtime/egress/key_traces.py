"""Traces of keys in what a server answers: it was sent the key, and may send it back.

What is recorded or shown holds none of it: neither the key nor a longer piece of one, in capital or small letters, in
base64, percent-encoded or as hexadecimal digits, also where a stream brings it in pieces.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from msgspec import Struct, structs

from weft.runtime.egress.credentials import Secret

MARK = "…"
SHORTEST_KEY = 8
"""Shorter ones are words, such as the `none` that local servers are given."""
LONGEST_PIECE = 16
SHORTEST_RUN = 4
"""So many letters in a row that a key has, too, are held back in a stream until it is seen how they go on."""
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_URLSAFE = str.maketrans("+/", "-_")


class _Form(Struct, frozen=True):
    """A key in one writing, with every piece of it that is long enough to give it away."""

    text: str
    length: int
    pieces: frozenset[str]
    blocks: tuple[str, ...]
    """Half as long as a piece, side by side: every piece holds one of them."""


class KeyTraces:
    """Finds keys that were sent to a server in what it answers."""

    def __init__(self, keys: Iterable[Secret]) -> None:
        values = [value for key in keys if len(value := key.reveal()) >= SHORTEST_KEY]
        self._forms = [_form(text) for value in values for text in dict.fromkeys(_writings(value))]

    def hidden_in(self, text: str) -> str:
        """The text with a mark for every trace of a key."""
        return self._marked(text, 0)

    def hidden_in_value(self, value: Any) -> Any:
        """The same for every text in a value: a record, a list, the keys and values of a mapping."""
        match value:
            case str():
                return self.hidden_in(value)
            case dict():
                return {self.hidden_in_value(name): self.hidden_in_value(inner) for name, inner in value.items()}
            case list() | tuple():
                return type(value)(map(self.hidden_in_value, value))
            case Struct():
                return structs.replace(value, **self.hidden_in_value(structs.asdict(value)))
            case _:
                return value

    def _marked(self, text: str, shorter: int) -> str:
        """Pieces count that lack so many letters, which were let through before."""
        lowered = text.translate(_LOWER)
        spans = sorted(span for form in self._forms for span in _spans(form, lowered, shorter))
        parts: list[str] = []
        end = 0
        for start, stop in spans:
            if start >= end:
                parts += [text[end:start], MARK] if start > end or not parts else []
            end = max(end, stop)
        return "".join([*parts, text[end:]]) if spans else text

    def open_run(self, text: str) -> int:
        """How many letters at the end of a text stand in a key in the same order; 0 if they are few."""
        lowered, run = text.translate(_LOWER), SHORTEST_RUN
        while run <= len(lowered) and any(lowered[-run:] in form.text for form in self._forms):
            run += 1
        return 0 if run == SHORTEST_RUN else run - 1


class StreamedText:
    """A text that comes in pieces: what may be the beginning of a key is held back until it is seen how it goes on."""

    def __init__(self, traces: KeyTraces) -> None:
        self._traces, self._before, self._held = traces, "", ""

    def add(self, piece: str) -> str:
        """What can be let through now."""
        text = self._held + piece
        held = min(self._traces.open_run(self._before + text), len(text))
        ready, self._held = text[: len(text) - held], text[len(text) - held :]
        return self._let_through(ready)

    def end(self) -> str:
        """What was held back, when nothing more comes."""
        ready, self._held = self._held, ""
        return self._let_through(ready)

    def _let_through(self, text: str) -> str:
        shown = self._traces._marked(text, len(self._before))
        self._before = (self._before + text)[-(SHORTEST_RUN - 1) :]
        return shown


def _writings(key: str) -> Iterator[str]:
    """The key as it is sent, and the forms that others write it in; base64 at each of its three alignments."""
    yield key
    yield quote(key, safe="")
    yield "".join(f"%{ord(letter):02x}" for letter in key)
    yield key.encode().hex()
    for offset, unsure in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(offset) + key.encode()).decode().rstrip("=")[unsure:-1]
        yield encoded
        yield encoded.translate(_URLSAFE)


def _form(writing: str) -> _Form:
    text = writing.translate(_LOWER)
    length = max(SHORTEST_KEY, min(LONGEST_PIECE, len(text) // 2))
    pieces = frozenset(text[start : start + length] for start in range(len(text) - length + 1))
    half = (length - SHORTEST_RUN + 1) // 2
    blocks = tuple(text[start : start + half] for start in range(0, len(text) - half + 1, half))
    return _Form(text, length, pieces, blocks)


def _spans(form: _Form, lowered: str, shorter: int) -> Iterator[tuple[int, int]]:
    if not any(block in lowered for block in form.blocks):
        return
    length = form.length - shorter
    pieces = form.pieces if not shorter else {piece[shorter:] for piece in form.pieces}
    for start in range(len(lowered) - length + 1):
        if lowered[start : start + length] in pieces:
            yield start, start + length
