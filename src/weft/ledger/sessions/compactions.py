"""Compaction turns: a summary of the turns before, the turns it kept, and which one a session goes by."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from weft.kernel.advice import Action
from weft.kernel.enums import CompactionTrigger, CompactionType, RunExit, TurnType
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.kernel.ledger_events import CompactionChosen, CompactionRecorded
from weft.ledger.arguments import as_usage, checked_id, checked_member, checked_whole
from weft.ledger.model import RecordedTurn, ToolResultPart, ToolUsePart
from weft.ledger.read.threads import Range, ranges_to
from weft.ledger.read.turns import transcript_of
from weft.ledger.sessions.heads import require_session, stream_of
from weft.ledger.views.rows import TurnRow
from weft.ledger.write.append import MESSAGE_ROOM, Append, LedgerWriter, Patience
from weft.ledger.write.placement import Placement, ensure_free, find_place, load_parent
from weft.ledger.write.record_turn import move_with_turn
from weft.ledger.write.turn_events import Setting, TurnEvents
from weft.store.port import ReadTxn
from weft.store.sql import Sql


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
        self.type = checked_member(CompactionType, compaction_type, "compaction_type")
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
    patience: Patience,
) -> RecordedTurn:
    """A compaction turn after the head; without a session it lies beside the thread, for sessions to choose."""

    def work(append: Append) -> RecordedTurn:
        row = None if session is None else require_session(append, session, "compaction:record")
        if row is not None:
            ensure_free(append, row, patience)
        place = find_place(append, row, parent, UNSET)
        if place.parent is None:
            raise NotApplicable("there is nothing to compact", "record a turn first")
        through, kept, summarized = _range(append, compaction, place.parent)
        return _write(append, compaction, place, through, kept, summarized)

    return patience.keep_trying(lambda: writer.write(work))


def _range(append: Append, compaction: NewCompaction, parent: TurnRow) -> tuple[TurnRow, TurnRow | None, int]:
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
    return any(_holds(part, row) for part in ranges)


def _write(
    append: Append, compaction: NewCompaction, place: Placement, through: TurnRow, kept: TurnRow | None, summarized: int
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
        setting=Setting(),
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
            if head is None or not _belongs(append, turn, head, row.head_events):
                raise NotApplicable(
                    f"compaction {compaction} does not belong to the thread of {row.label!r}",
                    "choose one of its own thread, or None for the whole history",
                )
        stream_of(append, row).add(CompactionChosen, compaction=compaction)
        append.seal()

    writer.write(work)


def _belongs(append: Append, compaction: TurnRow, head: TurnRow, events: int | None) -> bool:
    """Does the thread hold what was compacted, and of the last turn summarised just as many events?"""
    row = append.sql.one("SELECT through FROM compaction WHERE turn = ?", (compaction.id,))
    base = load_parent(append, compaction.parent or "")
    if row is None or not lies_on(append.sql, base, head):
        return False
    through = load_parent(append, row[0])
    ours, theirs = (
        [part for part in ranges_to(append.sql, *place) if _holds(part, through)]
        for place in ((head.segment, head.depth, events), (compaction.segment, compaction.depth))
    )
    return bool(ours and theirs) and _shown(ours[0], through) == _shown(theirs[0], through)


def _holds(part: Range, row: TurnRow) -> bool:
    return part.segment == row.segment and part.low <= row.depth <= part.high


def _shown(part: Range, row: TurnRow) -> int | None:
    return part.events if row.depth == part.high else None
