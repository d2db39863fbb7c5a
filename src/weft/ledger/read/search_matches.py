"""Finding: what people type, as a value; filters, which narrow the question to the index and
then judge every entry; the index narrows a query down to passages, their texts decide, and hits
show why; sessions are found by their names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from heapq import heappop, heappush, merge
from itertools import chain, islice
from typing import Any, NamedTuple

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.contents import MAX_INTEGER
from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.message_text import (
    MAX_LETTERS,
    WordToken,
    folded,
    folded_alike,
    index_words,
    indexed,
    pattern,
    tokens,
    without_blobs,
)
from weft.ledger.arguments import checked_number, checked_text
from weft.ledger.model import UNDATED, AppliedSubstitution, repeated_id
from weft.ledger.read.access import access_of
from weft.ledger.read.revisions import require
from weft.ledger.read.search_index import (
    DAY,
    LOOSE,
    VIEW,
    EntryPlace,
    SearchEntry,
    day_word,
    fits_words,
    has_time,
    hold_texts,
    is_time_known,
    known_name,
    known_text,
    load_entries,
    load_turns,
    passages_of,
)
from weft.ledger.read.session_list import HERE, of_project
from weft.ledger.read.sessions import Position, Projects, project_of, session_folders
from weft.ledger.read.turns import Substitutions, ranges_to, substitutions_in
from weft.ledger.views.rows import SESSION, TURN, SessionRow, TurnRow, load_turn_number, text_of, touched
from weft.ledger.views.turns import CALL, MESSAGE
from weft.store.fact_log import refuse_standstill
from weft.store.port import Question, ReadTxn, SearchTerm, WordIndex
from weft.store.sql import Row, rows_in

# --- What people type into a search, as a value: wanted words and phrases, and where they stand in a text.

LEAST_BEGINNING = 3
MOST_WORDS = 64
MOST_SPANS = 64
"""More places in one text are not looked for."""
_PART = re.compile(r'"([^"]*)(?:"|$)|([^\s"]+)')
Span = tuple[int, int]
Matcher = Callable[[str, int], re.Match[str] | None]


class SearchPhrase(Struct, frozen=True):
    """Words that stand together; one word is a phrase, too. With `prefix` the last of them may go on."""

    tokens: tuple[WordToken, ...]
    prefix: bool = False

    def question(self) -> Question:
        """What an index is asked for: all its words. A letter of an unspaced script alone begins whatever it is in."""
        words = list(indexed(self.tokens))
        last = self.tokens[-1]
        if last.unspaced and last.joined:
            return tuple((SearchTerm(word),) for word in words[:-1])
        ends = self.prefix or last.unspaced
        return (*((SearchTerm(word),) for word in words[:-1]), (SearchTerm(words[-1], ends),))

    def among(self, found: Sequence[WordToken]) -> Iterator[Span]:
        first, rest, width = self.tokens[0].word, self.tokens[1:], len(self.tokens)
        for i, token in enumerate(found):
            if token.word == first or (width == 1 and self.prefix and token.word.startswith(first)):
                behind = found[i + 1 : i + width]
                if len(behind) == len(rest) and all(map(self._token_follows, behind, rest)):
                    yield token.start, (behind[-1] if behind else token).end

    def _token_follows(self, token: WordToken, wanted: WordToken) -> bool:
        whole = token.word == wanted.word and token.joined >= wanted.joined
        return whole or (self.prefix and wanted is self.tokens[-1] and token.word.startswith(wanted.word))


class SearchQuery(Struct, frozen=True):
    """All of these must be found."""

    phrases: tuple[SearchPhrase, ...]

    def question(self) -> Question:
        return tuple(dict.fromkeys(group for phrase in self.phrases for group in phrase.question()))


class SearchedText:
    """A text that is looked through, once for all phrases."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._alike = folded_alike(text)
        self._folded = folded(text) if self._alike is None else self._alike
        self._blank: str | None = None

    def spans(self, phrase: SearchPhrase) -> list[Span]:
        """Where a phrase stands. Most texts hold nothing that is looked for, and that is told at once."""
        if any(token.word not in self._folded for token in phrase.tokens):
            return []
        if self._alike is None:
            return list(islice(phrase.among(list(tokens(self.text))), MOST_SPANS))
        found = _phrase_spans(self._alike, phrase)
        if found and self._blank is None:
            blank = without_blobs(self._alike)
            self._alike = self._folded = self._blank = blank
            found = _phrase_spans(blank, phrase)
        return found


def _phrase_spans(text: str, phrase: SearchPhrase) -> list[Span]:
    """Where a phrase stands in folded text, without making its tokens."""
    signs = _ASCII if text.isascii() else _further_signs()
    first, found = phrase.tokens[0], list[Span]()
    at = text.find(first.word)
    while at >= 0 and len(found) < MOST_SPANS:
        if first.unspaced or not signs.inside(text, at):
            end = _phrase_end(text, at, phrase, signs)
            if end is not None:
                found.append((at, end))
        at = text.find(first.word, at + 1)
    return found


def _phrase_end(text: str, at: int, phrase: SearchPhrase, signs: _Signs) -> int | None:
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


def _is_inside_word(text: str, at: int) -> bool:
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
    return _Signs(pattern("[SM]").match, pattern("[SM]*").match, pattern("[^SMU]*").match, _is_inside_word)


def parse_query(text: str) -> SearchQuery:
    """The query that these words spell; raises InvalidInput where nothing in them could be found."""
    parts = [(match[1], match[2]) for match in _PART.finditer(text)]
    phrases = [_phrase_of(in_quotes, bare, last=i == len(parts) - 1) for i, (in_quotes, bare) in enumerate(parts)]
    wanted = [phrase for phrase in phrases if phrase.tokens]
    if sum(len(phrase.tokens) for phrase in wanted) > MOST_WORDS:
        raise InvalidInput(f"the query has more than {MOST_WORDS} words", "look for fewer")
    return SearchQuery(tuple(dict.fromkeys(wanted)))


def _phrase_of(in_quotes: str | None, bare: str | None, *, last: bool) -> SearchPhrase:
    text = in_quotes if in_quotes is not None else bare or ""
    found = list(tokens(text))
    if not found:
        if any(letter.isalnum() for letter in text):
            raise InvalidInput(f"{quoted(text)} is no word", f"a word has at most {MAX_LETTERS} letters")
        return SearchPhrase(())
    typed_so_far = last and found[-1].end == len(text) and len(found[-1].word) >= LEAST_BEGINNING
    prefix = bare is not None and (text.endswith("*") or typed_so_far)
    return SearchPhrase(tuple(_from_here(found)), prefix)


def _from_here(found: Iterable[WordToken]) -> Iterator[WordToken]:
    """Without their places, so that equal phrases are equal."""
    for token in found:
        yield WordToken(0, 0, token.word, token.unspaced, token.joined)


# --- Filters of a search: each narrows the question to the index by words about passages, and then judges every entry.

DAYS_SPELLED = 62


class MatchFilters(Struct, frozen=True, kw_only=True):
    """What else must hold; null: whatever it is."""

    session: str | None = None
    role: str | None = None
    tool: str | None = None
    path: str | None = None
    since: int | None = None
    until: int | None = None
    model: str | None = None
    project: str | None = None
    origin: str | None = None

    def __post_init__(self) -> None:
        for name in ("session", "role", "tool", "path", "model", "project", "origin"):
            if getattr(self, name) is not None:
                checked_text(getattr(self, name), name)
        for name in ("since", "until"):
            if getattr(self, name) is not None:
                checked_number(getattr(self, name), name)
        if self.role is not None and self.role not in set(MessageRole):
            raise InvalidInput(f"role is {quoted(self.role)}", f"it is one of {', '.join(MessageRole)}")

    @property
    def any(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__struct_fields__)


Judge = Callable[[SearchEntry], bool]


class SearchFilter:
    """The filters of one search, ready to be asked."""

    def __init__(self, txn: ReadTxn, filters: MatchFilters, projects: Projects) -> None:
        self._txn, self._filters, self._projects = txn, filters, projects
        self.question: Question = ()
        self._judges: list[Judge] = []
        for name in filters.__struct_fields__:
            value = getattr(filters, name)
            if value is not None and name not in ("since", "until"):
                getattr(self, f"_by_{name}")(value)
        self._by_time(filters.since, filters.until)

    def fits(self, entry: SearchEntry) -> bool:
        return all(judge(entry) for judge in self._judges)

    def _require_words(self, letter: str, words: set[str]) -> None:
        self.question += tuple((SearchTerm(f"{letter}{word}"),) for word in sorted(words))

    def _by_role(self, role: str) -> None:
        self._require_words(":r", {role})
        self._judges.append(lambda entry: entry.role == role)

    def _by_origin(self, origin: str) -> None:
        wanted = origin.casefold()
        self._require_words(":o", index_words(origin))
        self._judges.append(lambda entry: (entry.turn.origin or HERE).casefold() == wanted)

    def _by_tool(self, tool: str) -> None:
        phrase = name_phrase(tool, "tool")
        self._require_words(":c", index_words(tool))
        facts = self._txn.facts
        self._judges.append(lambda entry: entry.call is not None and holds(phrase, known_name(facts, entry.call.tool)))

    def _by_model(self, model: str) -> None:
        phrase = name_phrase(model, "model")
        self._require_words(":m", index_words(model))
        self._judges.append(lambda entry: holds(phrase, known_name(self._txn.facts, entry.model)))

    def _by_project(self, project: str) -> None:
        """The index knows folders by their last parts: one word of each folder of the project is looked for."""
        folders = [project, *(folder for folder in self._projects.folders if self._projects.is_in(folder, project))]
        words = {max(index_words(project_of(folder)), key=len, default="") for folder in folders}
        if all(words):
            self.question += (tuple(SearchTerm(f":p{word}") for word in sorted(words)),)
        facts = self._txn.facts
        self._judges.append(lambda entry: self._projects.is_in(known_text(facts, entry.turn.workspace), project))

    def _by_path(self, path: str) -> None:
        phrase = name_phrase(path, "path")
        self._require_words("", index_words(path))

        def judge(entry: SearchEntry) -> bool:
            if entry.call is not None:
                texts = entry.texts(self._txn.facts)
                return any(place is EntryPlace.ARGUMENTS and holds(phrase, text) for place, text in texts)
            rows = self._txn.sql.fetch_rows("SELECT path FROM message_file WHERE message = ?", (entry.message,))
            return any(holds(phrase, known_text(self._txn.facts, n)) for (n,) in rows)

        self._judges.append(judge)

    def _by_session(self, name: str) -> None:
        """What the session made, and what it goes on from: its thread."""
        session = require(self._txn, name)
        reach = _thread_depths(self._txn, session)
        roots = rows_in(self._txn.sql, "SELECT DISTINCT root FROM segment WHERE n IN", reach)
        trees = tuple(SearchTerm(f":t{root}") for root in sorted({root for (root,) in roots}))
        self.question += ((SearchTerm(f":s{session.n}"), *trees),)

        def judge(entry: SearchEntry) -> bool:
            turn: TurnRow = entry.turn
            return turn.session == session.n or turn.depth <= reach.get(turn.segment, 0)

        self._judges.append(judge)

    def _by_time(self, since: int | None, until: int | None) -> None:
        """What has no time fits none."""
        if since is not None or until is not None:
            self._judges.append(lambda entry: entry.time_known)
        if since is not None:
            self._judges.append(lambda entry: entry.at >= since)
        if until is not None:
            self._judges.append(lambda entry: entry.at <= until)
        if since is not None and until is not None:
            self.question += day_words(since, until)


def _thread_depths(txn: ReadTxn, session: SessionRow) -> dict[int, int]:
    """How deep the session's thread goes in each segment."""
    if session.head_segment is None or session.head_depth is None:
        return {}
    parts = ranges_to(txn.sql, session.head_segment, session.head_depth, across=True)
    return {part.segment: part.high for part in parts}


def day_words(since: int, until: int) -> Question:
    """The days from one time to another, as words; none where they are too many to spell out."""
    first, last = since // DAY, until // DAY
    if not 0 <= last - first < DAYS_SPELLED:
        return ()
    return (tuple(SearchTerm(day_word(day)) for day in range(first, last + 1)),)


def name_phrase(name: str, what: str) -> SearchPhrase:
    found = tuple(tokens(name))
    if not found:
        raise InvalidInput(f"{what} is {quoted(name)}", "give at least one word of its name")
    return SearchPhrase(found)


def holds(phrase: SearchPhrase, text: str) -> bool:
    return bool(SearchedText(text).spans(phrase))


def as_filters(given: Mapping[str, Any], period: Mapping[str, int]) -> MatchFilters:
    """From the arguments of a search, with the first and the last moment that their times mean."""
    return MatchFilters(**{**given, **period})


# --- Hits: what a search answers, and the piece of text that shows why.

BEFORE, LONG = 60, 200
LONGEST_WORD_CHARS = 40
"""An excerpt is cut at a blank where one is so near; a longer word is cut anywhere."""


class Hit(Struct, frozen=True, kw_only=True):
    """A message, or a tool call of one, that holds what was looked for; or a session that is named so."""

    message_id: str | None
    """Of a call: the message that made it. Null for a summary, and for a call that no message is known of."""
    tool_call_id: str | None
    tool: str | None
    turn_id: str
    role: str
    created_at: int
    time_known: bool = True
    """False: its origin gives no time, and this is when its turn came in; of a session that is named so it is 0. Such
    hits come last, and no time fits them."""
    session: str | None
    """The label of the session that made the turn."""
    session_title: str | None
    """Its title, where it has one."""
    session_status: str | None
    heads: tuple[str, ...]
    """The labels of the sessions that stand at the turn."""
    model: str | None
    origin: str
    place: str
    """Where it was found: text, thinking, summary, tool, arguments, result or error; title or project where it is
    the session that is named so."""
    snippet: str
    """A piece of that text, on one line."""
    marks: tuple[tuple[int, int], ...]
    """Where the words stand in the snippet: from, to."""
    substituted: AppliedSubstitution | UnsetType = UNSET
    """Of a message or a result that is shown with other words than were recorded; left out where it is not."""


class TextMatch(Struct, frozen=True):
    """Where the words of a query stand in one text."""

    place: EntryPlace
    text: str
    spans: list[Span]


class SearchMatch(Struct, frozen=True):
    """An entry, and where in it the words stand."""

    entry: SearchEntry
    found: TextMatch


def look_through(query: SearchQuery, texts: Iterable[tuple[EntryPlace, str]]) -> TextMatch | None:
    """The text that holds most of the query, if all the texts together hold all of it."""
    missing, best, most = set(query.phrases), None, -1
    for place, text in texts:
        looked = SearchedText(text)
        found = [(phrase, spans) for phrase in query.phrases if (spans := looked.spans(phrase))]
        missing.difference_update(phrase for phrase, _ in found)
        if len(found) > most:
            best, most = TextMatch(place, text, sorted(span for _, spans in found for span in spans)), len(found)
    return None if missing else best


def snippet(found: TextMatch) -> tuple[str, tuple[Span, ...]]:
    """A piece of the text around the first words found, on one line, and where they stand in it."""
    first = found.spans[0][0] if found.spans else 0
    start = 0 if first <= BEFORE else _word_start(found.text, first - BEFORE, first)
    end = _word_end(found.text, start, found.spans)
    pieces: list[str] = ["…"] if start else []
    marks: list[Span] = []
    at, length = start, len(pieces)
    for low, high in _separate_spans(found.spans, end):
        before, word = one_line(found.text[at:low]), one_line(found.text[low:high])
        pieces += (before, word)
        marks.append((length + len(before), length + len(before) + len(word)))
        at, length = high, length + len(before) + len(word)
    pieces += (one_line(found.text[at:end]), "…" if end < len(found.text) else "")
    return "".join(pieces), tuple(marks)


def one_line(text: str) -> str:
    """Line breaks and runs of blanks become a space each."""
    made = " ".join(text.split())
    lead = " " if text[:1].isspace() and made else ""
    return lead + made + (" " if text[-1:].isspace() else "")


def _separate_spans(spans: Sequence[Span], end: int) -> Iterable[Span]:
    """Those that end in time, without any that begins inside another."""
    last = -1
    for low, high in spans:
        if low >= last and high <= end:
            yield low, high
            last = high


def _word_start(text: str, start: int, first: int) -> int:
    """Where a word begins, between here and the first one found."""
    for place in range(start - 1, min(start + LONGEST_WORD_CHARS, first)):
        if text[place].isspace():
            return place + 1
    return start


def _word_end(text: str, start: int, spans: Sequence[Span]) -> int:
    """Where a word ends, so many letters behind the start at most and behind the first words found; anywhere in a text
    without blanks."""
    end = start + LONG
    if end >= len(text):
        return len(text)
    least = max(start + LONG - LONGEST_WORD_CHARS, spans[0][1] if spans else 0)
    for place in range(end, least - 1, -1):
        if text[place].isspace():
            while place > least and text[place - 1].isspace():
                place -= 1
            return place
    return end


def to_hits(txn: ReadTxn, matches: Sequence[SearchMatch]) -> list[Hit]:
    """What people get to see of them; a few statements for many."""
    turns = [match.entry.turn for match in matches]
    made_by = {turn.session for turn in turns if turn.session is not None}
    sessions = {n: _SessionNames(*names) for n, *names in rows_in(txn.sql, _SESSIONS, made_by)}
    heads: dict[str, list[str]] = {}
    access = access_of(txn)
    for head, label, n in rows_in(txn.sql, _HEADS, {turn.segment for turn in turns}):
        if access.is_unlimited or access.session_of_number(n) is not None:
            heads.setdefault(head, []).append(label)
    if not access.is_unlimited:
        sessions = {n: names for n, names in sessions.items() if access.session_of_number(n) is not None}
    txn.facts.hold(names.title for names in sessions.values() if names.title is not None)
    changed = substitutions_in(txn, (turn.n for turn in turns))
    return [
        _to_hit(txn, match, sessions.get(match.entry.turn.session, _NO_SESSION), heads, changed) for match in matches
    ]


class _SessionNames(NamedTuple):
    """What a hit tells of the session that made its turn; the title is the number of a content."""

    label: str | None
    title: int | None
    status: str | None


_NO_SESSION = _SessionNames(None, None, None)
_SESSIONS = "SELECT n, label, title, status FROM session WHERE n IN"
_HEADS = "SELECT head, label, n FROM session WHERE status = 'active' AND head IS NOT NULL AND head_segment IN"


def _to_hit(
    txn: ReadTxn, match: SearchMatch, session: _SessionNames, heads: dict[str, list[str]], changed: Substitutions
) -> Hit:
    entry = match.entry
    turn, call = entry.turn, entry.call
    text, marks = snippet(match.found)
    native = known_text(txn.facts, call.call_id) if call else ""
    at = call.started_at if call else entry.at
    return Hit(
        message_id=entry.message,
        tool_call_id=f"{turn.id}:{repeated_id(native, call.repeated)}" if call else None,
        tool=known_name(txn.facts, call.tool) if call else None,
        turn_id=turn.id,
        role=entry.role,
        created_at=at,
        time_known=is_time_known(turn, at),
        session=session.label,
        session_title=text_of(txn, session.title),
        session_status=session.status,
        heads=tuple(sorted(heads.get(turn.id, ()))),
        model=known_name(txn.facts, entry.model) or None,
        origin=turn.origin or HERE,
        place=match.found.place.value,
        snippet=text,
        marks=marks,
        substituted=_substitution_of(changed, entry, match.found.place) if changed else UNSET,
    )


def _substitution_of(changed: Substitutions, entry: SearchEntry, place: EntryPlace) -> AppliedSubstitution | UnsetType:
    if entry.call is None:
        return changed.note_of(entry.turn.n, MESSAGE, entry.seq)
    is_result = place in (EntryPlace.RESULT, EntryPlace.ERROR)
    return changed.note_of(entry.turn.n, CALL, entry.call.seq) if is_result else UNSET


# --- Finding: the index narrows a query down to passages, their texts decide, and the newest come first.

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


class CandidatePassage(Struct, frozen=True, order=True):
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


class SearchFinder:
    """One search in one snapshot."""

    def __init__(
        self,
        txn: ReadTxn,
        index: WordIndex,
        query: SearchQuery,
        filters: MatchFilters,
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

    def newest(self) -> Iterator[tuple[Position, SearchMatch]]:
        """Every match behind the given position, the newest first and those without a time last, each with its own. No
        entry is newer than its passage is, so what comes before all that the next passage may hold can be told.

        A position is that of the entry, and that of the newest passage that may hold more: the next page looks through
        no passage before it.
        """
        waiting: list[tuple[tuple[int, ...], Position, SearchMatch]] = []
        unread: Counter[Position] = Counter()
        for candidate, matches in self._looked_through(merge(self._rest, self._indexed(), reverse=True)):
            while waiting and waiting[0][0] < tuple(-part for part in candidate.newest):
                yield _newest_match(waiting, unread, candidate.place)
            for match in matches:
                heappush(waiting, (tuple(-part for part in match.entry.order), candidate.place, match))
                unread[candidate.place] += 1
        while waiting:
            yield _newest_match(waiting, unread, _LAST)

    def best(self) -> Iterator[SearchMatch]:
        """In the order of the engine's own ranking. What it has not indexed yet comes first, and all else that fits
        comes behind so many of the best, the newest first."""
        numbers = self._index.ranked(self.question, RANKED) if self.question else []
        rows = {row[4]: CandidatePassage(*row) for row in rows_in(self._txn.sql, f"{_ROWS} p.n IN", numbers)}
        ranked = (rows[n] for n in numbers if n in rows and self._is_wanted(rows[n]))
        others = (candidate for candidate in self._indexed() if candidate.n not in rows)
        for _, matches in self._looked_through(chain(self._rest, ranked, others)):
            yield from matches

    def _indexed(self) -> Iterator[CandidatePassage]:
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

    def _by_time(self, start: Position) -> Iterator[CandidatePassage]:
        """Passages that the index gives behind a place, by what stands for their times, the newest first."""
        until = self._filters.until
        before: Key = _NEWEST if until is None else ((until // DAY + 1) * DAY, 0, 0, 0)
        if start:
            _, at, turn, first = start
            before = min(before, (at, turn, first, MAX_INTEGER))
        whole = tuple(group for group in self.question if not any(term.prefix for term in group))
        if whole != self.question:
            rows = self._rows_before(before, PROBED)
            yield from filter(self._is_wanted, self._matching_rows(whole, rows))
            if len(rows) < PROBED:
                return
            before = rows[-1][1:5]
        if self.question and len(self._few_matching) <= FEW:
            found = (CandidatePassage(*row) for row in rows_in(self._txn.sql, f"{_ROWS} p.n IN", self._few_matching))
            older = (each for each in found if each.key < before)
            yield from sorted(filter(self._is_wanted, older), reverse=True)
        else:
            yield from filter(self._is_wanted, self._walk_back(before))

    @cached_property
    def _few_matching(self) -> list[int]:
        """The passages that fit, or some of them and one more than are few."""
        return self._index.match(self.question, FEW + 1) if self.question else []

    def _walk_back(self, before: Key) -> Iterator[CandidatePassage]:
        """One stretch of time after another."""
        step = STEP
        while rows := self._rows_before(before, step):
            yield from self._matching_rows(self.question, rows)
            refuse_standstill("passage", before, rows[-1][1:5])
            before, step = rows[-1][1:5], min(2 * step, MOST)

    def _rows_before(self, place: Key, limit: int) -> list[Row]:
        """So many passages before a place in the order of time."""
        since = -MAX_INTEGER if self._filters.since is None else self._filters.since
        newer = "ORDER BY p.at DESC, p.turn DESC, p.first DESC, p.n DESC"
        query = f"{_ROWS} (p.at, p.turn, p.first, p.n) < (?, ?, ?, ?) AND p.at >= ? {newer} LIMIT ?"
        return self._txn.sql.fetch_rows(query, (*place, since, limit))

    def _matching_rows(self, question: Question, rows: list[Row]) -> Iterator[CandidatePassage]:
        """Those of a stretch of time that the index knows to fit."""
        if not question or not rows:
            yield from (CandidatePassage(*row) for row in rows)
            return
        numbers = [row[4] for row in rows]
        narrow = (*question, *day_words(rows[-1][1], rows[0][1]))
        fitting = set(self._index.match(narrow, MAX_INTEGER, min(numbers), max(numbers)))
        yield from (CandidatePassage(*row) for row in rows if row[4] in fitting)

    def _is_wanted(self, candidate: CandidatePassage) -> bool:
        since = self._filters.since
        is_fresh = candidate.turn not in self._stale and (since is None or candidate.at >= since)
        return is_fresh and self._may_read(candidate)

    def _may_read(self, candidate: CandidatePassage) -> bool:
        """Passages that cannot be read are passed over before anything is told of them, a place included."""
        if self._access.is_unlimited:
            return True
        row = load_turn_number(self._txn.sql, candidate.turn)
        if row is None or not self._access.may_read_turn(row):
            return False
        return self._access.may_read_message(candidate.turn, candidate.first)

    def _not_indexed(self) -> tuple[list[CandidatePassage], set[int]]:
        """Passages of turns that the index has not caught up with, the newest first; and those turns."""
        touched_turns = load_turns(self._txn, touched(self._txn.facts, self._txn.facts.watermark(VIEW)).turns)
        turns = [turn for turn in touched_turns if self._access.may_read_turn(turn)]
        made = [
            CandidatePassage(has_time(turn.synthesised), passage.at, turn.n, passage.first, UNINDEXED, passage.last)
            for turn, passages in passages_of(self._txn, turns)
            for passage in passages
            if fits_words(self.question, passage.words) and self._access.may_read_message(turn.n, passage.first)
        ]
        rest = [candidate for candidate in made if not self._start or candidate.place <= self._start]
        return sorted(rest, reverse=True), {turn.n for turn in turns}

    def _looked_through(
        self, candidates: Iterable[CandidatePassage]
    ) -> Iterator[tuple[CandidatePassage, list[SearchMatch]]]:
        """Each candidate with what really is in it; some are read together."""
        rest = iter(candidates)
        size = 4
        while some := list(islice(rest, size)):
            rows = rows_in(self._txn.sql, f"{TURN.select} WHERE n IN", (each.turn for each in some))
            turns = [TurnRow(*row) for row in rows]
            entries = load_entries(self._txn, turns)
            within = [self._entries_of(each, entries.get(each.turn, [])) for each in some]
            hold_texts(self._txn.facts, (entry for found in within for entry in found))
            for candidate, found in zip(some, within, strict=True):
                yield candidate, [match for entry in found if (match := self._match_entry(entry)) is not None]
            size = TOGETHER

    def _entries_of(self, candidate: CandidatePassage, entries: list[SearchEntry]) -> list[SearchEntry]:
        """The entries of a passage. What belongs to no message is looked at once, whichever passage it is found in."""
        found = [entry for entry in entries if candidate.first <= entry.seq <= candidate.last]
        fresh = [entry for entry in found if entry.order not in self._loose and self._is_behind(entry)]
        self._loose.update(entry.order for entry in fresh if entry.seq == LOOSE)
        return fresh

    def _is_behind(self, entry: SearchEntry) -> bool:
        return not self._after or entry.order < self._after

    def _match_entry(self, entry: SearchEntry) -> SearchMatch | None:
        if not self._sieve.fits(entry):
            return None
        found = look_through(self._query, entry.texts(self._txn.facts))
        if found is None and not self._query.phrases:
            found = TextMatch(EntryPlace.TEXT, "", [])
        return None if found is None else SearchMatch(entry, found)


def _newest_match(
    waiting: list[tuple[tuple[int, ...], Position, SearchMatch]], unread: Counter[Position], candidate: Position
) -> tuple[Position, SearchMatch]:
    """The newest of the matches that wait, with its position; `candidate` is the place of the next passage."""
    _, place, match = heappop(waiting)
    unread[place] -= 1
    if not unread[place]:
        del unread[place]
    return (*match.entry.order, *max((candidate, *unread))), match


# --- Sessions by their names: those whose title or project holds what is looked for, each as a hit.

OF_ENTRIES = ("session", "role", "tool", "path", "model")
"""Filters that speak of messages and calls: no session is found by its name where one is given."""
ROLE = "session"


def named_sessions(txn: ReadTxn, query: SearchQuery, filters: MatchFilters, projects: Projects) -> list[Hit]:
    """Sessions with a turn whose title and project together hold the whole query: by title first, the latest first."""
    if not query.phrases or any(getattr(filters, name) is not None for name in OF_ENTRIES):
        return []
    rows = [row for row in _latest_sessions(txn) if row.head is not None and _session_fits(row, filters)]
    if filters.project is not None:
        rows = of_project(txn, rows, filters.project, projects)
    txn.facts.hold(row.title for row in rows if row.title is not None)
    folders = zip(rows, session_folders(txn, rows), strict=True)
    matches = [
        (row, match)
        for row, folder in folders
        if (match := _session_match(txn, row, query, projects.name(folder))) is not None
    ]
    matches.sort(key=lambda pair: pair[1].place is not EntryPlace.TITLE)
    return [_session_hit(txn, row, match) for row, match in matches]


def _latest_sessions(txn: ReadTxn) -> Iterable[SessionRow]:
    rows = (SessionRow(*row) for row in txn.sql.fetch_rows(f"{SESSION.select} ORDER BY updated_at DESC, n DESC"))
    return filter(access_of(txn).may_read, rows)


def _session_fits(row: SessionRow, filters: MatchFilters) -> bool:
    """What has no time fits none."""
    return (
        (filters.origin is None or (row.origin or HERE).casefold() == filters.origin.casefold())
        and ((filters.since is None and filters.until is None) or row.updated_at != UNDATED)
        and (filters.since is None or row.updated_at >= filters.since)
        and (filters.until is None or row.updated_at <= filters.until)
    )


def _session_match(txn: ReadTxn, row: SessionRow, query: SearchQuery, project: str) -> TextMatch | None:
    title = text_of(txn, row.title) or ""
    return look_through(query, ((EntryPlace.TITLE, title), (EntryPlace.PROJECT, project)))


def _session_hit(txn: ReadTxn, row: SessionRow, match: TextMatch) -> Hit:
    text, marks = snippet(match)
    return Hit(
        message_id=None,
        tool_call_id=None,
        tool=None,
        turn_id=row.head or "",
        role=ROLE,
        created_at=row.updated_at,
        time_known=row.updated_at != UNDATED,
        session=row.label,
        session_title=text_of(txn, row.title),
        session_status=row.status,
        heads=(row.label,) if row.status == "active" else (),
        model=None,
        origin=row.origin or HERE,
        place=match.place.value,
        snippet=text,
        marks=marks,
    )
