"""Words of contents that somebody worked out before search asks for them, such as the worker of an import.

They save reading a content again and taking its text apart. They are what search would find itself: the words depend on
a content's bytes alone. Whoever has them may throw them away at any time.
"""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.words import IndexedWords
from weft.ledger.search.entries import EntryPlace, EntrySource, text_in

ROOM_BYTES = 8 * 1024 * 1024


class TextWords(Struct, frozen=True, gc=False):
    """How many letters a text has, and its words, with spaces in between."""

    letters: int
    spelled: str


def words_in(data: bytes, is_json: bool) -> TextWords:
    """Of a content."""
    text = text_in(data, is_json)
    gathered = IndexedWords()
    gathered.add(text)
    return TextWords(len(text), gathered.spelled())


class PreparedWords:
    """Words of contents by their numbers, and by whether they are read as JSON."""

    def __init__(self, room: int = ROOM_BYTES) -> None:
        self._room, self._size = room, 0
        self._words: dict[tuple[int, bool], TextWords] = {}

    @property
    def is_full(self) -> bool:
        return self._size >= self._room

    def put(self, words: dict[tuple[int, bool], TextWords]) -> None:
        """As far as there is room."""
        for place, found in words.items():
            if self.is_full:
                return
            self._words[place] = found
            self._size += len(found.spelled)

    def find(self, source: EntrySource) -> TextWords | None:
        """Of a text; the name of a tool is read, since it is also a word about its passage."""
        return None if source.place is EntryPlace.TOOL else self._words.get((source.content, source.is_json))

    def clear(self) -> None:
        self._words.clear()
        self._size = 0
