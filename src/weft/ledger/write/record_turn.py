"""Recording whole turns at once: checked, encoded and hashed before the writers' lock is taken,
then one append, one sync, and a row for each, all of them or none; an ordinary turn is written in
one pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from operator import itemgetter
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import decode, encode
from msgspec.structs import replace

from weft.kernel.clock import offset
from weft.kernel.contents import ROW_BYTES, PreparedContent, json_bytes, text_bytes
from weft.kernel.enums import AgentRole, MessageRole, MoveReason, RunExit, ToolCallStatus, TurnType
from weft.kernel.events import (
    Event,
    EventRef,
    ForkPoint,
    HistoryAppend,
    MessageFact,
    ModelRequest,
    ModelResponse,
    Receipt,
    RunFinished,
    RunStarted,
    TextFact,
    ToolCallRequested,
    ToolResult,
    Usage,
    is_name,
    session_stream,
)
from weft.kernel.events import encode as encode_event
from weft.kernel.ledger_events import SessionMoved
from weft.ledger.arguments import as_calls, as_messages, as_record, as_usage_and_rest, checked_label, summed_usage
from weft.ledger.dialects import TranslatedMessage, with_outcomes, with_usage_rest, with_uses
from weft.ledger.model import (
    DEFAULT_AGENT,
    NewError,
    NewMessage,
    NewToolCall,
    ReasoningPart,
    RecordedTurn,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from weft.ledger.views.projector import EventMoment
from weft.ledger.views.rows import CallRow, MessageRow, SessionRow, TurnRow, added, load_session_number, load_turn
from weft.ledger.views.sessions import move_head
from weft.ledger.views.turns import COMPLETED, PENDING, asked_model
from weft.ledger.write.transaction import (
    MESSAGE_ROOM,
    Append,
    CommandAnswer,
    KeyedCommand,
    LeasePatience,
    LedgerWriter,
    find_answer,
    keyed_command,
    run_once,
)
from weft.ledger.write.turn_events import (
    MAIN_LIST,
    PreparedCall,
    RunConfig,
    TurnEvents,
    TurnPlacement,
    ensure_free,
    ensure_session,
    ensure_spawned,
    find_place,
    scope_in_database,
)
from weft.store.fact_log import Key, LogTip
from weft.store.sql import Sql

# --- A turn as its caller tells it: checked, encoded and hashed before the writers' lock is taken, then written event
# by event.

DEFAULT_SETTING = RunConfig()
"""Of a turn whose caller said nothing about its circumstances."""
UNREQUESTED = -1
"""The place of calls that no message of the answer requests: before it."""


class NewTurn:
    """A turn as its caller tells it, checked before anything is written."""

    def __init__(
        self,
        *,
        query: Any = None,
        response: Any = None,
        system: Any = None,
        model: str | None = None,
        provider: str | None = None,
        params: Any = None,
        usage: Any = None,
        tool_calls: Any = (),
        tools_spec: Any = None,
        finish_reason: str | None = None,
        error: Any = None,
        permissions_used: Any = None,
        persona: str = DEFAULT_AGENT,
        setting: RunConfig = DEFAULT_SETTING,
    ) -> None:
        self.messages = as_messages(system, MessageRole.SYSTEM, "system")
        self.messages += as_messages(query, MessageRole.USER, "query")
        calls, uses = as_calls(tool_calls)
        answer = as_messages(response, MessageRole.ASSISTANT, "response")
        if uses:
            answer = with_uses(answer, uses)
        answers = [message for message in answer if isinstance(message, TranslatedMessage)]
        self.usage, usage_rest = as_usage_and_rest(usage)
        if usage is None:
            self.usage = summed_usage(message.usage for message in answers)
        self.response, self.calls = answer, calls
        if usage_rest or answers:
            self.response, self.calls = with_outcomes(with_usage_rest(answer, usage_rest), calls)
        self.spawned_sessions = [
            None if call.spawned_session is None else checked_label(call.spawned_session, "spawned session")
            for call in self.calls
        ]
        models = [message.model for message in answers if message.model is not None]
        reasons = [message.finish_reason for message in answers if message.finish_reason is not None]
        self.model = model if model is not None or not models else models[-1]
        self.provider, self.params, self.tools_spec = provider, params, tools_spec
        self.finish_reason = finish_reason if finish_reason is not None or not reasons else reasons[-1]
        self.permissions_used = permissions_used
        self.error = error if error is None or isinstance(error, str) else as_record(error, NewError, "error")
        self.persona, self.setting = persona, setting
        request = (self.model, provider, params, tools_spec, self.finish_reason)
        self.asks_model = bool(self.response) or any(argument is not None for argument in request)
        self.weight = weigh([*self.messages, *self.response], self.calls)
        self._texts: dict[int, PreparedContent] = {}
        self.prepared_calls: list[PreparedCall] = []

    def request(self) -> list[Any]:
        """Everything that its caller told, for the digest of a retry key."""
        written = [self.messages, self.response, self.calls, self.error, self.usage, self.persona, vars(self.setting)]
        asked = [self.model, self.provider, self.params, self.tools_spec, self.finish_reason, self.permissions_used]
        return written + asked

    def prepare(self, prepare: Callable[[bytes], PreparedContent]) -> list[PreparedContent]:
        """Encode and hash the contents of messages and calls; they are kept by the place of each in the turn."""
        messages = enumerate([*self.messages, *self.response])
        self._texts = {k: prepare(text_bytes(m.content)) for k, m in messages if isinstance(m.content, str)}
        self.prepared_calls = [_prepared_call(call, prepare) for call in self.calls]
        calls = (part for call in self.prepared_calls for part in (call.id, call.arguments, call.result) if part)
        return [*self._texts.values(), *calls]

    @property
    def prepared_texts(self) -> Iterable[PreparedContent]:
        """What its messages and then its answer say, where each is one text."""
        return self._texts.values()

    def write(self, turn_events: TurnEvents) -> tuple[str | None, str]:
        """All its events after the first. Returns the response message's id and the digest."""
        for k, message in enumerate(self.messages):
            turn_events.message(message, text=self._texts.get(k))
        correlation, request = turn_events.turn, None
        if self.asks_model:
            request = self._write_request(turn_events, correlation)
        calls = self._calls_by_message()
        self._write_calls(turn_events, calls.get(UNREQUESTED, ()), correlation)
        response = self._write_response(turn_events, correlation, request, calls)
        exit = RunExit.SUCCESS if self.error is None else RunExit.ERROR
        return response, turn_events.finish(
            exit,
            response=response,
            usage=UNSET if self.asks_model else self.usage,
            error=self.error,
            permissions_used=self.permissions_used,
        )

    def _write_request(self, turn_events: TurnEvents, correlation: str) -> str:
        return turn_events.request(
            "unknown" if self.model is None else self.model,
            correlation,
            provider=self.provider,
            params=self.params,
            tools_spec=self.tools_spec,
        )

    def _calls_by_message(self) -> dict[int, list[int]]:
        """Numbers of calls by the message of the answer whose tool use requests them; others go with the call before
        them."""
        uses = _tool_uses(self.response) if self.calls else {}
        calls: dict[int, list[int]] = {}
        place = UNREQUESTED
        for k, call in enumerate(self.calls):
            messages = uses.get(call.id) if call.id else None
            place = messages.pop(0) if messages else place
            calls.setdefault(place, []).append(k)
        return calls

    def _write_calls(
        self, turn_events: TurnEvents, calls: Iterable[int], correlation: str, message: str | None = None
    ) -> None:
        """Tool calls with their outcomes; `message` requested them, if it is known and was the last thing written."""
        requested_by = None if message is None else turn_events.run.prev
        for k in calls:
            call, prepared = self.calls[k], self.prepared_calls[k]
            event, call_id = turn_events.call(
                call, correlation, requested_by=requested_by, message=message, prepared=prepared
            )
            spawned = spawned_by(turn_events, self.spawned_sessions[k], call_id)
            turn_events.result(event, call_id, call, correlation, spawned, prepared)

    def _write_response(
        self, turn_events: TurnEvents, correlation: str, request: str | None, calls: dict[int, list[int]]
    ) -> str | None:
        """Every message of the answer, each with the calls it requests; the last one carries the usage and is the
        response."""
        if not self.asks_model:
            return None
        before, last = len(self.messages), len(self.response) - 1
        final = self.response[-1] if self.response and self.response[-1].role == MessageRole.ASSISTANT else None
        for k, message in enumerate(self.response[:-1] if final else self.response):
            message_id = turn_events.message(message, text=self._texts.get(before + k))
            self._write_calls(turn_events, calls.get(k, ()), correlation, message_id)
        response = turn_events.response(
            final,
            correlation,
            request=request,
            usage=self.usage,
            finish_reason=self.finish_reason,
            text=self._texts.get(before + last) if final else None,
        )
        if final:
            self._write_calls(turn_events, calls.get(last, ()), correlation, response)
        return response


STORED_RESULTS = (str, dict, list)
"""Results of calls that are stored as they are."""


def _prepared_call(call: NewToolCall, prepare: Callable[[bytes], PreparedContent]) -> PreparedCall:
    """What is sure to be stored as it is: arguments that are text may be JSON already, and are left for later."""
    return PreparedCall(
        id=prepare(text_bytes(call.id)) if isinstance(call.id, str) and call.id else None,
        arguments=prepare(json_bytes(call.arguments, "arguments")) if isinstance(call.arguments, dict) else None,
        result=prepare(json_bytes(call.result, "result")) if isinstance(call.result, STORED_RESULTS) else None,
    )


def spawned_by(turn_events: TurnEvents, label: str | None, call_id: str) -> str | None:
    """The id of the session that a call of this turn started, if it did."""
    if label is None:
        return None
    return ensure_spawned(turn_events.append, label, turn_events.turn, call_id, turn_events.run.actor).id


def _tool_uses(answer: list[NewMessage]) -> dict[str, list[int]]:
    """The ids of all tool uses of the assistant, each with the messages that it stands in."""
    messages: dict[str, list[int]] = {}
    for k, message in enumerate(answer):
        if message.role == MessageRole.ASSISTANT and isinstance(message.content, tuple):
            for part in message.content:
                if isinstance(part, ToolUsePart):
                    messages.setdefault(part.id, []).append(k)
    return messages


LARGE_TEXT_CHARACTERS = ROW_BYTES // 6
"""No text shorter than this takes more than a row, whatever its characters need as UTF-8 or as JSON."""


class WriteWeight(Struct, frozen=True):
    """How many characters a write brings, and the contents that take more than a row."""

    size: int
    large: tuple[bytes, ...]


def weigh(messages: Iterable[NewMessage], calls: Iterable[NewToolCall]) -> WriteWeight:
    size = 0
    large: list[bytes] = []
    for text, is_json in _long_texts(messages, calls):
        size += len(text)
        if len(text) > LARGE_TEXT_CHARACTERS:
            data = json_bytes(text, "result") if is_json else text_bytes(text)
            if len(data) > ROW_BYTES:
                large.append(data)
    return WriteWeight(size, tuple(large))


def _long_texts(messages: Iterable[NewMessage], calls: Iterable[NewToolCall]) -> Iterator[tuple[str, bool]]:
    """Every text that may be long, and whether it is stored as JSON."""
    for message in messages:
        if isinstance(message.content, str):
            yield message.content, False
        elif isinstance(message.content, tuple):
            for part in message.content:
                if isinstance(part, TextPart | ReasoningPart) and isinstance(part.text, str):
                    yield part.text, False
                elif isinstance(part, ToolResultPart) and isinstance(part.output, str):
                    yield part.output, True
    for call in calls:
        if isinstance(call.result, str):
            yield call.result, True


# --- The ordinary turn in one pass: from values to event lines and rows.

# --- what is ordinary ---------------------------------------------------------------------------------------------


def is_ordinary(turn: NewTurn) -> bool:
    """Whether all that a turn says can be written in that one pass, wherever it goes."""
    return (
        turn.persona == DEFAULT_AGENT
        and turn.setting is DEFAULT_SETTING
        and turn.error is None
        and turn.params is None
        and turn.tools_spec is None
        and turn.permissions_used is None
        and _is_plain_name(turn.model)
        and _is_plain_name(turn.provider)
        and _is_plain_name(turn.finish_reason)
        and len(turn.response) == 1
        and turn.response[0].role == MessageRole.ASSISTANT
        and len(turn.messages) < MESSAGE_ROOM - 1
        and all(map(_is_plain_message, turn.messages))
        and _is_plain_message(turn.response[0])
        and all(map(_is_plain_call, turn.calls))
    )


def _is_plain_name(name: str | None) -> bool:
    """Text of no other type: a name of an enumeration is written into a line by its member's name, not its value."""
    return name is None or (type(name) is str and is_name(name) is not None)


def _is_plain_message(message: NewMessage) -> bool:
    """Nothing but a role and a text. A `NewMessage` that a caller made may hold anything as its role."""
    return (
        type(message) is NewMessage
        and type(message.role) is MessageRole
        and isinstance(message.content, str)
        and message.source is None
        and message.parent is None
        and message.model is None
        and message.thinking_config is None
        and message.context is None
        and message.metadata is None
        and not message.files
        and not message.lints
        and not message.codeblocks
    )


def _is_plain_call(call: NewToolCall) -> bool:
    """It has an id, arguments that are an object, a result or none, and it ended well. A `NewToolCall` that a caller
    made may hold anything as its id and name."""
    return (
        isinstance(call.id, str)
        and bool(call.id)
        and type(call.name) is str
        and is_name(call.name) is not None
        and isinstance(call.arguments, dict)
        and (call.result is UNSET or isinstance(call.result, STORED_RESULTS))
        and call.error is None
        and call.status is None
        and call.server is None
        and call.number is None
        and call.spawned_session is None
        and call.duration_ms is None
    )


def is_ordinary_place(append: Append, place: TurnPlacement) -> bool:
    """Whether a turn there goes on from the head of its session, on the same segment, in the name of nobody else; and
    the session has chosen nothing that would have to be looked at again."""
    session, parent = place.session, place.parent
    return (
        session is not None
        and parent is not None
        and append.is_by_the_ledger
        and session.head == parent.id
        and session.head_events is None
        and session.lifecycle == "active"
        and not session.compaction
        and not session.has_subagents
        and session.persona == parent.persona
        and is_name(session.persona) is not None
        and parent.closed
        and append.view.ends_segment(parent)
    )


_ROLES = {role: role.value for role in MessageRole}
_NORMAL, _UNIFIED, _BY_TURN = TurnType.NORMAL.value, AgentRole.UNIFIED.value, MoveReason.TURN.value
"""An enumeration looks its members' values up each time."""

# --- lines --------------------------------------------------------------------------------------------------------


class _Line:
    """The template of a line: what the encoder writes for an event whose values are marks such as `%(turn)s`. The mark
    of an object, which stands in no quotes, is given as `%(raw usage)raw` and becomes `%(usage)s`."""

    __slots__ = ("_text", "_values")

    def __init__(self, event: Event) -> None:
        text = encode_event(event).decode()
        for quoted, bare in (('"%(raw ', "%("), (')raw"', ")s")):
            text = text.replace(quoted, bare)
        self._text = _MARK.sub("%s", text)
        self._values = itemgetter(*_MARK.findall(text))

    def fill(self, values: dict[str, Any]) -> bytes:
        """The line with these values. Marks are looked up in one go: by name they would be cut out of the text and
        hashed each time."""
        line: str = self._text % self._values(values)
        return line.encode()


_MARK = re.compile(r"%\((\w+)\)s")


def _envelope_template(prev: str | None = "%(prev)s") -> dict[str, Any]:
    return {
        "ts": "%(ts)s",
        "stream": "run:%(turn)s",
        "prev": prev,
        "actor": "%(actor)s",
        "replica": "%(replica)s",
    }


def _message_template() -> MessageFact:
    return MessageFact(id="%(message)s", role=_template_mark("%(role)s"), parts=(TextFact(text="%(text)s"),))


def _template_mark(text: str) -> Any:
    """A mark in the place of a value of another type."""
    return text


@cache
def _started_line(has_compaction: bool) -> _Line:
    return _Line(
        RunStarted(
            **_envelope_template(prev=None),
            fork=ForkPoint("%(parent)s", "%(parent_end)s"),
            session="%(session)s",
            compaction="%(compaction)s" if has_compaction else UNSET,
            turn_type=TurnType.NORMAL,
            role=AgentRole.UNIFIED,
        )
    )


@cache
def _history_line() -> _Line:
    return _Line(HistoryAppend(**_envelope_template(), list=MAIN_LIST, message=_message_template()))


@cache
def _request_line(has_provider: bool) -> _Line:
    return _Line(
        ModelRequest(
            **_envelope_template(),
            model="%(model)s",
            correlation_id="%(turn)s",
            provider="%(provider)s" if has_provider else UNSET,
        )
    )


@cache
def _call_line() -> _Line:
    return _Line(
        ToolCallRequested(
            **_envelope_template(),
            tool="%(tool)s",
            call_id="%(call_id)s",
            args="%(arguments)s",
            correlation_id="%(turn)s",
        )
    )


@cache
def _result_line(has_result: bool) -> _Line:
    return _Line(
        ToolResult(
            **_envelope_template(),
            call=EventRef("%(prev)s"),
            call_id="%(call_id)s",
            status=ToolCallStatus.OK,
            correlation_id="%(turn)s",
            result="%(result)s" if has_result else UNSET,
        )
    )


@cache
def _response_line(has_usage: bool, has_finish: bool) -> _Line:
    return _Line(
        ModelResponse(
            **_envelope_template(),
            correlation_id="%(turn)s",
            request_id="%(request)s",
            output=_message_template(),
            usage=_template_mark("%(raw usage)raw") if has_usage else UNSET,
            finish_reason="%(finish)s" if has_finish else UNSET,
        )
    )


@cache
def _finished_line() -> _Line:
    return _Line(RunFinished(**_envelope_template(), exit=RunExit.SUCCESS, response="%(message)s"))


@cache
def _moved_line() -> _Line:
    stream = {**_envelope_template(), "stream": "session:%(session)s", "prev": "%(session_end)s"}
    return _Line(SessionMoved(**stream, to="%(turn)s", before="%(parent)s", why=MoveReason.TURN))


# --- the pass -----------------------------------------------------------------------------------------------------


def write_ordinary(append: Append, turn: NewTurn, place: TurnPlacement, turn_id: str) -> tuple[str, str]:
    """All events and rows of an ordinary turn at an ordinary place. Returns the answer's id and the digest."""
    assert place.session is not None
    assert place.parent is not None
    return _OrdinaryTurn(append, place.session, place.parent, turn_id, place.compaction).write(turn, place.scope)


class _OrdinaryTurn:
    """Writes one turn. `_values` are what the marks of the next line stand for; `_row` is the turn's own row, which
    every event changes."""

    def __init__(
        self, append: Append, session: SessionRow, parent: TurnRow, turn: str, compaction: str | UnsetType
    ) -> None:
        self._append, self._view, self._session = append, append.view, session
        self._values: dict[str, Any] = {
            "ts": append.ts,
            "turn": turn,
            "actor": session.persona,
            "replica": append.replica,
            "parent": parent.id,
            "parent_end": parent.digest,
            "session": session.id,
            "session_end": bytes(session.last_event).hex(),
            "compaction": compaction,
        }
        self._row = _turn_row(append.next_number, append.now_ms, session, parent, turn, compaction)

    def write(self, turn: NewTurn, scope: int) -> tuple[str, str]:
        """All events and rows, in the order of the events. Returns the answer's id and the digest."""
        row, values = self._row, self._values
        self._add_line(_started_line(row.compaction is not None))
        self._view.add_turn(row)
        *texts, answer = turn.prepared_texts
        for message, text in zip(turn.messages, texts, strict=True):
            self._write_message(message, text, scope)
        row.model, row.provider = turn.model or "unknown", turn.provider
        values["model"], values["provider"] = row.model, row.provider
        values["request"] = self._add_line(_request_line(turn.provider is not None)).hex()
        row.events += 1
        for call, prepared in zip(turn.calls, turn.prepared_calls, strict=True):
            self._write_call(call, prepared.id, prepared.arguments, prepared.result, scope)
        response = self._write_response(turn, answer, scope)
        row.last_event = digest = self._add_line(_finished_line())
        row.events += 1
        row.status, row.completed_at = COMPLETED, self._append.now_ms
        self._move_session()
        return response, digest.hex()

    def _add_line(self, line: _Line) -> bytes:
        """The next event, of this template; returns its id."""
        data = line.fill(self._values)
        digest = sha256(data).digest()
        self._append.add_line(data, digest)
        self._values["prev"] = digest.hex()
        return digest

    def _put_content(self, content: PreparedContent, scope: int) -> tuple[int, str]:
        stored = self._append.txn.facts.put_prepared(content, scope)
        return stored.n, stored.ref.hex()

    def _write_message(self, message: NewMessage, text: PreparedContent, scope: int) -> None:
        row, role = self._row, _ROLES[message.role]
        number, self._values["text"] = self._put_content(text, scope)
        if role == "system" and row.messages == 0:
            row.system = number
        id = self._next_message(role)
        self._add_message_row(id, role, number, MAIN_LIST)
        self._add_line(_history_line())
        row.events += 1
        if role == "assistant":
            row.response = id

    def _next_message(self, role: str) -> str:
        row, values = self._row, self._values
        values["message"] = id = offset(row.id, row.messages + 1)
        values["role"] = role
        return id

    def _add_message_row(self, id: str, role: str, text: int, listed: str | None) -> MessageRow:
        row = self._row
        message = MessageRow(
            row.n, row.messages, id, role, None, self._append.now_ms, row.events, text,
            None, listed, None, None, None, None, None, None,
        )  # fmt: skip
        self._view.messages.append(message)
        row.messages += 1
        return message

    def _write_call(
        self,
        call: NewToolCall,
        id: PreparedContent | None,
        arguments: PreparedContent | None,
        result: PreparedContent | None,
        scope: int,
    ) -> None:
        assert id is not None
        assert arguments is not None
        row, values, now = self._row, self._values, self._append.now_ms
        call_id, values["call_id"] = self._put_content(id, scope)
        params, values["arguments"] = self._put_content(arguments, scope)
        values["tool"] = call.name
        event, position = self._add_line(_call_line()), row.events
        output = None
        if result is not None:
            output, values["result"] = self._put_content(result, scope)
        self._add_line(_result_line(result is not None))
        row.events += 2
        self._view.add_call(
            CallRow(
                turn=row.n,
                seq=row.calls,
                event=event,
                position=position,
                call_id=call_id,
                repeated=self._view.repeats[row.n, call_id],
                message=None,
                tool=call.name,
                number=None,
                server=None,
                params=params,
                result=output,
                error=None,
                error_code=None,
                status=COMPLETED,
                outcome="ok",
                spawned=None,
                started_at=now,
                completed_at=now,
                result_position=position + 1,
                correlation=row.id,
            )
        )
        row.calls += 1

    def _write_response(self, turn: NewTurn, text: PreparedContent, scope: int) -> str:
        row, values, usage = self._row, self._values, turn.usage
        number, values["text"] = self._put_content(text, scope)
        id = self._next_message("assistant")
        message = self._add_message_row(id, "assistant", number, None)
        if isinstance(usage, Usage):
            values["usage"] = encode_event(usage).decode()
            message.set_tokens(usage)
            row.add_tokens(usage)
        values["finish"] = message.finish = turn.finish_reason
        message.model, message.provider = asked_model(row)
        self._add_line(_response_line(usage is not UNSET, turn.finish_reason is not None))
        row.response = id
        row.events += 1
        return id

    def _move_session(self) -> None:
        view, session, moment = self._view, self._session, EventMoment()
        moment.n, moment.when = self._append.next_number, self._append.now_ms
        moment.event_id, moment.row = self._add_line(_moved_line()), session
        view.before_change(session)
        session.reach = None
        move_head(view, moment, self._row, None, moment.when, _BY_TURN, None)
        view.after_change(session, moment)


def _turn_row(
    n: int, now: int, session: SessionRow, parent: TurnRow, turn: str, compaction: str | UnsetType
) -> TurnRow:
    """The turn as its first event leaves it, but for that event's id: `last_event` is set with the last one."""
    return TurnRow(
        n=n,
        segment=parent.segment,
        depth=parent.depth + 1,
        id=turn,
        root=parent.root,
        parent=parent.id,
        session=session.n,
        persona=session.persona,
        type=_NORMAL,
        status=PENDING,
        started_at=now,
        completed_at=None,
        model=None,
        provider=None,
        role=_UNIFIED,
        toolset=None,
        tools=None,
        permissions_granted=None,
        permissions_used=None,
        input_tokens=None,
        output_tokens=None,
        cached_input_tokens=None,
        cache_write_tokens=None,
        reasoning_tokens=None,
        total_tokens=None,
        tokens_before=added(parent.tokens_before, parent.total_tokens),
        response=None,
        messages=0,
        calls=0,
        events=1,
        last_event=b"",
        reason=None,
        source_event=None,
        workspace=None,
        compaction=None if compaction is UNSET else compaction,
        thinking_config=None,
        effective_config=None,
        system=parent.system,
        interrupted=None,
        error=None,
        error_code=None,
        origin=None,
        listed_at=max(now, parent.listed_at),
        untrusted=parent.untrusted,
    )


# --- Recording whole turns at once: one append, one sync, and a row for each; all of them or none.


class RequestedTurn(Struct, frozen=True, kw_only=True):
    """A turn that a caller wants recorded, where it shall go (`TurnPlacement` is where it goes), and its retry key."""

    turn: NewTurn
    session: str | None = None
    parent: str | UnsetType | None = UNSET
    expected: str | UnsetType | None = UNSET
    key: str | None = None

    def command(self, writer: LedgerWriter) -> KeyedCommand | None:
        if self.key is None:
            return None
        request = [self.session, self.parent, self.expected, *self.turn.request()]
        return keyed_command("record_turn", self.key, request, writer.authority)

    def after(self, previous: RecordedTurn | None) -> RequestedTurn:
        """In no session and with no parent it follows the turn that was recorded before it."""
        if previous is None or self.session is not None or self.parent is not UNSET or self.expected is not UNSET:
            return self
        return replace(self, parent=previous.id)


def record_turns(
    writer: LedgerWriter, requests: Sequence[RequestedTurn], *, wait: float, ttl: float
) -> list[RecordedTurn]:
    """Record each after what the head of its session is by then; one with `parent` or `expected` is refused if that is
    another turn. All are committed, or none. A turn with a retry key is recorded once."""
    commands = [request.command(writer) for request in requests]
    if None not in commands:  # before large contents are stored
        with writer.store.read() as txn:
            answers = [find_answer(txn.sql, command) for command in commands]
            if None not in answers:
                return [_recorded_answer(txn.sql, answer) for answer in answers if answer is not None]
    patience = LeasePatience(writer, wait, ttl)
    likely: list[Key] = []
    ordinary = [is_ordinary(request.turn) for request in requests]
    for request in requests:
        if request.turn.weight.large:
            writer.put_large(request.turn.weight.large, scope_in_database(writer, request.session, request.parent))
        contents = request.turn.prepare(writer.store.prepare)
        if (scope := writer.scope_in_memory(request.session, request.parent)) is not None:
            likely += [(scope, content.digest) for content in contents]

    def work(append: Append) -> list[RecordedTurn]:
        recorded: list[RecordedTurn] = []
        for request, command, in_one_pass in zip(requests, commands, ordinary, strict=True):
            following = request.after(recorded[-1] if recorded else None)
            recorded.append(_write_once(append, following, command, patience, in_one_pass))
        return recorded

    def restate(recorded: list[RecordedTurn], tip: LogTip) -> list[RecordedTurn]:
        receipt = Receipt(writer.store.replica, tip.n, tip.chain.hex(), recorded[0].digest)
        return [replace(recorded[0], receipt=receipt)]

    uses_no_numbers = len(requests) == 1 and commands == [None] and writer.authority.is_local
    size = sum(request.turn.weight.size for request in requests)
    return patience.keep_trying(
        lambda: writer.write(
            work, size, likely=likely, session=requests[0].session, restate=restate if uses_no_numbers else None
        )
    )


def _write_once(
    append: Append, request: RequestedTurn, command: KeyedCommand | None, patience: LeasePatience, in_one_pass: bool
) -> RecordedTurn:
    def write() -> RecordedTurn:
        return _write_whole(append, request.turn, _find_placement(append, request, patience), in_one_pass)

    return (
        write()
        if command is None
        else _recorded_answer(append.sql, run_once(append, command, lambda: _answer_of_turn(write())))
    )


def _answer_of_turn(recorded: RecordedTurn) -> CommandAnswer:
    return CommandAnswer(recorded.id, encode(replace(recorded, session=None)).decode())


def _recorded_answer(sql: Sql, answer: CommandAnswer) -> RecordedTurn:
    """What was answered first; the session by the label that it has now."""
    recorded, turn = decode(answer.details or "", type=RecordedTurn), load_turn(sql, answer.node)
    session = load_session_number(sql, turn.session) if turn and turn.session is not None else None
    return replace(recorded, session=session.label if session else None)


def _find_placement(append: Append, request: RequestedTurn, patience: LeasePatience) -> TurnPlacement:
    if request.session is None:
        return find_place(append, None, request.parent, request.expected)
    row = ensure_session(append, request.session, request.turn.persona)
    ensure_free(append, row, patience)
    return find_place(append, row, request.parent, request.expected)


def _write_whole(append: Append, turn: NewTurn, place: TurnPlacement, in_one_pass: bool) -> RecordedTurn:
    turn_id, session = append.ulids.mint(MESSAGE_ROOM + 1), place.session
    write = write_ordinary if in_one_pass and is_ordinary_place(append, place) else _write_any
    response, digest = write(append, turn, place, turn_id)
    append.seal()
    return RecordedTurn(
        id=turn_id,
        digest=digest,
        depth=place.depth,
        parent_id=place.parent.id if place.parent else None,
        session=session.label if session else None,
        receipt=append.receipt(digest),
        response_message_id=response,
    )


def _write_any(append: Append, turn: NewTurn, place: TurnPlacement, turn_id: str) -> tuple[str | None, str]:
    """Any turn, event by event; `write_ordinary` does the same for most. Returns the answer's id and the digest."""
    session = place.session
    persona = session.persona if session and turn.persona == DEFAULT_AGENT else append.agent(turn.persona)
    turn_events = TurnEvents(append, turn_id, actor=persona, scope=place.scope)
    turn_events.start(
        fork=place.fork,
        session=session.id if session else UNSET,
        compaction=place.compaction,
        turn_type=TurnType.NORMAL,
        setting=turn.setting,
    )
    response, digest = turn.write(turn_events)
    if session is not None and turn.error is None:
        move_with_turn(append, session.id, turn_id)
    return response, digest


def move_with_turn(append: Append, session: str, turn: str) -> None:
    row = append.view.session(session)
    append.stream(session_stream(session), bytes(row.last_event).hex(), row.persona).add(
        SessionMoved, to=turn, before=row.head, why=MoveReason.TURN
    )
