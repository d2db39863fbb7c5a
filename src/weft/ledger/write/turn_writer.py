"""Recording a turn step by step, under the session's lease, each step durable before its call
returns; and what is said of a turn afterwards: outcomes of calls that come late, and messages or
results shown as another event tells them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.clock import is_ulid
from weft.kernel.enums import InterruptionReason, MessageRole, RunExit, ToolCallStatus, TurnType
from weft.kernel.errors import (
    AmbiguousName,
    InvalidInput,
    LeaseLost,
    NotApplicable,
    NotFound,
    SessionBusy,
    TurnClosed,
    WeftError,
)
from weft.kernel.events import (
    Event,
    EventRef,
    HistoryAppend,
    MessageFact,
    ModelResponse,
    PartFact,
    ReasoningFact,
    RequestInput,
    Substitution,
    TextFact,
    ToolResult,
    ToolResultFact,
    UnknownEvent,
)
from weft.kernel.foreign_input import is_digest
from weft.ledger.arguments import (
    as_messages,
    as_record,
    as_usage,
    as_usage_and_rest,
    checked_event,
    checked_id,
    checked_label,
    checked_member,
    checked_text,
    checked_whole,
)
from weft.ledger.dialects import TranslatedMessage, plain, tool_use, with_usage_rest
from weft.ledger.model import (
    DEFAULT_AGENT,
    AppliedSubstitution,
    NewError,
    NewToolCall,
    Part,
    RecordedTurn,
    StoredContent,
    ToolResultPart,
    repeated_id,
)
from weft.ledger.read.access import READ_SESSION, access_of
from weft.ledger.read.contexts import Context, check_input, find_message, input_of, standing_input
from weft.ledger.read.revisions import Revision
from weft.ledger.read.search_index import forget_turns
from weft.ledger.read.turns import calls_of, change_to, placed_messages, substitutions_in
from weft.ledger.views.inboxes import PARKED
from weft.ledger.views.rows import (
    CALL,
    CallRow,
    Lease,
    LeaseKind,
    SessionRow,
    StoredEvent,
    TurnRow,
    event_at,
    find_lease,
    load_turn,
    place_of_event,
    recorded,
    run_events,
)
from weft.ledger.views.turns import is_cut_short, message_of
from weft.ledger.write.record_turn import WriteWeight, move_with_turn, spawned_by, weigh
from weft.ledger.write.transaction import MESSAGE_ROOM, Append, LeasePatience, LedgerWriter
from weft.ledger.write.turn_events import (
    MAIN_LIST,
    ResultNotes,
    RunConfig,
    TurnEvents,
    TurnPlacement,
    ensure_free,
    ensure_session,
    error_fact,
    find_place,
    is_marked_turn,
    load_parent,
    open_calls,
    release,
    renew,
    take,
)
from weft.store.port import ReadTxn
from weft.store.replicas import NOBODY

# --- Recording a turn step by step, under the session's lease.

T = TypeVar("T")
NO_WEIGHT = WriteWeight(0, ())


class OpenCall:
    """A tool call that waits for its outcome."""

    __slots__ = ("call_id", "correlation", "event", "native")

    def __init__(self, event: str, call_id: str, correlation: str, native: str) -> None:
        self.event, self.call_id, self.correlation, self.native = event, call_id, correlation, native


class TurnWriter:
    """An open turn. Leaving its `with` block by an exception fails it; without an end it is interrupted."""

    def __init__(self, writer: LedgerWriter, turn: str, lease: Lease, actor: str, place: TurnPlacement) -> None:
        self._writer, self._lease, self._actor, self._scope = writer, lease, actor, place.scope
        self.id = turn
        self.session = place.session.label if place.session else None
        self._head = (place.session.head, place.session.head_events) if place.session else None
        self._correlation: str | None = None
        self._request: str | None = None
        self._message: str | None = None
        self._response_event: str | None = None
        self._calls: dict[str, OpenCall] = {}
        self._named: dict[str, int] = {}
        self._given_out: set[str] = set()
        self._ended = False

    def __enter__(self) -> TurnWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._ended:
            return
        try:
            self.interrupt("canceled") if error is None else self.fail(f"{type(error).__name__}: {error}")
        except WeftError:  # it has ended already, or cannot be written to; what happened inside matters more
            if error is None:
                raise

    def message(self, message: Any, *, role: str = "user", history: str = MAIN_LIST) -> str:
        """A message enters the turn's history. Returns its id. One of Anthropic's that holds results of tools and words
        of the user becomes two; the id is that of the words."""
        messages = as_messages(message, checked_member(MessageRole, role, "role"), "message")
        if not messages or (len(messages) > 1 and isinstance(message, list | tuple)):
            raise InvalidInput(f"message is a list of {len(messages)}", "record one message at a time")

        def step(turn_events: TurnEvents) -> str:
            return [turn_events.message(message, history) for message in messages][-1]

        return self._write_step(step, weigh(messages, ()))

    def request(
        self,
        model: str,
        *,
        provider: str | None = None,
        params: Any = None,
        input: Any = None,
        tools_spec: Any = None,
        attempt: int | None = None,
    ) -> str:
        """The model is about to be asked. `input` says what it is sent: a context, message ids, or {base, keep, then};
        without it, the turn's context and what the turn has said and done so far. Returns the event, a base for later
        inputs."""
        if input is None:
            request_input = self._standing_input()
        else:
            request_input = self._named_input(input) if isinstance(input, Context) else self._checked_input(input)

        def step(turn_events: TurnEvents) -> tuple[str, str]:
            correlation = turn_events.append.ulids.mint()
            event = turn_events.request(
                model,
                correlation,
                provider=provider,
                params=params,
                tools_spec=tools_spec,
                attempt=attempt,
                input=request_input,
            )
            return event, correlation

        self._request, self._correlation = self._write_step(step)
        return self._request

    def _checked_input(self, value: Any) -> RequestInput | UnsetType:
        request_input = as_input(value)
        if request_input is not UNSET:
            with self._writer.store.read() as txn:
                check_input(txn, request_input)
        return request_input

    def _standing_input(self) -> RequestInput | UnsetType:
        with self._writer.store.read() as txn:
            return standing_input(txn, self.id)

    def _named_input(self, context: Context) -> RequestInput | UnsetType:
        with self._writer.store.read() as txn:
            return input_of(txn, self.id, self._request, context.messages)

    def response(
        self,
        message: Any = None,
        *,
        usage: Any = None,
        finish_reason: str | None = None,
        model: str | None = None,
        latency_ms: int | None = None,
    ) -> str | None:
        """The model answered. Returns the message's id. An API's answer as it comes tells its usage, its model and its
        finish reason, where they are not given."""
        counted, usage_rest = as_usage_and_rest(usage)
        messages = with_usage_rest(as_messages(message, MessageRole.ASSISTANT, "response"), usage_rest)
        if len(messages) > 1:
            raise InvalidInput(f"response is a list of {len(messages)}", "record one message at a time")
        if messages and isinstance(answer := messages[0], TranslatedMessage):
            counted = counted if usage is not None else answer.usage
            model = model if model is not None else answer.model
            finish_reason = finish_reason if finish_reason is not None else answer.finish_reason

        def step(turn_events: TurnEvents) -> tuple[str | None, str | None, str]:
            correlation = self._correlation or turn_events.append.ulids.mint()
            message_id = turn_events.response(
                messages[0] if messages else None,
                correlation,
                request=self._request,
                usage=counted,
                finish_reason=finish_reason,
                model=model,
                latency_ms=latency_ms,
            )
            return message_id, turn_events.run.prev, correlation

        self._message, self._response_event, self._correlation = self._write_step(step, weigh(messages, ()))
        return self._message

    def tool_call(
        self,
        name: str | Any,
        arguments: Any = None,
        *,
        id: str | None = None,
        server: str | None = None,
        number: int | None = None,
    ) -> str:
        """A tool is about to run: the intent, before the effect. Returns the call id to give its result under. A tool
        call of OpenAI's or Anthropic's stands for name, arguments and id."""
        if not isinstance(name, str):
            use = tool_use(plain(name), "tool call")
            name, arguments, id = use.name, use.input, use.id if id is None else id
        arguments = {} if arguments is None else arguments
        call = NewToolCall(
            name=name, id=id or self._writer.ulids.mint(), arguments=arguments, server=server, number=number
        )

        def step(turn_events: TurnEvents) -> OpenCall:
            correlation = self._correlation or turn_events.append.ulids.mint()
            event, call_id = turn_events.call(
                call, correlation, requested_by=self._response_event, message=self._message
            )
            return OpenCall(event, call_id, correlation, native)

        native = str(call.id)
        opened = self._write_step(step)
        earlier = self._named[native] = self._named.get(native, -1) + 1
        key = repeated_id(native, earlier)
        self._calls[key] = opened
        self._given_out.add(key)
        return key

    def tool_result(
        self,
        call: str | Any,
        result: Any = UNSET,
        *,
        error: Any = None,
        status: str | None = None,
        spawned_session: str | None = None,
        duration_ms: int | None = None,
    ) -> None:
        """A tool ended. `call` is what `tool_call` returned, with or without the turn's id before it, or the provider's
        own id where that is not another call's; or OpenAI's or Anthropic's message with the result."""
        if not isinstance(call, str) and result is UNSET and (part := _result_of_api(call)) is not None:
            call, result = part.tool_call_id, part.output
            status = ToolCallStatus.ERROR if status is None and part.is_error is True else status
        key = self._key_of(checked_text(call, "tool call"))
        opened = self._calls[key]
        if spawned_session is not None:
            spawned_session = checked_label(spawned_session, "spawned session")
        fault = error if error is None or isinstance(error, str) else as_record(error, NewError, "error")
        outcome = NewToolCall(
            name="-",
            result=result,
            error=fault,
            status=None if status is None else checked_member(ToolCallStatus, status, "status"),
            duration_ms=duration_ms,
        )

        def step(turn_events: TurnEvents) -> None:
            spawned = spawned_by(turn_events, spawned_session, opened.call_id)
            turn_events.result(opened.event, opened.call_id, outcome, opened.correlation, spawned)

        self._write_step(step, weigh((), (outcome,)))
        del self._calls[key]

    def _key_of(self, call: str) -> str:
        """What was given out for one call never means another, also after its result."""
        key = call.removeprefix(f"{self.id}:")
        if key in self._calls:
            return key
        keys = [name for name, opened in self._calls.items() if opened.native == key]
        if not keys or key in self._given_out:
            raise NotFound("open tool call", call, f"open calls of this turn: {', '.join(self._calls) or 'none'}")
        return keys[0]

    def renew(self) -> None:
        """Say that this writer is alive, while a model or a tool takes its time."""
        self._writer.write(lambda append: renew(append, self._lease))

    def finish(self, *, usage: Any = None, permissions_used: Any = None) -> RecordedTurn:
        """The turn is complete; the session's head moves to it in the same transaction. Should facts from elsewhere
        have moved the head meanwhile, the turn is complete beside it and the answer names no session."""
        counted = as_usage(usage)

        def step(turn_events: TurnEvents, turn: TurnRow) -> str:
            still_open = open_calls(turn_events.append, turn)
            if still_open:
                raise NotApplicable(
                    f"{len(still_open)} tool calls of turn {self.id} have no result",
                    "record their results, or interrupt the turn",
                )
            return turn_events.finish(
                RunExit.SUCCESS, response=turn.response, usage=counted, permissions_used=permissions_used
            )

        return self._end(step, moves=True)

    def fail(self, error: Any) -> RecordedTurn:
        """The turn ended badly: it stays, addressable, and the head does not move."""
        fault = error if isinstance(error, str) else as_record(error, NewError, "error")

        def step(turn_events: TurnEvents, turn: TurnRow) -> str:
            if still_open := open_calls(turn_events.append, turn):
                turn_events.interruption(InterruptionReason.CANCELED, still_open)
            return turn_events.finish(RunExit.ERROR, response=turn.response, error=fault)

        return self._end(step, moves=False)

    def interrupt(self, reason: str = "canceled") -> RecordedTurn:
        """The turn was cut short: completed with what it had, open calls closed as interrupted, head moved."""
        why = checked_member(InterruptionReason, reason, "reason")

        def step(turn_events: TurnEvents, turn: TurnRow) -> str:
            turn_events.interruption(why, open_calls(turn_events.append, turn))
            return turn_events.finish(RunExit.SUCCESS, response=turn.response)

        return self._end(step, moves=True)

    def _turn_events(self, append: Append) -> tuple[TurnEvents, TurnRow]:
        turn = append.view.turn(self.id)
        if turn.closed:
            raise TurnClosed(self.id, turn.status) if self._ended else LeaseLost(self.id)
        renew(append, self._lease)
        turn_events = TurnEvents(
            append, self.id, actor=self._actor, prev=turn.digest, messages=turn.messages, scope=turn.root
        )
        return turn_events, turn

    def _write_step(self, step: Callable[[TurnEvents], T], weight: WriteWeight = NO_WEIGHT) -> T:
        def work(append: Append) -> T:
            turn_events, _ = self._turn_events(append)
            result = step(turn_events)
            append.seal()
            return result

        if weight.large:
            self._writer.put_large(weight.large, self._scope)
        return self._writer.write(work, weight.size)

    def _end(self, step: Callable[[TurnEvents, TurnRow], str], *, moves: bool) -> RecordedTurn:
        def work(append: Append) -> RecordedTurn:
            turn_events, turn = self._turn_events(append)
            digest = step(turn_events, turn)
            row = self._session_row(append)
            moved = row is not None and moves and (row.head, row.head_events) == self._head
            if moved and row is not None:
                move_with_turn(append, row.id, self.id)
            release(append, self._lease)
            append.seal()
            return RecordedTurn(
                id=self.id,
                digest=digest,
                depth=turn.depth,
                parent_id=turn.parent,
                session=row.label if row and (moved or not moves) else None,
                receipt=append.receipt(digest),
                response_message_id=turn.response,
            )

        ended = self._writer.write(work)
        self._ended = True
        self._writer.let_go(self._lease)
        return ended

    def _session_row(self, append: Append) -> SessionRow | None:
        return append.view.session(self._lease.key) if self._lease.kind == LeaseKind.SESSION else None


def _result_of_api(value: Any) -> ToolResultPart | None:
    """The one result that a message or a block of an API holds."""
    fields = plain(value)
    if isinstance(fields, dict) and fields.get("type") == "tool_result":
        fields = {"role": "user", "content": [fields]}
    if not isinstance(fields, dict):
        return None
    (message, *others) = as_messages(fields, MessageRole.TOOL, "tool result")
    parts = message.content
    if others or not isinstance(parts, tuple) or len(parts) != 1 or not isinstance(parts[0], ToolResultPart):
        raise InvalidInput("tool result: the message holds something else than one result", "record each by itself")
    return parts[0]


def as_input(value: Any) -> RequestInput | UnsetType:
    """What a request was sent: a plain list of message ids, or {base, keep, then}."""
    if value is None:
        return UNSET
    if isinstance(value, list | tuple):
        value = {"base": None, "keep": 0, "then": value}
    request_input = as_record(value, RequestInput, "input")
    events = [ref.event_id for ref in request_input.then if isinstance(ref, EventRef)]
    for event in [*events, *([] if request_input.base is None else [request_input.base])]:
        checked_event(event, "input")
    for ref in request_input.then:
        if not isinstance(ref, EventRef):
            checked_id(ref, "input")
    checked_whole(request_input.keep, "input.keep")
    if request_input.keep < 0:
        raise InvalidInput(f"input.keep is {request_input.keep}", "it counts entries of the base, from 0")
    return request_input


def begin_turn(
    writer: LedgerWriter,
    *,
    session: str | None,
    parent: str | UnsetType | None,
    expected: str | UnsetType | None,
    persona: str,
    owner: str,
    wait: float,
    ttl: float,
    setting: RunConfig,
) -> TurnWriter:
    """Take the session's lease and pin the parent. Others wait, or get SessionBusy."""
    patience = LeasePatience(writer, wait, ttl)

    def work(append: Append) -> TurnWriter:
        row = None if session is None else ensure_session(append, session, persona)
        epoch = 0 if row is None else ensure_free(append, row, patience)
        place = find_place(append, row, parent, expected)
        turn = append.ulids.mint(MESSAGE_ROOM + 1)
        actor = row.persona if row and persona == DEFAULT_AGENT else append.agent(persona)
        TurnEvents(append, turn, actor=actor, scope=place.scope).start(
            fork=place.fork,
            session=row.id if row else UNSET,
            compaction=place.compaction,
            turn_type=TurnType.NORMAL,
            setting=setting,
        )
        kind, key = (LeaseKind.SESSION, row.id) if row else (LeaseKind.TURN, turn)
        lease = take(append, kind, key, epoch, owner, turn)
        append.seal()
        writer.hold(lease)
        return TurnWriter(writer, turn, lease, actor, place)

    return patience.keep_trying(lambda: writer.write(work))


# --- Outcomes of tool calls that come from outside: into a parked turn, which they bring back; after a turn's end into
# the ledger's own stream, where they never change the turn's digest.


def record_late_result(
    writer: LedgerWriter,
    turn: str,
    call_id: str,
    result: Any,
    error: str | NewError | None,
    status: ToolCallStatus | None,
) -> None:
    """The outcome of a tool call whose turn did not wait for it, or is parked until it comes."""

    def work(append: Append) -> None:
        row = load_parent(append, turn)
        append.access.ensure_turn("turn:record", row, turn)
        if not row.closed and row.inbox != PARKED:
            raise NotApplicable(f"turn {turn} is still {row.status}", "record the result with the turn's own writer")
        call, native = _open_call(append, row, call_id)
        contents = append.contents_of(row.root)
        ended = status or (ToolCallStatus.OK if error is None else ToolCallStatus.ERROR)
        if not row.closed:
            _ensure_parked(append, row)
            events = TurnEvents(
                append, row.id, actor=row.persona, prev=row.digest, messages=row.messages, scope=row.root
            )
            outcome = NewToolCall(name="-", result=result, error=error, status=ended)
            event, notes = bytes(call.event).hex(), ResultNotes(is_untrusted=True)
            events.result(event, contents.put_text(native), outcome, call.correlation, None, notes=notes)
            append.seal()
            return
        append.ledger_stream(row.persona).add(
            ToolResult,
            call=EventRef(bytes(call.event).hex()),
            call_id=contents.put_text(native),
            status=ended,
            correlation_id=call.correlation,
            result=UNSET if result is UNSET else contents.put_json(result, "result"),
            error=UNSET if error is None else error_fact(contents, error),
            untrusted=True,
        )
        append.seal()

    writer.write(work)


def _ensure_parked(append: Append, turn: TurnRow) -> None:
    """Refuse where a broker has just taken the turn up again: it knows nothing of what others write to it."""
    session = None if turn.session is None else append.view.session_of_number(turn.session)
    lease = None if session is None else find_lease(append.sql, LeaseKind.SESSION, session.id)
    if session is not None and lease is not None and lease.owner != NOBODY:
        raise SessionBusy(session.label, turn.id, lease.owner)


def _open_call(append: Append, turn: TurnRow, call_id: str) -> tuple[CallRow, str]:
    """By our own id, which names one call, or by the provider's, which may name several: the first that waits.
    Returns the provider's id beside it."""
    rows = append.sql.fetch_rows(f"{CALL.select} WHERE turn = ? ORDER BY seq", (turn.n,))
    pairs = ((call, append.txn.facts.text(call.call_id)) for call in (CallRow(*row) for row in rows))
    calls = [(call, native) for call, native in pairs if native is not None]
    ours = [pair for pair in calls if call_id in _call_spellings(turn, *pair)]
    same_native = [pair for pair in calls if pair[1] == call_id]
    if same_native and ours and ours[0] not in same_native:
        raise AmbiguousName(call_id, [_call_spellings(turn, *pair)[0] for pair in (*ours, *same_native)])
    waiting = [
        (call, native) for call, native in same_native or ours if call.outcome is None or is_cut_short(turn, call)
    ]
    if not (same_native or ours):
        raise NotFound("tool call", f"{turn.id}:{call_id}")
    if not waiting:
        raise NotApplicable(
            f"tool call {call_id!r} of turn {turn.id} has its result already",
            "a call has one result; record what came after it in a new turn",
        )
    return waiting[0]


def _call_spellings(turn: TurnRow, call: CallRow, native: str) -> tuple[str, str]:
    ours = repeated_id(native, call.repeated)
    return f"{turn.id}:{ours}", ours


# --- Substitutions: a message, a model's answer or the result of a tool is shown as another event tells it.

RIGHT = "turn:record"
LEAST_DIGITS = 7
WHICH = "a message, a model's answer or a tool's result can be substituted"
NAMES = "name an event by the beginning of its id, a message or a tool call by its id, or a turn for its answer"
Resolve = Callable[[ReadTxn, str], Revision]


class SubstitutedPlace(Struct, frozen=True):
    """An event in whose place another one can be shown, and the turn that it belongs to."""

    event: StoredEvent
    turn: TurnRow


def substitute(
    writer: LedgerWriter,
    event: str,
    replacement: str | None,
    words: Any,
    reason: str | None,
) -> str:
    """Show an event, by its id, as another one of these ids tells it, or with these words. Returns the id of what is
    shown now."""

    def work(append: Append) -> str:
        reading = ReadTxn(append.sql, append.txn.facts)
        place = _place_of_event(reading, event)
        _ensure_changeable(append, place)
        shown = (
            _existing_replacement(append, place, replacement)
            if replacement is not None
            else _new_replacement(append, place, words)
        )
        why = UNSET if reason is None else append.put_text(reason, "reason")
        for original, instead in ((place.event.id, shown), *_spelled_out(append, place, shown)):
            append.ledger_stream().add(
                Substitution,
                original_event=EventRef(original),
                replacement_event=EventRef(instead),
                reason=why,
            )
        append.seal()
        if append.sql.fetch_row("SELECT 1 FROM vector LIMIT 1") is not None:
            forget_turns(append.sql, [place.turn.id])
        return shown

    return writer.write(work)


def find_event(txn: ReadTxn, name: str, resolve: Resolve) -> str:
    """The id of the event that a name means: its own id or the beginning of it, a message's id, a tool call's, which
    stands for its result, or a turn's, which stands for its answer. Of what was put in the place of another event, that
    one is meant."""
    text = checked_text(name, "event").strip()
    id = _message_event(txn, text) or _result_event(txn, text) or _by_digits(txn, text)
    id = id or _answer_event(txn, resolve(txn, text))
    if id is None:
        raise NotFound("event", name, NAMES)
    place = _place_of_event(txn, id)
    change = None if place.event.event.stream.startswith("run:") else change_to(txn, id)
    return _result_in_message(txn, place) or id if change is None else change.original.hex()


def find_replacement(txn: ReadTxn, name: str, original: str, resolve: Resolve) -> str:
    """The id of an event that is to be shown in the place of another: named like it, but one that once stood in its
    place is meant itself."""
    text = checked_text(name, "event").strip()
    digits = _by_digits(txn, text)
    return digits if digits is not None and digits != original else find_event(txn, name, resolve)


def last_substitution(txn: ReadTxn, event: str) -> AppliedSubstitution:
    """What is noted of an event that was substituted; of one that is shown again, that it is."""
    return substitutions_in(txn, [_place_of_event(txn, event).turn.n]).last_note(event)


def _message_event(txn: ReadTxn, name: str) -> str | None:
    message = find_message(txn, name.upper()) if is_ulid(name.upper()) else None
    turn = None if message is None else load_turn(txn.sql, message.turn_id)
    if message is None or turn is None or not access_of(txn).may_read_turn(turn):
        return None
    position = next(
        placed.position for placed in placed_messages(txn, turn.segment, turn.depth) if placed.message.id == message.id
    )
    return event_at(txn.facts, turn, position)


def _answer_event(txn: ReadTxn, spot: Revision) -> str | None:
    if spot.events is not None or spot.turn.response is None:
        return None
    return _message_event(txn, spot.turn.response)


def _result_event(txn: ReadTxn, name: str) -> str | None:
    """By the id of a tool call: that of its turn, a colon, and its own."""
    turn_id, mark, _ = name.partition(":")
    turn = load_turn(txn.sql, turn_id.upper()) if mark and is_ulid(turn_id.upper()) else None
    if turn is None or not access_of(txn).may_read_turn(turn):
        return None
    row = next((row for row, call in calls_of(txn, turn) if call.id == f"{turn.id}:{name.partition(':')[2]}"), None)
    if row is None:
        return None
    if row.result_position is None:
        raise NotApplicable(f"tool call {name!r} has no result", "record the result that came late")
    if row.result_position < 0:
        return txn.facts.event_id(-row.result_position).hex()
    return event_at(txn.facts, turn, row.result_position)


def _result_in_message(txn: ReadTxn, place: SubstitutedPlace) -> str | None:
    """The result that a message tells and nothing else, where it was recorded by itself, too."""
    message = message_of(place.event.event)
    if message is None or len(message.parts) != 1 or not isinstance(only := message.parts[0], ToolResultFact):
        return None
    for each in run_events(txn.facts, place.turn):
        if isinstance(each.event, ToolResult) and each.event.call_id == only.tool_call_id:
            return each.id
    return None


def _by_digits(txn: ReadTxn, name: str) -> str | None:
    digits = name.lower()
    even = digits[: len(digits) // 2 * 2]
    if len(digits) < LEAST_DIGITS or len(digits) > 64 or not is_digest(digits.ljust(64, "0")):
        return None
    found = [id for _, id in txn.facts.find_events(bytes.fromhex(even), digits[len(even) :])]
    readable = [id for id in found if _is_readable(txn, id)]
    if len(readable) > 1:
        raise AmbiguousName(name, readable)
    return readable[0] if readable else None


def _is_readable(txn: ReadTxn, event: str) -> bool:
    access = access_of(txn)
    if access.is_unlimited:
        return True
    try:
        return access.may_read_turn(_place_of_event(txn, event).turn)
    except (NotFound, NotApplicable):
        return False


def _place_of_event(txn: ReadTxn, id: str) -> SubstitutedPlace:
    """The turn of an event that can be substituted; a late result belongs to that of its call."""
    n = txn.facts.find_event(bytes.fromhex(id)) if is_digest(id) else None
    line = None if n is None else txn.facts.line(n)
    if n is None or line is None:
        raise NotFound("event", id, NAMES)
    event = recorded(n, line)
    message_or_result = event.event
    if message_of(message_or_result) is None and not isinstance(message_or_result, ToolResult):
        kind = getattr(message_or_result, "kind", message_or_result.__struct_config__.tag)
        raise NotApplicable(f"event {id[:12]} is a {kind}", WHICH)
    if message_or_result.stream.startswith("run:"):
        turn = load_turn(txn.sql, message_or_result.stream[4:])
    elif isinstance(message_or_result, ToolResult):
        turn = place_of_event(txn.sql, txn.facts, message_or_result.call.event_id)[0]
    elif (change := change_to(txn, id)) is not None:
        turn = _place_of_event(txn, change.original.hex()).turn
    else:
        turn = None
    if turn is None:
        raise NotFound("turn of event", id)
    return SubstitutedPlace(event, turn)


def _ensure_changeable(append: Append, place: SubstitutedPlace) -> None:
    turn, event = place.turn, place.event
    append.access.ensure_turn(RIGHT, turn, turn.id)
    _ensure_readable(append, place)
    if not turn.closed:
        raise NotApplicable(f"turn {turn.id} is still {turn.status}", "wait until it has ended")
    if isinstance(event.event, ToolResult):
        call = _call_of(append, turn, event.event)
        is_late = not event.event.stream.startswith("run:")
        if call.result_position is None or is_late != (call.result_position < 0):
            raise NotApplicable(
                f"event {event.id[:12]} is not the result that its call ended with", "name the one that is shown"
            )
        if call.outcome == ToolCallStatus.INTERRUPTED:
            raise NotApplicable(f"tool call {call.seq + 1} of turn {turn.id} was interrupted", "record its late result")


def _ensure_readable(append: Append, place: SubstitutedPlace) -> None:
    turn, message = place.turn, message_of(place.event.event)
    append.access.ensure_readable_turn(turn, turn.id)
    if message is not None and message.role == MessageRole.SYSTEM and not append.access.may_read_prompt(turn.n):
        raise append.refusal(READ_SESSION, "read the system prompt of an agent that is not yours")


def _call_of(append: Append, turn: TurnRow, result: ToolResult) -> CallRow:
    event = bytes.fromhex(result.call.event_id)
    row = append.sql.fetch_row(f"{CALL.select} WHERE turn = ? AND event = ?", (turn.n, event))
    if row is None:
        raise NotFound("tool call", result.call.event_id)
    return CallRow(*row)


def _existing_replacement(append: Append, place: SubstitutedPlace, replacement: str) -> str:
    """An event that was recorded before, of the same kind."""
    reading = ReadTxn(append.sql, append.txn.facts)
    other = place if replacement == place.event.id else _replacement_place(append, reading, place, replacement)
    _ensure_readable(append, other)
    if type(other.event.event) is not type(place.event.event) or _message_role(other) != _message_role(place):
        raise NotApplicable(
            f"event {replacement[:12]} is of another kind than {place.event.id[:12]}",
            "a message is substituted by a message of the same role, an answer by an answer, a result by a result",
        )
    if other is place and not substitutions_in(reading, [place.turn.n]).of_event(place.event.id):
        raise NotApplicable(f"event {place.event.id[:12]} is shown as it was recorded", "there is nothing to undo")
    return replacement


def _replacement_place(append: Append, reading: ReadTxn, place: SubstitutedPlace, replacement: str) -> SubstitutedPlace:
    """What another ledger recorded to be shown there, and nobody here has taken over, belongs to no turn yet: whoever
    may read the whole ledger takes it over for this one."""
    try:
        return _place_of_event(reading, replacement)
    except NotFound:
        n = reading.facts.find_event(bytes.fromhex(replacement)) if is_digest(replacement) else None
        line = None if n is None else reading.facts.line(n)
        if n is None or line is None or not append.access.is_unlimited:
            raise
        return SubstitutedPlace(recorded(n, line), place.turn)


def _message_role(place: SubstitutedPlace) -> str | None:
    message = message_of(place.event.event)
    return None if message is None else message.role


def _spelled_out(append: Append, place: SubstitutedPlace, shown: str) -> Iterator[tuple[str, str]]:
    """Messages of the turn that spell the result of a tool out: they are shown with the other result, too."""
    result = place.event.event
    if not isinstance(result, ToolResult):
        return
    facts = append.txn.facts
    instead = _place_of_event(ReadTxn(append.sql, facts), shown).event.event
    assert isinstance(instead, ToolResult), "it is of the same kind"
    output = instead.result if instead.error is UNSET else instead.error.message
    for each in list(run_events(facts, place.turn)):
        message = message_of(each.event)
        parts = () if message is None else message.parts
        if not any(isinstance(part, ToolResultFact) and part.tool_call_id == result.call_id for part in parts):
            continue
        if shown == place.event.id:
            yield each.id, each.id
        elif output is not UNSET:
            changed_parts = tuple(_with_output(part, result.call_id, output) for part in parts)
            yield each.id, _add_message(append, place.turn.id, each.event, changed_parts)


def _with_output(part: PartFact, call_id: str, output: str) -> PartFact:
    if not isinstance(part, ToolResultFact) or part.tool_call_id != call_id:
        return part
    return ToolResultFact(tool_call_id=call_id, output=output)


def _new_replacement(append: Append, place: SubstitutedPlace, words: Any) -> str:
    """An event of the same kind with other words, in the ledger's own stream. It is there before it is named."""
    original, message = place.event.event, message_of(place.event.event)
    events = TurnEvents(append, place.turn.id, actor=place.turn.persona, scope=place.turn.root)
    if message is not None:
        return _add_message(append, place.turn.id, original, _replacement_parts(events, message, words))
    assert isinstance(original, ToolResult), "there is nothing else that words can stand in for"
    id = append.ledger_stream().add(
        ToolResult,
        call=original.call,
        call_id=original.call_id,
        status=ToolCallStatus.OK,
        correlation_id=original.correlation_id,
        result=events.contents.put_json(words, "result"),
        untrusted=append.is_by_agent or UNSET,
    )
    append.seal()
    return id


def _add_message(append: Append, turn: str, original: Event | UnknownEvent, parts: tuple[PartFact, ...]) -> str:
    """An event like the original with other parts; there before anything names it. An answer without a source stays
    without one where its turn is marked already."""
    was = message_of(original)
    assert was is not None, "it brought a message"
    source = append.message_source(None if was.source is UNSET else was.source)
    if was.role == MessageRole.ASSISTANT and was.source is UNSET and is_marked_turn(append, turn):
        source = None
    fact = MessageFact(id=append.ulids.mint(), role=was.role, parts=parts, source=source or UNSET)
    stream = append.ledger_stream()
    if isinstance(original, ModelResponse):
        id = stream.add(ModelResponse, correlation_id=original.correlation_id, output=fact)
    else:
        assert isinstance(original, HistoryAppend), "messages come in these two"
        id = stream.add(HistoryAppend, list=original.list, message=fact, untrusted=append.is_by_agent or UNSET)
    append.seal()
    return id


def _replacement_parts(events: TurnEvents, was: MessageFact, words: Any) -> tuple[PartFact, ...]:
    if isinstance(words, tuple | list):
        if not words or not all(isinstance(part, Part) for part in words):
            raise InvalidInput(
                "the words are a list of something else than parts", "give a text, or parts of a message"
            )
        return events.parts(tuple(words))
    if not isinstance(words, str | StoredContent):
        raise InvalidInput(f"the words are {type(words).__name__}, not text", "give a text, or parts of a message")
    if len(was.parts) == 1 and isinstance(only := was.parts[0], ToolResultFact):
        return (_with_output(only, only.tool_call_id, events.contents.put_json(words, "output")),)
    kept = [part for part in was.parts if not isinstance(part, TextFact | ReasoningFact)]
    return (*events.parts(words), *kept)
