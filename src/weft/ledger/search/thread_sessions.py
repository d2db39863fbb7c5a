"""Which session goes on from a turn: the one that made it, or another that stands on the same stretch of turns.

A message can be routed to a turn whose session takes messages: it is active, not completed, and no subagent's.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.ledger.read.access import access_of
from weft.ledger.read.listing import is_subagent
from weft.ledger.read.threads import Range, ranges_to
from weft.ledger.views.rows import SESSION, SessionRow, TurnRow
from weft.store.port import ReadTxn
from weft.store.sql import rows_in


class ThreadSessions:
    """Sessions of some turns in one snapshot, as whoever reads may know them."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn, self._access = txn, access_of(txn)
        self._makers: dict[int, SessionRow | None] = {}
        self._standing: dict[int, list[SessionRow]] = {}
        self._threads: dict[int, list[Range]] = {}

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

    def _thread(self, session: SessionRow) -> list[Range]:
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
