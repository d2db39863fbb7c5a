"""Finding: the index narrows a query down to passages, their texts decide, and the newest come first.

The index is asked once for everything that fits. Where that is much, it is asked again for one stretch of time after
another, the newest first, until enough is found. Turns that the index has not caught up with are looked through as they
are, so an answer is never older than the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, merge
from itertools import islice

from msgspec import Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.ledger.batches import rows_in
from weft.ledger.rows import TURN, TurnRow
from weft.ledger.search.entries import LOOSE, Entry, Place, hold_texts, load_entries
from weft.ledger.search.filters import Filters, Sieve, day_words
from weft.ledger.search.hits import Found, Match, look_through
from weft.ledger.search.passages import DAY, VIEW, fits_words, load_turns, passages_of, touched
from weft.ledger.search.query import Query
from weft.store.port import ReadTxn, Row
from weft.store.words import Question, WordIndex

FEW = 2048
"""So many passages are looked up one by one; of more, the newest are looked for first."""
STEP, MOST = 256, 8192
TOGETHER = 16
RANKED = 512
UNINDEXED = 2**62
_ROWS = "SELECT at, n, turn, first, last FROM passage WHERE"


class Candidate(Struct, frozen=True, order=True):
    """A passage that may hold what is looked for; ordered by time."""

    at: int
    n: int
    turn: int
    first: int
    last: int


class Finder:
    """One search in one snapshot."""

    def __init__(self, txn: ReadTxn, index: WordIndex, query: Query, filters: Filters) -> None:
        self._txn, self._index, self._query, self._filters = txn, index, query, filters
        self._sieve = Sieve(txn, filters)
        self.question: Question = (*query.question(), *self._sieve.question)
        self._loose: set[tuple[int, ...]] = set()
        self._rest, self._stale = self._not_indexed()

    def newest(self) -> Iterator[Match]:
        """Every match, the newest first. A passage is no newer than its time, so what is newer than the next one's can
        be told."""
        waiting: list[tuple[tuple[int, ...], Match]] = []
        for candidate, matches in self._looked_through(merge(self._rest, self._indexed(), reverse=True)):
            while waiting and -waiting[0][0][0] > candidate.at:
                yield heappop(waiting)[1]
            for match in matches:
                heappush(waiting, (tuple(-part for part in match.entry.order), match))
        while waiting:
            yield heappop(waiting)[1]

    def best(self) -> Iterator[Match]:
        """In the order of the engine's own ranking; what it has not indexed yet comes first."""
        numbers = self._index.ranked(self.question, RANKED) if self.question else []
        rows = {row[1]: Candidate(*row) for row in rows_in(self._txn.sql, f"{_ROWS} n IN", numbers)}
        ranked = (rows[n] for n in numbers if n in rows and self._is_wanted(rows[n]))
        for _, matches in self._looked_through((*self._rest, *ranked)):
            yield from matches

    def _indexed(self) -> Iterator[Candidate]:
        """Passages that the index gives, the newest first."""
        if self.question:
            few = self._index.match(self.question, FEW + 1)
            if len(few) <= FEW:
                rows = rows_in(self._txn.sql, f"{_ROWS} n IN", few)
                found = (Candidate(*row) for row in rows)
                return iter(sorted(filter(self._is_wanted, found), reverse=True))
        return filter(self._is_wanted, self._walk())

    def _walk(self) -> Iterator[Candidate]:
        """One stretch of time after another."""
        until = self._filters.until
        at, n = MAX_INTEGER if until is None else (until // DAY + 1) * DAY, 0
        since = -MAX_INTEGER if self._filters.since is None else self._filters.since
        query = f"{_ROWS} (at, n) < (?, ?) AND at >= ? ORDER BY at DESC, n DESC LIMIT ?"
        step = STEP
        while rows := self._txn.sql.all(query, (at, n, since, step)):
            yield from self._matching(rows)
            at, n, step = rows[-1][0], rows[-1][1], min(2 * step, MOST)

    def _matching(self, rows: list[Row]) -> Iterator[Candidate]:
        """Those of a stretch of time that the index knows to fit."""
        if not self.question:
            yield from (Candidate(*row) for row in rows)
            return
        numbers = [row[1] for row in rows]
        question = (*self.question, *day_words(rows[-1][0], rows[0][0]))
        fitting = set(self._index.match(question, MAX_INTEGER, min(numbers), max(numbers)))
        yield from (Candidate(*row) for row in rows if row[1] in fitting)

    def _is_wanted(self, candidate: Candidate) -> bool:
        since = self._filters.since
        return candidate.turn not in self._stale and (since is None or candidate.at >= since)

    def _not_indexed(self) -> tuple[list[Candidate], set[int]]:
        """Passages of turns that the index has not caught up with, the newest first; and those turns."""
        turns = load_turns(self._txn, touched(self._txn, self._txn.facts.watermark(VIEW)).turns)
        made = [
            Candidate(passage.at, UNINDEXED + turn.n, turn.n, passage.first, passage.last)
            for turn, passages in passages_of(self._txn, turns)
            for passage in passages
            if fits_words(self.question, passage.words)
        ]
        return sorted(made, reverse=True), {turn.n for turn in turns}

    def _looked_through(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, list[Match]]]:
        """Each candidate with what really is in it; some are read together."""
        rest = iter(candidates)
        size = 4
        while some := list(islice(rest, size)):
            rows = rows_in(self._txn.sql, f"{TURN.select} WHERE n IN", (each.turn for each in some))
            turns = [TurnRow(*row) for row in rows]
            entries = load_entries(self._txn, turns)
            within = [self._within(each, entries.get(each.turn, [])) for each in some]
            hold_texts(self._txn.facts, (entry for found in within for entry in found))
            for candidate, found in zip(some, within, strict=True):
                yield candidate, [match for entry in found if (match := self._match(entry)) is not None]
            size = TOGETHER

    def _within(self, candidate: Candidate, entries: list[Entry]) -> list[Entry]:
        """The entries of a passage. What belongs to no message is looked at once, whichever passage it is found in."""
        found = [entry for entry in entries if candidate.first <= entry.seq <= candidate.last]
        fresh = [entry for entry in found if entry.order not in self._loose]
        self._loose.update(entry.order for entry in fresh if entry.seq == LOOSE)
        return fresh

    def _match(self, entry: Entry) -> Match | None:
        if not self._sieve.fits(entry):
            return None
        found = look_through(self._query, entry.texts(self._txn.facts))
        if found is None and not self._query.phrases:
            found = Found(Place.TEXT, "", [])
        return None if found is None else Match(entry, found)
