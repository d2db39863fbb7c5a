"""The turns that a broker runs: begun for messages of an inbox, gone on with by whoever holds
the session, ended; outcome and next intent in one transaction. A store that is far away is asked
beforehand all that these writes will ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from msgspec import UNSET, Struct

from weft.kernel.clock import iso_from_ms
from weft.kernel.contents import json_bytes, text_bytes
from weft.kernel.enums import InboxState, InterruptionReason, MoveReason, RunExit, TurnType
from weft.kernel.errors import HeadMoved, LeaseLost, NotApplicable, SessionBusy
from weft.kernel.events import ApprovalRequested, EventRef, McpResourceListChanged, McpResourceUpdated, ToolDecided
from weft.kernel.ledger_events import MessageDead, RunParked, SessionMoved, TurnRetried, WorkersAnswered
from weft.ledger.broker.inbox import (
    AddMessage,
    ApprovalAsked,
    EndedRun,
    Entry,
    FinishedRun,
    ModelAnswered,
    ModelAsked,
    ParkedRun,
    RecordedEvent,
    RunInterruption,
    RunRecord,
    TakeMessage,
    Then,
    ToolAsked,
    ToolDecision,
    ToolEnded,
    TurnRetry,
    admission_event,
    principals,
    run_principals,
)
from weft.ledger.broker.workers import answers_for
from weft.ledger.model import DEFAULT_AGENT, NewError, NewMessage, NewToolCall, RecordedTurn, TextPart, ToolUsePart
from weft.ledger.read.sessions import on_behalf_of
from weft.ledger.resource_changes import add_kept_state
from weft.ledger.resource_reading import KeptState
from weft.ledger.views.inboxes import admission_question
from weft.ledger.views.rows import (
    Lease,
    LeaseKind,
    SessionRow,
    TurnRow,
    find_lease,
    lease_question,
    load_session_number,
    load_turn,
    session_number_question,
    session_question,
    turn_question,
)
from weft.ledger.write.record_turn import WriteWeight, move_with_turn, weigh
from weft.ledger.write.sessions import stream_of
from weft.ledger.write.transaction import MESSAGE_ROOM, Append, LeasePatience, LedgerWriter
from weft.ledger.write.turn_events import (
    ResultNotes,
    RunConfig,
    TurnEvents,
    ensure_free,
    error_fact,
    find_place,
    leave_run,
    open_calls,
    release,
    renew,
    take,
)
from weft.store.fact_log import Key
from weft.store.replicas import NOBODY, OWN_NAMES, was_before_boot
from weft.store.sql import Question

# --- What the writes of a broker's turn will most likely ask the ledger.

_QUEUED = "SELECT n, session FROM inbox WHERE message = ? AND state = 'queued'"


def queued_at(append: Append, message: str) -> tuple[int, int] | None:
    """The arrival number of a message that waits, and the number of its session."""
    row = append.sql.fetch_row(_QUEUED, (message,))
    return None if row is None else (int(row[0]), int(row[1]))


def questions_of_begin(session: str, messages: Sequence[str]) -> list[Question]:
    """Of a turn that is begun in a session, by its id, for some messages."""
    asked: list[Question] = [session_question(session), lease_question(LeaseKind.SESSION, session), OWN_NAMES]
    for message in messages:
        asked += [(_QUEUED, (message,)), admission_question(message)]
    return asked


def questions_of_step(turn: str, session: str) -> list[Question]:
    """Of a turn that goes on in a session, both by their ids."""
    return [lease_question(LeaseKind.SESSION, session), turn_question(turn)]


def questions_of_end(session_number: int, after: Sequence[Question]) -> list[Question]:
    """Of a turn that may end; `after` is what follows from that asks."""
    return [session_number_question(session_number), *after]


def may_end(entries: Sequence[Entry]) -> bool:
    """Whether a turn will most likely end with these entries."""
    return any(isinstance(entry, FinishedRun | RunInterruption) or _is_last_answer(entry) for entry in entries)


def _is_last_answer(entry: Entry) -> bool:
    if not isinstance(entry, ModelAnswered):
        return False
    parts = entry.message.content if entry.message is not None else ()
    return not (isinstance(parts, tuple) and any(isinstance(part, ToolUsePart) for part in parts))


def likely_contents(entries: Sequence[Entry], scope: int) -> list[Key]:
    """Contents that recording entries will put into a tree, those that are easily told."""
    return [(scope, sha256(data).digest()) for data in _entry_contents(entries)]


def _entry_contents(entries: Sequence[Entry]) -> Iterator[bytes]:
    for entry in entries:
        if isinstance(entry, AddMessage | ModelAnswered) and entry.message is not None:
            yield from _of_message(entry.message)
        elif isinstance(entry, ToolEnded) and isinstance(entry.result, str | dict | list):
            yield json_bytes(entry.result, "result")


def _of_message(message: NewMessage) -> Iterator[bytes]:
    if isinstance(message.content, str):
        yield text_bytes(message.content)
    for part in message.content if isinstance(message.content, tuple) else ():
        if isinstance(part, TextPart) and isinstance(part.text, str):
            yield text_bytes(part.text)
        elif isinstance(part, ToolUsePart):
            yield text_bytes(part.id)
            if isinstance(part.input, dict):
                yield json_bytes(part.input, "arguments")


# --- The turns that a broker runs: begun for messages of an inbox, gone on with by whoever holds the session, ended.


class AtEnd(Struct, frozen=True):
    """What else belongs to the transaction that ends a turn."""

    run: Callable[[Append, EndedRun], None]
    questions: Callable[[str], Sequence[Question]]
    """What that asks of a session, by its id."""


class RunWriter:
    """An open turn of a broker that holds its session."""

    def __init__(
        self,
        writer: LedgerWriter,
        turn: str,
        lease: Lease,
        head: tuple[str | None, int | None],
        former_owner: str = NOBODY,
        *,
        session: int,
        scope: int,
        at_end: AtEnd,
        senders: tuple[str, ...] | None = None,
    ) -> None:
        """`session` is the number of the session, `scope` the tree that the turn belongs to, `senders` in whose names
        it runs, where that is known."""
        self._writer, self._lease, self._head, self._former_owner = writer, lease, head, former_owner
        self._session, self._scope, self._at_end = session, scope, at_end
        self._senders = senders
        self.id = turn
        self.is_over = False

    @property
    def lost_because(self) -> InterruptionReason:
        """Why whoever worked on the turn before does so no more."""
        if self._former_owner == NOBODY:
            return InterruptionReason.SHUTDOWN
        is_former_boot = was_before_boot(self._former_owner)
        return InterruptionReason.SYSTEM_RESTART if is_former_boot else InterruptionReason.CRASH

    def record(self, entries: Sequence[Entry], then: Then | None = None) -> RunRecord:
        """Write entries, and what `then` makes of their events, in one transaction."""
        weight = _entries_weight(entries)

        def work(append: Append) -> RunRecord:
            turn = append.view.turn(self.id)
            if turn.closed:
                raise LeaseLost(self.id)
            renew(append, self._lease)
            if self._senders is None:
                self._senders = run_principals(append.txn.facts, turn.n)
            batch = _RunBatch(append, turn, self._head, self._senders)
            return _write_batch(append, batch, self._lease, entries, then, self._at_end)

        if weight.large:
            self._writer.put_large(weight.large, self._scope)
        likely, ahead = likely_contents(entries, self._scope), self._likely_questions(entries)
        return self._note_record(self._writer.write(work, weight.size, likely=likely, ahead=ahead))

    def _likely_questions(self, entries: Sequence[Entry]) -> list[Question]:
        """What recording them will most likely ask."""
        session = self._lease.key
        asked = questions_of_step(self.id, session)
        if may_end(entries):
            asked += questions_of_end(self._session, self._at_end.questions(session))
        return asked

    def _note_record(self, record: RunRecord) -> RunRecord:
        if record.ended is not None or any(isinstance(one.event, RunParked) for one in record.events):
            self.is_over = True
            self._writer.let_go(self._lease)
        return record

    def renew(self) -> None:
        """Say that this broker is alive, while a model or a tool takes its time."""
        self._writer.write(lambda append: renew(append, self._lease))

    def leave(self) -> None:
        """Stop working on the turn without ending it: any broker may go on with it at once."""

        def work(append: Append) -> None:
            renew(append, self._lease)
            leave_run(append, self._lease)

        self._writer.write(work)
        self.is_over = True
        self._writer.let_go(self._lease)


def begin_run(
    writer: LedgerWriter,
    session: str,
    *,
    expected: tuple[str | None, int | None],
    messages: Sequence[str],
    before: Sequence[Entry],
    setting: RunConfig,
    then: Then | None,
    owner: str,
    ttl: float,
    at_end: AtEnd,
    parent: str | None = None,
    is_root: bool = False,
    persona: str | None = None,
    retry: TurnRetry | None = None,
) -> tuple[RunWriter, RunRecord]:
    """Take a session and begin a turn for some of its messages, if it stands where its next request was assembled.
    With `is_root` it begins without anything that was said there before; with `parent`, as a child of a failed turn;
    `retry` names the turn that it tries again."""
    patience = LeasePatience(writer, 0, ttl)
    runs: list[RunWriter] = []

    def work(append: Append) -> RunRecord:
        row = append.view.session(session)
        epoch = ensure_free(append, row, patience)
        if (row.head, row.head_events) != expected:
            raise HeadMoved(row.label, expected[0], row.head)
        taken, at = _still_queued(append, messages, row), expected
        if is_root and row.head is not None:
            row, at = _reset_session(append, row), (None, None)
        place = find_place(append, row, UNSET if parent is None else parent, UNSET)
        turn = append.ulids.mint(MESSAGE_ROOM + 1)
        senders = _sender_ids(append, taken[0])
        actor = row.persona if persona in (None, DEFAULT_AGENT) else append.agent(persona or "")
        events = TurnEvents(append, turn, actor=actor, scope=place.scope)
        events.run.on_behalf_of = senders or events.run.on_behalf_of
        events.start(
            fork=place.fork,
            session=row.id,
            compaction=place.compaction,
            turn_type=TurnType.NORMAL,
            setting=setting,
        )
        recorded_senders = on_behalf_of(events.run.last)
        lease = take(append, LeaseKind.SESSION, row.id, epoch, owner, turn)
        run = RunWriter(
            writer, turn, lease, at, session=row.n, scope=place.scope, at_end=at_end, senders=recorded_senders
        )
        runs[:] = [run]
        batch = _RunBatch(append, append.view.turn(turn), at, senders, events)
        if retry is not None:
            batch.add_retry(retry)
        entries = [*before, *map(TakeMessage, taken)]
        record = _write_batch(append, batch, lease, entries, then, at_end)
        writer.hold(lease)
        return record

    record = writer.write(work, _entries_weight(before).size, ahead=questions_of_begin(session, messages))
    (run,) = runs
    return run, run._note_record(record)


def adopt_run(writer: LedgerWriter, turn: str, *, owner: str, ttl: float, at_end: AtEnd) -> RunWriter | None:
    """Go on with an open turn whose broker is gone, silent, or left it. None where it is over; raises SessionBusy
    where somebody works on it."""
    patience = LeasePatience(writer, 0, ttl)

    def work(append: Append) -> RunWriter | None:
        row = append.view.find_turn(turn)
        if row is None or row.closed or row.session is None:
            return None
        session = append.view.session_of_number(row.session)
        assert session is not None, "a turn of a session that is there"
        held = find_lease(append.sql, LeaseKind.SESSION, session.id)
        if held is not None and held.purpose is not None and (held.purpose != turn or not patience.judge_stale(held)):
            raise SessionBusy(session.label, held.purpose, held.owner)
        lease = take(append, LeaseKind.SESSION, session.id, held.epoch if held else 0, owner, turn)
        writer.hold(lease)
        former_owner = NOBODY if held is None or held.purpose is None else held.owner
        at = (session.head, session.head_events)
        return RunWriter(writer, turn, lease, at, former_owner, session=session.n, scope=row.root, at_end=at_end)

    _ensure_left(writer, turn, patience)
    return writer.write(work)


def _ensure_left(writer: LedgerWriter, turn: str, patience: LeasePatience) -> None:
    """Refuse, without a transaction that writes, to go on with a turn that somebody works on."""
    with writer.store.read() as txn:
        row = load_turn(txn.sql, turn)
        session = None if row is None or row.session is None else load_session_number(txn.sql, row.session)
        lease = None if session is None else find_lease(txn.sql, LeaseKind.SESSION, session.id)
    if session is None or lease is None or lease.purpose is None:
        return
    if lease.purpose == turn and not patience.judge_stale(lease):
        raise SessionBusy(session.label, turn, lease.owner)


def _write_batch(
    append: Append, batch: _RunBatch, lease: Lease, entries: Sequence[Entry], then: Then | None, at_end: AtEnd
) -> RunRecord:
    batch.add(entries)
    while then is not None and not batch.is_over and (more := then(tuple(batch.events))):
        batch.add(more)
    if batch.finished is not None:
        batch.end()
        release(append, lease)
        at_end.run(append, batch.ended_run())
    elif batch.is_parked:
        leave_run(append, lease)
    append.seal()
    ended = None if batch.finished is None else batch.recorded_turn(append)
    return RunRecord(events=tuple(batch.events), n=append.txn.facts.tip().n, ended=ended)


class _RunBatch:
    """The events that one transaction adds to a run."""

    def __init__(
        self,
        append: Append,
        turn: TurnRow,
        head: tuple[str | None, int | None],
        senders: tuple[str, ...],
        turn_events: TurnEvents | None = None,
    ) -> None:
        self._append, self._turn, self._head = append, turn, head
        self._events = turn_events or TurnEvents(
            append, turn.id, actor=turn.persona, prev=turn.digest, messages=turn.messages, scope=turn.root
        )
        self._senders = senders
        if senders:
            self._events.run.on_behalf_of = senders
        self.events: list[RecordedEvent] = []
        if turn_events is not None:
            self._note_event()
        self._answer: tuple[str, str | None] | None = None
        self.finished: FinishedRun | None = None
        self.is_parked = False
        self._digest, self._moved = "", False
        self._session: str | None = None

    @property
    def is_over(self) -> bool:
        return self.finished is not None or self.is_parked

    def _note_event(self) -> None:
        run = self._events.run
        assert run.prev is not None
        self.events.append(RecordedEvent(run.prev, run.last))

    def add_retry(self, retry: TurnRetry) -> None:
        self._events.run.add(TurnRetried, turn=self._turn.id, of=retry.of, afresh=retry.afresh)
        self._note_event()

    def add(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._add_entry(entry)

    def _add_entry(self, entry: Entry) -> None:
        events = self._events
        match entry:
            case TakeMessage():
                self._take_message(entry.message)
            case AddMessage():
                events.message(entry.message)
            case ModelAsked():
                correlation = self._append.ulids.mint()
                events.request(
                    entry.model,
                    correlation,
                    provider=entry.provider,
                    vendor=entry.vendor,
                    params=entry.params,
                    tools_spec=entry.tools_spec,
                    attempt=entry.attempt,
                    input=entry.input,
                )
            case ModelAnswered():
                self._add_answer(entry)
            case ToolAsked():
                self._add_tool_call(entry)
            case ToolDecision():
                self._add_decision(entry)
            case ApprovalAsked():
                self._ask_person(entry)
            case ToolEnded():
                self._end_tool_call(entry)
            case RunInterruption():
                events.interruption(entry.reason, entry.affects, goes_on=entry.goes_on)
            case ParkedRun():
                self._park_run(entry)
            case FinishedRun():
                self._finish_run(entry)
                return
        self._note_event()

    def _take_message(self, message: str) -> None:
        place = queued_at(self._append, message)
        if place is None:
            raise NotApplicable(f"message {message} does not wait any more", "read the inbox again")
        self._events.admitted(admission_event(self._append.txn.facts, place[0]))

    def _add_answer(self, entry: ModelAnswered) -> None:
        message = self._events.response(
            entry.message,
            entry.correlation,
            request=entry.request,
            usage=entry.usage,
            finish_reason=entry.finish_reason,
            model=entry.model,
            latency_ms=entry.latency_ms,
            refers_to_reasoning=True,
        )
        assert self._events.run.prev is not None
        self._answer = (self._events.run.prev, message)

    def _add_tool_call(self, entry: ToolAsked) -> None:
        answer, message = self._answer or (entry.answer, entry.message)
        call = NewToolCall(name=entry.name, id=entry.call_id, arguments=entry.arguments, server=entry.server)
        self._events.call(call, entry.correlation, requested_by=answer, message=message)

    def _end_tool_call(self, entry: ToolEnded) -> None:
        outcome = NewToolCall(
            name="-", result=entry.result, error=entry.error, status=entry.status, duration_ms=entry.duration_ms
        )
        notes = ResultNotes(files=entry.files, lints=entry.lints, is_untrusted=entry.is_untrusted, sent=entry.sent)
        self._events.result(
            entry.call, entry.call_id, outcome, entry.correlation, entry.spawned, notes=notes, awaited=entry.awaited
        )
        self._add_kept_states(entry.kept)

    def _add_kept_states(self, states: Sequence[KeptState]) -> None:
        """What resources were like when the last event came."""
        for state in states:
            add_kept_state(self._append, state, self._events.turn, self._events.run.prev or "")

    def _add_decision(self, entry: ToolDecision) -> None:
        text = self._events.contents.put_text
        self._events.run.add(
            ToolDecided,
            call=EventRef(entry.call),
            decision=entry.decision,
            by=entry.by,
            bound=UNSET if entry.plan_digest is None else entry.plan_digest,
            policy=UNSET if entry.policy is None else entry.policy,
            grant=UNSET if entry.grant is None else EventRef(entry.grant),
            rationale=UNSET if entry.rationale is None else text(entry.rationale, "rationale"),
            plan=UNSET if entry.plan is None else self._events.contents.put_json(entry.plan, "plan"),
        )
        self._add_kept_states(entry.kept)

    def _ask_person(self, entry: ApprovalAsked) -> None:
        text = self._events.contents.put_text
        self._events.run.add(
            ApprovalRequested,
            call=EventRef(entry.call),
            bound=entry.plan_digest,
            rationale=UNSET if entry.rationale is None else text(entry.rationale, "rationale"),
            shown=text(entry.shown, "shown"),
            subjects=self._events.contents.put_json(entry.subjects, "subjects"),
            expires=UNSET if entry.expires is None else iso_from_ms(entry.expires),
        )

    def _park_run(self, entry: ParkedRun) -> None:
        self._events.run.add(
            RunParked,
            calls=tuple(map(EventRef, entry.calls)),
            until=UNSET if entry.until is None else iso_from_ms(entry.until),
            why=UNSET if entry.why is None else self._events.contents.put_text(entry.why, "why"),
            awaits=entry.awaits or UNSET,
            any=entry.is_any or UNSET,
        )
        self.is_parked = True
        answers = answers_for(self._append, entry.awaits, is_any=entry.is_any) if entry.awaits else None
        if answers is not None:  # they came before the turn was parked
            self._note_event()
            self._events.run.add(WorkersAnswered, call=EventRef(entry.calls[0]), turns=answers)

    def _finish_run(self, entry: FinishedRun) -> None:
        append = self._append
        turn = append.view.turn(self._turn.id)
        if turn.calls:
            append.view.flush(keep=True)
            if still_open := open_calls(append, turn):
                raise NotApplicable(
                    f"{len(still_open)} tool calls of turn {turn.id} have no result", "record how each of them ended"
                )
        self._digest = self._events.finish(
            entry.exit, response=turn.response, error=entry.error, permissions_used=entry.permissions_used
        )
        self.finished = entry
        self._note_event()

    def end(self) -> None:
        """Move the head to the turn, or say which messages are dead by it."""
        assert self.finished is not None
        append = self._append
        turn = append.view.turn(self._turn.id)
        assert turn.session is not None, "a broker's turn has a session"
        session = append.view.session_of_number(turn.session)
        assert session is not None
        append.sql.run("DELETE FROM partial_reply WHERE turn = ?", (turn.id,))
        if self.finished.exit is RunExit.SUCCESS:
            self._moved = (session.head, session.head_events) == self._head
            if self._moved:
                move_with_turn(append, session.id, turn.id)
        else:
            self._kill_waiting_messages(session, turn)
        self._session = session.label if self._moved or self.finished.exit is not RunExit.SUCCESS else None

    def ended_run(self) -> EndedRun:
        assert self.finished is not None
        rows = self._append.sql.fetch_rows("SELECT message FROM inbox WHERE turn = ? ORDER BY n", (self._turn.id,))
        turn, error = self._append.view.turn(self._turn.id), self.finished.error
        session = None if turn.session is None else self._append.view.session_of_number(turn.session)
        assert session is not None, "a broker's turn has a session"
        return EndedRun(
            session=session.id,
            turn=turn.id,
            messages=tuple(str(message) for (message,) in rows),
            principals=self._senders,
            exit=self.finished.exit,
            error=error.message if isinstance(error, NewError) else error,
            events=tuple(self.events),
        )

    def _kill_waiting_messages(self, session: SessionRow, turn: TurnRow) -> None:
        append = self._append
        rows = append.sql.fetch_rows(
            "SELECT message FROM inbox WHERE turn = ? AND state = ? ORDER BY n", (turn.id, InboxState.DEAD.value)
        )
        _add_dead(append, session.id, [str(message) for (message,) in rows], None)  # the turn tells why

    def recorded_turn(self, append: Append) -> RecordedTurn:
        turn = append.view.turn(self._turn.id)
        return RecordedTurn(
            id=turn.id,
            digest=self._digest,
            depth=turn.depth,
            parent_id=turn.parent,
            session=self._session,
            receipt=append.receipt(self._digest),
            response_message_id=turn.response,
        )


def bury(writer: LedgerWriter, messages: Sequence[str], error: NewError, at_end: AtEnd) -> None:
    """Messages that wait, and for which no turn can be begun, are dead."""

    def work(append: Append) -> None:
        for message in messages:
            row = append.sql.fetch_row(
                "SELECT s.id FROM inbox i JOIN session s ON s.n = i.session WHERE i.message = ? AND i.state = 'queued'",
                (message,),
            )
            if row is not None:
                _add_dead(append, row[0], [message], error)
                dead = EndedRun(
                    session=row[0],
                    turn=None,
                    messages=(message,),
                    principals=(),
                    exit=RunExit.ERROR,
                    error=error.message,
                )
                at_end.run(append, dead)
        append.seal()

    writer.write(work)


def _add_dead(append: Append, session: str, messages: Sequence[str], error: NewError | None) -> None:
    fact = UNSET if error is None else error_fact(append.ledger_contents, error)
    with append.by_the_ledger():
        for message in messages:
            stream_of(append, append.view.session(session), DEFAULT_AGENT).add(
                MessageDead, message=message, attempts=1, error=fact
            )


def _still_queued(append: Append, messages: Sequence[str], session: SessionRow) -> list[str]:
    """Those of the messages that wait in the session. Raises NotApplicable where none does."""
    places = {message: queued_at(append, message) for message in messages}
    queued = [message for message, place in places.items() if place is not None and place[1] == session.n]
    if not queued:
        raise NotApplicable(f"nothing waits in session {session.label!r}", "send a message")
    return queued


def _reset_session(append: Append, session: SessionRow) -> SessionRow:
    """The session without a head: its next turn is a root."""
    stream_of(append, session).add(SessionMoved, to=None, before=session.head, why=MoveReason.RESET)
    return append.view.session(session.id)


def _sender_ids(append: Append, message: str) -> tuple[str, ...]:
    """In whose name a message was sent, where that is somebody else than the ledger's owner."""
    place = queued_at(append, message)
    return () if place is None else _principals_at(append, place[0])


def _principals_at(append: Append, n: int) -> tuple[str, ...]:
    event = admission_event(append.txn.facts, n)
    return principals(event.actor, () if event.on_behalf_of is UNSET else event.on_behalf_of)


def _entries_weight(entries: Sequence[Entry]) -> WriteWeight:
    messages = [one.message for one in entries if isinstance(one, AddMessage | ModelAnswered) and one.message]
    ended = [one for one in entries if isinstance(one, ToolEnded)]
    calls = [NewToolCall(name="-", result=one.result) for one in ended]
    calls += [NewToolCall(name="-", result=one.sent.value) for one in ended if one.sent is not None]
    return weigh(messages, calls)


# --- What MCP servers say of their resources, in the ledger's own stream: it concerns no turn and may come at any
# time.


def record_resource_change(writer: LedgerWriter, server: str, uri: str | None, run: str | None = None) -> str:
    """A server said that a resource changed, or without `uri` that its list of them did: in a call of this turn, in the
    name of its agent. Returns the event's id."""

    def work(append: Append) -> str:
        turn = None if run is None else append.view.turn(run)
        stream, contents = append.ledger_stream(DEFAULT_AGENT if turn is None else turn.persona), append.ledger_contents
        named, of_run = contents.named(server, "server"), UNSET if turn is None else turn.id
        if uri is None:
            event = stream.add(McpResourceListChanged, server=named, run=of_run)
        else:
            event = stream.add(McpResourceUpdated, server=named, uri=contents.put_text(uri), run=of_run)
        append.seal()
        return event

    return writer.write(work)
