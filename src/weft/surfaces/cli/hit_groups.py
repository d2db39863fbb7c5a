"""Hits of a search as a terminal shows them: under their sessions, each with its title, project and date."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from weft.kernel.typed_names import shell_line
from weft.ledger.api import ListedSession, SessionFilter
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import NO_DATE, local_time
from weft.surfaces.plain_text import cut_at_word, safe, width

if TYPE_CHECKING:
    from weft.ledger.api import Hit, Ledger

OF_A_SESSION = 3
"""So many hits of one session are shown."""
DAY = len("2026-11-15")
INDENT = "  "
ROLE_STYLES = {"user": "user", "assistant": "assistant", "session": "label"}
PLACES = {"title": "its title", "project": "its project", "text": "", "tool": "name"}
"""Where words stand, in words; other places have their own names."""
_TOKENS = re.compile(r"\s+|\S+")


class HitGroups:
    """At most so many hits, the best first, a few of each session; before them sessions that are named so."""

    def __init__(self, named: Sequence[Hit], hits: Sequence[Hit], most: int) -> None:
        self._by_session: dict[str | None, list[Hit]] = {hit.session: [] for hit in named}
        self._names = {hit.session: hit for hit in named}
        self.shown: list[Hit] = []
        self._has_more: set[str | None] = set()
        for hit in hits:
            of_session = self._by_session.get(hit.session, [])
            if len(of_session) >= OF_A_SESSION:
                self._has_more.add(hit.session)
            elif len(self.shown) < most:
                self._by_session.setdefault(hit.session, of_session).append(hit)
                self.shown.append(hit)

    def lines(self, ledger: Ledger, columns: int, words: Sequence[str]) -> Iterator[Line]:
        labels = tuple(label for label in self._by_session if label is not None)
        wanted = SessionFilter(labels=labels, every=True, subagents=True)
        sessions = {listed.session.label: listed for listed in ledger.listing().sessions(wanted).sessions}
        for number, (label, hits) in enumerate(self._by_session.items()):
            if number:
                yield []
            listed = sessions.get(label or "")
            yield from self._heading(label, listed, hits, columns)
            for hit in hits:
                yield from _hit_lines(hit, columns)
            if label in self._has_more:
                session = listed.short_label if listed else label or ""
                command = shell_line(("weft", "search", *words, "--session", session))
                yield [INDENT, Span(f"… more in this session: {command}", "dim")]

    def _heading(
        self, label: str | None, listed: ListedSession | None, hits: Sequence[Hit], columns: int
    ) -> Iterator[Line]:
        """The title of a session, and below it what to type for it, its origin, project and date."""
        if listed is None:
            yield [Span(label or "no session", "heading")]
            return
        session, name = listed.session, self._names.get(label)
        title = " ".join((listed.title or "(no title)").split())
        if name is not None and name.place == "title":
            yield list(_bold(marked(name.snippet, name.marks)))
        else:
            yield [Span(cut_at_word(safe(title), columns), "heading")]
        dated = [hit.created_at for hit in hits if hit.time_known] or [session.updated_at]
        is_dated = any(hit.time_known for hit in hits) if hits else session.time_known
        when = local_time(max(dated))[:DAY] if is_dated else NO_DATE
        state = "" if session.status == "active" else session.status
        facts = [fact for fact in (session.origin, listed.project, when, state) if fact]
        yield [Span(listed.short_label, "label"), Span(f", {', '.join(safe(fact) for fact in facts)}", "dim")]


def _bold(spans: Iterable[Span | str]) -> Iterator[Span]:
    for span in spans:
        yield Span(span, "heading") if isinstance(span, str) else span


def _hit_lines(hit: Hit, columns: int) -> Iterator[Line]:
    """Where the words stand, and the text around them, broken at words below its beginning."""
    place = place_words(hit)
    lead: Line = [INDENT, Span(short(hit.turn_id), "id"), " ", Span(hit.role, ROLE_STYLES.get(hit.role, "tool"))]
    yield [*lead, Span(f" {safe(place)}" if place else "", "dim"), *hit_mark(hit)]
    for line in wrapped_spans(marked(hit.snippet, hit.marks), max(20, columns - 2 * len(INDENT))):
        yield [INDENT * 2, *line]


def hit_mark(hit: Hit) -> Line:
    """Beside words that were put in the place of others."""
    return [] if hit.substituted is UNSET else [Span(" substituted", "warn")]


def place_words(hit: Hit) -> str:
    """Where the words of a hit stand; empty where that is a message's text."""
    place = PLACES.get(hit.place, hit.place)
    return place if hit.tool is None else f"{place} of {hit.tool}"


def marked(text: str, marks: Sequence[tuple[int, int]]) -> Iterator[Span | str]:
    """The text in pieces, with what was found standing out."""
    at = 0
    for low, high in marks:
        yield text[at:low]
        yield Span(text[low:high], "match")
        at = high
    yield text[at:]


def wrapped_spans(spans: Iterable[Span | str], columns: int) -> Iterator[list[Span]]:
    """Spans in lines of at most so many columns, broken at blanks; a longer word has a line of its own."""
    line: list[Span] = []
    word: list[Span] = []
    used = word_width = 0
    for span in spans:
        text, style = (span, "") if isinstance(span, str) else span
        for token in _TOKENS.findall(safe(text)):
            if not token.isspace():
                word.append(Span(token, style))
                word_width += width(token)
                continue
            line, used, full = _joined(line, used, word, word_width, columns)
            if full:
                yield full
            word, word_width = [], 0
            if line:
                line, used = [*line, Span(" ")], used + 1
    line, _, full = _joined(line, used, word, word_width, columns)
    if full:
        yield full
    if line:
        yield line[:-1] if line[-1].text.isspace() else line


def _joined(
    line: list[Span], used: int, word: list[Span], word_width: int, columns: int
) -> tuple[list[Span], int, list[Span]]:
    """The line with a word behind it; where that is too wide, a line of the word alone, and the one that is full."""
    if not line or used + word_width <= columns:
        return [*line, *word], used + word_width, []
    return list(word), word_width, line[:-1]
