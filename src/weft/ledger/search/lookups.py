"""Turns, messages, tool calls and sessions by what they are: every lookup that the agents ledger schema indexes.

Each is led by one index: a rare value by its own, a common one by the time of turns, what lies in a text by the words
of passages. The other conditions are then asked of each row that comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypedDict

from msgspec import Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.enums import AgentRole, TurnStatus, TurnType
from weft.ledger.arguments import checked_content, checked_flag, checked_member, checked_text
from weft.ledger.read.access import access_of
from weft.ledger.read.listing import HERE
from weft.ledger.read.pages import Position
from weft.ledger.read.revisions import routed_sessions
from weft.ledger.read.threads import CHUNK, children
from weft.ledger.read.turn_lists import CurrentTurns, turns_by_time
from weft.ledger.search.entries import Entry, known_text
from weft.ledger.search.filters import Filters
from weft.ledger.search.matches import Finder
from weft.ledger.search.passages import UNREMARKABLE, VIEW, fits_words, load_turns, passages_of, source_word
from weft.ledger.search.query import Query
from weft.ledger.views.rows import HISTORY, SESSION, TURN, HistoryRow, SessionRow, TurnRow
from weft.ledger.views.touched_turns import touched
from weft.store.facts import refuse_standstill
from weft.store.port import ReadTxn
from weft.store.sql import Sql, rows_in
from weft.store.word_index import Question, Term, WordIndex

COMMON = {"type": TurnType.NORMAL, "status": TurnStatus.COMPLETED, "role": AgentRole.UNIFIED}
MEMBERS = {"type": TurnType, "status": TurnStatus, "role": AgentRole}


class TurnCriteria(TypedDict, total=False):
    """What `find_turns` finds turns by, beside parent and persona. Times are Unix milliseconds, or words; a day
    means all of it."""

    type: str | None
    status: str | None
    role: str | None
    source_event: str | None
    has_children: bool | None
    since: int | str | None
    until: int | str | None


class SessionCriteria(TypedDict, total=False):
    """What `find_sessions` finds sessions by: names of an agent and of a session, an origin, a key, a time."""

    persona: str | None
    parent: str | None
    origin: str | None
    routing_key: str | None
    since: int | str | None


class TurnsWanted(Struct, frozen=True, kw_only=True):
    """Which turns; null: whatever it is."""

    parent: TurnRow | None = None
    type: str | None = None
    status: str | None = None
    role: str | None = None
    persona: str | None = None
    """An agent's id."""
    source_event: str | None = None
    has_children: bool | None = None
    since: int | None = None
    until: int | None = None

    def __post_init__(self) -> None:
        for name, members in MEMBERS.items():
            if getattr(self, name) is not None:
                checked_member(members, getattr(self, name), name)
        if self.source_event is not None:
            checked_content(self.source_event, "source_event")
        if self.has_children is not None:
            checked_flag(self.has_children, "has_children")


def find_turns(
    txn: ReadTxn, index: WordIndex, wanted: TurnsWanted, current: CurrentTurns, before: Position, chunk: int
) -> Iterator[TurnRow]:
    """The newest first, as `log` has them, behind this position in its order."""
    rows = _led(txn, index, wanted, current, before, chunk)
    while some := list(islice(rows, chunk)):
        behind = [row for row in some if current.position_of(row) < before]
        may_read = access_of(txn).may_read_turn
        yield from (row for row in current.among(behind) if may_read(row) and _fits(txn, row, wanted))


def _led(
    txn: ReadTxn, index: WordIndex, wanted: TurnsWanted, current: CurrentTurns, before: Position, chunk: int
) -> Iterator[TurnRow]:
    led = _led_by_value(txn, index, wanted)
    if led is not None:
        return iter(current.in_order(led))
    since = -MAX_INTEGER if wanted.since is None else wanted.since
    place = before if wanted.until is None else min(before, (wanted.until + 1, 0))
    return turns_by_time(txn.sql, current, place, chunk, "listed_at >= ? AND ", (since,))


def _led_by_value(txn: ReadTxn, index: WordIndex, wanted: TurnsWanted) -> Iterable[TurnRow] | None:
    """The turns with a rare value among those asked for, in no order; None where there is none."""
    if wanted.parent is not None:
        return children(txn.sql, wanted.parent)
    if wanted.source_event is not None:
        return _by_word(txn, index, source_word(wanted.source_event))
    if wanted.persona is not None and wanted.persona not in UNREMARKABLE:
        return _by_word(txn, index, f":a{wanted.persona.lower()}")
    for column, common in COMMON.items():
        value = getattr(wanted, column)
        if value not in (None, common):
            query = f"{TURN.select} WHERE {column} <> '{common}' AND {column} = ?"
            return [TurnRow(*row) for row in txn.sql.all(query, (value,))]
    return _ends(txn.sql) if wanted.has_children is False else None


def _ends(sql: Sql) -> Iterator[TurnRow]:
    """The last turn of each segment: no other can be without children."""
    columns = ", ".join(f"t.{column}" for column in TURN.record.__struct_fields__)
    query = (
        f"SELECT s.n, {columns} FROM segment s JOIN turn t ON t.segment = s.n"
        " AND t.depth = (SELECT max(depth) FROM turn WHERE segment = s.n)"
        f" WHERE s.n < ? ORDER BY s.n DESC LIMIT {CHUNK}"
    )
    before = MAX_INTEGER
    while rows := sql.all(query, (before,)):
        yield from (TurnRow(*row[1:]) for row in rows)
        refuse_standstill("segment", before, rows[-1][0])
        before = rows[-1][0]


def _by_word(txn: ReadTxn, index: WordIndex, word: str) -> list[TurnRow]:
    """Turns whose passages have a word; those that the index has not seen yet are looked at as they are."""
    question: Question = ((Term(word),),)
    found = {turn for (turn,) in rows_in(txn.sql, _TURNS_OF, index.match(question, MAX_INTEGER))}
    late = load_turns(txn, touched(txn.facts, txn.facts.watermark(VIEW)).turns)
    fresh = [
        turn for turn, made in passages_of(txn, late) if any(fits_words(question, passage.words) for passage in made)
    ]
    known = rows_in(txn.sql, f"{TURN.select} WHERE n IN", found - {turn.n for turn in late})
    return [*fresh, *(TurnRow(*row) for row in known)]


_TURNS_OF = "SELECT turn FROM passage WHERE n IN"


def _fits(txn: ReadTxn, row: TurnRow, wanted: TurnsWanted) -> bool:
    return (
        wanted.type in (None, row.type)
        and wanted.status in (None, row.status)
        and wanted.role in (None, row.role)
        and wanted.persona in (None, row.persona)
        and (wanted.since is None or row.listed_at >= wanted.since)
        and (wanted.until is None or row.listed_at <= wanted.until)
        and (wanted.source_event is None or known_text(txn.facts, row.source_event) == wanted.source_event)
        and (wanted.has_children is None or has_children(txn.sql, row) == wanted.has_children)
    )


def has_children(sql: Sql, row: TurnRow) -> bool:
    following = sql.one("SELECT 1 FROM turn WHERE segment = ? AND depth = ?", (row.segment, row.depth + 1))
    if following is not None:
        return True
    forked = "SELECT 1 FROM segment WHERE parent = ? AND parent_depth = ?"
    return sql.one(forked, (row.segment, row.depth)) is not None


def find_entries(
    txn: ReadTxn, index: WordIndex, filters: Filters, fits: Callable[[Entry], bool], after: Position = ()
) -> Iterator[tuple[Position, Entry]]:
    """Messages and calls by a search without words, each with its position."""
    matches = Finder(txn, index, Query(()), filters, after).newest()
    return ((position, match.entry) for position, match in matches if fits(match.entry))


class SessionsWanted(Struct, frozen=True, kw_only=True):
    """Which sessions; null: whatever it is."""

    persona: str | None = None
    parent: str | None = None
    """Ids of an agent and of a session."""
    origin: str | None = None
    routing_key: str | None = None
    since: int | None = None

    def __post_init__(self) -> None:
        if self.origin is not None:
            checked_text(self.origin, "origin")
        if self.routing_key is not None:
            checked_content(self.routing_key, "routing_key")


def find_sessions(txn: ReadTxn, wanted: SessionsWanted) -> list[SessionRow]:
    """In no order; deleted ones too, which say so."""
    may_read = access_of(txn).may_read
    return [row for row in _sessions(txn, wanted) if may_read(row) and _session_fits(txn, row, wanted)]


def _sessions(txn: ReadTxn, wanted: SessionsWanted) -> Iterable[SessionRow]:
    sql = txn.sql
    if wanted.routing_key is not None:
        return routed_sessions(txn, wanted.routing_key)
    if wanted.parent is not None:
        query = f"{SESSION.select} WHERE parent_session IS NOT NULL AND parent_session = ?"
        return (SessionRow(*row) for row in sql.all(query, (wanted.parent,)))
    if wanted.since is not None:
        return _changed_since(txn, wanted.since)
    if wanted.persona is not None:
        return (SessionRow(*row) for row in sql.all(f"{SESSION.select} WHERE persona = ?", (wanted.persona,)))
    if wanted.origin == HERE:
        return (SessionRow(*row) for row in sql.all(f"{SESSION.select} WHERE origin IS NULL"))
    return (SessionRow(*row) for row in sql.all(f"{SESSION.select} WHERE origin = ?", (wanted.origin,)))


def _changed_since(txn: ReadTxn, since: int) -> list[SessionRow]:
    """By the view of changes; of sessions that it has not caught up with, by what they say themselves."""
    numbers = {n for (n,) in txn.sql.all("SELECT session FROM session_change WHERE at >= ?", (since,))}
    late = touched(txn.facts, txn.facts.watermark(VIEW)).sessions
    rows = [SessionRow(*row) for row in rows_in(txn.sql, f"{SESSION.select} WHERE n IN", numbers)]
    rows += [SessionRow(*row) for row in rows_in(txn.sql, f"{SESSION.select} WHERE id IN", late)]
    return list({row.n: row for row in rows}.values())


def _session_fits(txn: ReadTxn, row: SessionRow, wanted: SessionsWanted) -> bool:
    return (
        wanted.persona in (None, row.persona)
        and wanted.parent in (None, row.parent_session)
        and wanted.origin in (None, row.origin or HERE)
        and (wanted.since is None or row.updated_at >= wanted.since)
        and (wanted.routing_key is None or known_text(txn.facts, row.routing) == wanted.routing_key)
    )


def moves_to(txn: ReadTxn, turn: TurnRow) -> list[HistoryRow]:
    """Every movement of a head to this very turn, in order."""
    found = {move for (move,) in txn.sql.all("SELECT move FROM arrival WHERE turn = ?", (turn.n,))}
    late = "SELECT n FROM history WHERE n > ? AND turn = ?"
    found |= {n for (n,) in txn.sql.all(late, (txn.facts.watermark(VIEW), turn.id))}
    rows = [HistoryRow(*row) for row in rows_in(txn.sql, f"{HISTORY.select} WHERE n IN", found)]
    return sorted((row for row in rows if row.turn == turn.id), key=lambda row: (row.n, row.session, row.k))
