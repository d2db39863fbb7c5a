"""Sessions: stable labels on moving heads, where every movement is an event and a line of the
reflog; which ones are archived together; and compaction turns, with which one a session goes by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.enums import (
    AliasReason,
    CompactionTrigger,
    CompactionType,
    MoveReason,
    RunExit,
    SessionStatus,
    TurnType,
)
from weft.kernel.errors import Action, HeadMoved, InvalidInput, LabelTaken, NotApplicable, quoted
from weft.kernel.events import AgentForked, EventRef, VolumePlan, is_name, session_stream
from weft.kernel.ledger_events import (
    AliasAdded,
    CompactionChosen,
    CompactionRecorded,
    SessionArchived,
    SessionMoved,
    SessionRenamed,
)
from weft.ledger.arguments import as_usage, checked_id, checked_label, checked_member, checked_text, checked_whole
from weft.ledger.model import RecordedTurn, ToolResultPart, ToolUsePart
from weft.ledger.read.access import READ_SESSION, access_of
from weft.ledger.read.content_uses import Resolve
from weft.ledger.read.revisions import require
from weft.ledger.read.sessions import find_by_part, head_event, missing_session
from weft.ledger.read.turns import SegmentRange, ranges_to, transcript_of
from weft.ledger.views.rows import SESSION, SessionRow, StoredSessions, TurnRow, find_by_name
from weft.ledger.write.record_turn import move_with_turn
from weft.ledger.write.transaction import MESSAGE_ROOM, Append, EventStream, LeasePatience, LedgerWriter
from weft.ledger.write.turn_events import (
    RunConfig,
    TurnEvents,
    TurnPlacement,
    create_session,
    ensure_free,
    ensure_label_free,
    find_place,
    label_taken,
    load_parent,
)
from weft.store.port import ReadTxn
from weft.store.sql import Sql

# --- Sessions: stable labels on moving heads.


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
    row = row or find_by_part(append.sql, name, access.may_read)
    if row is None:
        raise missing_session(append.sql, name, access.may_read)
    access.ensure(right, row, name)
    return append.view.session(row.id)


def stream_of(append: Append, row: SessionRow, actor: str | None = None) -> EventStream:
    return append.stream(session_stream(row.id), bytes(row.last_event).hex(), actor or row.persona)


def create(writer: LedgerWriter, label: str, persona: str, details: SessionDetails) -> str:
    """A session before its first turn. Returns its id."""
    label = checked_label(label)

    def work(append: Append) -> str:
        ensure_label_free(append, label)
        row = create_session(append, label, persona=persona, **_detail_fields(append, details))
        append.seal()
        return row.id

    return writer.write(work)


def _detail_fields(append: Append, details: SessionDetails) -> dict[str, Any]:
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
    writer: LedgerWriter, turn: str, event: str | None, label: str | None, source: str | None, persona: str | None
) -> str:
    """A new session whose head stands at a turn, or at an event inside one; without a label it gets one. Returns the
    session's id.

    It comes from `source`, or from the session that made the turn.
    """

    def work(append: Append) -> str:
        name = new_fork_label(append) if label is None else label
        session = begin_fork(append, NewFork(turn=turn, event=event, label=name, source=source, persona=persona)).add()
        append.seal()
        return session

    return writer.write(work)


def new_fork_label(append: Append) -> str:
    """The label of a fork that nobody named."""
    return f"fork-{append.ulids.mint().lower()}"


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
    return _pinned_event(turn, event) == (head_event(append.txn.facts, turn, origin.head_events) or UNSET)


def move_head(
    writer: LedgerWriter,
    name: str,
    *,
    new: str | None,
    expected: str | UnsetType | None,
    why: MoveReason,
    reason: str | None,
    patience: LeasePatience,
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
            at=_pinned_event(turn, at_event),
            reason=UNSET if reason is None else append.put_text(reason, "reason"),
        )
        append.seal()
        return row.id

    return patience.keep_trying(lambda: writer.write(work))


def _pinned_event(turn: TurnRow | None, at_event: str | None) -> str | UnsetType:
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


# --- Which sessions are put away, or taken out again, together.


def choose_sessions(
    txn: ReadTxn, names: Sequence[str], tree: bool, before: int | None, status: SessionStatus, resolve: Resolve
) -> list[SessionRow]:
    """Sessions that have this status: those named, with `tree` all that stand in the trees that the names lead to, or
    without names every one; with `before` only those that have not changed since. A session that was named itself is
    chosen whatever its status is."""
    if not names and before is None:
        raise InvalidInput("no session is named", "name sessions, or a time since which they have not changed")
    if tree:
        rows = [row for name in names for row in _of_tree(txn, name, resolve) if row.status == status]
    elif names:
        rows = [require(txn, name) for name in names]
    else:
        found = txn.sql.fetch_rows(f"{SESSION.select} WHERE status = ? ORDER BY n", (status,))
        rows = [SessionRow(*row) for row in found]
    rows = list(filter(access_of(txn).may_read, rows))
    chosen = {row.id: row for row in rows if before is None or row.updated_at < before}
    return list(chosen.values())


def _of_tree(txn: ReadTxn, name: str, resolve: Resolve) -> list[SessionRow]:
    session = find_by_name(StoredSessions(txn.sql), name, access_of(txn).may_read, any_case=True)
    if session is not None and session.head is None:
        return [session]
    root = resolve(txn, name if session is None or session.head is None else session.head).turn.root
    rows = txn.sql.fetch_rows(
        f"{SESSION.select} WHERE head_segment IN (SELECT n FROM segment WHERE root = ?) ORDER BY n", (root,)
    )
    return [SessionRow(*row) for row in rows]


# --- Compaction turns: a summary of the turns before, the turns it kept, and which one a session goes by.


def _checked_type(value: Any) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise InvalidInput(
            f"compaction_type is {quoted(value)}",
            f"it is one of {', '.join(CompactionType)}, or another name of letters, digits, `_`, `-`, `.`, `:` and `/`",
        )
    return str(value)


class NewCompaction:
    """A compaction as its caller tells it, checked before anything is written."""

    def __init__(
        self,
        *,
        summary: str,
        through: str | None,
        first_kept: str | None,
        model: str,
        provider: str | None,
        compaction_type: str,
        trigger: str | None,
        metadata: Any,
        usage: Any = None,
        **measures: int | None,
    ) -> None:
        self.summary, self.model, self.provider, self.metadata = summary, model, provider, metadata
        self.through = None if through is None else checked_id(through, "summarized_through")
        self.first_kept = None if first_kept is None else checked_id(first_kept, "first_kept")
        self.type = _checked_type(compaction_type)
        self.trigger = UNSET if trigger is None else checked_member(CompactionTrigger, trigger, "trigger")
        self.usage = as_usage(usage)
        self.measures = {name: checked_whole(value, name) for name, value in measures.items()}
        for name, value in self.measures.items():
            if value is not UNSET and value < 0:
                raise InvalidInput(f"compaction: {name} is {value}", "it is counted from 0")

    def write(self, turn_events: TurnEvents, through: TurnRow, kept: TurnRow | None, summarized: int) -> str:
        contents = turn_events.contents
        if self.usage is not UNSET:
            request = turn_events.request(self.model, turn_events.turn, provider=self.provider)
            turn_events.response(None, turn_events.turn, request=request, usage=self.usage, model=self.model)
        summary = contents.put_text(self.summary, "summary")
        turn_events.run.add(
            CompactionRecorded,
            summary=summary,
            summarized_through=through.id,
            first_kept=kept.id if kept else UNSET,
            turns_summarized=summarized,
            compaction_type=self.type,
            model=contents.named(self.model, "model"),
            provider=UNSET if self.provider is None else contents.named(self.provider, "provider"),
            trigger=self.trigger,
            metadata=UNSET if self.metadata is None else contents.put_json(self.metadata, "metadata"),
            **self.measures,
        )
        return turn_events.finish(RunExit.SUCCESS, summary=summary if self.summary else None)


def record_compaction(
    writer: LedgerWriter,
    compaction: NewCompaction,
    *,
    session: str | None,
    parent: str | UnsetType | None,
    patience: LeasePatience,
) -> RecordedTurn:
    """A compaction turn after the head; without a session it lies beside the thread, for sessions to choose."""

    def work(append: Append) -> RecordedTurn:
        row = None if session is None else require_session(append, session, "compaction:record")
        if row is not None:
            ensure_free(append, row, patience)
        place = find_place(append, row, parent, UNSET)
        if place.parent is None:
            raise NotApplicable("there is nothing to compact", "record a turn first")
        through, kept, summarized = _summarized_range(append, compaction, place.parent)
        return _write_compaction(append, compaction, place, through, kept, summarized)

    return patience.keep_trying(lambda: writer.write(work))


def _summarized_range(
    append: Append, compaction: NewCompaction, parent: TurnRow
) -> tuple[TurnRow, TurnRow | None, int]:
    """The last summarised turn, the first kept one and how many lie before it; both must lie on the thread."""
    kept = None if compaction.first_kept is None else load_parent(append, compaction.first_kept)
    if kept is not None and kept.parent is None:
        raise NotApplicable(f"turn {kept.id} is the first of its thread: nothing would be summarised", "keep fewer")
    if compaction.through is not None:
        through = load_parent(append, compaction.through)
    elif kept is not None and kept.parent is not None:
        through = load_parent(append, kept.parent)
    else:
        through = parent
    for row in (through, *([kept] if kept else [])):
        if not lies_on(append.sql, row, parent):
            raise NotApplicable(f"turn {row.id} is not on the thread of {parent.id}", Action.NAME_TURN_OF_THREAD)
    if kept is not None and kept.depth > through.depth + 1:
        raise NotApplicable(
            f"turns between {through.id} and {kept.id} would vanish", "keep every turn that is not summarised"
        )
    if kept is not None and kept.parent is not None:
        _ensure_calls_whole(append, load_parent(append, kept.parent), kept)
    return through, kept, min(through.depth, kept.depth - 1 if kept else through.depth)


def _ensure_calls_whole(append: Append, before: TurnRow, kept: TurnRow) -> None:
    """Refuse to keep the result of a call without the call, where the turn before the first kept one made it."""
    while before.type == TurnType.COMPACTION and before.parent is not None:
        before = load_parent(append, before.parent)
    txn = ReadTxn(append.sql, append.txn.facts)
    earlier, later = (
        [part for message in transcript_of(txn, turn, None) for part in message.content] for turn in (before, kept)
    )
    calls = {part.id for part in earlier if isinstance(part, ToolUsePart)}
    calls -= {part.tool_call_id for part in earlier if isinstance(part, ToolResultPart)}
    if calls & {part.tool_call_id for part in later if isinstance(part, ToolResultPart)}:
        raise NotApplicable(
            f"turn {kept.id} holds the result of a call that turn {before.id} made", "keep that turn, too"
        )


def lies_on(sql: Sql, row: TurnRow, head: TurnRow) -> bool:
    ranges = ranges_to(sql, head.segment, head.depth)
    return any(_holds_turn(part, row) for part in ranges)


def _write_compaction(
    append: Append,
    compaction: NewCompaction,
    place: TurnPlacement,
    through: TurnRow,
    kept: TurnRow | None,
    summarized: int,
) -> RecordedTurn:
    parent, session = place.parent, place.session
    assert parent is not None
    turn = append.ulids.mint(MESSAGE_ROOM + 1)
    turn_events = TurnEvents(append, turn, actor=session.persona if session else parent.persona, scope=place.scope)
    turn_events.start(
        fork=place.fork,
        session=session.id if session else UNSET,
        compaction=place.compaction,
        turn_type=TurnType.COMPACTION,
        setting=RunConfig(),
    )
    digest = compaction.write(turn_events, through, kept, summarized)
    if session is not None:
        move_with_turn(append, session.id, turn)
    append.seal()
    return RecordedTurn(
        id=turn,
        digest=digest,
        depth=place.depth,
        parent_id=parent.id,
        session=session.label if session else None,
        receipt=append.receipt(digest),
    )


def choose_compaction(writer: LedgerWriter, session: str, compaction: str | None) -> None:
    """Switch to another compaction of this thread, or undo all (null): the whole history is seen again."""

    def work(append: Append) -> None:
        row = require_session(append, session, "compaction:choose")
        if compaction is not None:
            turn = load_parent(append, checked_id(compaction, "compaction"))
            if turn.type != TurnType.COMPACTION or turn.parent is None:
                raise NotApplicable(f"turn {compaction} is not a compaction", Action.NAME_COMPACTION)
            head = None if row.head is None else load_parent(append, row.head)
            if head is None or not _belongs_to_thread(append, turn, head, row.head_events):
                raise NotApplicable(
                    f"compaction {compaction} does not belong to the thread of {row.label!r}",
                    "choose one of its own thread, or None for the whole history",
                )
        stream_of(append, row).add(CompactionChosen, compaction=compaction)
        append.seal()

    writer.write(work)


def _belongs_to_thread(append: Append, compaction: TurnRow, head: TurnRow, events: int | None) -> bool:
    """Does the thread hold what was compacted, and of the last turn summarised just as many events?"""
    row = append.sql.fetch_row("SELECT through FROM compaction WHERE turn = ?", (compaction.id,))
    base = load_parent(append, compaction.parent or "")
    if row is None or not lies_on(append.sql, base, head):
        return False
    through = load_parent(append, row[0])
    ours, theirs = (
        [part for part in ranges_to(append.sql, *place) if _holds_turn(part, through)]
        for place in ((head.segment, head.depth, events), (compaction.segment, compaction.depth))
    )
    return bool(ours and theirs) and _shown_events(ours[0], through) == _shown_events(theirs[0], through)


def _holds_turn(part: SegmentRange, row: TurnRow) -> bool:
    return part.segment == row.segment and part.low <= row.depth <= part.high


def _shown_events(part: SegmentRange, row: TurnRow) -> int | None:
    return part.events if row.depth == part.high else None
