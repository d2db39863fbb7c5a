"""Finding by words: what the ledger asks of an engine's index of words, and the question as a value.

An index holds passages, by number, each a set of words; it knows neither texts nor order. Words are letters and digits,
in lower case; one that says something about a passage rather than being in it begins with `:`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted

_is_word = re.compile(r":?[^\x00-/:-`{-\x7f]+").fullmatch
"""The brackets have all of ASCII but digits and small letters: a class of all other letters takes longer to make."""


class Term(Struct, frozen=True):
    """A word, or the beginning of one."""

    word: str
    prefix: bool = False

    def __post_init__(self) -> None:
        if _is_word(self.word) is None:
            raise InvalidInput(f"{quoted(self.word)} is no word", "words are letters and digits, in lower case")


AnyOf = tuple[Term, ...]
Question = tuple[AnyOf, ...]
"""Passages that have, of each group, at least one word."""


class WordIndex(Protocol):
    """Which passages hold which words, within one transaction."""

    def put(self, passages: Iterable[tuple[int, str]]) -> None:
        """New passages with their words, each once and a space between them; none of these numbers is in use."""

    def drop(self, passages: Sequence[int]) -> None:
        """Passages that go, with all their words."""

    def match(self, question: Question, limit: int, low: int | None = None, high: int | None = None) -> list[int]:
        """At most so many of the passages that fit, numbered from `low` to `high`; in no order that means anything."""

    def ranked(self, question: Question, limit: int) -> list[int]:
        """Those that fit best by the engine's own idea of it, the best first."""

    def pairs(self) -> Iterator[tuple[str, int]]:
        """Every word of every passage."""

    def purge(self) -> None:
        """Leave no trace of words that only dropped passages held, as far as a transaction can."""

    def clear(self) -> None:
        """Nothing is indexed any longer."""
