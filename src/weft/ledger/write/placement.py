"""Where a new turn goes: its session, its parent, the event it grows from, the compaction in effect."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.advice import Action
from weft.kernel.enums import SessionStatus, TurnType
from weft.kernel.errors import AmbiguousName, HeadMoved, LabelTaken, NotApplicable, NotFound, SessionBusy
from weft.kernel.events import session_stream
from weft.kernel.fields import EventRef, ForkPoint
from weft.kernel.ledger_events import SessionCreated
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.label_prefixes import find_shortened
from weft.ledger.views.lease_rows import LeaseKind
from weft.ledger.views.recorded_events import event_at
from weft.ledger.views.rows import SessionRow, TurnRow, find_by_name, find_session, load_turn
from weft.ledger.write.append import Append, LedgerWriter, Patience
from weft.ledger.write.leases import free_epoch
from weft.store.sql import Sql


class Placement(Struct, frozen=True):
    """A spot in the tree for one new turn."""

    session: SessionRow | None
    parent: TurnRow | None
    fork: ForkPoint | UnsetType
    compaction: str | UnsetType
    scope: int
    depth: int


def find_place(
    append: Append, session: SessionRow | None, parent: str | UnsetType | None, expected: str | UnsetType | None
) -> Placement:
    """The head at this very moment, unless `parent` or `expected` pin it; a session elsewhere raises HeadMoved.

    A session that never had a head begins wherever `parent` says; a failed turn after the head can be continued.
    """
    if session is not None and session.lifecycle == "completed":
        raise NotApplicable(f"session {session.label!r} is completed", "fork it, or make a new session")
    if session is not None and session.lifecycle == "paused":
        raise NotApplicable(f"session {session.label!r} is paused", Action.RESUME_SESSION.of(session=session.label))
    pinned = parent if parent is not UNSET else expected
    followed = None if _goes_where_named(append, session, parent) else session
    if followed is not None and pinned is not UNSET and followed.head != pinned:
        raise HeadMoved(followed.label, pinned, followed.head)
    at = followed.head if followed else (None if pinned is UNSET else pinned)
    row = None if at is None else _turn_at(append, at, is_named=followed is None)
    events = followed.head_events if followed else None
    return Placement(
        session,
        row,
        UNSET if row is None else fork_point(append, row, events),
        compaction_for(session, row, events),
        _scope(append, row),
        row.depth + 1 if row else 1,
    )


def _goes_where_named(append: Append, session: SessionRow | None, parent: str | UnsetType | None) -> bool:
    """Whether no head of a session says where the turn goes, but its caller alone."""
    if session is None or (session.moves == 0 and parent is not UNSET):
        return True
    return _failed_after(append, session, parent)


def _turn_at(append: Append, turn: str, *, is_named: bool) -> TurnRow:
    """The head of a session that may be gone on with, or a turn that whoever records has named."""
    row = None if is_named else append.view.find_turn(turn)
    return load_parent(append, turn) if row is None else row


def _failed_after(append: Append, session: SessionRow, parent: str | UnsetType | None) -> bool:
    """A failed turn does not move the head, and may still be continued as a child: that is how it is retried."""
    turn = append.view.find_turn(parent) if isinstance(parent, str) else None
    while turn is not None and turn.status == "failed":
        if turn.parent == session.head:
            return grew_at(append.sql, turn) == session.head_events
        turn = None if turn.parent is None else append.view.find_turn(turn.parent)
    return False


def grew_at(sql: Sql, turn: TurnRow) -> int | None:
    """After how many of its parent's events a turn begins; None: after all of them."""
    row = sql.one("SELECT parent_events FROM segment WHERE n = ? AND base = ?", (turn.segment, turn.depth))
    return row[0] if row else None


def load_parent(append: Append, turn: str) -> TurnRow:
    row = append.view.find_turn(turn)
    if row is None:
        raise NotFound("turn", turn)
    append.access.ensure_readable_turn(row, turn)
    return row


def fork_point(append: Append, turn: TurnRow, events: int | None) -> ForkPoint:
    """A turn stands for its last event at this moment, unless a session's head stands inside it."""
    if events is None:
        return ForkPoint(turn.id, turn.digest)
    return ForkPoint(turn.id, event_at(append.txn.facts, turn, events - 1))


def compaction_for(session: SessionRow | None, parent: TurnRow | None, events: int | None) -> str | UnsetType:
    """What a session chose, else what its parent ran under; a compaction turn puts itself into effect once its first
    event, the start, has been followed by the summary."""
    if session is not None and session.compaction is not None:
        return session.compaction or UNSET
    if parent is None:
        return UNSET
    if parent.type == TurnType.COMPACTION and events != 1:
        return parent.id
    return parent.compaction or UNSET


def _scope(append: Append, parent: TurnRow | None) -> int:
    """Contents are shared within a tree; a new root's tree is numbered like its first segment."""
    return _next_scope(append.sql) if parent is None else parent.root


def _next_scope(sql: Sql) -> int:
    (highest,) = sql.one("SELECT max(n) FROM segment") or (0,)
    return (highest or 0) + 1


def scope_in_database(writer: LedgerWriter, session: str | None, parent: str | UnsetType | None) -> int:
    """The tree that a turn will most likely belong to, by the rows of the database: large contents are stored there
    before the turn is placed. Should it belong to another one, they are stored there again."""
    with writer.store.read() as txn:
        session_row = find_session(txn.sql, session) if session else None
        at = parent if isinstance(parent, str) else session_row.head if session_row else None
        row = load_turn(txn.sql, at) if at else None
        return row.root if row else _next_scope(txn.sql)


def ensure_session(append: Append, label: str, persona: str = DEFAULT_AGENT) -> SessionRow:
    """Label, then alias, then the beginning of an imported label, then a new session; the id of a session means that
    one."""
    session = find_by_name(append.view, label) or _find_shortened(append, label)
    if session is not None:
        if not append.authority.is_unlimited:
            _ensure_allowed(append, session, label)
        if session.status != SessionStatus.ACTIVE:
            raise NotApplicable(f"session {label!r} is {session.status}", "make it active again first, or fork it")
        return session
    if not append.authority.is_unlimited:
        ensure_label_free(append, label)
    return create_session(append, label, persona=persona)


def _find_shortened(append: Append, label: str) -> SessionRow | None:
    """By the beginning of an imported label. The row is that of the views, which alone may be changed."""
    found = find_shortened(append.sql, label, append.access.may_read)
    return None if found is None else append.view.session(found.id)


def ensure_label_free(append: Append, label: str, own: SessionRow | None = None) -> None:
    """Refuse a name that leads to another session than the `own` one, also the beginning of a label that lists cut
    short there: whoever types what a list shows must reach what it showed. Sessions that whoever gives the name cannot
    read have their names, too."""
    if (namesake := find_by_name(append.view, label)) is not None:
        if own is None or namesake.id != own.id:
            raise label_taken(append, label, namesake)
        return
    try:
        shown = find_shortened(append.sql, label, lambda _: True)
    except AmbiguousName:  # lists show none of these by so little
        return
    if shown is not None and (own is None or shown.id != own.id):
        if not append.access.may_read(shown):
            raise LabelTaken(label, "a session")
        raise LabelTaken(label, f"the beginning of {shown.label!r}, by which lists show that session")


def label_taken(append: Append, name: str, by: SessionRow) -> LabelTaken:
    """Of a session that cannot be read it says no more than that the label is taken."""
    if name == by.label or not append.access.may_read(by):
        return LabelTaken(name, "a session")
    return LabelTaken(name, f"{'the id' if name == by.id else 'an alias'} of {by.label!r}")


def _ensure_allowed(append: Append, session: SessionRow, label: str) -> None:
    """Refuse to go on in a session of somebody else; of one that cannot be read it is said that its label is taken."""
    if not append.access.may("turn:record", session) and not append.access.may_read(session):
        raise LabelTaken(label, "a session")
    append.access.ensure("turn:record", session, label)
    append.access.ensure_session_agent(session)


def ensure_spawned(append: Append, label: str, turn: str, call_id: str, persona: str) -> SessionRow:
    """The session that a tool call started; a new one knows its parents, and belongs to the agent that spawned it."""
    if find_by_name(append.view, label) is not None or _is_shown(append, label):
        return ensure_session(append, label)
    row = append.view.turn(turn)
    parent = None if row.session is None else append.view.session_of_number(row.session)
    return create_session(
        append,
        label,
        persona=persona,
        parent_session=parent.id if parent else UNSET,
        parent_turn=turn,
        spawn_tool_call=call_id,
    )


def _is_shown(append: Append, label: str) -> bool:
    """Whether lists show an imported session so."""
    try:
        return _find_shortened(append, label) is not None
    except AmbiguousName:
        return False


def create_session(
    append: Append,
    label: str,
    *,
    persona: str = DEFAULT_AGENT,
    actor: str | None = None,
    **fields: str | EventRef | UnsetType,
) -> SessionRow:
    """A session without a head yet, made by its persona or by somebody for it. `fields` are references and ids of
    `session_created`."""
    append.authority.ensure_allowed("session:create")
    agent, session = append.agent(persona), append.ulids.mint()
    append.stream(session_stream(session), None, actor or agent).add(
        SessionCreated, label=append.ledger_contents.put_text(label, "label"), persona=agent, **fields
    )
    return append.view.session(session)


def ensure_free(append: Append, session: SessionRow, patience: Patience) -> int:
    """The epoch of a session that nobody holds. Takes it from a dead or silent owner; raises SessionBusy otherwise."""
    epochs = append.view.memory.free_epochs
    epoch = epochs.get(session.id)
    if epoch is None:
        epoch = epochs[session.id] = free_epoch(
            append,
            LeaseKind.SESSION,
            session.id,
            patience,
            lambda lease: SessionBusy(session.label, lease.purpose or "", lease.owner),
        )
    return epoch
