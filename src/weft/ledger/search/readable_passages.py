"""The index of words as one reader may ask it: nothing that it answers depends on what they may not read.

The index knows of a passage the session that made its turn, and the tree, but not the thread. So a limited reader's
passages are looked up in two ways: those of the sessions that they may read by a word about them, and those of other
turns in their threads, which are *inherited*, by their numbers. A limit counts what can be read alone. System messages
are left out for limited readers: not each of them can be read with its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from heapq import nlargest
from itertools import pairwise

from msgspec import Struct

from weft.kernel.enums import MessageRole
from weft.ledger.read.access import access_of
from weft.store.port import ReadTxn
from weft.store.sql import rows_in, rows_wanted
from weft.store.word_index import Question, Term, WordIndex

INHERITED_PASSAGES = 65_536
"""So many inherited passages are looked up at most, the newest."""
WIDEST_GAP, MOST_WINDOWS = 1_024, 16
"""Numbers of inherited passages that are no further apart are looked up together, and in so many ranges at most; what
lies between is passed over."""
SYSTEM_WORD = f":r{MessageRole.SYSTEM}"
_ROLE_WORDS = tuple(Term(f":r{role}") for role in MessageRole if role is not MessageRole.SYSTEM)
_TURNS_ABOVE = (
    "SELECT t.n, t.root, t.session FROM wanted w JOIN turn t"
    " ON t.segment = CAST(w.segment AS BIGINT) AND t.depth <= CAST(w.depth AS BIGINT) WHERE t.current = 1"
)


class Inherited(Struct, frozen=True):
    """Passages of turns that are in a thread that can be read, but that no session made that can be read."""

    numbers: frozenset[int]
    windows: tuple[tuple[int, int], ...]
    """The first and the last number of those that are looked up together, the newest first."""
    trees: tuple[Term, ...]


class ReadablePassages:
    """Those of one snapshot. Passages of `stale` turns, by their numbers, are left out for limited readers: the index
    has not caught up with these."""

    def __init__(self, txn: ReadTxn, index: WordIndex, stale: Iterable[int]) -> None:
        self._txn, self._index, self._access, self._stale_turns = txn, index, access_of(txn), stale

    def match(self, words: Iterable[str], limit: int, low: int | None = None) -> list[int]:
        """At most so many passages that hold all these words, from a number on."""
        question: Question = tuple((Term(word),) for word in words)
        if self._access.is_unlimited:
            return self._index.match(question, limit, low)
        question = (*question, _ROLE_WORDS)
        passages = {*self._of_sessions(question, limit + len(self._stale), low), *self._of_threads(question, low)}
        return sorted(passages - self._stale, reverse=True)[:limit]

    def _of_sessions(self, question: Question, limit: int, low: int | None) -> list[int]:
        terms = tuple(Term(f":s{n}") for n in self._sessions)
        return self._index.match((*question, terms), limit, low) if terms else []

    def _of_threads(self, question: Question, low: int | None) -> Iterator[int]:
        inherited, least = self._inherited, low or 0
        for first, last in inherited.windows:
            if last >= least:
                within = (*question, inherited.trees)
                numbers = self._index.match(within, last - first + 1, max(first, least), last)
                yield from inherited.numbers.intersection(numbers)

    @cached_property
    def _sessions(self) -> list[int]:
        return self._access.reading_scope()[0]

    @cached_property
    def _stale(self) -> set[int]:
        return {n for (n,) in rows_in(self._txn.sql, "SELECT n FROM passage WHERE turn IN", self._stale_turns)}

    @cached_property
    def _inherited(self) -> Inherited:
        sessions, reach = self._access.reading_scope()
        above = rows_wanted(self._txn.sql, ("segment", "depth"), _TURNS_ABOVE, reach.items())
        own = frozenset(sessions)
        roots = {n: root for n, root, session in above if session not in own}
        newest = sorted(roots, reverse=True)[:INHERITED_PASSAGES]
        rows = rows_in(self._txn.sql, "SELECT n FROM passage WHERE turn IN", newest)
        numbers = sorted((n for (n,) in rows), reverse=True)[:INHERITED_PASSAGES]
        trees = tuple(Term(f":t{root}") for root in sorted({roots[n] for n in newest}))
        return Inherited(frozenset(numbers), tuple(_windows(numbers)), trees)


def _windows(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of numbers, cut where the gaps are widest; the numbers fall."""
    gaps = ((numbers[i - 1] - numbers[i], i) for i in range(1, len(numbers)))
    widest = nlargest(MOST_WINDOWS - 1, (gap for gap in gaps if gap[0] > WIDEST_GAP))
    cuts = [0, *sorted(i for _, i in widest), len(numbers)]
    for start, end in pairwise(cuts):
        if start < end:
            yield numbers[end - 1], numbers[start]
