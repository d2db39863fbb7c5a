"""The words of a text, as search knows them: the same on every interpreter and every engine.

A word is a run of letters, digits and their marks, by a table of its own (`word_table.py`), composed (NFC) and without
case; `snake_case`, paths and `foo.bar()` fall into their words. Scripts that put no spaces between words go letter by
letter: an index keeps every two neighbours, and the last letter of a run alone, so that any run of letters is found.

A word of more than 64 letters is none, and in a text that has one neither is a stretch of 256 letters of base64.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from unicodedata import is_normalized, normalize

from msgspec import Struct

from weft.kernel.byte_runs import ByteRun
from weft.kernel.word_table import MARKS, SPACED, UNSPACED

MAX_LETTERS = 64


@cache
def letters(*tables: str) -> str:
    """The inside of a character class."""
    pairs = (each.split("-") for table in tables for each in table.split())
    return "".join(f"{chr(int(pair[0], 16))}-{chr(int(pair[-1], 16))}" for pair in pairs)


@cache
def pattern(form: str) -> re.Pattern[str]:
    """A regular expression with S for letters that words with spaces are made of, M for marks, U for the others. Made
    when it is first needed: most commands never search."""
    inside = {"S": letters(SPACED), "M": letters(MARKS), "U": letters(UNSPACED)}
    return re.compile(re.sub("[SMU]", lambda letter: inside[letter[0]], form))


_LOWER = bytes(
    code + 32 if 65 <= code <= 90 else code if code > 127 or chr(code).isalnum() else 32 for code in range(256)
)
_TOO_LONG = ByteRun(bytes(code for code in range(128) if chr(code).isalnum()), MAX_LETTERS + 1)
_BASE64 = re.compile(rb"[0-9A-Za-z+/=]{256,}")


class WordToken(Struct, frozen=True, gc=False):
    """A word and where it stands. `joined`: a letter of an unspaced script right behind another."""

    start: int
    end: int
    word: str
    unspaced: bool = False
    joined: bool = False


def folded(word: str) -> str:
    return word.lower() if word.isascii() else normalize("NFC", normalize("NFC", word).casefold())


def folded_alike(text: str) -> str | None:
    """The whole text composed and without case, if each of its letters then stands where it stood; else None."""
    if text.isascii():
        return text.lower()
    if not is_normalized("NFC", text):
        return None
    made = text.casefold()
    return made if len(made) == len(text) and is_normalized("NFC", made) else None


def tokens(text: str) -> Iterator[WordToken]:
    """Every word of a text in order; unspaced scripts letter by letter."""
    text = without_blobs(text)
    last = -1
    for match in pattern("([U][M]*)|[S][SM]*").finditer(text):
        start, end = match.span()
        unspaced = match[1] is not None
        word = folded(match[0])
        if len(word) <= MAX_LETTERS:
            yield WordToken(start, end, word, unspaced, unspaced and start == last)
        last = end if unspaced else -1


def without_blobs(text: str) -> str:
    """The same text with spaces where bytes are spelled out in it."""
    if len(text) < 256:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if not _TOO_LONG.is_in(data):
        return text
    return _BASE64.sub(lambda blob: b" " * len(blob[0]), data).decode("utf-8", "surrogatepass")


class IndexedWords:
    """The words by which an index finds some texts: the distinct ones of `indexed(tokens(text))`, found faster."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._spelled: list[str] = []

    def add(self, text: str) -> None:
        self._texts.append(text)

    def add_spelled(self, words: str) -> None:
        """A text by what `spelled` gave for it alone."""
        self._spelled.append(words)

    def spelled(self) -> str:
        """All of them, with spaces in between."""
        if not self._spelled:
            return self._spelled_of_texts()
        words = set[str]().union(*(some.split(" ") for some in self._spelled), self._spelled_of_texts().split(" "))
        words.discard("")
        return " ".join(words)

    def _spelled_of_texts(self) -> str:
        if not self._texts:
            return ""
        pieces = self._pieces()
        if all(map(str.isascii, self._texts)):
            return b" ".join(pieces).decode()
        plain = set(filter(bytes.isascii, pieces))
        further = set[str]().union(*map(_further_words, pieces - plain))
        ascii_words = set(filter(str.isascii, further))
        plain |= set(" ".join(ascii_words).encode().split())
        return " ".join([*([b" ".join(plain).decode()] if plain else []), *(further - ascii_words)])

    def words(self) -> set[str]:
        return set(self.spelled().split())

    def _pieces(self) -> set[bytes]:
        """What stands between spaces, signs and controls of ASCII, in lower case; what is too long is left out."""
        pieces = set("\n".join(self._texts).encode("utf-8", "surrogatepass").translate(_LOWER).split())
        if max(map(len, pieces), default=0) <= MAX_LETTERS:
            return pieces
        if any(_TOO_LONG.is_in(piece) for piece in pieces):
            pieces = set[bytes]().union(*map(_pieces_without_blobs, self._texts))
        return {piece for piece in pieces if len(piece) <= MAX_LETTERS or not piece.isascii()}


def _pieces_without_blobs(text: str) -> set[bytes]:
    data = text.encode("utf-8", "surrogatepass")
    if _TOO_LONG.is_in(data):
        data = _BASE64.sub(b" ", data)
    return set(data.translate(_LOWER).split())


def index_words(text: str) -> set[str]:
    gathered = IndexedWords()
    gathered.add(text)
    return gathered.words()


@lru_cache(maxsize=8192)
def _further_words(piece: bytes) -> tuple[str, ...]:
    """Those of a piece that is not all ASCII; dashes, arrows and frames come again and again."""
    return tuple(indexed(tokens(piece.decode("utf-8", "surrogatepass"))))


def indexed(found: Iterable[WordToken]) -> Iterator[str]:
    """What an index keeps of these tokens."""
    before: WordToken | None = None
    for token in found:
        if before is not None:
            yield before.word + token.word if token.joined else before.word
            before = None
        if token.unspaced:
            before = token
        else:
            yield token.word
    if before is not None:
        yield before.word
