"""Turns that share words with a text: those that the index names are read, and each is told with the words it shares,
how many others it says, and which session goes on from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from weft.kernel.contents import bytes_text
from weft.kernel.words import IndexedWords
from weft.ledger.read.injected_text import message_passages
from weft.ledger.search.related_passages import QueryWord, RelatedPassages
from weft.ledger.search.thread_sessions import ThreadSessions
from weft.ledger.views.rows import MESSAGE, MessageRow, TurnRow
from weft.ledger.views.values import list_in, text_of
from weft.store.port import ReadTxn
from weft.store.sql import rows_in
from weft.store.word_index import WordIndex

READ_LETTERS = 65_536
"""So much of what is said in one turn is read."""
TURNS_PER_READ = 16


class RelatedTurn(Struct, frozen=True, kw_only=True):
    """A turn with what it shares with the text."""

    turn_id: str
    at: int
    """When it was completed, or begun where it is not completed."""
    session: str | None
    """The label of the session that goes on from it: the turn is in its thread."""
    session_title: str | None
    head: str | None
    """The turn where that session stands."""
    is_alone_at_head: bool
    """Whether no other session stands there."""
    turns_behind: int
    """So many turns of the session come after it."""
    is_head_of: str | None
    """The label of the one session that stands at this turn; null where none or several do."""
    said: tuple[str, ...]
    """Words of the text that a person or a model said here."""
    said_words: int
    """How many different words they said here in all."""


class RelatedTurns(Struct, frozen=True, kw_only=True):
    """The words of a text that were looked up, and turns that hold some of them, the newest first."""

    words: tuple[QueryWord, ...]
    turns: tuple[RelatedTurn, ...]


def find_related(txn: ReadTxn, index: WordIndex, text: str, also: Sequence[str]) -> RelatedTurns:
    """Turns that share words with a text, and those of `also`, which are ids of turns. None that cannot be read, or
    that no message can be routed to."""
    sessions = ThreadSessions(txn)
    finder = RelatedPassages(txn, index, text, sessions)
    words, turns = finder.find()
    turns |= finder.of_ids(also)
    wanted = frozenset(word.word for word in words)
    related = [
        _related(txn, sessions, turn, turn_words, wanted) for turn, turn_words in _turn_words(txn, list(turns.values()))
    ]
    related.sort(key=lambda turn: (-turn.at, turn.turn_id))
    return RelatedTurns(words=tuple(words), turns=tuple(related))


def _turn_words(txn: ReadTxn, turns: Sequence[TurnRow]) -> Iterator[tuple[TurnRow, set[str]]]:
    """Each turn with the words that people and models said in it. What a system message says belongs to no turn in
    particular, and what tools did is much, and the same in many turns."""
    for start in range(0, len(turns), TURNS_PER_READ):
        some = turns[start : start + TURNS_PER_READ]
        contents = _message_contents(txn, some)
        txn.facts.hold(n for numbers in contents.values() for n in numbers)
        for turn in some:
            gathered, left = IndexedWords(), READ_LETTERS
            for n in contents[turn.n]:
                text = _typed(bytes_text(txn.facts.beginning(n))[:left])
                gathered.add(text)
                left -= len(text)
            yield turn, gathered.words()


def _message_contents(txn: ReadTxn, turns: Sequence[TurnRow]) -> dict[int, list[int]]:
    """By turn the numbers of the contents that people and models said, summaries included."""
    contents: dict[int, list[int]] = {turn.n: [] for turn in turns}
    query = f"{MESSAGE.select} WHERE role IN ('user', 'assistant') AND turn IN"
    for row in sorted((MessageRow(*row) for row in rows_in(txn.sql, query, contents)), key=lambda row: row.seq):
        parts = () if row.text is not None else list_in(row.parts)
        contents[row.turn] += [row.text] if row.text is not None else []
        contents[row.turn] += [part["text"] for part in parts if part["type"] == "text"]
    numbers = {turn.id: turn.n for turn in turns if turn.type == "compaction"}
    for id, summary in rows_in(txn.sql, "SELECT turn, summary FROM compaction WHERE turn IN", numbers):
        contents[numbers[id]].append(summary)
    return contents


def _related(
    txn: ReadTxn, sessions: ThreadSessions, turn: TurnRow, turn_words: set[str], wanted: frozenset[str]
) -> RelatedTurn:
    session, standing = sessions.going_on(turn), sessions.standing_at(turn)
    return RelatedTurn(
        turn_id=turn.id,
        at=turn.completed_at or turn.started_at,
        session=None if session is None else session.label,
        session_title=None if session is None else text_of(txn, session.title),
        head=None if session is None else session.head,
        is_alone_at_head=session is not None and sessions.is_alone(session),
        turns_behind=0 if session is None else sessions.turns_behind(session, turn),
        is_head_of=standing[0] if len(standing) == 1 else None,
        said=tuple(sorted(turn_words & wanted)),
        said_words=len(turn_words),
    )


def _typed(text: str) -> str:
    """Without the passages that a tool put into it."""
    return "".join(piece.text for piece in message_passages(text) if not piece.is_injected) if "<" in text else text
