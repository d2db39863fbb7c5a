"""The keys that a terminal sends, as bytes come in: letters, keys that edit, and whole texts that are pasted."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from enum import Enum, auto

from msgspec import Struct


class Key(Enum):
    """A key that does something; letters are texts."""

    ENTER = auto()
    NEW_LINE = auto()
    TAB = auto()
    BACKSPACE = auto()
    DELETE = auto()
    LEFT = auto()
    RIGHT = auto()
    UP = auto()
    DOWN = auto()
    HOME = auto()
    END = auto()
    WORD_LEFT = auto()
    WORD_RIGHT = auto()
    ERASE_LINE = auto()
    ERASE_REST = auto()
    ERASE_WORD = auto()
    REDRAW = auto()
    INTERRUPT = auto()
    END_OF_INPUT = auto()


class Typed(Struct, frozen=True):
    """Letters, or a text that was pasted; line ends are `\\n`."""

    text: str


PASTE_BEGIN, PASTE_END = "\x1b[200~", "\x1b[201~"
LONGEST_SEQUENCE = 16
"""So many letters a sequence has at most; what goes on without an end is dropped."""
_CONTROLS = {
    "\r": Key.ENTER,
    "\n": Key.ENTER,
    "\t": Key.TAB,
    "\x7f": Key.BACKSPACE,
    "\x08": Key.BACKSPACE,
    "\x01": Key.HOME,
    "\x05": Key.END,
    "\x02": Key.LEFT,
    "\x06": Key.RIGHT,
    "\x10": Key.UP,
    "\x0e": Key.DOWN,
    "\x15": Key.ERASE_LINE,
    "\x0b": Key.ERASE_REST,
    "\x17": Key.ERASE_WORD,
    "\x0c": Key.REDRAW,
    "\x03": Key.INTERRUPT,
    "\x04": Key.END_OF_INPUT,
}
_SEQUENCES = {
    "\x1b[A": Key.UP,
    "\x1b[B": Key.DOWN,
    "\x1b[C": Key.RIGHT,
    "\x1b[D": Key.LEFT,
    "\x1bOA": Key.UP,
    "\x1bOB": Key.DOWN,
    "\x1bOC": Key.RIGHT,
    "\x1bOD": Key.LEFT,
    "\x1b[H": Key.HOME,
    "\x1b[F": Key.END,
    "\x1bOH": Key.HOME,
    "\x1bOF": Key.END,
    "\x1b[1~": Key.HOME,
    "\x1b[4~": Key.END,
    "\x1b[3~": Key.DELETE,
    "\x1b[1;5C": Key.WORD_RIGHT,
    "\x1b[1;5D": Key.WORD_LEFT,
    "\x1b[1;3C": Key.WORD_RIGHT,
    "\x1b[1;3D": Key.WORD_LEFT,
    "\x1bf": Key.WORD_RIGHT,
    "\x1bb": Key.WORD_LEFT,
    "\x1b\x7f": Key.ERASE_WORD,
    "\x1b\r": Key.NEW_LINE,
    "\x1b\n": Key.NEW_LINE,
}


class KeyReader:
    """Takes bytes as they come, also in the middle of a letter or of a key."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        """What came and is no whole key yet."""

    def feed(self, data: bytes) -> Iterator[Key | Typed]:
        self._rest += self._decoder.decode(data)
        while self._rest:
            if self._rest.startswith(PASTE_BEGIN):
                text, mark, rest = self._rest.removeprefix(PASTE_BEGIN).partition(PASTE_END)
                if not mark:
                    return
                self._rest = rest
                yield Typed(text.replace("\r\n", "\n").replace("\r", "\n"))
            elif self._rest[0] == "\x1b":
                length = _sequence_length(self._rest)
                if length == 0:
                    return
                sequence, self._rest = self._rest[:length], self._rest[length:]
                if (key := _SEQUENCES.get(sequence)) is not None:
                    yield key
            else:
                yield from self._plain()

    def _plain(self) -> Iterator[Key | Typed]:
        first = self._rest[0]
        if (key := _CONTROLS.get(first)) is not None:
            self._rest = self._rest[1:]
            yield key
            return
        end = next((at for at, letter in enumerate(self._rest) if letter < " " or letter == "\x7f"), len(self._rest))
        text, self._rest = self._rest[:end], self._rest[max(end, 1) :]
        if text:
            yield Typed(text)


def _sequence_length(text: str) -> int:
    """How long the sequence is that a text begins with; 0 where more of it must come."""
    if len(text) == 1:
        return 0
    if text[1] == "O":
        return 3 if len(text) > 2 else 0
    if text[1] != "[":
        return 2
    for at in range(2, min(len(text), LONGEST_SEQUENCE)):
        if "@" <= text[at] <= "~":
            return at + 1
    return LONGEST_SEQUENCE if len(text) >= LONGEST_SEQUENCE else 0
