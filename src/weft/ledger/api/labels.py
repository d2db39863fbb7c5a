"""Heads and labels of sessions: put back, renamed, aliased, archived, deleted."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from weft.kernel.enums import MoveReason, SessionStatus
from weft.kernel.errors import NotFound
from weft.ledger.api.base import LedgerBase, LedgerPart
from weft.ledger.api.recording import check_pins
from weft.ledger.arguments import checked_names, checked_number
from weft.ledger.model import Session, SessionAlias
from weft.ledger.read.revisions import moves_in_words, require
from weft.ledger.read.sessions import (
    head_at,
    head_event,
    load_aliases,
    reflog,
    to_sessions,
)
from weft.ledger.sessions import heads
from weft.ledger.sessions.archiving import choose_sessions
from weft.ledger.views.rows import load_turn
from weft.ledger.write.append import Patience, requires


class Heads(LedgerPart):
    """`ledger.heads`: puts heads back to where they were, and says where they stood."""

    @requires("session:move")
    def reset(self, session: str, *, expected: str | UnsetType | None = UNSET, reason: str | None = None) -> Session:
        """No head: the next turn is a new root. Nothing is lost, the reflog remembers."""
        return move(self._ledger, session, None, expected, MoveReason.RESET, reason)

    @requires("session:move")
    def restore(self, session: str, number: int | None = None, *, reason: str | None = None) -> Session:
        """Move the head back to where it stood `number` moves ago: by default 1, of a session that was deleted or
        archived 0. Such a session becomes active again."""
        with self._store.read() as txn:
            row = require(txn, session)
            number = int(row.status == SessionStatus.ACTIVE) if number is None else checked_number(number, "number")
            if number == 0 and row.moves == 0:
                return set_status(self._ledger, row.id, SessionStatus.ACTIVE, reason, "session:move")
            moves = reflog(txn, row, 1, number) if number >= 0 else []
            if not moves:
                raise NotFound("move of session", f"{row.label}@{{{number}}}", moves_in_words(row))
            turn = moves[0].turn_id and load_turn(txn.sql, moves[0].turn_id)
            event = head_event(txn.facts, turn, moves[0].at_event)
        if row.status != SessionStatus.ACTIVE:
            set_status(self._ledger, row.id, SessionStatus.ACTIVE, reason, "session:move")
        return move(self._ledger, row.id, moves[0].turn_id, UNSET, MoveReason.RESTORE, reason, event)

    def at(self, session: str, when: int | str) -> str | None:
        """The turn a session stood at, at a time (Unix ms, or words such as 'yesterday')."""
        moment = self._parse_time(when) if isinstance(when, str) else checked_number(when, "time")
        with self._store.read() as txn:
            place = head_at(txn.sql, require(txn, session), moment)
        return place[0] if place else None


class Labels(LedgerPart):
    """`ledger.labels`: renames, archives and deletes sessions; nothing that they contain goes."""

    @requires("session:rename")
    def rename(self, session: str, label: str) -> Session:
        return self._ledger._changed_session(heads.rename(self._writer, session, label))

    @requires("session:rename")
    def add_alias(self, alias: str, session: str, *, reason: str = "manual") -> Session:
        """Another name for a session. Lookups go by label, then alias, and never chain."""
        return self._ledger._changed_session(heads.add_alias(self._writer, alias, session, reason))

    def aliases(self, session: str | None = None) -> list[SessionAlias]:
        """The other names of a session, or of all sessions, in the order of the names."""
        with self._store.read() as txn:
            return load_aliases(txn, None if session is None else require(txn, session).n)

    @requires("session:rename")
    def promote(self, session: str, key: str) -> Session:
        """From now on the key of a person or an agent leads to this session, as an alias with the reason
        `identity_promotion`. Refused where it leads to another one; repeated, it changes nothing."""
        return self._ledger._changed_session(heads.promote(self._writer, session, key))

    @requires("session:archive")
    def archive(self, session: str, *, reason: str | None = None) -> Session:
        return set_status(self._ledger, session, SessionStatus.ARCHIVED, reason, "session:archive")

    def archivable(
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
        labels = checked_names(names, "session")
        before = None if older_than is None else self._moment(older_than, "older_than")
        status = SessionStatus.ARCHIVED if back else SessionStatus.ACTIVE
        with self._store.read() as txn:
            return to_sessions(txn, choose_sessions(txn, labels, tree, before, status, self._resolve))

    @requires("session:delete")
    def delete(self, session: str, *, reason: str | None = None) -> Session:
        """The pointer goes, its turns stay; `restore_session` by its id brings it back."""
        return set_status(self._ledger, session, SessionStatus.DELETED, reason, "session:delete")

    @requires("session:archive")
    def unarchive(self, session: str, *, reason: str | None = None) -> Session:
        return set_status(self._ledger, session, SessionStatus.ACTIVE, reason, "session:archive")


def move(
    ledger: LedgerBase,
    session: str,
    new: str | None,
    expected: str | UnsetType | None,
    why: MoveReason,
    reason: str | None,
    at_event: str | None = None,
) -> Session:
    check_pins(UNSET, expected)
    session_id = heads.move_head(
        ledger._writer,
        session,
        new=new,
        expected=expected,
        why=why,
        reason=reason,
        patience=Patience(ledger._writer, 0, ledger._ttl),
        at_event=at_event,
    )
    return ledger._changed_session(session_id)


def set_status(ledger: LedgerBase, session: str, status: SessionStatus, reason: str | None, right: str) -> Session:
    record = ledger.session(session)
    from weft.ledger.runs.worker_answers import end_worker

    heads.set_status(ledger._writer, record.id, status, reason, right, end_worker)
    return ledger._changed_session(record.id)
