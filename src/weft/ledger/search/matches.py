"""Finding: the index narrows a query down to passages, their texts decide, and the newest come first.

The index is asked once for everything that fits. Where that is much, it is asked again for one stretch of time after
another, the newest first, until enough is found. Passages of turns without a time are passed over first, and looked for
behind all others. Turns that the index has not caught up with are looked through as they are, so an answer is never
older than the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from heapq import heappop, heappush, merge
from itertools import chain, islice

from msgspec import Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import InvalidInput
from weft.ledger.read.access import access_of
from weft.ledger.read.pages import Position
from weft.ledger.read.projects import Projects
from weft.ledger.search.entries import LOOSE, Entry, EntryPlace, has_time, hold_texts, load_entries
from weft.ledger.search.filters import Filters, SearchFilter, day_words
from weft.ledger.search.hits import Match, TextMatch, look_through
from weft.ledger.search.passages import DAY, VIEW, fits_words, load_turns, passages_of
from weft.ledger.search.query import Query
from weft.ledger.views.rows import TURN, TurnRow, load_turn_number
from weft.ledger.views.touched_turns import touched
from weft.store.facts import refuse_standstill
from weft.store.port import ReadTxn
from weft.store.sql import Row, rows_in
from weft.store.word_index import Question, WordIndex

FEW = 2048
"""So many passages are looked up one by one; of more, the newest are looked for first."""
STEP, MOST = 256, 8192
PROBED = 64
"""So many passages are read before an index is asked for a beginning, which costs by how many words have it."""
TOGETHER = 16
RANKED = 512
UNINDEXED = 2**62
_DATED = "CASE WHEN (SELECT t.synthesised FROM turn t WHERE t.n = p.turn) <> 0 THEN 0 ELSE 1 END"
_ROWS = f"SELECT {_DATED}, p.at, p.turn, p.first, p.n, p.last FROM passage p WHERE"
Key = tuple[int, int, int, int]
_NEWEST = (MAX_INTEGER, 0, 0, 0)
_LAST = (0, -MAX_INTEGER, 0, 0)
ORDER_VALUES, PLACE_VALUES = 5, 4
"""So many values of a position are the order of an entry; those behind them are the place of a passage."""


class Candidate(Struct, frozen=True, order=True):
    """A passage that may hold what is looked for; ordered by time, if that is known, then as turns and messages are."""

    dated: int
    at: int
    turn: int
    first: int
    n: int
    last: int

    @property
    def place(self) -> Position:
        return self.dated, self.at, self.turn, self.first

    @property
    def key(self) -> Key:
        """The same as the index has it."""
        return self.at, self.turn, self.first, self.n

    @property
    def newest(self) -> tuple[int, ...]:
        """No entry in it comes after this place in the order of entries."""
        return self.dated, self.at, self.turn, self.last, MAX_INTEGER


class Finder:
    """One search in one snapshot."""

    def __init__(
        self,
        txn: ReadTxn,
        index: WordIndex,
        query: Query,
        filters: Filters,
        after: Position = (),
        projects: Projects | None = None,
    ) -> None:
        if after and len(after) != ORDER_VALUES + PLACE_VALUES:
            raise InvalidInput("the cursor is of another form", "start over, without one")
        self._txn, self._index, self._query, self._filters = txn, index, query, filters
        self._after, self._start = after[:ORDER_VALUES], after[ORDER_VALUES:]
        self._access, self._sieve = access_of(txn), SearchFilter(txn, filters, projects or Projects(txn))
        self.question: Question = (*query.question(), *self._sieve.question)
        self._loose: set[tuple[int, ...]] = set()
        self._rest, self._stale = self._not_indexed()

    def newest(self) -> Iterator[tuple[Position, Match]]:
        """Every match behind the given position, the newest first and those without a time last, each with its own. No
        entry is newer than its passage is, so what comes before all that the next passage may hold can be told.

        A position is that of the entry, and that of the newest passage that may hold more: the next page looks through
        no passage before it.
        """
        waiting: list[tuple[tuple[int, ...], Position, Match]] = []
        unread: Counter[Position] = Counter()
        for candidate, matches in self._looked_through(merge(self._rest, self._indexed(), reverse=True)):
            while waiting and waiting[0][0] < tuple(-part for part in candidate.newest):
                yield _taken(waiting, unread, candidate.place)
            for match in matches:
                heappush(waiting, (tuple(-part for part in match.entry.order), candidate.place, match))
                unread[candidate.place] += 1
        while waiting:
            yield _taken(waiting, unread, _LAST)

    def best(self) -> Iterator[Match]:
        """In the order of the engine's own ranking. What it has not indexed yet comes first, and all else that fits
        comes behind so many of the best, the newest first."""
        numbers = self._index.ranked(self.question, RANKED) if self.question else []
        rows = {row[4]: Candidate(*row) for row in rows_in(self._txn.sql, f"{_ROWS} p.n IN", numbers)}
        ranked = (rows[n] for n in numbers if n in rows and self._is_wanted(rows[n]))
        others = (candidate for candidate in self._indexed() if candidate.n not in rows)
        for _, matches in self._looked_through(chain(self._rest, ranked, others)):
            yield from matches

    def _indexed(self) -> Iterator[Candidate]:
        """Passages that the index gives: those with a time, the newest first, then those without one. The second time
        nothing is looked for, if the first time came by no such passage: to look for one takes a look at all."""
        is_behind_dated = bool(self._start) and not self._start[0]
        is_undated_left = bool(self._start)
        for candidate in () if is_behind_dated else self._by_time(self._start):
            if candidate.dated:
                yield candidate
            else:
                is_undated_left = True
        if is_undated_left:
            undated = self._by_time(self._start if is_behind_dated else ())
            yield from (candidate for candidate in undated if not candidate.dated)

    def _by_time(self, start: Position) -> Iterator[Candidate]:
        """Passages that the index gives behind a place, by what stands for their times, the newest first."""
        until = self._filters.until
        before: Key = _NEWEST if until is None else ((until // DAY + 1) * DAY, 0, 0, 0)
        if start:
            _, at, turn, first = start
            before = min(before, (at, turn, first, MAX_INTEGER))
        whole = tuple(group for group in self.question if not any(term.prefix for term in group))
        if whole != self.question:
            rows = self._before(before, PROBED)
            yield from filter(self._is_wanted, self._matching(whole, rows))
            if len(rows) < PROBED:
                return
            before = rows[-1][1:5]
        if self.question and len(self._few) <= FEW:
            found = (Candidate(*row) for row in rows_in(self._txn.sql, f"{_ROWS} p.n IN", self._few))
            older = (each for each in found if each.key < before)
            yield from sorted(filter(self._is_wanted, older), reverse=True)
        else:
            yield from filter(self._is_wanted, self._walk(before))

    @cached_property
    def _few(self) -> list[int]:
        """The passages that fit, or some of them and one more than are few."""
        return self._index.match(self.question, FEW + 1) if self.question else []

    def _walk(self, before: Key) -> Iterator[Candidate]:
        """One stretch of time after another."""
        step = STEP
        while rows := self._before(before, step):
            yield from self._matching(self.question, rows)
            refuse_standstill("passage", before, rows[-1][1:5])
            before, step = rows[-1][1:5], min(2 * step, MOST)

    def _before(self, place: Key, limit: int) -> list[Row]:
        """So many passages before a place in the order of time."""
        since = -MAX_INTEGER if self._filters.since is None else self._filters.since
        newer = "ORDER BY p.at DESC, p.turn DESC, p.first DESC, p.n DESC"
        query = f"{_ROWS} (p.at, p.turn, p.first, p.n) < (?, ?, ?, ?) AND p.at >= ? {newer} LIMIT ?"
        return self._txn.sql.all(query, (*place, since, limit))

    def _matching(self, question: Question, rows: list[Row]) -> Iterator[Candidate]:
        """Those of a stretch of time that the index knows to fit."""
        if not question or not rows:
            yield from (Candidate(*row) for row in rows)
            return
        numbers = [row[4] for row in rows]
        narrow = (*question, *day_words(rows[-1][1], rows[0][1]))
        fitting = set(self._index.match(narrow, MAX_INTEGER, min(numbers), max(numbers)))
        yield from (Candidate(*row) for row in rows if row[4] in fitting)

    def _is_wanted(self, candidate: Candidate) -> bool:
        since = self._filters.since
        is_fresh = candidate.turn not in self._stale and (since is None or candidate.at >= since)
        return is_fresh and self._may_read(candidate)

    def _may_read(self, candidate: Candidate) -> bool:
        """Passages that cannot be read are passed over before anything is told of them, a place included."""
        if self._access.is_unlimited:
            return True
        row = load_turn_number(self._txn.sql, candidate.turn)
        if row is None or not self._access.may_read_turn(row):
            return False
        return self._access.may_read_message(candidate.turn, candidate.first)

    def _not_indexed(self) -> tuple[list[Candidate], set[int]]:
        """Passages of turns that the index has not caught up with, the newest first; and those turns."""
        touched_turns = load_turns(self._txn, touched(self._txn.facts, self._txn.facts.watermark(VIEW)).turns)
        turns = [turn for turn in touched_turns if self._access.may_read_turn(turn)]
        made = [
            Candidate(has_time(turn.synthesised), passage.at, turn.n, passage.first, UNINDEXED, passage.last)
            for turn, passages in passages_of(self._txn, turns)
            for passage in passages
            if fits_words(self.question, passage.words) and self._access.may_read_message(turn.n, passage.first)
        ]
        rest = [candidate for candidate in made if not self._start or candidate.place <= self._start]
        return sorted(rest, reverse=True), {turn.n for turn in turns}

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
        fresh = [entry for entry in found if entry.order not in self._loose and self._is_behind(entry)]
        self._loose.update(entry.order for entry in fresh if entry.seq == LOOSE)
        return fresh

    def _is_behind(self, entry: Entry) -> bool:
        return not self._after or entry.order < self._after

    def _match(self, entry: Entry) -> Match | None:
        if not self._sieve.fits(entry):
            return None
        found = look_through(self._query, entry.texts(self._txn.facts))
        if found is None and not self._query.phrases:
            found = TextMatch(EntryPlace.TEXT, "", [])
        return None if found is None else Match(entry, found)


def _taken(
    waiting: list[tuple[tuple[int, ...], Position, Match]], unread: Counter[Position], candidate: Position
) -> tuple[Position, Match]:
    """The newest of the matches that wait, with its position; `candidate` is the place of the next passage."""
    _, place, match = heappop(waiting)
    unread[place] -= 1
    if not unread[place]:
        del unread[place]
    return (*match.entry.order, *max((candidate, *unread))), match
