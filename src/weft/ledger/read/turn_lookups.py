"""Turns, messages, tool calls and sessions by what they are: every lookup that the agents
ledger schema indexes; and turns that share words with a text, where every word weighs by how rare
it is, and nothing that the index answers depends on what the reader may not read, each with the
session that goes on from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from heapq import merge, nlargest
from itertools import islice, pairwise
from math import log

from msgspec import Struct

from weft.kernel.contents import MAX_INTEGER, bytes_text
from weft.kernel.enums import AgentRole, MessageRole, TurnStatus, TurnType
from weft.kernel.message_text import IndexedWords, indexed, tokens
from weft.ledger.arguments import checked_content, checked_flag, checked_member, checked_text
from weft.ledger.read.access import access_of
from weft.ledger.read.revisions import routed_sessions
from weft.ledger.read.search_index import (
    UNREMARKABLE,
    VIEW,
    SearchEntry,
    fits_words,
    known_text,
    load_turns,
    passages_of,
    source_word,
)
from weft.ledger.read.search_matches import MatchFilters, SearchFinder, SearchQuery
from weft.ledger.read.session_list import (
    HERE,
    CurrentTurns,
    SessionChanges,
    SessionTimes,
    is_subagent,
    message_passages,
    turns_by_time,
)
from weft.ledger.read.sessions import NEWEST, Position
from weft.ledger.read.turns import CHUNK, SegmentRange, children, ranges_to
from weft.ledger.views.rows import (
    HISTORY,
    MESSAGE,
    SESSION,
    TURN,
    HistoryRow,
    MessageRow,
    SessionRow,
    TurnRow,
    list_in,
    text_of,
    touched,
)
from weft.store.fact_log import refuse_standstill
from weft.store.port import Question, ReadTxn, SearchTerm, WordIndex
from weft.store.sql import Sql, rows_in, rows_wanted

# --- Turns, messages, tool calls and sessions by what they are: every lookup that the agents ledger schema indexes.

COMMON = {"type": TurnType.NORMAL, "status": TurnStatus.COMPLETED, "role": AgentRole.UNIFIED}
MEMBERS = {"type": TurnType, "status": TurnStatus, "role": AgentRole}


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
            return [TurnRow(*row) for row in txn.sql.fetch_rows(query, (value,))]
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
    while rows := sql.fetch_rows(query, (before,)):
        yield from (TurnRow(*row[1:]) for row in rows)
        refuse_standstill("segment", before, rows[-1][0])
        before = rows[-1][0]


def _by_word(txn: ReadTxn, index: WordIndex, word: str) -> list[TurnRow]:
    """Turns whose passages have a word; those that the index has not seen yet are looked at as they are."""
    question: Question = ((SearchTerm(word),),)
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
    following = sql.fetch_row("SELECT 1 FROM turn WHERE segment = ? AND depth = ?", (row.segment, row.depth + 1))
    if following is not None:
        return True
    forked = "SELECT 1 FROM segment WHERE parent = ? AND parent_depth = ?"
    return sql.fetch_row(forked, (row.segment, row.depth)) is not None


def find_entries(
    txn: ReadTxn, index: WordIndex, filters: MatchFilters, fits: Callable[[SearchEntry], bool], after: Position = ()
) -> Iterator[tuple[Position, SearchEntry]]:
    """Messages and calls by a search without words, each with its position."""
    matches = SearchFinder(txn, index, SearchQuery(()), filters, after).newest()
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
        return (SessionRow(*row) for row in sql.fetch_rows(query, (wanted.parent,)))
    if wanted.since is not None:
        return _changed_since(txn, wanted.since)
    if wanted.persona is not None:
        return (SessionRow(*row) for row in sql.fetch_rows(f"{SESSION.select} WHERE persona = ?", (wanted.persona,)))
    if wanted.origin == HERE:
        return (SessionRow(*row) for row in sql.fetch_rows(f"{SESSION.select} WHERE origin IS NULL"))
    return (SessionRow(*row) for row in sql.fetch_rows(f"{SESSION.select} WHERE origin = ?", (wanted.origin,)))


def _changed_since(txn: ReadTxn, since: int) -> list[SessionRow]:
    """By the view of changes; of sessions that it has not caught up with, by what they say themselves."""
    numbers = {n for (n,) in txn.sql.fetch_rows("SELECT session FROM session_change WHERE at >= ?", (since,))}
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
    found = {move for (move,) in txn.sql.fetch_rows("SELECT move FROM arrival WHERE turn = ?", (turn.n,))}
    late = "SELECT n FROM history WHERE n > ? AND turn = ?"
    found |= {n for (n,) in txn.sql.fetch_rows(late, (txn.facts.watermark(VIEW), turn.id))}
    rows = [HistoryRow(*row) for row in rows_in(txn.sql, f"{HISTORY.select} WHERE n IN", found)]
    return sorted((row for row in rows if row.turn == turn.id), key=lambda row: (row.n, row.session, row.k))


# --- Sessions by the time of their last change, the latest first, as of a moment.

LATE_EVENTS = 4096
"""Where the view is further behind, all sessions are read instead."""
Placed = tuple[Position, SessionRow]


def latest_sessions(txn: ReadTxn, times: SessionTimes, before: Position, chunk: int | None) -> Iterator[Placed]:
    """Every session behind this position, in order, each with its own; `chunk` are read at a time, or all at once."""
    before = before or NEWEST
    mark = txn.facts.watermark(VIEW)
    if chunk is None or txn.facts.tip().n - mark > LATE_EVENTS:
        return iter(in_order((SessionRow(*row) for row in txn.sql.fetch_rows(SESSION.select)), times, before))
    changed = SessionChanges(txn.facts, mark).ids | times.changes.ids
    rows = [SessionRow(*row) for row in rows_in(txn.sql, f"{SESSION.select} WHERE id IN", changed)]
    numbers = {row.n for row in rows}
    others = _by_change(txn, before, numbers, chunk)
    return merge(in_order(rows, times, before), others, key=_position, reverse=True)


def in_order(rows: Iterable[SessionRow], times: SessionTimes, before: Position) -> list[Placed]:
    """Those of these sessions that come behind a position, in order."""
    positions = ((times.position_of(row), row) for row in rows)
    placed = [(place, row) for place, row in positions if place is not None and place < (before or NEWEST)]
    return sorted(placed, key=_position, reverse=True)


def _position(placed: Placed) -> Position:
    return placed[0]


def _by_change(txn: ReadTxn, before: Position, without: set[int], chunk: int) -> Iterator[Placed]:
    """As the view of changes has them, without those that it has not caught up with."""
    query = "SELECT at, session FROM session_change WHERE (at, session) < (?, ?) ORDER BY at DESC, session DESC LIMIT ?"
    while places := [(at, n) for at, n in txn.sql.fetch_rows(query, (*before, chunk))]:
        wanted = [n for _, n in places if n not in without]
        rows = {row[0]: SessionRow(*row) for row in rows_in(txn.sql, f"{SESSION.select} WHERE n IN", wanted)}
        yield from ((place, rows[place[1]]) for place in places if place[1] in rows)
        refuse_standstill("session", before, places[-1])
        before = places[-1]


# --- Which session goes on from a turn: the one that made it, or another that stands on the same stretch of turns.


class ThreadSessions:
    """Sessions of some turns in one snapshot, as whoever reads may know them."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn, self._access = txn, access_of(txn)
        self._makers: dict[int, SessionRow | None] = {}
        self._standing: dict[int, list[SessionRow]] = {}
        self._threads: dict[int, list[SegmentRange]] = {}

    def load(self, turns: Iterable[TurnRow]) -> None:
        """Look up the sessions of many turns at once."""
        rows = [*turns]
        makers = {turn.session for turn in rows if turn.session is not None} - self._makers.keys()
        self._makers |= dict.fromkeys(makers)
        for values in rows_in(self._txn.sql, f"{SESSION.select} WHERE n IN", makers):
            session = SessionRow(*values)
            self._makers[session.n] = session
        self._load_standing({turn.segment for turn in rows} - self._standing.keys())

    def _load_standing(self, segments: set[int]) -> None:
        """The sessions that stand on these segments, as far as they can be read."""
        self._standing |= {segment: [] for segment in segments}
        for values in rows_in(self._txn.sql, f"{SESSION.select} WHERE status = 'active' AND head_segment IN", segments):
            session = SessionRow(*values)
            if session.head_segment is not None and self._is_reachable(session):
                self._standing[session.head_segment].append(session)

    def _is_reachable(self, session: SessionRow) -> bool:
        """Whether it can be read, and its agent works for whoever reads."""
        return self._access.may_read(session) and self._access.may_use_session_agent(session)

    def take_messages(self, turn: TurnRow) -> bool:
        """Whether its session takes messages, or another that goes on from it does."""
        self.load([turn])
        maker = None if turn.session is None else self._makers[turn.session]
        is_taken = maker is not None and _takes_messages(maker) and self._access.may_use_session_agent(maker)
        return turn.session is None or is_taken or bool(self._others(turn))

    def going_on(self, turn: TurnRow) -> SessionRow | None:
        """The session whose thread this turn is in, where it can be read and takes messages: the one that made it, else
        the one that was changed last."""
        self.load([turn])
        maker = None if turn.session is None else self._makers[turn.session]
        if (
            maker is not None
            and self._is_reachable(maker)
            and _takes_messages(maker)
            and self._turns_behind(maker, turn) is not None
        ):
            return maker
        return max(self._others(turn), key=lambda session: (session.updated_at, session.n), default=None)

    def turns_behind(self, session: SessionRow, turn: TurnRow) -> int:
        """How many turns of a session's thread come after one that is in it."""
        return self._turns_behind(session, turn) or 0

    def standing_at(self, turn: TurnRow) -> list[str]:
        """The labels of the sessions that stand at a turn."""
        self.load([turn])
        return sorted(session.label for session in self._standing[turn.segment] if session.head == turn.id)

    def is_alone(self, session: SessionRow) -> bool:
        """Whether no other session that can be read stands where this one does."""
        if session.head_segment is not None and session.head_segment not in self._standing:
            self._load_standing({session.head_segment})
        standing = [] if session.head_segment is None else self._standing[session.head_segment]
        return sum(other.head == session.head for other in standing) == 1

    def _others(self, turn: TurnRow) -> list[SessionRow]:
        return [
            session
            for session in self._standing[turn.segment]
            if _takes_messages(session) and (session.head_depth or 0) >= turn.depth
        ]

    def _turns_behind(self, session: SessionRow, turn: TurnRow) -> int | None:
        """None where the turn is not in the session's thread."""
        behind = 0
        for part in reversed(self._thread(session)):
            if part.segment == turn.segment:
                return behind + part.high - turn.depth if part.low <= turn.depth <= part.high else None
            behind += part.high - part.low + 1
        return None

    def _thread(self, session: SessionRow) -> list[SegmentRange]:
        if session.n not in self._threads:
            stands = session.head_segment is not None and session.head_depth is not None
            self._threads[session.n] = (
                ranges_to(self._txn.sql, session.head_segment or 0, session.head_depth or 0, across=True)
                if stands
                else []
            )
        return self._threads[session.n]


def _takes_messages(session: SessionRow) -> bool:
    return session.status == "active" and session.lifecycle != "completed" and not is_subagent(session)


# --- The index of words as one reader may ask it: nothing that it answers depends on what they may not read.

INHERITED_PASSAGES = 65_536
"""So many inherited passages are looked up at most, the newest."""
WIDEST_GAP, MOST_WINDOWS = 1_024, 16
"""Numbers of inherited passages that are no further apart are looked up together, and in so many ranges at most; what
lies between is passed over."""
SYSTEM_WORD = f":r{MessageRole.SYSTEM}"
_ROLE_WORDS = tuple(SearchTerm(f":r{role}") for role in MessageRole if role is not MessageRole.SYSTEM)
_TURNS_ABOVE = (
    "SELECT t.n, t.root, t.session FROM wanted w JOIN turn t"
    " ON t.segment = CAST(w.segment AS BIGINT) AND t.depth <= CAST(w.depth AS BIGINT) WHERE t.current = 1"
)


class InheritedPassages(Struct, frozen=True):
    """Passages of turns that are in a thread that can be read, but that no session made that can be read."""

    numbers: frozenset[int]
    windows: tuple[tuple[int, int], ...]
    """The first and the last number of those that are looked up together, the newest first."""
    trees: tuple[SearchTerm, ...]


class ReadablePassages:
    """Those of one snapshot. Passages of `stale` turns, by their numbers, are left out for limited readers: the index
    has not caught up with these."""

    def __init__(self, txn: ReadTxn, index: WordIndex, stale: Iterable[int]) -> None:
        self._txn, self._index, self._access, self._stale_turns = txn, index, access_of(txn), stale

    def match(self, words: Iterable[str], limit: int, low: int | None = None) -> list[int]:
        """At most so many passages that hold all these words, from a number on."""
        question: Question = tuple((SearchTerm(word),) for word in words)
        if self._access.is_unlimited:
            return self._index.match(question, limit, low)
        question = (*question, _ROLE_WORDS)
        passages = {*self._of_sessions(question, limit + len(self._stale), low), *self._of_threads(question, low)}
        return sorted(passages - self._stale, reverse=True)[:limit]

    def _of_sessions(self, question: Question, limit: int, low: int | None) -> list[int]:
        terms = tuple(SearchTerm(f":s{n}") for n in self._sessions)
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
    def _inherited(self) -> InheritedPassages:
        sessions, reach = self._access.reading_scope()
        above = rows_wanted(self._txn.sql, ("segment", "depth"), _TURNS_ABOVE, reach.items())
        own = frozenset(sessions)
        roots = {n: root for n, root, session in above if session not in own}
        newest = sorted(roots, reverse=True)[:INHERITED_PASSAGES]
        rows = rows_in(self._txn.sql, "SELECT n FROM passage WHERE turn IN", newest)
        numbers = sorted((n for (n,) in rows), reverse=True)[:INHERITED_PASSAGES]
        trees = tuple(SearchTerm(f":t{root}") for root in sorted({roots[n] for n in newest}))
        return InheritedPassages(frozenset(numbers), tuple(_number_windows(numbers)), trees)


def _number_windows(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of numbers, cut where the gaps are widest; the numbers fall."""
    gaps = ((numbers[i - 1] - numbers[i], i) for i in range(1, len(numbers)))
    widest = nlargest(MOST_WINDOWS - 1, (gap for gap in gaps if gap[0] > WIDEST_GAP))
    cuts = [0, *sorted(i for _, i in widest), len(numbers)]
    for start, end in pairwise(cuts):
        if start < end:
            yield numbers[end - 1], numbers[start]


# --- Turns that share words with a text: every word is looked up in the index by itself, and weighs by how rare it is.

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
        (highest,) = self._txn.sql.fetch_row("SELECT max(n) FROM passage") or (0,)
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


# --- Turns that share words with a text: those that the index names are read, and each is told with the words it
# shares, how many others it says, and which session goes on from it.

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
                text = _typed_words(bytes_text(txn.facts.beginning(n))[:left])
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


def _typed_words(text: str) -> str:
    """Without the passages that a tool put into it."""
    return "".join(piece.text for piece in message_passages(text) if not piece.is_injected) if "<" in text else text
