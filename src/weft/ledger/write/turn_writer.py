"""Recording a turn step by step, under the session's lease. Every step is durable before its call returns."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from weft.kernel.enums import InterruptionReason, MessageRole, RunExit, ToolCallStatus, TurnType
from weft.kernel.errors import InvalidInput, LeaseLost, NotApplicable, NotFound, TurnClosed, WeftError
from weft.kernel.fields import EventRef, RequestInput
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
from weft.ledger.dialects.blocks import tool_use
from weft.ledger.dialects.messages import TranslatedMessage, plain
from weft.ledger.dialects.turns import with_usage_rest
from weft.ledger.model import DEFAULT_AGENT, NewError, NewToolCall, RecordedTurn, ToolResultPart, repeated_id
from weft.ledger.read.contexts import Context
from weft.ledger.read.request_inputs import check_input, input_of
from weft.ledger.views.lease_rows import Lease, LeaseKind
from weft.ledger.views.rows import SessionRow, TurnRow
from weft.ledger.write.append import MESSAGE_ROOM, Append, LedgerWriter, Patience
from weft.ledger.write.leases import open_calls, release, renew, take
from weft.ledger.write.new_turn import Weight, spawned_by, weigh
from weft.ledger.write.placement import Placement, ensure_free, ensure_session, find_place
from weft.ledger.write.record_turn import move_with_turn
from weft.ledger.write.turn_events import MAIN_LIST, Setting, TurnEvents

T = TypeVar("T")
NO_WEIGHT = Weight(0, ())


class OpenCall:
    """A tool call that waits for its outcome."""

    __slots__ = ("call_id", "correlation", "event", "native")

    def __init__(self, event: str, call_id: str, correlation: str, native: str) -> None:
        self.event, self.call_id, self.correlation, self.native = event, call_id, correlation, native


class TurnWriter:
    """An open turn. Leaving its `with` block by an exception fails it; without an end it is interrupted."""

    def __init__(self, writer: LedgerWriter, turn: str, lease: Lease, actor: str, place: Placement) -> None:
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

        return self._step(step, weigh(messages, ()))

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
        """The model is about to be asked. `input` says what it is sent: a context, message ids, or {base, keep, then}.
        Returns the event, a base for later inputs."""
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

        self._request, self._correlation = self._step(step)
        return self._request

    def _checked_input(self, value: Any) -> RequestInput | UnsetType:
        request_input = as_input(value)
        if request_input is not UNSET:
            with self._writer.store.read() as txn:
                check_input(txn, request_input)
        return request_input

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

        self._message, self._response_event, self._correlation = self._step(step, weigh(messages, ()))
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
        opened = self._step(step)
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
        if not isinstance(call, str) and result is UNSET and (part := _result_in(call)) is not None:
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

        self._step(step, weigh((), (outcome,)))
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

    def _step(self, step: Callable[[TurnEvents], T], weight: Weight = NO_WEIGHT) -> T:
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


def _result_in(value: Any) -> ToolResultPart | None:
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
    setting: Setting,
) -> TurnWriter:
    """Take the session's lease and pin the parent. Others wait, or get SessionBusy."""
    patience = Patience(writer, wait, ttl)

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
