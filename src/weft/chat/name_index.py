"""Names that a few typed letters may stand for, found among many. No I/O.

Names and letters are compared without case, accents and punctuation. A name that begins with the letters comes first,
then one in which a word begins with them, then one whose words have these initials, then one that holds the letters in
this order. Among equals whoever was active last comes first, then the alphabet decides.

The names lie in a few long texts, one line for each, in the order in which they are suggested. Looking for letters is a
search in these texts, which ends with the last suggestion that is wanted.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from unicodedata import category, normalize

from msgspec import Struct

LONGEST_QUERY = 64
"""So many typed letters are compared."""
FORMS_KEPT = 50_000
"""The forms of so many names are kept, so that an index is soon made again when one name is new."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IGNORED = ("Mn", "Me", "Cf", "Cc", "Cs", "Co", "Cn")


class IndexedName(Struct, frozen=True, gc=False):
    """Somebody who can be mentioned. `active_at` is when they last said something; 0 where they never did."""

    kind: str
    id: str
    name: str
    active_at: int = 0


def folded_name(name: str) -> str:
    """A name as names are compared: decomposed, without case, marks and invisible characters; punctuation and blanks
    are one space each."""
    if name.isascii():
        plain = "".join(letter if letter.isalnum() else " " for letter in name.lower())
    else:
        plain = "".join(_plain_letters(normalize("NFKD", normalize("NFKD", name).casefold())))
    return " ".join(plain.split())


def _plain_letters(text: str) -> Iterator[str]:
    for letter in text:
        kind = category(letter)
        if kind not in _IGNORED:
            yield " " if kind[0] in "PZ" else letter


class NameIndex:
    """Names in the order in which they are suggested."""

    def __init__(self, names: Iterable[IndexedName]) -> None:
        entries = [((-name.active_at, _forms(name.name)[0], name.id), name) for name in names]
        entries.sort(key=lambda entry: entry[0])
        self._names = [name for _, name in entries]
        forms = [_forms(name.name) for name in self._names]
        self._keys = _NameLines(key for key, _, _ in forms)
        self._words = _NameLines(words for _, words, _ in forms)
        self._initials = _NameLines(initials for _, _, initials in forms)

    def __len__(self) -> int:
        return len(self._names)

    def matches(self, letters: str, limit: int, skipped: Container[str] = ()) -> list[IndexedName]:
        """The first `limit` names that the letters may stand for; without letters, of all. `skipped` are ids that are
        left out."""
        if limit <= 0:
            return []
        places: dict[int, None] = {}
        for place in self._places(folded_name(letters[:LONGEST_QUERY])):
            if place not in places and self._names[place].id not in skipped:
                places[place] = None
                if len(places) == limit:
                    break
        return [self._names[place] for place in places]

    def _places(self, query: str) -> Iterator[int]:
        if not query:
            yield from range(len(self._names))
            return
        yield from self._keys.beginning_with(query)
        yield from self._words.holding(f" {query}")
        joined = query.replace(" ", "")
        if len(joined) > 1:
            yield from self._initials.beginning_with(joined)
        yield from self._keys.holding_in_order(joined)


@lru_cache(maxsize=FORMS_KEPT)
def _forms(name: str) -> tuple[str, str, str]:
    """A name as it is compared: whole, as words with a space before each, and the initials of these. `camelCase` has
    two words."""
    key = folded_name(name)
    words = folded_name(_CAMEL.sub(" ", name)) if _CAMEL.search(name) else key
    return key, f" {words}", "".join(word[0] for word in words.split())


class _NameLines:
    """Texts as the lines of one, and their numbers."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._starts: list[int] = []
        parts, at = ["\n"], 1
        for line in lines:
            self._starts.append(at)
            parts += (line, "\n")
            at += len(line) + 1
        self._text = "".join(parts)

    def beginning_with(self, letters: str) -> Iterator[int]:
        return self.holding(f"\n{letters}")

    def holding(self, letters: str) -> Iterator[int]:
        """The numbers of the lines that hold the letters side by side."""
        at = self._text.find(letters)
        while at >= 0:
            number = bisect_right(self._starts, at + 1) - 1
            yield number
            at = self._text.find(letters, self._end(number))

    def holding_in_order(self, letters: str) -> Iterator[int]:
        """The numbers of the lines that hold the letters in this order, with others between them."""
        between = "".join(f"[^\n{_in_class(letter)}]*+{re.escape(letter)}" for letter in letters)
        for match in re.finditer("\n" + between, self._text):
            yield bisect_right(self._starts, match.start() + 1) - 1

    def _end(self, number: int) -> int:
        """Where the line break behind a line stands."""
        is_last = number + 1 == len(self._starts)
        return len(self._text) - 1 if is_last else self._starts[number + 1] - 1


def _in_class(letter: str) -> str:
    return f"\\{letter}" if letter in "\\]^-" else letter
