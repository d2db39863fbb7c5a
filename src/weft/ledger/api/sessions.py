"""Sessions: labels on heads that move, and everything that moves them."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET, UnsetType

from weft.kernel.enums import MoveReason, SessionStatus
from weft.kernel.facts import is_digest
from weft.ledger.api.base import LedgerBase
from weft.ledger.api.labels import move
from weft.ledger.arguments import checked_count, checked_flag
from weft.ledger.model import DEFAULT_AGENT, HeadMove, Session
from weft.ledger.read.access import access_of
from weft.ledger.read.listing import ListReader
from weft.ledger.read.pages import Page, mapped
from weft.ledger.read.revisions import require
from weft.ledger.read.session_times import SessionTimes
from weft.ledger.read.sessions import (
    reflog,
    to_sessions,
)
from weft.ledger.search.session_lists import latest_sessions
from weft.ledger.sessions import heads
from weft.ledger.write.append import requires


class SessionVerbs(LedgerBase):
    """What makes, moves and lists sessions."""

    @requires("session:create")
    def create_session(
        self,
        label: str,
        *,
        persona: str = DEFAULT_AGENT,
        routing_key: str | None = None,
        origin: str | None = None,
        origin_session_id: str | None = None,
        parent_session: str | None = None,
        parent_turn_id: str | None = None,
        spawn_tool_call_id: str | None = None,
        task_description: str | None = None,
    ) -> Session:
        """A session before its first turn."""
        details = heads.SessionDetails(
            routing_key=routing_key,
            origin=origin,
            origin_session_id=origin_session_id,
            parent_session=parent_session,
            parent_turn_id=parent_turn_id,
            spawn_tool_call_id=spawn_tool_call_id,
            task_description=task_description,
        )
        return self._changed_session(heads.create(self._writer, label, persona, details))

    def sessions(self, *, every: bool = False, limit: int | None = None, after: str | None = None) -> Page[Session]:
        """Active sessions, the latest changed first; `every` adds archived and deleted ones.

        Pages show the sessions in the order of their first page: one that changes meanwhile keeps its place, and those
        made meanwhile are not in them.
        """
        request = self._request("sessions", {"every": checked_flag(every, "every")}, limit, after)
        with self._store.read() as txn:
            start = self._begin(request, txn)
            times = SessionTimes(txn, start.arrival)
            chunk = None if request.limit is None else request.rows_at_once
            rows = latest_sessions(txn, times, start.position, chunk)
            may_read = access_of(txn).may_read
            listed = ((position, row) for position, row in rows if every or row.status == SessionStatus.ACTIVE)
            shown = ((position, row) for position, row in listed if may_read(row))
            return mapped(request.page(start, shown), partial(to_sessions, txn))

    def listing(self) -> ListReader:
        """What lists of sessions and turns show, read a few statements at a time."""
        return ListReader(self._store, self._since, self._clock.now_ms, self._repository_of)

    @requires("session:create")
    def fork(self, at: str, *, label: str, session: str | None = None, persona: str | None = None) -> Session:
        """A new session whose head stands at a turn, at an event inside one, or wherever a name leads."""
        point = self.point(at)
        session_id = heads.fork(self._writer, point.turn_id, point.event_id, label, session or point.session, persona)
        return self._changed_session(session_id)

    @requires("session:move")
    def move_head(
        self, session: str, *, new: str | None, expected: str | UnsetType | None = UNSET, reason: str | None = None
    ) -> Session:
        """Compare and swap: move the head, if it stands at `expected`, to a turn or to an event inside one, by their
        ids; else HeadMoved."""
        event = None
        if isinstance(new, str) and is_digest(new):
            point = self.point(new)
            new, event = point.turn_id, point.event_id
        return move(self, session, new, expected, MoveReason.MOVE, reason, event)

    def reflog(self, session: str, *, limit: int | None = None) -> list[HeadMove]:
        most = None if limit is None else checked_count(limit, "limit")
        with self._store.read() as txn:
            return reflog(txn, require(txn, session), most)
