"""What people type into a search, as a value: wanted words and phrases, and where they stand in a text.

A query is all its words. What stands in quotation marks, or is typed without a space (`foo_bar`, `src/app.py`), must
stand together and in this order. A word that ends with `*`, and the last one if it has three letters or more and stands
in no quotation marks, is the beginning of a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted
from weft.kernel.words import MAX_LETTERS, WordToken, folded, folded_alike, indexed, pattern, tokens, without_blobs
from weft.store.word_index import Question, Term

LEAST_BEGINNING = 3
MOST_WORDS = 64
MOST_SPANS = 64
"""More places in one text are not looked for."""
_PART = re.compile(r'"([^"]*)(?:"|$)|([^\s"]+)')
Span = tuple[int, int]
Matcher = Callable[[str, int], re.Match[str] | None]


class Phrase(Struct, frozen=True):
    """Words that stand together; one word is a phrase, too. With `prefix` the last of them may go on."""

    tokens: tuple[WordToken, ...]
    prefix: bool = False

    def question(self) -> Question:
        """What an index is asked for: all its words. A letter of an unspaced script alone begins whatever it is in."""
        words = list(indexed(self.tokens))
        last = self.tokens[-1]
        if last.unspaced and last.joined:
            return tuple((Term(word),) for word in words[:-1])
        ends = self.prefix or last.unspaced
        return (*((Term(word),) for word in words[:-1]), (Term(words[-1], ends),))

    def among(self, found: Sequence[WordToken]) -> Iterator[Span]:
        first, rest, width = self.tokens[0].word, self.tokens[1:], len(self.tokens)
        for i, token in enumerate(found):
            if token.word == first or (width == 1 and self.prefix and token.word.startswith(first)):
                behind = found[i + 1 : i + width]
                if len(behind) == len(rest) and all(map(self._follows, behind, rest)):
                    yield token.start, (behind[-1] if behind else token).end

    def _follows(self, token: WordToken, wanted: WordToken) -> bool:
        whole = token.word == wanted.word and token.joined >= wanted.joined
        return whole or (self.prefix and wanted is self.tokens[-1] and token.word.startswith(wanted.word))


class Query(Struct, frozen=True):
    """All of these must be found."""

    phrases: tuple[Phrase, ...]

    def question(self) -> Question:
        return tuple(dict.fromkeys(group for phrase in self.phrases for group in phrase.question()))


class Text:
    """A text that is looked through, once for all phrases."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._alike = folded_alike(text)
        self._folded = folded(text) if self._alike is None else self._alike
        self._blank: str | None = None

    def spans(self, phrase: Phrase) -> list[Span]:
        """Where a phrase stands. Most texts hold nothing that is looked for, and that is told at once."""
        if any(token.word not in self._folded for token in phrase.tokens):
            return []
        if self._alike is None:
            return list(islice(phrase.among(list(tokens(self.text))), MOST_SPANS))
        found = _spans(self._alike, phrase)
        if found and self._blank is None:
            blank = without_blobs(self._alike)
            self._alike = self._folded = self._blank = blank
            found = _spans(blank, phrase)
        return found


def _spans(text: str, phrase: Phrase) -> list[Span]:
    """Where a phrase stands in folded text, without making its tokens."""
    signs = _ASCII if text.isascii() else _further_signs()
    first, found = phrase.tokens[0], list[Span]()
    at = text.find(first.word)
    while at >= 0 and len(found) < MOST_SPANS:
        if first.unspaced or not signs.inside(text, at):
            end = _end(text, at, phrase, signs)
            if end is not None:
                found.append((at, end))
        at = text.find(first.word, at + 1)
    return found


def _end(text: str, at: int, phrase: Phrase, signs: _Signs) -> int | None:
    """Where the phrase that may begin here ends."""
    before: WordToken | None = None
    for i, token in enumerate(phrase.tokens):
        if before is not None and not token.joined:
            gap = signs.gap(text, at).end()  # type: ignore[union-attr]
            if gap == at and not (before.unspaced or token.unspaced):
                return None
            at = gap
        if not text.startswith(token.word, at):
            return None
        at += len(token.word)
        if not token.unspaced:
            if phrase.prefix and i == len(phrase.tokens) - 1:
                more = signs.more(text, at).end()  # type: ignore[union-attr]
                at = more if more - at <= MAX_LETTERS - len(token.word) else at
            if signs.letter(text, at) is not None:
                return None
        before = token
    return at


class _Signs(Struct, frozen=True):
    """What stands in words and between them, as matchers at a place."""

    letter: Matcher
    more: Matcher
    gap: Matcher
    inside: Callable[[str, int], bool]


def _ascii_inside(text: str, at: int) -> bool:
    return at > 0 and text[at - 1].isalnum()


def _inside(text: str, at: int) -> bool:
    """Does a word go on from before this place? Marks belong to the letter before them."""
    at -= 1
    while at >= 0 and pattern("[M]").match(text, at) is not None:
        at -= 1
    return at >= 0 and pattern("[S]").match(text, at) is not None


_ASCII = _Signs(
    re.compile("[0-9a-z]").match, re.compile("[0-9a-z]*").match, re.compile("[^0-9a-z]*").match, _ascii_inside
)


@cache
def _further_signs() -> _Signs:
    return _Signs(pattern("[SM]").match, pattern("[SM]*").match, pattern("[^SMU]*").match, _inside)


def parse_query(text: str) -> Query:
    """The query that these words spell; raises InvalidInput where nothing in them could be found."""
    parts = [(match[1], match[2]) for match in _PART.finditer(text)]
    phrases = [_phrase(in_quotes, bare, last=i == len(parts) - 1) for i, (in_quotes, bare) in enumerate(parts)]
    wanted = [phrase for phrase in phrases if phrase.tokens]
    if sum(len(phrase.tokens) for phrase in wanted) > MOST_WORDS:
        raise InvalidInput(f"the query has more than {MOST_WORDS} words", "look for fewer")
    return Query(tuple(dict.fromkeys(wanted)))


def _phrase(in_quotes: str | None, bare: str | None, *, last: bool) -> Phrase:
    text = in_quotes if in_quotes is not None else bare or ""
    found = list(tokens(text))
    if not found:
        if any(letter.isalnum() for letter in text):
            raise InvalidInput(f"{quoted(text)} is no word", f"a word has at most {MAX_LETTERS} letters")
        return Phrase(())
    typed_so_far = last and found[-1].end == len(text) and len(found[-1].word) >= LEAST_BEGINNING
    prefix = bare is not None and (text.endswith("*") or typed_so_far)
    return Phrase(tuple(_from_here(found)), prefix)


def _from_here(found: Iterable[WordToken]) -> Iterator[WordToken]:
    """Without their places, so that equal phrases are equal."""
    for token in found:
        yield WordToken(0, 0, token.word, token.unspaced, token.joined)
