"""Turns for reading: newest first and as lazily as they are looked at, with the sessions that stand at each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import UNSET

from weft.surfaces.plain_text import cut, safe
from weft.surfaces.wire.sessions import ListedTurn

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.model import Session, Turn

PAGE = 64
LARGE_PAGE = 512
SHORT_ID = 8
FIRST_LOOK = 32
TITLE_COLUMNS = 48


def short(turn_id: str) -> str:
    """The end of an id: long enough to be unique, short enough to type."""
    return turn_id[-SHORT_ID:]


def turn_pages(
    ledger: Ledger, *, thread: str | None = None, session: str | None = None, after: str | None = None
) -> Iterator[Turn]:
    """Turns as `Ledger.log` has them, all of them, in growing pages."""
    size = PAGE
    while True:
        page = ledger.log(size, after=after, thread=thread, session=session)
        yield from page
        if page.next is None:
            return
        after, size = page.next, LARGE_PAGE


class Reader:
    """What stands beside a turn when people look at it: the sessions whose head it is, and what it is about."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._heads: dict[str, list[Session]] = {}
        self._subjects: dict[str, str] = {}
        self._on_behalf_of: dict[str, tuple[str, ...]] = {}
        self._known = {session.id: session for session in ledger.sessions(every=True)}
        for session in sorted(self._known.values(), key=lambda session: session.label):
            if session.head is not None and session.status == "active":
                self._heads.setdefault(session.head, []).append(session)
        self._elsewhere: dict[str, list[str]] = {}
        for branch in ledger.merges.branches():
            if branch.head is not None:
                self._elsewhere.setdefault(branch.head, []).append(branch.name)

    @cached_property
    def short_labels(self) -> dict[str, str]:
        """What to type for each session."""
        return self._ledger.listing().short_labels()

    def ahead(self, turns: Iterable[Turn]) -> Iterator[Turn]:
        """The same turns; what they are about is read for many of them at a time."""
        rest, page = iter(turns), FIRST_LOOK
        while some := list(islice(rest, page)):
            listing, ids = self._ledger.listing(), [turn.id for turn in some]
            self._subjects, self._on_behalf_of = listing.subjects(ids), listing.on_behalf_of(ids)
            yield from some
            page = 2 * PAGE

    def on_behalf_of(self, turn: Turn) -> tuple[str, ...]:
        """The names of those on whose behalf it was run, of turns that were read ahead."""
        return self._on_behalf_of.get(turn.id, ())

    def session(self, session_id: str | None) -> Session | None:
        return None if session_id is None else self._known.get(session_id)

    def active_session(self, label: str | None) -> Session | None:
        named = (session for session in self._known.values() if session.label == label)
        return next((session for session in named if session.status == "active"), None)

    def short_label(self, session: Session) -> str:
        """What to type for it: of an id that another tool made only the beginning."""
        return self.short_labels.get(session.label, session.label)

    def heads(self, turn_id: str) -> list[str]:
        """The labels of the sessions that stand here."""
        return [session.label for session in self._heads.get(turn_id, ())] + self._elsewhere.get(turn_id, [])

    def places(self, turn_id: str) -> list[str]:
        """The same for people, who want to know if a session stands in the middle of the turn."""
        return [self._place(session) for session in self._heads.get(turn_id, ())] + self._elsewhere.get(turn_id, [])

    def _place(self, session: Session) -> str:
        where = "" if session.head_event is None else f" at event {session.head_event}"
        return f"{self.short_label(session)}{quoted_title(session.title)}{where}"

    def listed(self, turn: Turn) -> ListedTurn:
        """A turn as lists answer it in JSON."""
        principals = self.on_behalf_of(turn)
        heads = self.heads(turn.id)
        return ListedTurn(turn=turn, subject=self.subject(turn), heads=heads, on_behalf_of=principals or UNSET)

    def subject(self, turn: Turn) -> str:
        words = self._subjects.get(turn.id)
        return subject_of(self._ledger, turn) if words is None else words

    @cached_property
    def _sources(self) -> dict[str, list[tuple[str, str]]]:
        return self._ledger.listing().sources()

    def sources(self, turn: Turn) -> list[str]:
        """What a turn was picked or summed up from, in words."""
        turns = self._sources.get(turn.id, [])
        return [f"{'turn' if why == 'cherry_pick' else 'the branch to'} {short(source)}" for why, source in turns]


def quoted_title(title: str | None) -> str:
    """A title as it stands behind a label: in quotation marks after a blank. Empty where it says nothing."""
    from weft.ledger.read.session_list import meaningful_title

    shown_title = meaningful_title(title)
    return f' "{cut(safe(" ".join(shown_title.split())), TITLE_COLUMNS)}"' if shown_title else ""


def is_foreign(session: Session) -> bool:
    """Another tool made it, and its label."""
    return session.origin != "weft"


def subject_of(ledger: Ledger, turn: Turn) -> str:
    """What was asked, or a compaction's summary, in one line."""
    return ledger.listing().subjects([turn.id]).get(turn.id, "")


def find_session(ledger: Ledger, name: str) -> Session:
    """As `Ledger.session`, and if nothing has that name any more, the latest deleted session that had it."""
    from weft.kernel.errors import NotFound

    try:
        return ledger.session(name)
    except NotFound:
        sessions = ledger.sessions(every=True)
        gone = [session for session in sessions if session.label == name] or _beginning(sessions, name)
        if not gone:
            raise
        return gone[0]


def _beginning(sessions: list[Session], name: str) -> list[Session]:
    """The deleted sessions of the one label that begins so."""
    from weft.ledger.read.sessions import SHORTEST, fitting

    labels = fitting({session.label for session in sessions}, name) if len(name) >= SHORTEST else []
    return [session for session in sessions if labels == [session.label]]
