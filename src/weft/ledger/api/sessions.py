"""Sessions: labels on heads that move, and everything that moves them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from weft.kernel.enums import MoveReason, SessionStatus
from weft.kernel.errors import NotFound
from weft.kernel.facts import is_digest
from weft.ledger.api.base import LedgerBase
from weft.ledger.arguments import checked_count, checked_flag, checked_names, checked_number
from weft.ledger.model import DEFAULT_AGENT, Branch, HeadMove, Session
from weft.ledger.read.listing import Listing
from weft.ledger.read.revisions import require
from weft.ledger.read.sessions import (
    head_at,
    head_event,
    load_branches,
    load_sessions,
    reflog,
    sessions_containing,
    to_sessions,
)
from weft.ledger.sessions import heads
from weft.ledger.sessions.archiving import choose_sessions
from weft.ledger.sessions.settling import SettleChoice, settle
from weft.ledger.views.rows import load_turn
from weft.ledger.write.leases import Patience


class SessionVerbs(LedgerBase):
    """What makes, moves and lists sessions."""

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
        return self.session(heads.create(self._writer, label, persona, details))

    def sessions(self, *, every: bool = False) -> list[Session]:
        """Active sessions, the latest first; `every` adds archived and deleted ones."""
        with self._store.read() as txn:
            return load_sessions(txn, every=every)

    def listing(self) -> Listing:
        """What lists of sessions and turns show, read a few statements at a time."""
        return Listing(self._store)

    def fork(self, at: str, *, label: str, session: str | None = None, persona: str | None = None) -> Session:
        """A new session whose head stands at a turn, at an event inside one, or wherever a name leads."""
        point = self.point(at)
        made = heads.fork(self._writer, point.turn_id, point.event_id, label, session or point.session, persona)
        return self.session(made)

    def move_head(
        self, session: str, *, new: str | None, expected: str | UnsetType | None = UNSET, reason: str | None = None
    ) -> Session:
        """Compare and swap: move the head, if it stands at `expected`, to a turn or to an event inside one, by their
        ids; else HeadMoved."""
        event = None
        if isinstance(new, str) and is_digest(new):
            point = self.point(new)
            new, event = point.turn_id, point.event_id
        return self._move(session, new, expected, MoveReason.MOVE, reason, event)

    def reset_session(
        self, session: str, *, expected: str | UnsetType | None = UNSET, reason: str | None = None
    ) -> Session:
        """No head: the next turn is a new root. Nothing is lost, the reflog remembers."""
        return self._move(session, None, expected, MoveReason.RESET, reason)

    def restore_session(self, session: str, number: int | None = None, *, reason: str | None = None) -> Session:
        """Move the head back to where it stood `number` moves ago: by default 1, of a session that was deleted or
        archived 0. Such a session becomes active again."""
        with self._store.read() as txn:
            row = require(txn, session)
            number = int(row.status == SessionStatus.ACTIVE) if number is None else checked_number(number, "number")
            if number == 0 and row.moves == 0:
                return self._set_status(row.id, SessionStatus.ACTIVE, reason)
            moves = reflog(txn, row, 1, number) if number >= 0 else []
            if not moves:
                raise NotFound("move of session", f"{row.label}@{{{number}}}", f"it has moved {row.moves} times")
            turn = moves[0].turn_id and load_turn(txn.sql, moves[0].turn_id)
            event = head_event(txn.facts, turn, moves[0].at_event)
        if row.status != SessionStatus.ACTIVE:
            self._set_status(row.id, SessionStatus.ACTIVE, reason)
        return self._move(row.id, moves[0].turn_id, UNSET, MoveReason.RESTORE, reason, event)

    def _move(
        self,
        session: str,
        new: str | None,
        expected: str | UnsetType | None,
        why: MoveReason,
        reason: str | None,
        at_event: str | None = None,
    ) -> Session:
        heads.move_head(
            self._writer,
            session,
            new=new,
            expected=expected,
            why=why,
            reason=reason,
            patience=Patience(self._writer, 0, self._ttl),
            at_event=at_event,
        )
        return self.session(session)

    def rename_session(self, session: str, label: str) -> Session:
        heads.rename(self._writer, session, label)
        return self.session(label)

    def add_alias(self, alias: str, session: str, *, reason: str = "manual") -> Session:
        """Another name for a session. Lookups go by label, then alias, and never chain."""
        heads.add_alias(self._writer, alias, session, reason)
        return self.session(alias)

    def archive_session(self, session: str, *, reason: str | None = None) -> Session:
        return self._set_status(session, SessionStatus.ARCHIVED, reason)

    def sessions_to_archive(
        self,
        names: str | Sequence[str] = (),
        *,
        tree: bool = False,
        older_than: int | str | None = None,
        back: bool = False,
    ) -> list[Session]:
        """Sessions that archiving together would mean: those named, with `tree` all in the same trees, with
        `older_than` (Unix ms, or words such as '90 days ago') only those that have not changed since; `back`: those to
        be made active again."""
        asked = checked_names(names, "session")
        before = None if older_than is None else self._moment(older_than, "older_than")
        status = SessionStatus.ARCHIVED if back else SessionStatus.ACTIVE
        with self._store.read() as txn:
            return to_sessions(txn, choose_sessions(txn, asked, tree, before, status, self._resolve))

    def delete_session(self, session: str, *, reason: str | None = None) -> Session:
        """The pointer goes, its turns stay; `restore_session` by its id brings it back."""
        return self._set_status(session, SessionStatus.DELETED, reason)

    def unarchive_session(self, session: str, *, reason: str | None = None) -> Session:
        return self._set_status(session, SessionStatus.ACTIVE, reason)

    def _set_status(self, session: str, status: SessionStatus, reason: str | None) -> Session:
        found = self.session(session)
        heads.set_status(self._writer, found.id, status, reason)
        return self.session(found.id)

    def branches(self, session: str | None = None) -> list[Branch]:
        """Where other replicas' branches stand, of one session or of all: those that moved it elsewhere."""
        with self._store.read() as txn:
            return load_branches(txn.sql, None if session is None else require(txn, session).n)

    def settle(
        self,
        session: str,
        *,
        to: str | None = None,
        ours: bool = False,
        theirs: bool = False,
        fork: str | None = None,
        reason: str | None = None,
    ) -> Session:
        """Join the branches of a session: at a turn, where this ledger stands, where the other one stands, or as two
        sessions, of which `fork` labels the other's. Every replica follows once it has synced."""
        point = None if to is None else self.point(to)
        choice = SettleChoice(
            turn=None if point is None else point.turn_id,
            event=None if point is None else point.event_id,
            ours=checked_flag(ours, "ours"),
            theirs=checked_flag(theirs, "theirs"),
            fork=fork,
        )
        found = self.session(session)
        self._store.catch_up()
        settle(self._writer, found.id, choice, reason, Patience(self._writer, 0, self._ttl))
        return self.session(found.id)

    def reflog(self, session: str, *, limit: int | None = None) -> list[HeadMove]:
        most = None if limit is None else checked_count(limit, "limit")
        with self._store.read() as txn:
            return reflog(txn, require(txn, session), most)

    def head_at(self, session: str, when: int | str) -> str | None:
        """The turn a session stood at, at a time (Unix ms, or words such as 'yesterday')."""
        moment = self._parse_time(when) if isinstance(when, str) else checked_number(when, "time")
        with self._store.read() as txn:
            found = head_at(txn.sql, require(txn, session), moment)
        return found[0] if found else None

    def sessions_containing(self, turn: str) -> list[Session]:
        """Every session whose thread has ever contained this turn."""
        with self._store.read() as txn:
            row = self._resolve(txn, turn).turn
            found = sessions_containing(txn, row.segment, row.depth)
            return to_sessions(txn, found)
