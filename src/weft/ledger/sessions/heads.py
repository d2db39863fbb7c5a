"""Sessions: stable labels on moving heads. Every movement is an event and a line of the reflog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.advice import Action
from weft.kernel.dag_events import AgentForked
from weft.kernel.enums import AliasReason, MoveReason, SessionStatus
from weft.kernel.errors import HeadMoved, InvalidInput, LabelTaken, NotFound
from weft.kernel.events import session_stream
from weft.kernel.fields import EventRef, VolumePlan, is_name
from weft.kernel.ledger_events import AliasAdded, CompactionChosen, SessionArchived, SessionMoved, SessionRenamed
from weft.ledger.arguments import checked_id, checked_label, checked_member, checked_text
from weft.ledger.read.access import READ_SESSION
from weft.ledger.read.label_prefixes import find_by_beginning
from weft.ledger.read.sessions import (
    head_event,
)
from weft.ledger.views.rows import SessionRow, TurnRow, find_by_name
from weft.ledger.write.append import Append, EventStream, LedgerWriter, Patience
from weft.ledger.write.placement import create_session, ensure_free, ensure_label_free, label_taken, load_parent


class SessionDetails(Struct, frozen=True, kw_only=True):
    """What may be said of a session when it is made."""

    routing_key: str | None = None
    origin: str | None = None
    origin_session_id: str | None = None
    parent_session: str | None = None
    parent_turn_id: str | None = None
    spawn_tool_call_id: str | None = None
    task_description: str | None = None


def require_session(append: Append, name: str, right: str) -> SessionRow:
    """The session of this name, for whoever has this right over it."""
    name = checked_text(name, "session")
    access = append.access
    row = find_by_name(append.view, name, lambda row: access.may(right, row) or access.may_read(row))
    row = row or find_by_beginning(append.sql, name, access.may_read)
    if row is None:
        raise NotFound("session", name, Action.LIST_SESSIONS)
    access.ensure(right, row, name)
    return append.view.session(row.id)


def stream_of(append: Append, row: SessionRow, actor: str | None = None) -> EventStream:
    return append.stream(session_stream(row.id), bytes(row.last_event).hex(), actor or row.persona)


def create(writer: LedgerWriter, label: str, persona: str, details: SessionDetails) -> str:
    """A session before its first turn. Returns its id."""
    label = checked_label(label)

    def work(append: Append) -> str:
        ensure_label_free(append, label)
        row = create_session(append, label, persona=persona, **_details(append, details))
        append.seal()
        return row.id

    return writer.write(work)


def _details(append: Append, details: SessionDetails) -> dict[str, Any]:
    """The fields of the event: texts become contents, sessions their ids."""
    texts = {
        "routing_key": details.routing_key,
        "origin_session_id": details.origin_session_id,
        "task_description": details.task_description,
        "spawn_tool_call": details.spawn_tool_call_id,
    }
    fields: dict[str, Any] = {name: append.put_text(text, name) for name, text in texts.items() if text is not None}
    if details.origin is not None:
        if not isinstance(details.origin, str) or not is_name(details.origin):
            raise InvalidInput(f"origin {details.origin!r} is not a name", "use letters, digits and _ . : / -")
        fields["origin"] = details.origin
    if details.parent_session is not None:
        fields["parent_session"] = require_session(append, details.parent_session, READ_SESSION).id
    if details.parent_turn_id is not None:
        fields["parent_turn"] = load_parent(append, checked_id(details.parent_turn_id, "parent turn")).id
    return fields


def fork(
    writer: LedgerWriter, turn: str, event: str | None, label: str, source: str | None, persona: str | None
) -> str:
    """A new session whose head stands at a turn, or at an event inside one. Returns the session's id.

    It comes from `source`, or from the session that made the turn.
    """

    def work(append: Append) -> str:
        session = begin_fork(append, NewFork(turn=turn, event=event, label=label, source=source, persona=persona)).add()
        append.seal()
        return session

    return writer.write(work)


class NewFork(Struct, frozen=True, kw_only=True):
    """A session that is to begin at a turn, or at an event inside one."""

    turn: str
    label: str
    event: str | None = None
    source: str | None = None
    """The session that it comes from; without it, the one that made the turn."""
    persona: str | None = None


class OpenFork:
    """A fork in the making: its session exists, and `add` says where it began."""

    def __init__(
        self, append: Append, new: NewFork, turn: TurnRow, origin: SessionRow | None, session: SessionRow
    ) -> None:
        self._append, self._new, self._turn, self._origin = append, new, turn, origin
        self.session = session
        made_by = None if turn.session is None else append.view.session_of_number(turn.session)
        self.branch = origin or made_by
        """The session that it comes from, where there is one."""

    def add(self, plan: tuple[VolumePlan, ...] = ()) -> str:
        """The fact, with what becomes of resources; the id of the new session."""
        append, origin, turn, event = self._append, self._origin, self._turn, self._new.event
        stream_of(append, self.session).add(
            AgentForked,
            to_branch=self.session.id,
            at_event=EventRef(event or turn.digest),
            at_turn=turn.id,
            from_branch=self.branch.id if self.branch else UNSET,
            volume_plan=plan or UNSET,
        )
        if origin is not None and origin.compaction is not None and _passes_on_choice(append, origin, turn, event):
            stream_of(append, self.session).add(CompactionChosen, compaction=origin.compaction or None)
        return self.session.id


def begin_fork(append: Append, new: NewFork) -> OpenFork:
    label = checked_label(new.label)
    ensure_label_free(append, label)
    row = load_parent(append, new.turn)
    origin = require_session(append, new.source, READ_SESSION) if new.source else None
    owner = new.persona or (origin.persona if origin else row.persona)
    return OpenFork(append, new, row, origin, create_session(append, label, persona=owner))


def _passes_on_choice(append: Append, origin: SessionRow, turn: TurnRow, event: str | None) -> bool:
    """A compaction that was chosen fits a fork that begins just where its origin stands; none at all fits all of it."""
    if origin.head != turn.id or not origin.compaction:
        return origin.head == turn.id
    return _pinned(turn, event) == (head_event(append.txn.facts, turn, origin.head_events) or UNSET)


def move_head(
    writer: LedgerWriter,
    name: str,
    *,
    new: str | None,
    expected: str | UnsetType | None,
    why: MoveReason,
    reason: str | None,
    patience: Patience,
    at_event: str | None = None,
) -> str:
    """Compare and swap: the head moves if it is where the caller believes it to be. Returns the session's id."""

    def work(append: Append) -> str:
        row = require_session(append, name, "session:move")
        ensure_free(append, row, patience)
        if expected is not UNSET and row.head != expected:
            raise HeadMoved(row.label, expected, row.head)
        turn = None if new is None else load_parent(append, checked_id(new, "turn"))
        stream_of(append, row).add(
            SessionMoved,
            to=turn.id if turn else None,
            before=row.head,
            why=why,
            at=_pinned(turn, at_event),
            reason=UNSET if reason is None else append.put_text(reason, "reason"),
        )
        append.seal()
        return row.id

    return patience.keep_trying(lambda: writer.write(work))


def _pinned(turn: TurnRow | None, at_event: str | None) -> str | UnsetType:
    """The event a head stands at: none for a whole turn; a turn still open stands for its last event at this moment."""
    if turn is None or (at_event is None and turn.closed):
        return UNSET
    return at_event or turn.digest


def rename(writer: LedgerWriter, name: str, label: str) -> str:
    """Returns the session's id."""
    label = checked_label(label)

    def work(append: Append) -> str:
        row = require_session(append, name, "session:rename")
        if row.label == label:
            raise label_taken(append, label, row)
        ensure_label_free(append, label, row)
        stream_of(append, row).add(SessionRenamed, label=append.put_text(label))
        append.seal()
        return row.id

    return writer.write(work)


def add_alias(writer: LedgerWriter, alias: str, name: str, reason: str) -> str:
    """Another name for a session. A target that is itself an alias is resolved now, so lookups never chain. Returns
    the session's id."""
    return _add_alias(writer, alias, name, checked_member(AliasReason, reason, "reason"), again=False)


def promote(writer: LedgerWriter, name: str, key: str) -> str:
    """The same for the key of a person or an agent that a session was found to belong to; a key that leads to the
    session already stays as it is."""
    return _add_alias(writer, key, name, AliasReason.IDENTITY_PROMOTION, again=True)


def _add_alias(writer: LedgerWriter, alias: str, name: str, why: AliasReason, *, again: bool) -> str:
    alias = checked_label(alias, "alias")

    def work(append: Append) -> str:
        row = require_session(append, name, "session:rename")
        namesake = find_by_name(append.view, alias)
        if namesake is not None and namesake.id == row.id:
            if again:
                return row.id
            raise label_taken(append, alias, row)
        ensure_label_free(append, alias, row)
        stream_of(append, row).add(AliasAdded, alias=append.put_text(alias), reason=why)
        append.seal()
        return row.id

    return writer.write(work)


def set_status(
    writer: LedgerWriter,
    name: str,
    status: SessionStatus,
    reason: str | None,
    right: str,
    on_ended: Callable[[Append, SessionRow], None],
) -> None:
    """`on_ended` hears in the same transaction of a session that is archived or deleted."""

    def work(append: Append) -> None:
        row = require_session(append, name, right)
        if status != SessionStatus.DELETED and row.status == SessionStatus.DELETED:
            other = append.view.find_session(row.label)
            if other is not None and other.id != row.id:
                raise LabelTaken(row.label, "used by a newer session; rename that one first")
        stream_of(append, row).add(
            SessionArchived, status=status, reason=UNSET if reason is None else append.put_text(reason)
        )
        if status != SessionStatus.ACTIVE:
            on_ended(append, append.view.session(row.id))
        append.seal()

    writer.write(work)
