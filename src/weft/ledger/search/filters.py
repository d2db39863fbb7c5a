"""Filters of a search: each narrows the question to the index by words about passages, and then judges every entry.

Names (of tools, models and files) fit where the given words stand in them in this order: `--tool github` fits
`mcp__github__create_issue`, `--path ledger/search` fits `src/weft/ledger/search/query.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from msgspec import Struct

from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted
from weft.kernel.words import index_words, tokens
from weft.ledger.arguments import checked_number, checked_text
from weft.ledger.read.listing import HERE
from weft.ledger.read.projects import Projects, project_of
from weft.ledger.read.revisions import require
from weft.ledger.read.threads import ranges_to
from weft.ledger.search.entries import Entry, EntryPlace, known_name, known_text
from weft.ledger.search.passages import DAY, day_word
from weft.ledger.search.query import Phrase, Text
from weft.ledger.views.rows import SessionRow, TurnRow
from weft.store.port import ReadTxn
from weft.store.sql import rows_in
from weft.store.word_index import Question, Term

DAYS_SPELLED = 62


class SearchFilters(TypedDict, total=False):
    """The filters of `search` and `find_messages` as keyword arguments. Times are Unix milliseconds, or words such as
    'yesterday'; a day means all of it."""

    session: str | None
    role: str | None
    tool: str | None
    path: str | None
    since: int | str | None
    until: int | str | None
    model: str | None
    project: str | None
    origin: str | None


class Filters(Struct, frozen=True, kw_only=True):
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


Judge = Callable[[Entry], bool]


class SearchFilter:
    """The filters of one search, ready to be asked."""

    def __init__(self, txn: ReadTxn, filters: Filters, projects: Projects) -> None:
        self._txn, self._filters, self._projects = txn, filters, projects
        self.question: Question = ()
        self._judges: list[Judge] = []
        for name in filters.__struct_fields__:
            value = getattr(filters, name)
            if value is not None and name not in ("since", "until"):
                getattr(self, f"_by_{name}")(value)
        self._by_time(filters.since, filters.until)

    def fits(self, entry: Entry) -> bool:
        return all(judge(entry) for judge in self._judges)

    def _need(self, letter: str, words: set[str]) -> None:
        self.question += tuple((Term(f"{letter}{word}"),) for word in sorted(words))

    def _by_role(self, role: str) -> None:
        self._need(":r", {role})
        self._judges.append(lambda entry: entry.role == role)

    def _by_origin(self, origin: str) -> None:
        wanted = origin.casefold()
        self._need(":o", index_words(origin))
        self._judges.append(lambda entry: (entry.turn.origin or HERE).casefold() == wanted)

    def _by_tool(self, tool: str) -> None:
        phrase = name_phrase(tool, "tool")
        self._need(":c", index_words(tool))
        facts = self._txn.facts
        self._judges.append(lambda entry: entry.call is not None and holds(phrase, known_name(facts, entry.call.tool)))

    def _by_model(self, model: str) -> None:
        phrase = name_phrase(model, "model")
        self._need(":m", index_words(model))
        self._judges.append(lambda entry: holds(phrase, known_name(self._txn.facts, entry.model)))

    def _by_project(self, project: str) -> None:
        """The index knows folders by their last parts: one word of each folder of the project is looked for."""
        folders = [project, *(folder for folder in self._projects.folders if self._projects.is_in(folder, project))]
        words = {max(index_words(project_of(folder)), key=len, default="") for folder in folders}
        if all(words):
            self.question += (tuple(Term(f":p{word}") for word in sorted(words)),)
        facts = self._txn.facts
        self._judges.append(lambda entry: self._projects.is_in(known_text(facts, entry.turn.workspace), project))

    def _by_path(self, path: str) -> None:
        phrase = name_phrase(path, "path")
        self._need("", index_words(path))

        def judge(entry: Entry) -> bool:
            if entry.call is not None:
                texts = entry.texts(self._txn.facts)
                return any(place is EntryPlace.ARGUMENTS and holds(phrase, text) for place, text in texts)
            rows = self._txn.sql.all("SELECT path FROM message_file WHERE message = ?", (entry.message,))
            return any(holds(phrase, known_text(self._txn.facts, n)) for (n,) in rows)

        self._judges.append(judge)

    def _by_session(self, name: str) -> None:
        """What the session made, and what it goes on from: its thread."""
        session = require(self._txn, name)
        reach = _reach(self._txn, session)
        roots = rows_in(self._txn.sql, "SELECT DISTINCT root FROM segment WHERE n IN", reach)
        trees = tuple(Term(f":t{root}") for root in sorted({root for (root,) in roots}))
        self.question += ((Term(f":s{session.n}"), *trees),)

        def judge(entry: Entry) -> bool:
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


def _reach(txn: ReadTxn, session: SessionRow) -> dict[int, int]:
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
    return (tuple(Term(day_word(day)) for day in range(first, last + 1)),)


def name_phrase(name: str, what: str) -> Phrase:
    found = tuple(tokens(name))
    if not found:
        raise InvalidInput(f"{what} is {quoted(name)}", "give at least one word of its name")
    return Phrase(found)


def holds(phrase: Phrase, text: str) -> bool:
    return bool(Text(text).spans(phrase))


def as_filters(given: SearchFilters, period: Mapping[str, int]) -> Filters:
    """From keyword arguments, with the first and the last moment that their times mean."""
    for name in given.keys() - set(Filters.__struct_fields__):
        raise InvalidInput(f"search knows no filter {quoted(name)}", f"it knows {', '.join(Filters.__struct_fields__)}")
    values: dict[str, Any] = dict(given)
    return Filters(**{**values, **period})
