"""What a branch found brought back as a turn that names where it came from; branches of several
replicas joined by one move; and two sessions that belong together made one, with what the next
session has to know of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weft.kernel.clock import iso_from_ms
from weft.kernel.enums import (
    AliasReason,
    LinkReason,
    MessageRole,
    MoveReason,
    RunExit,
    SessionStatus,
    TaskStatus,
    ToolCallStatus,
    TurnType,
)
from weft.kernel.errors import Action, InvalidInput, NotApplicable
from weft.kernel.events import (
    AgentForked,
    ErrorFact,
    Event,
    EventRef,
    HistoryAppend,
    Interruption,
    MessageFact,
    ModelRequest,
    ModelResponse,
    ToolCallRequested,
    ToolResult,
    UnknownEvent,
    is_name,
)
from weft.kernel.ledger_events import (
    AliasAdded,
    CompactionChosen,
    SessionArchived,
    SessionMoved,
    SessionRenamed,
    TurnLinked,
)
from weft.kernel.typed_names import shell_word
from weft.ledger.arguments import LABEL_LIMIT, checked_label, cleaned_label
from weft.ledger.model import UNDATED, Branch, NewMessage, Session, Turn
from weft.ledger.read.access import READ_SESSION, Access, access_of
from weft.ledger.read.revisions import routed_sessions
from weft.ledger.read.session_list import load_subjects
from weft.ledger.read.sessions import head_event, load_branches, principal_names, to_sessions
from weft.ledger.read.turns import SegmentRange, common_depth, ranges_to, shown_events
from weft.ledger.views.rows import (
    CALL,
    SESSION,
    CallRow,
    SessionRow,
    TurnRow,
    decoded,
    find_by_name,
    load_program,
    load_turn,
    run_events,
)
from weft.ledger.views.sessions import wrote_last
from weft.ledger.write.record_turn import move_with_turn
from weft.ledger.write.sessions import require_session, stream_of
from weft.ledger.write.transaction import MESSAGE_ROOM, Append, LeasePatience, LedgerWriter
from weft.ledger.write.turn_events import (
    RunConfig,
    TurnEvents,
    TurnPlacement,
    create_session,
    ensure_free,
    ensure_label_free,
    find_place,
    load_parent,
)
from weft.store.fact_log import FactReader
from weft.store.port import ReadTxn
from weft.store.sql import Sql

# --- What the next session has to know of one that is merged into it, as a text that needs no model.

TOPICS = 20
"""So many questions, and so many open tasks, are told; the latest ones."""
LINE_CHARACTERS = 200
_OPEN_TASK_STATES = ("pending", "active", "blocked")


class MergeContinuity(Struct, frozen=True, kw_only=True):
    """What a merged session leaves behind."""

    label: str
    turns: int
    """Those that the other session's thread does not share."""
    first_at: int | None
    last_at: int | None
    topics: tuple[str, ...]
    """What was asked, in a line each, turn by turn; of a long session the latest."""
    unresolved: tuple[str, ...]

    def text(self, actor: str) -> str:
        """The summary, in the name of whoever merges."""
        lines = [f"Session {self.label!r} was merged into this one by {actor}. {self._extent_words()}"]
        if self.topics:
            more = self.turns - len(self.topics)
            lines += ["", "Asked there, the latest last:" if more > 0 else "Asked there:"]
            lines += [f"- ({more} earlier or without words)"] if more > 0 else []
            lines += [f"- {topic}" for topic in self.topics]
        lines += ["", "Unresolved:" if self.unresolved else "Nothing was left unresolved."]
        return "\n".join([*lines, *(f"- {action}" for action in self.unresolved)])

    def _extent_words(self) -> str:
        if not self.turns:
            return "It had no turns of its own."
        turns = "1 turn" if self.turns == 1 else f"{self.turns} turns"
        if self.first_at is None or self.last_at is None:
            return f"It had {turns}."
        return f"It had {turns}, from {_minute_text(self.first_at)} to {_minute_text(self.last_at)}."


def _minute_text(moment_ms: int) -> str:
    return f"{iso_from_ms(moment_ms)[:16].replace('T', ' ')} UTC"


def load_continuity(txn: ReadTxn, session: SessionRow, into: SessionRow, access: Access) -> MergeContinuity:
    """Of a session that is merged into another one. Programs and subagents that `access` may not read are left out."""
    ranges = _own_ranges(txn, session, into)
    turns, first_at, last_at = _turns_extent(txn, ranges)
    latest = _latest_turns(txn, ranges)
    subjects = load_subjects(txn, latest)
    return MergeContinuity(
        label=session.label,
        turns=turns,
        first_at=first_at,
        last_at=last_at,
        topics=tuple(_clipped_line(subjects[turn]) for turn in latest if subjects.get(turn)),
        unresolved=(
            *_unanswered_questions(txn, session),
            *_open_tasks(txn, session, access),
            *_unfinished_subagents(txn, session, access),
        ),
    )


def _own_ranges(txn: ReadTxn, session: SessionRow, into: SessionRow) -> list[SegmentRange]:
    """The session's thread without what the other's thread has too."""
    ours, theirs = _thread_ranges(txn, session), _thread_ranges(txn, into)
    common = common_depth(ours, theirs)
    depth = common[1] if common else 0
    return [SegmentRange(part.segment, max(part.low, depth + 1), part.high, None) for part in ours if part.high > depth]


def _thread_ranges(txn: ReadTxn, session: SessionRow) -> list[SegmentRange]:
    if session.head_segment is None or session.head_depth is None:
        return []
    return ranges_to(txn.sql, session.head_segment, session.head_depth)


def _turns_extent(txn: ReadTxn, ranges: list[SegmentRange]) -> tuple[int, int | None, int | None]:
    """How many turns, when the first began and when the last ended; of imported turns without a time only how many."""
    rows = [
        txn.sql.fetch_row(
            "SELECT count(*), min(CASE WHEN started_at <> ? THEN started_at END),"
            " max(CASE WHEN started_at <> ? THEN COALESCE(completed_at, started_at) END)"
            " FROM turn WHERE segment = ? AND depth BETWEEN ? AND ?",
            (UNDATED, UNDATED, part.segment, part.low, part.high),
        )
        for part in ranges
    ]
    found = [row for row in rows if row is not None]
    starts = [row[1] for row in found if row[1] is not None]
    ends = [row[2] for row in found if row[2] is not None]
    return sum(row[0] for row in found), min(starts, default=None), max(ends, default=None)


def _latest_turns(txn: ReadTxn, ranges: list[SegmentRange]) -> list[str]:
    """Ids of the latest turns, the oldest of them first."""
    turns: list[str] = []
    for part in reversed(ranges):
        rows = txn.sql.fetch_rows(
            "SELECT id FROM turn WHERE segment = ? AND depth BETWEEN ? AND ? ORDER BY depth DESC LIMIT ?",
            (part.segment, part.low, part.high, TOPICS - len(turns)),
        )
        turns += [row[0] for row in rows]
        if len(turns) == TOPICS:
            break
    return turns[::-1]


def _unanswered_questions(txn: ReadTxn, session: SessionRow) -> Iterator[str]:
    """The last question: of a turn that failed after the head, else of a head without a response."""
    row = txn.sql.fetch_row(
        "SELECT id FROM turn WHERE session = ? AND status <> 'completed' AND current = 1 AND n > COALESCE("
        "(SELECT h.n FROM history h WHERE h.session = ? ORDER BY h.k DESC LIMIT 1), 0) ORDER BY n DESC LIMIT 1",
        (session.n, session.n),
    )
    head = None if session.head is None else load_turn(txn.sql, session.head)
    turn = row[0] if row is not None else None if head is None or not _has_open_question(txn, head) else head.id
    subject = None if turn is None else load_subjects(txn, [turn]).get(turn)
    if subject:
        yield f"not answered: {_clipped_line(subject)}"


def _has_open_question(txn: ReadTxn, turn: TurnRow) -> bool:
    """Whether a turn has a question without a response. A summary of another session expects none."""
    if turn.response is not None or turn.type != TurnType.NORMAL:
        return False
    links = "SELECT 1 FROM link WHERE child = ? AND why = ?"
    return txn.sql.fetch_row(links, (turn.id, LinkReason.SUMMARY)) is None


def _open_tasks(txn: ReadTxn, session: SessionRow, access: Access) -> Iterator[str]:
    """Tasks that an agent works on in this session."""
    rows = txn.sql.fetch_rows(
        "SELECT DISTINCT task FROM program WHERE session = ? AND deleted = 0 AND task IS NOT NULL ORDER BY task",
        (session.id,),
    )
    tasks = [task for row in rows if (task := load_program(txn.sql, row[0])) is not None]
    for task in tasks[-TOPICS:]:
        if task.state in _OPEN_TASK_STATES and not task.deleted and access.may_read_program(task):
            yield f"task {task.name} is {task.state}"


def _unfinished_subagents(txn: ReadTxn, session: SessionRow, access: Access) -> Iterator[str]:
    """Subagents of this session that have not finished."""
    rows = txn.sql.fetch_rows(
        f"{SESSION.select} WHERE parent_session = ? AND status = 'active' ORDER BY n", (session.id,)
    )
    subagents = to_sessions(txn, [row for row in (SessionRow(*values) for values in rows) if access.may_read(row)])
    is_open = (TaskStatus.PENDING.value, TaskStatus.RUNNING.value)
    for subagent in [subagent for subagent in subagents if subagent.task_status in is_open][-TOPICS:]:
        yield f"subagent {subagent.label} is {subagent.task_status}"


def _clipped_line(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[: LINE_CHARACTERS - 1]}…"


# --- Merging in the small: what a branch found, brought back as a turn that names where it came from.

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
    patience: LeasePatience,
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
    patience: LeasePatience,
    key: str | None,
    write: Writer,
) -> str:
    """One new turn on a session, which a writer fills. Returns its id."""
    row = require_session(append, session, "turn:merge")
    if row.status != SessionStatus.ACTIVE:
        raise NotApplicable(f"session {row.label!r} is {row.status}", "make it active again first, or fork it")
    ensure_free(append, row, patience)
    return _write_turn(append, find_place(append, row, UNSET, expected), RunConfig(source_event_id=key), write)


def _write_turn(append: Append, place: TurnPlacement, setting: RunConfig, write: Writer) -> str:
    session, turn = place.session, append.ulids.mint(MESSAGE_ROOM + 1)
    assert session is not None
    turn_events = TurnEvents(append, turn, actor=session.persona, scope=place.scope)
    turn_events.start(
        fork=place.fork, session=session.id, compaction=place.compaction, turn_type=TurnType.NORMAL, setting=setting
    )
    write(turn_events)
    move_with_turn(append, session.id, turn)
    return turn


class TurnPick:
    """Says again what a turn says, by the same contents: where it was substituted, what is shown."""

    def __init__(self, source: TurnRow) -> None:
        if source.status != "completed":
            raise NotApplicable(f"turn {source.id} is {source.status}", "pick a turn that ended well")
        if source.type == TurnType.COMPACTION:
            raise NotApplicable(f"turn {source.id} is a compaction of its own thread", Action.SUMMARIZE_BRANCH)
        self.source = source

    def __call__(self, turn_events: TurnEvents) -> None:
        self._turn_events, self._events, self._messages = turn_events, dict[str, str](), dict[str, str]()
        self._open: dict[str, ToolCallRequested] = {}
        append = turn_events.append
        self._shown = shown_events(ReadTxn(append.sql, append.txn.facts), self.source.n)
        for recorded in list(run_events(turn_events.append.txn.facts, self.source)):
            if not isinstance(recorded.event, UnknownEvent):
                self._repeat_event(recorded.id, self._as_shown(recorded.id, recorded.event))
        self._settle_calls()
        _link_turn(turn_events, self.source.id, LinkReason.CHERRY_PICK)
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

    def _repeat_event(self, id: str, event: Event) -> None:
        match event:
            case HistoryAppend():
                self._add_event(id, event, message=self._picked_message(event.message))
            case ModelRequest():
                self._add_event(id, event, correlation_id=self._turn_events.turn, input=UNSET)
            case ModelResponse():
                output = UNSET if event.output is UNSET else self._picked_message(event.output)
                self._add_event(
                    id,
                    event,
                    correlation_id=self._turn_events.turn,
                    output=output,
                    request_id=self._events.get(str(event.request_id), UNSET),
                    usage=UNSET,  # what it cost was paid once, by its source
                    reasoning_ref=UNSET,
                    stream_ref=UNSET,
                    model=self._picked_model(event),
                )
            case ToolCallRequested():
                answer = UNSET if event.requested_by is UNSET else self._picked_event(event.requested_by)
                message = self._messages.get(str(event.message), UNSET)
                self._open[id] = event
                self._add_event(id, event, correlation_id=self._turn_events.turn, requested_by=answer, message=message)
            case ToolResult():
                if self._came_late(event.call):
                    return  # what came instead is told at the end
                self._open.pop(event.call.event_id, None)
                self._add_event(
                    id, event, correlation_id=self._turn_events.turn, call=self._picked_event(event.call), spawned=UNSET
                )
            case Interruption():
                self._settle_calls(late=True)
                affected = tuple(EventRef(self._events[call]) for call in self._open)
                self._open = {}
                self._add_event(id, event, affects=affected)
            case _:
                pass

    def _add_event(self, id: str, event: Event, **changed: Any) -> None:
        fields = {name: getattr(event, name) for name in event.__struct_fields__ if name not in _ENVELOPE}
        self._events[id] = self._turn_events.run.add(type(event), **{**fields, **changed})

    def _picked_event(self, ref: EventRef) -> EventRef | UnsetType:
        event = self._events.get(ref.event_id)
        return UNSET if event is None else EventRef(event)

    def _picked_message(self, fact: MessageFact) -> MessageFact:
        id = self._turn_events.next_message_id()
        self._messages[fact.id] = id
        return replace(fact, id=id, native=UNSET, parent=self._messages.get(str(fact.parent), UNSET))

    def _picked_model(self, event: ModelResponse) -> Any:
        """Of an imported turn a sighting tells it, not the response."""
        return event.model if event.model is not UNSET or self.source.model is None else self.source.model

    def _call_row(self, id: str) -> CallRow:
        sql = self._turn_events.append.sql
        row = sql.fetch_row(f"{CALL.select} WHERE turn = ? AND event = ?", (self.source.n, bytes.fromhex(id)))
        assert row is not None, "every call of a run has a row"
        return CallRow(*row)

    def _came_late(self, ref: EventRef) -> bool:
        """Did another outcome come after the run had ended?"""
        return ref.event_id in self._open and (self._call_row(ref.event_id).result_position or 0) < 0

    def _settle_calls(self, *, late: bool = False) -> None:
        """Calls without an outcome in their run: what came late; else, that nothing came."""
        sql = self._turn_events.append.sql
        for id, event in list(self._open.items()):
            call = self._call_row(id)
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
                result=UNSET if call.result is None else _content_reference(sql, call.result),
                error=UNSET if call.error is None else _error_fact(sql, call),
            )


def _error_fact(sql: Sql, call: CallRow) -> ErrorFact:
    assert call.error is not None
    return ErrorFact(code=_error_code(call.error_code), message=_content_reference(sql, call.error))


def _error_code(code: str | None) -> str:
    """A code that is a name as such; one that is a content stays with its source."""
    return code if code is not None and is_name(code) else "error"


def _content_reference(sql: Sql, n: int) -> str:
    row = sql.fetch_row("SELECT ref FROM content WHERE n = ?", (n,))
    assert row is not None, "a call's contents have rows"
    return bytes(row[0]).hex()


class BranchSummary:
    """A text about a branch; about one without a turn it names none."""

    def __init__(self, tip: TurnRow | None, text: str) -> None:
        self.tip, self.text = tip, text

    def __call__(self, turn_events: TurnEvents) -> None:
        turn_events.message(NewMessage(role=MessageRole.USER, content=self.text))
        if self.tip is not None:
            _link_turn(turn_events, self.tip.id, LinkReason.SUMMARY)
        turn_events.finish(RunExit.SUCCESS)


def _link_turn(turn_events: TurnEvents, source: str, why: LinkReason) -> None:
    turn_events.run.add(TurnLinked, child=turn_events.turn, parent=source, why=why)


def provenance(txn: ReadTxn, turn: TurnRow) -> list[Provenance]:
    """What a turn was made from, then what was made from it."""
    rows = txn.sql.fetch_rows(
        "SELECT child, parent, why FROM link WHERE (child = ? OR parent = ?) AND why IN (?, ?)"
        " ORDER BY child, parent, why",
        (turn.id, turn.id, *_MERGES),
    )
    records = [_provenance_of(txn, *row) for row in sorted(rows, key=lambda row: row[0] != turn.id)]
    return [record for record in records if record is not None]


def _provenance_of(txn: ReadTxn, child: str, parent: str, why: str) -> Provenance | None:
    turn, source = load_turn(txn.sql, child), load_turn(txn.sql, parent)
    if turn is None or source is None or not all(map(access_of(txn).may_read_turn, (turn, source))):
        return None
    common = common_depth(*(ranges_to(txn.sql, row.segment, row.depth) for row in (turn, source)))
    row = common and txn.sql.fetch_row("SELECT id FROM turn WHERE segment = ? AND depth = ?", common)
    return Provenance(why=why, turn_id=child, source_id=parent, left_id=row[0] if row else None)


# --- Sessions that several replicas moved: which branches there are, and one move that joins them.

STATES = (SessionRenamed, SessionArchived)


class SettleChoice(Struct, frozen=True, kw_only=True):
    """Where a session shall stand once it is settled: at a turn, where one branch stands, or on both, as two."""

    turn: str | None = None
    event: str | None = None
    ours: bool = False
    theirs: bool = False
    fork: str | None = None

    def check(self) -> None:
        if (self.turn is not None) + self.theirs + (self.ours or self.fork is not None) != 1:
            raise InvalidInput("say where the session shall stand", "one of: a turn, ours, theirs, or fork")
        if self.fork is not None:
            checked_label(self.fork)


def settle(writer: LedgerWriter, name: str, choice: SettleChoice, reason: str | None, patience: LeasePatience) -> None:
    """One move that names every branch's end, and what else of the session the branches say differently."""
    choice.check()

    def work(append: Append) -> None:
        row = require_session(append, name, "session:settle")
        ensure_free(append, row, patience)
        branches = load_branches(ReadTxn(append.sql, append.txn.facts), row.n)
        if not branches:
            raise NotApplicable(f"session {row.label!r} has one branch", "nothing is to be settled")
        turn, event = _chosen_place(append, row, branches, choice)
        compaction = row.compaction if turn == row.head else None
        states = _changed_states(append.txn.facts, row, branches)
        stream = stream_of(append, row)
        stream.add(
            SessionMoved,
            to=turn,
            before=row.head,
            why=MoveReason.SETTLE,
            at=UNSET if event is None else event,
            reason=UNSET if reason is None else append.put_text(reason, "reason"),
            tips=tuple(EventRef(tip) for tip in (bytes(row.last_event).hex(), *(branch.tip for branch in branches))),
        )
        if SessionRenamed in states:
            stream.add(SessionRenamed, label=append.put_text(row.label))
        if SessionArchived in states:
            stream.add(SessionArchived, status=SessionStatus(row.status))
        if compaction is not None:
            stream.add(CompactionChosen, compaction=compaction or None)
        append.seal()

    patience.keep_trying(lambda: writer.write(work))


def _chosen_place(
    append: Append, row: SessionRow, branches: list[Branch], choice: SettleChoice
) -> tuple[str | None, str | None]:
    """The turn that the session shall stand at, and an event inside it."""
    if choice.turn is not None:
        turn = load_parent(append, choice.turn)
        return turn.id, choice.event or (None if turn.closed else turn.digest)
    if choice.theirs or choice.fork is not None:
        theirs = _their_head(append, row, branches)
        if choice.theirs:
            return theirs
        _fork_branch(append, row, checked_label(choice.fork), theirs)
    return row.head, _head_event_of(append, row.head, row.head_events)


def _their_head(append: Append, row: SessionRow, branches: list[Branch]) -> tuple[str | None, str | None]:
    places = {(branch.head, branch.head_event) for branch in branches}
    if len(places) > 1:
        raise NotApplicable(
            f"session {row.label!r} has {len(branches)} other branches, at different turns",
            Action.NAME_ONE_BRANCH.of(branches=" or ".join(sorted(shell_word(branch.name) for branch in branches))),
        )
    head, events = places.pop()
    return head, _head_event_of(append, head, events)


def _head_event_of(append: Append, turn: str | None, events: int | None) -> str | None:
    return None if turn is None else head_event(append.txn.facts, append.view.turn(turn), events)


def _fork_branch(append: Append, row: SessionRow, label: str, place: tuple[str | None, str | None]) -> None:
    """A session of its own for the other branch."""
    turn, event = place
    ensure_label_free(append, label)
    if turn is None:
        raise NotApplicable(f"the other branch of {row.label!r} stands at no turn", Action.CHOOSE_OWN_BRANCH)
    session = create_session(append, label, persona=row.persona)
    stream_of(append, session).add(
        AgentForked,
        to_branch=session.id,
        at_event=EventRef(event or append.view.turn(turn).digest),
        at_turn=turn,
        from_branch=row.id,
    )


def _changed_states(facts: FactReader, row: SessionRow, branches: list[Branch]) -> set[type]:
    """Which of label and status were changed on some branch and not before all of them parted."""
    ends = [bytes(row.last_event).hex(), *(branch.tip for branch in branches)]
    chains = [dict(events_back_from(facts, end)) for end in ends]
    shared = set(chains[0]).intersection(*chains[1:])
    return {
        type(event) for chain in chains for id, event in chain.items() if id not in shared and type(event) in STATES
    }


def events_back_from(facts: FactReader, event_id: str | None) -> Iterator[tuple[str, Event | UnknownEvent]]:
    """An event of a stream and those before it."""
    while event_id is not None:
        n = facts.find_event(bytes.fromhex(event_id))
        line = None if n is None else facts.line(n)
        if n is None or line is None:
            return
        event = decoded(n, line)
        yield event_id, event
        event_id = event.prev


# --- Two sessions that belong together become one, without merging their trees.

UNIFIED = "unified/"
"""With this before its label a session is archived once another one has its label."""


class Unification(Struct, frozen=True, kw_only=True):
    """Two sessions that became one."""

    session: Session
    """The one that stays."""
    archived: Session
    """The one that was merged into it, under its new label."""
    names: tuple[str, ...]
    """Labels and aliases that lead to the one that stays from now on."""
    summary: Turn
    """The turn that tells of the archived one."""


class UnifiedIds(Struct, frozen=True):
    """The same by ids, as a repeated command answers it."""

    session: str
    archived: str
    turn: str
    names: tuple[str, ...]
    """References of the contents that hold them: names may be erased meanwhile."""


def unify(
    append: Append, name: str, into: str, text: str | None, patience: LeasePatience, key: str | None
) -> UnifiedIds:
    """Merge a session into another one. `text` is the summary; without one it is made of what is recorded."""
    gone = require_session(append, name, "session:archive")
    target = require_session(append, into, "turn:merge")
    for right in (READ_SESSION, "session:rename"):
        append.access.ensure(right, gone, name)
        append.access.ensure(right, target, into)
    _ensure_two(append, gone, target)
    ensure_free(append, gone, patience)
    ensure_free(append, target, patience)
    names = _session_names(append, gone)
    head = None if gone.head is None else load_turn(append.sql, gone.head)
    if text is None:
        (actor,) = principal_names(append.sql, append.acting_ids[:1]).values()
        text = load_continuity(ReadTxn(append.sql, append.txn.facts), gone, target, append.access).text(actor)
    turn = add_turn(append, target.id, UNSET, patience, key, BranchSummary(head, text))
    ended = stream_of(append, gone)
    ended.add(SessionRenamed, label=append.put_text(_retired_label(append, gone.label)))  # a label wins over an alias
    if gone.status != SessionStatus.ARCHIVED:
        ended.add(SessionArchived, status=SessionStatus.ARCHIVED)
    going_on = stream_of(append, target)
    aliases = tuple(append.put_text(alias) for alias in names)
    for alias in aliases:
        going_on.add(AliasAdded, alias=alias, reason=AliasReason.IDENTITY_MERGE)
    return UnifiedIds(target.id, gone.id, turn, aliases)


def _ensure_two(append: Append, gone: SessionRow, target: SessionRow) -> None:
    if gone.id == target.id:
        raise NotApplicable(f"both names lead to session {target.label!r}", "name two sessions")
    if gone.status == SessionStatus.DELETED:
        raise NotApplicable(f"session {gone.label!r} is deleted", "restore it first")
    if load_branches(ReadTxn(append.sql, append.txn.facts), gone.n):
        raise NotApplicable(f"session {gone.label!r} has several branches", "settle it first")


def _session_names(append: Append, session: SessionRow) -> tuple[str, ...]:
    """Every name that leads to a session: its label, its aliases, and its routing key if no other session has it."""
    rows = append.sql.fetch_rows("SELECT alias FROM alias WHERE session = ? ORDER BY alias", (session.n,))
    names = [session.label, *(row[0] for row in rows if row[0] != session.label)]
    key = None if session.routing is None else append.txn.facts.text(session.routing)
    if key is not None and key not in names and cleaned_label(key) == key and find_by_name(append.view, key) is None:
        routed = routed_sessions(ReadTxn(append.sql, append.txn.facts), key)
        names += [key] if [row.id for row in routed] == [session.id] else []
    return tuple(names)


def _retired_label(append: Append, label: str) -> str:
    retired = f"{UNIFIED}{label}"[: LABEL_LIMIT - len(UNIFIED)].strip()
    free, number = retired, 1
    while find_by_name(append.view, free) is not None:
        number += 1
        free = f"{retired}-{number}"
    return free


# --- the way back ---------------------------------------------------------------------------------------------------


def separate(append: Append, name: str, patience: LeasePatience) -> str:
    """Undo a merge: the session is active again and has its names back, with the reasons that they had. The summary
    stays a turn of the other session. Returns the session's id."""
    row = require_session(append, name, "session:archive")
    append.access.ensure("session:rename", row, name)
    ensure_free(append, row, patience)
    label, reasons = row.label.removeprefix(UNIFIED), _former_names(append, row)
    holders = [(alias, holder) for alias in reasons if (holder := _merged_into(append, alias, row)) is not None]
    if not holders:
        raise NotApplicable(f"no name of session {row.label!r} was given to another session", Action.LIST_SESSIONS)
    for alias, holder in holders:
        append.access.ensure("session:rename", holder, alias)
        if not wrote_last(append.view, holder, append.replica):
            stream_of(append, holder).add(
                AliasAdded, alias=append.put_text(alias), reason=AliasReason.IDENTITY_MERGE
            )  # so that other ledgers believe this one, which wrote last, that it hands the name back
        stream_of(append, row).add(AliasAdded, alias=append.put_text(alias), reason=reasons[alias])
    if any(alias == label for alias, _ in holders):
        stream_of(append, row).add(SessionRenamed, label=append.put_text(label))
    if row.status != SessionStatus.ACTIVE:
        stream_of(append, row).add(SessionArchived, status=SessionStatus.ACTIVE)
    return row.id


def _former_names(append: Append, session: SessionRow) -> dict[str, AliasReason]:
    """What a merged session may have been called, and why: its label, its routing key, and the aliases it ever had."""
    facts = append.txn.facts
    names = {session.label.removeprefix(UNIFIED): AliasReason.MANUAL}
    if session.routing is not None and (key := facts.text(session.routing)):
        names.setdefault(key, AliasReason.MANUAL)
    for _, event in events_back_from(facts, bytes(session.last_event).hex()):
        if isinstance(event, AliasAdded) and (alias := facts.text(append.number(event.alias))):
            names.setdefault(alias, event.reason)
    return names


def _merged_into(append: Append, alias: str, session: SessionRow) -> SessionRow | None:
    """The other session that an alias leads to since a merge."""
    rows = "SELECT session FROM alias WHERE alias = ? AND reason = ? AND session <> ?"
    row = append.sql.fetch_row(rows, (alias, AliasReason.IDENTITY_MERGE, session.n))
    return None if row is None else append.view.session_of_number(row[0])
