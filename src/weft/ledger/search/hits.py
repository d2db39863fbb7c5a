"""Hits: what a search answers, and the piece of text that shows why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType

from weft.ledger.model import AppliedSubstitution, repeated_id
from weft.ledger.read.access import access_of
from weft.ledger.read.listing import HERE
from weft.ledger.read.substitutions import Substitutions, substitutions_in
from weft.ledger.search.entries import Entry, EntryPlace, is_time_known, known_name, known_text
from weft.ledger.search.query import Query, Span, Text
from weft.ledger.views.substitutions import CALL, MESSAGE
from weft.ledger.views.values import text_of
from weft.store.port import ReadTxn
from weft.store.sql import rows_in

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


class Match(Struct, frozen=True):
    """An entry, and where in it the words stand."""

    entry: Entry
    found: TextMatch


def look_through(query: Query, texts: Iterable[tuple[EntryPlace, str]]) -> TextMatch | None:
    """The text that holds most of the query, if all the texts together hold all of it."""
    missing, best, most = set(query.phrases), None, -1
    for place, text in texts:
        looked = Text(text)
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
    for low, high in _apart(found.spans, end):
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


def _apart(spans: Sequence[Span], end: int) -> Iterable[Span]:
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


def to_hits(txn: ReadTxn, matches: Sequence[Match]) -> list[Hit]:
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
    txn: ReadTxn, match: Match, session: _SessionNames, heads: dict[str, list[str]], changed: Substitutions
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
        substituted=_substituted(changed, entry, match.found.place) if changed else UNSET,
    )


def _substituted(changed: Substitutions, entry: Entry, place: EntryPlace) -> AppliedSubstitution | UnsetType:
    if entry.call is None:
        return changed.note_of(entry.turn.n, MESSAGE, entry.seq)
    is_result = place in (EntryPlace.RESULT, EntryPlace.ERROR)
    return changed.note_of(entry.turn.n, CALL, entry.call.seq) if is_result else UNSET
