"""Turns that share words with a text: every word is looked up in the index by itself, and weighs by how rare it is.

A text of many words is no query, for hardly any passage holds all of them. So a passage counts by the words that it
holds. Words are looked up twice: in what people typed, which is short and tells most, and the rarest of them in all
else. A word that more than `RARE_PASSAGES` hold leads to no candidates; how common it is, is counted among the newest
`SAMPLED_PASSAGES`. The work is bounded by these constants, whatever the size of the ledger.

Everything is counted among what the reader may read: a word that only others use is as unknown as one that nobody uses,
and what others record changes no figure. `readable_passages.py` asks the index so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import log

from msgspec import Struct

from weft.kernel.words import indexed, tokens
from weft.ledger.read.access import access_of
from weft.ledger.search.passages import VIEW, load_turns, passages_of
from weft.ledger.search.readable_passages import SYSTEM_WORD, ReadablePassages
from weft.ledger.search.thread_sessions import ThreadSessions
from weft.ledger.views.rows import TURN, TurnRow
from weft.ledger.views.touched_turns import touched
from weft.store.port import ReadTxn
from weft.store.sql import rows_in
from weft.store.word_index import WordIndex

MOST_WORDS = 64
"""So many different words of a text are looked up, the first ones."""
RAREST_WORDS = 16
"""The rarest so many are also looked up in what models said and tools did."""
RARE_PASSAGES = 1_024
SAMPLED_PASSAGES = 4_096
COUNTED_PASSAGES = 65_536
"""To whoever may not read everything a ledger has as many passages as they may read, and no more than this."""
CANDIDATES_PER_BATCH, MOST_BATCHES = 512, 8
"""The best candidates are asked whose they are in batches, until there are enough of them; so many at most."""
TURNS_PER_SESSION = 4
"""So many turns of one session are read: no session keeps the others out."""
TURNS_PER_LIST = 96
"""So many turns are read for what people typed, and as many for all else."""
TYPED = ":ruser"
"""The word of passages that people typed."""


class QueryWord(Struct, frozen=True):
    """A word of the text. `weight` grows with how rare it is; `passages` is how many that people typed hold it."""

    word: str
    weight: float
    passages: int


class UnindexedPassage(Struct, frozen=True):
    """A passage that the index has not caught up with."""

    turn: int
    words: frozenset[str]


Candidate = int | UnindexedPassage
"""A passage by its number in the index, or itself if it is not indexed yet."""


def words_of(text: str) -> list[str]:
    """The different words of a text, in order, as many as are looked up; single letters where there is nothing else."""
    words = dict.fromkeys(indexed(tokens(text)))
    longer = [word for word in words if len(word) > 1 or not word.isascii()]
    return (longer or list(words))[:MOST_WORDS]


def rarity(passages: int, total: int) -> float:
    """The weight of a word that so many of all passages hold."""
    return log(1 + (max(total - passages, 0) + 0.5) / (passages + 0.5))


class RelatedPassages:
    """Those of one text in one snapshot."""

    def __init__(self, txn: ReadTxn, index: WordIndex, text: str, sessions: ThreadSessions) -> None:
        self._txn, self._access, self._sessions = txn, access_of(txn), sessions
        self._words = words_of(text)
        self._fresh, self._stale = self._not_indexed()
        self._passages = ReadablePassages(txn, index, self._stale)
        self._indexed_total, self._oldest_sampled = self._indexed()

    def find(self) -> tuple[list[QueryWord], dict[int, TurnRow]]:
        """The words with their weights, and the turns whose passages hold most of this weight."""
        total, holders = self._total(), {word: self._holders(word, TYPED) for word in self._words}
        counts = {word: self._count(word, holders[word], total) for word in self._words}
        words = [QueryWord(word, rarity(counts[word], total), counts[word]) for word in self._words]
        rarest = sorted(words, key=lambda word: -word.weight)[:RAREST_WORDS]
        turns = self._best({word: holders[word.word] or () for word in words})
        turns |= self._best({word: self._holders(word.word) or () for word in rarest})
        return words, turns or self._best({word: self._sampled(word.word) for word in words})

    def of_ids(self, ids: Sequence[str]) -> dict[int, TurnRow]:
        """Turns by their ids, where they can be read and a message can be routed to them."""
        rows = [TurnRow(*row) for row in rows_in(self._txn.sql, f"{TURN.select} WHERE current = 1 AND id IN", ids)]
        return {
            turn.n: turn for turn in rows if self._access.may_read_turn(turn) and self._sessions.take_messages(turn)
        }

    # --- words ----------------------------------------------------------------------------------------------------

    def _holders(self, word: str, *about: str) -> list[Candidate] | None:
        """The passages that hold a word, and a word about them; null where they are too many."""
        numbers = self._passages.match((word, *about), RARE_PASSAGES + 1)
        if len(numbers) > RARE_PASSAGES:
            return None
        fresh = (passage for passage in self._fresh if passage.words.issuperset((word, *about)))
        return [*fresh, *numbers]

    def _sampled(self, *words: str) -> list[Candidate]:
        """Those among the newest that people typed."""
        return [*self._passages.match((TYPED, *words), SAMPLED_PASSAGES, self._oldest_sampled)]

    def _count(self, word: str, holders: list[Candidate] | None, total: int) -> int:
        """How many passages that people typed hold a word; estimated by the newest where they are many."""
        if holders is not None:
            return len(holders)
        share = len(self._sampled(word)) / max(len(self._sampled()), 1)
        return max(RARE_PASSAGES, round(share * total))

    def _total(self) -> int:
        """How many passages people typed."""
        return self._indexed_total + sum(TYPED in passage.words for passage in self._fresh)

    def _indexed(self) -> tuple[int, int]:
        """How many indexed passages people typed, and the number of the oldest one that is sampled. Where everything
        can be read, the first is estimated by the newest."""
        if not self._access.is_unlimited:
            return len(self._passages.match((TYPED,), COUNTED_PASSAGES)), self._oldest_readable()
        highest = self._highest()
        oldest = max(highest - SAMPLED_PASSAGES + 1, 0)
        typed = self._passages.match((TYPED,), SAMPLED_PASSAGES, oldest)
        return round(len(typed) / max(highest - oldest + 1, 1) * highest), oldest

    def _highest(self) -> int:
        (highest,) = self._txn.sql.one("SELECT max(n) FROM passage") or (0,)
        return highest or 0

    def _oldest_readable(self) -> int:
        """The oldest of the newest passages that people typed and that can be read, as many as are sampled. An index
        answers in any order: the range is widened until it has as many."""
        highest, span = self._highest(), SAMPLED_PASSAGES
        while True:
            low = max(highest - span + 1, 0)
            typed = self._passages.match((TYPED,), span, low)
            if len(typed) >= SAMPLED_PASSAGES or not low:
                return min(typed[:SAMPLED_PASSAGES], default=0)
            span *= 4

    def _not_indexed(self) -> tuple[list[UnindexedPassage], set[int]]:
        """Passages of turns that the index has not caught up with; and those turns."""
        stale = load_turns(self._txn, touched(self._txn.facts, self._txn.facts.watermark(VIEW)).turns)
        turns = [turn for turn in stale if self._access.may_read_turn(turn)]
        read = passages_of(self._txn, turns)
        fresh = [
            UnindexedPassage(turn.n, passage.words)
            for turn, passages in read
            for passage in passages
            if self._access.is_unlimited or SYSTEM_WORD not in passage.words
        ]
        return fresh, {turn.n for turn in stale}

    # --- candidates -----------------------------------------------------------------------------------------------

    def _best(self, holders: dict[QueryWord, Sequence[Candidate]]) -> dict[int, TurnRow]:
        """The turns of the passages with most weight that can be read and routed to; so many of one session at most."""
        scores: dict[Candidate, float] = {}
        for word, candidates in holders.items():
            for candidate in candidates:
                scores[candidate] = scores.get(candidate, 0.0) + word.weight
        ranked = sorted(scores, key=lambda candidate: (-scores[candidate], _newest_first(candidate)))
        best: dict[int, TurnRow] = {}
        of_session: Counter[int] = Counter()
        for start in range(0, min(len(ranked), CANDIDATES_PER_BATCH * MOST_BATCHES), CANDIDATES_PER_BATCH):
            numbers = self._turn_numbers(ranked[start : start + CANDIDATES_PER_BATCH])
            turns = self._turns(numbers)
            self._sessions.load(turns.values())
            for turn in (turns[n] for n in numbers if n in turns and n not in best):
                group = -turn.root if turn.session is None else turn.session
                if of_session[group] < TURNS_PER_SESSION and self._sessions.take_messages(turn):
                    of_session[group] += 1
                    best[turn.n] = turn
                if len(best) == TURNS_PER_LIST:
                    return best
        return best

    def _turn_numbers(self, candidates: Sequence[Candidate]) -> list[int]:
        """Whose they are, each once; what the index holds of turns that it has not caught up with is left out."""
        numbers = [candidate for candidate in candidates if isinstance(candidate, int)]
        turn_of: dict[int, int] = dict(rows_in(self._txn.sql, "SELECT n, turn FROM passage WHERE n IN", numbers))
        turns = (turn_of.get(one) if isinstance(one, int) else one.turn for one in candidates)
        fresh = {passage.turn for passage in self._fresh}
        return [n for n in dict.fromkeys(turns) if n is not None and (n not in self._stale or n in fresh)]

    def _turns(self, numbers: Iterable[int]) -> dict[int, TurnRow]:
        """Of these the turns that can be read and that no other version stands for."""
        rows = rows_in(self._txn.sql, f"{TURN.select} WHERE current = 1 AND n IN", numbers)
        return {turn.n: turn for turn in (TurnRow(*row) for row in rows) if self._access.may_read_turn(turn)}


def _newest_first(candidate: Candidate) -> tuple[int, int]:
    return (0, -candidate.turn) if isinstance(candidate, UnindexedPassage) else (1, -candidate)
