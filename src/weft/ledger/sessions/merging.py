"""Merging in the small: what a branch found, brought back as a turn that names where it came from.

Trees are never rewritten. A picked turn is a new turn on another session whose events refer to the very contents of its
source; a summary is a new turn with a text about a branch. Both say so in their own run, as `turn_linked`, before they
end: so their digest commits to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weft.kernel.advice import Action
from weft.kernel.dag_events import (
    HistoryAppend,
    Interruption,
    ModelRequest,
    ModelResponse,
    ToolCallRequested,
    ToolResult,
)
from weft.kernel.enums import LinkReason, MessageRole, RunExit, SessionStatus, ToolCallStatus, TurnType
from weft.kernel.errors import NotApplicable
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import ErrorFact, EventRef, MessageFact, is_name
from weft.kernel.ledger_events import TurnLinked
from weft.ledger.model import NewMessage
from weft.ledger.read.access import access_of
from weft.ledger.read.substitutions import shown_events
from weft.ledger.read.threads import common_depth, ranges_to
from weft.ledger.sessions.heads import require_session
from weft.ledger.views.recorded_events import run_events
from weft.ledger.views.rows import CALL, CallRow, TurnRow, load_turn
from weft.ledger.write.append import MESSAGE_ROOM, Append, Patience
from weft.ledger.write.placement import Placement, ensure_free, find_place
from weft.ledger.write.record_turn import move_with_turn
from weft.ledger.write.turn_events import Setting, TurnEvents
from weft.store.port import ReadTxn
from weft.store.sql import Sql

_ENVELOPE = frozenset(Event.__struct_fields__)
Writer = Callable[[TurnEvents], None]
_MERGES = (LinkReason.CHERRY_PICK, LinkReason.SUMMARY)


class Provenance(Struct, frozen=True, kw_only=True):
    """What a turn was made from, or went into."""

    why: str
    """`cherry_pick`: the same was said. `summary`: it tells what the branch up to there found."""
    turn_id: str
    """The turn that was made."""
    source_id: str
    """The turn that it was made from; of a summary the branch's last one."""
    left_id: str | None
    """The last turn that both threads share: where the branch left."""


def merge(
    append: Append,
    session: str,
    expected: str | UnsetType | None,
    patience: Patience,
    key: str | None,
    writers: Sequence[Writer],
) -> list[str]:
    """One new turn on a session after another, all in one append. Each writer fills one."""
    turns = []
    for write in writers:
        turns.append(add_turn(append, session, expected, patience, key, write))
        expected = UNSET
    append.seal()
    return turns


def add_turn(
    append: Append,
    session: str,
    expected: str | UnsetType | None,
    patience: Patience,
    key: str | None,
    write: Writer,
) -> str:
    """One new turn on a session, which a writer fills. Returns its id."""
    row = require_session(append, session, "turn:merge")
    if row.status != SessionStatus.ACTIVE:
        raise NotApplicable(f"session {row.label!r} is {row.status}", "make it active again first, or fork it")
    ensure_free(append, row, patience)
    return _turn(append, find_place(append, row, UNSET, expected), Setting(source_event_id=key), write)


def _turn(append: Append, place: Placement, setting: Setting, write: Writer) -> str:
    session, turn = place.session, append.ulids.mint(MESSAGE_ROOM + 1)
    assert session is not None
    turn_events = TurnEvents(append, turn, actor=session.persona, scope=place.scope)
    turn_events.start(
        fork=place.fork, session=session.id, compaction=place.compaction, turn_type=TurnType.NORMAL, setting=setting
    )
    write(turn_events)
    move_with_turn(append, session.id, turn)
    return turn


class Pick:
    """Says again what a turn says, by the same contents: where it was substituted, what is shown."""

    def __init__(self, source: TurnRow) -> None:
        if source.status != "completed":
            raise NotApplicable(f"turn {source.id} is {source.status}", "pick a turn that ended well")
        if source.type == TurnType.COMPACTION:
            raise NotApplicable(f"turn {source.id} is a compaction of its own thread", Action.BRING_SUMMARY)
        self.source = source

    def __call__(self, turn_events: TurnEvents) -> None:
        self._turn_events, self._events, self._messages = turn_events, dict[str, str](), dict[str, str]()
        self._open: dict[str, ToolCallRequested] = {}
        append = turn_events.append
        self._shown = shown_events(ReadTxn(append.sql, append.txn.facts), self.source.n)
        for recorded in list(run_events(turn_events.append.txn.facts, self.source)):
            if not isinstance(recorded.event, UnknownEvent):
                self._again(recorded.id, self._as_shown(recorded.id, recorded.event))
        self._settle()
        _link(turn_events, self.source.id, LinkReason.CHERRY_PICK)
        response = self._messages.get(self.source.response or "")
        turn_events.finish(RunExit.SUCCESS, response=response)

    def _as_shown(self, id: str, event: Event) -> Event:
        """An event with the words of the one that is shown in its place."""
        shown = self._shown.get(id)
        match event, shown:
            case HistoryAppend(), HistoryAppend():
                message = replace(event.message, parts=shown.message.parts, source=shown.message.source)
                return replace(event, message=message, untrusted=shown.untrusted or event.untrusted)
            case ModelResponse(output=MessageFact() as output), ModelResponse(output=MessageFact() as instead):
                return replace(event, output=replace(output, parts=instead.parts, source=instead.source))
            case ToolResult(), ToolResult():
                untrusted = shown.untrusted or event.untrusted
                words = {name: getattr(shown, name) for name in ("status", "result", "error", "sent", "secret_rules")}
                return replace(event, **words, untrusted=untrusted)
        return event

    def _again(self, id: str, event: Event) -> None:
        match event:
            case HistoryAppend():
                self._add(id, event, message=self._message(event.message))
            case ModelRequest():
                self._add(id, event, correlation_id=self._turn_events.turn, input=UNSET)
            case ModelResponse():
                output = UNSET if event.output is UNSET else self._message(event.output)
                self._add(
                    id,
                    event,
                    correlation_id=self._turn_events.turn,
                    output=output,
                    request_id=self._events.get(str(event.request_id), UNSET),
                    usage=UNSET,  # what it cost was paid once, by its source
                    reasoning_ref=UNSET,
                    stream_ref=UNSET,
                    model=self._model(event),
                )
            case ToolCallRequested():
                answer = UNSET if event.requested_by is UNSET else self._event(event.requested_by)
                message = self._messages.get(str(event.message), UNSET)
                self._open[id] = event
                self._add(id, event, correlation_id=self._turn_events.turn, requested_by=answer, message=message)
            case ToolResult():
                if self._came_late(event.call):
                    return  # what came instead is told at the end
                self._open.pop(event.call.event_id, None)
                self._add(id, event, correlation_id=self._turn_events.turn, call=self._event(event.call), spawned=UNSET)
            case Interruption():
                self._settle(late=True)
                affected = tuple(EventRef(self._events[call]) for call in self._open)
                self._open = {}
                self._add(id, event, affects=affected)
            case _:
                pass

    def _add(self, id: str, event: Event, **changed: Any) -> None:
        fields = {name: getattr(event, name) for name in event.__struct_fields__ if name not in _ENVELOPE}
        self._events[id] = self._turn_events.run.add(type(event), **{**fields, **changed})

    def _event(self, ref: EventRef) -> EventRef | UnsetType:
        event = self._events.get(ref.event_id)
        return UNSET if event is None else EventRef(event)

    def _message(self, fact: MessageFact) -> MessageFact:
        id = self._turn_events.next_message_id()
        self._messages[fact.id] = id
        return replace(fact, id=id, native=UNSET, parent=self._messages.get(str(fact.parent), UNSET))

    def _model(self, event: ModelResponse) -> Any:
        """Of an imported turn a sighting tells it, not the response."""
        return event.model if event.model is not UNSET or self.source.model is None else self.source.model

    def _call(self, id: str) -> CallRow:
        sql = self._turn_events.append.sql
        row = sql.one(f"{CALL.select} WHERE turn = ? AND event = ?", (self.source.n, bytes.fromhex(id)))
        assert row is not None, "every call of a run has a row"
        return CallRow(*row)

    def _came_late(self, ref: EventRef) -> bool:
        """Did another outcome come after the run had ended?"""
        return ref.event_id in self._open and (self._call(ref.event_id).result_position or 0) < 0

    def _settle(self, *, late: bool = False) -> None:
        """Calls without an outcome in their run: what came late; else, that nothing came."""
        sql = self._turn_events.append.sql
        for id, event in list(self._open.items()):
            call = self._call(id)
            ended = ToolCallStatus.INTERRUPTED if call.outcome is None else ToolCallStatus(call.outcome)
            if late and ended == ToolCallStatus.INTERRUPTED:
                continue
            del self._open[id]
            self._turn_events.run.add(
                ToolResult,
                call=EventRef(self._events[id]),
                call_id=event.call_id,
                status=ended,
                correlation_id=self._turn_events.turn,
                result=UNSET if call.result is None else _ref(sql, call.result),
                error=UNSET if call.error is None else _error(sql, call),
            )


def _error(sql: Sql, call: CallRow) -> ErrorFact:
    assert call.error is not None
    return ErrorFact(code=_code(call.error_code), message=_ref(sql, call.error))


def _code(code: str | None) -> str:
    """A code that is a name as such; one that is a content stays with its source."""
    return code if code is not None and is_name(code) else "error"


def _ref(sql: Sql, n: int) -> str:
    row = sql.one("SELECT ref FROM content WHERE n = ?", (n,))
    assert row is not None, "a call's contents have rows"
    return bytes(row[0]).hex()


class Summary:
    """A text about a branch; about one without a turn it names none."""

    def __init__(self, tip: TurnRow | None, text: str) -> None:
        self.tip, self.text = tip, text

    def __call__(self, turn_events: TurnEvents) -> None:
        turn_events.message(NewMessage(role=MessageRole.USER, content=self.text))
        if self.tip is not None:
            _link(turn_events, self.tip.id, LinkReason.SUMMARY)
        turn_events.finish(RunExit.SUCCESS)


def _link(turn_events: TurnEvents, source: str, why: LinkReason) -> None:
    turn_events.run.add(TurnLinked, child=turn_events.turn, parent=source, why=why)


def provenance(txn: ReadTxn, turn: TurnRow) -> list[Provenance]:
    """What a turn was made from, then what was made from it."""
    rows = txn.sql.all(
        "SELECT child, parent, why FROM link WHERE (child = ? OR parent = ?) AND why IN (?, ?)"
        " ORDER BY child, parent, why",
        (turn.id, turn.id, *_MERGES),
    )
    records = [_provenance(txn, *row) for row in sorted(rows, key=lambda row: row[0] != turn.id)]
    return [record for record in records if record is not None]


def _provenance(txn: ReadTxn, child: str, parent: str, why: str) -> Provenance | None:
    turn, source = load_turn(txn.sql, child), load_turn(txn.sql, parent)
    if turn is None or source is None or not all(map(access_of(txn).may_read_turn, (turn, source))):
        return None
    common = common_depth(*(ranges_to(txn.sql, row.segment, row.depth) for row in (turn, source)))
    row = common and txn.sql.one("SELECT id FROM turn WHERE segment = ? AND depth = ?", common)
    return Provenance(why=why, turn_id=child, source_id=parent, left_id=row[0] if row else None)
