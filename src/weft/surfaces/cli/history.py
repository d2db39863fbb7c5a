"""Turns for reading: newest first and as lazily as they are looked at, with the sessions that stand at each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from weft.surfaces.cli.plain_text import first_line

if TYPE_CHECKING:
    from weft.ledger.ledger import Ledger
    from weft.ledger.model import Session, Turn

PAGE = 64
GROWTH = 8
THREAD_PAGE = 512
SHORT_ID = 8


def short(turn_id: str) -> str:
    """The end of an id: long enough to be unique, short enough to type."""
    return turn_id[-SHORT_ID:]


def all_turns(ledger: Ledger) -> Iterator[Turn]:
    """Every turn, newest first, in growing pages. Turns that arrive meanwhile are left for the next reading."""
    page, last = PAGE, None
    while True:
        turns = ledger.log(page)
        seen = next((i + 1 for i, turn in enumerate(turns) if turn.id == last), 0)
        yield from turns[seen:]
        if len(turns) < page:
            return
        page, last = page * GROWTH, turns[-1].id


def thread_turns(ledger: Ledger, rev: str) -> Iterator[Turn]:
    """A turn, then its parent, and so on to the root."""
    tip, page = ledger.turn(rev), PAGE
    while tip.depth > page:
        part = ledger.diff(f"{tip.id}~{page}", tip.id).right
        yield from reversed(part)
        tip, page = ledger.turn(str(part[0].parent_id)), THREAD_PAGE
    yield from reversed(list(ledger.thread(tip.id).turns))


def chosen_turns(ledger: Ledger, rev: str | None, session: str | None, limit: int | None) -> Iterator[Turn]:
    """The turns that `weft log` was asked for."""
    if rev is None and session is None and limit is not None:
        return iter(ledger.log(limit))
    turns = all_turns(ledger) if rev is None else thread_turns(ledger, rev)
    if session is not None:
        made_by = ledger.session(session).id
        turns = (turn for turn in turns if turn.session_id == made_by)
    return islice(turns, limit)


class Reader:
    """What stands beside a turn when people look at it: the sessions whose head it is, and what it is about."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._subjects: dict[str, str] = {}
        self._heads: dict[str, list[Session]] = {}
        for session in sorted(ledger.sessions(), key=lambda session: session.label):
            if session.head is not None:
                self._heads.setdefault(session.head, []).append(session)

    def heads(self, turn_id: str) -> list[str]:
        """The labels of the sessions that stand here."""
        return [session.label for session in self._heads.get(turn_id, ())]

    def places(self, turn_id: str) -> list[str]:
        """The same for people, who want to know if a session stands in the middle of the turn."""
        return [_place(session) for session in self._heads.get(turn_id, ())]

    def ahead(self, turns: Iterable[Turn]) -> Iterator[Turn]:
        """The same turns, with their subjects read a page at a time before they are asked for."""
        coming, page = iter(turns), PAGE
        while some := list(islice(coming, page)):
            said = self._ledger.subjects(turn.id for turn in some)
            self._subjects |= {turn.id: first_line(said.get(turn.id, "")) for turn in some}
            yield from some
            page = THREAD_PAGE

    def subject(self, turn: Turn) -> str:
        """The first line of what was asked, or of a compaction's summary."""
        known = self._subjects.pop(turn.id, None)
        return first_line(self._ledger.subjects([turn.id]).get(turn.id, "")) if known is None else known


def _place(session: Session) -> str:
    return session.label if session.head_event is None else f"{session.label} at event {session.head_event}"


def find_session(ledger: Ledger, name: str) -> Session:
    """As `Ledger.session`, and if nothing has that name any more, the latest deleted session that had it."""
    from weft.kernel.errors import NotFound

    try:
        return ledger.session(name)
    except NotFound:
        gone = [session for session in ledger.sessions(every=True) if session.label == name]
        if not gone:
            raise
        return gone[0]
