"""Recording whole turns at once: one append, one sync, and a row for each; all of them or none.

The way down: `NewTurn` checks what the caller gave; its contents are encoded, hashed and weighed before the writers'
lock is taken; under the lock the turn is placed, its events are chained, the events become rows, and the rows are
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import decode, encode
from msgspec.structs import replace

from weft.kernel.contents import ROW_BYTES, Prepared, json_bytes, text_bytes
from weft.kernel.enums import MessageRole, MoveReason, RunExit, TurnType
from weft.kernel.events import session_stream
from weft.kernel.ledger_events import SessionMoved
from weft.ledger.arguments import (
    as_calls,
    as_messages,
    as_record,
    as_usage_and_rest,
    checked_label,
    summed_usage,
)
from weft.ledger.dialects.messages import TranslatedMessage
from weft.ledger.dialects.turns import with_outcomes, with_usage_rest, with_uses
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
from weft.ledger.views.rows import load_session_number, load_turn
from weft.ledger.write.append import MESSAGE_ROOM, Append, LedgerWriter, Patience, expected_scope
from weft.ledger.write.commands import Answer, KeyedCommand, find_answer, keyed_command, once
from weft.ledger.write.placement import Placement, ensure_free, ensure_session, ensure_spawned, find_place
from weft.ledger.write.turn_events import PreparedCall, Setting, TurnEvents
from weft.store.records import Key
from weft.store.sql import Sql

ORDINARY = Setting()
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
        setting: Setting = ORDINARY,
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
        self._texts: dict[int, Prepared] = {}
        self._prepared_calls: list[PreparedCall] = []

    def request(self) -> list[Any]:
        """Everything that its caller told, for the digest of a retry key."""
        written = [self.messages, self.response, self.calls, self.error, self.usage, self.persona, vars(self.setting)]
        asked = [self.model, self.provider, self.params, self.tools_spec, self.finish_reason, self.permissions_used]
        return written + asked

    def prepare(self, prepare: Callable[[bytes], Prepared]) -> list[Prepared]:
        """Encode and hash the contents of messages and calls; they are kept by the place of each in the turn."""
        messages = enumerate([*self.messages, *self.response])
        self._texts = {k: prepare(text_bytes(m.content)) for k, m in messages if isinstance(m.content, str)}
        self._prepared_calls = [_prepared_call(call, prepare) for call in self.calls]
        calls = (part for call in self._prepared_calls for part in (call.id, call.arguments, call.result) if part)
        return [*self._texts.values(), *calls]

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
            call, prepared = self.calls[k], self._prepared_calls[k]
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


def _prepared_call(call: NewToolCall, prepare: Callable[[bytes], Prepared]) -> PreparedCall:
    """What is sure to be stored as it is: arguments that are text may be JSON already, and are left for later."""
    return PreparedCall(
        id=prepare(text_bytes(call.id)) if isinstance(call.id, str) and call.id else None,
        arguments=prepare(json_bytes(call.arguments, "arguments")) if isinstance(call.arguments, dict) else None,
        result=prepare(json_bytes(call.result, "result")) if isinstance(call.result, str | dict | list) else None,
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


class PlacedTurn(Struct, frozen=True, kw_only=True):
    """A turn to be recorded, where it shall go, and the retry key of its caller."""

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

    def after(self, previous: RecordedTurn | None) -> PlacedTurn:
        """In no session and with no parent it follows the turn that was recorded before it."""
        if previous is None or self.session is not None or self.parent is not UNSET or self.expected is not UNSET:
            return self
        return replace(self, parent=previous.id)


def record_turns(writer: LedgerWriter, turns: Sequence[PlacedTurn], *, wait: float, ttl: float) -> list[RecordedTurn]:
    """Append each to whatever the head is then; `parent` and `expected` pin it. All are committed, or none. A turn with
    a retry key is recorded once."""
    commands = [turn.command(writer) for turn in turns]
    if commands[-1] is not None:  # before large contents are stored
        with writer.store.read() as txn:
            answers = [find_answer(txn.sql, command) for command in commands]
            if None not in answers:
                return [_recorded(txn.sql, answer) for answer in answers if answer is not None]
    patience = Patience(writer, wait, ttl)
    likely: list[Key] = []
    for placed in turns:
        if placed.turn.weight.large:
            writer.put_large(placed.turn.weight.large, expected_scope(writer, placed.session, placed.parent))
        contents = placed.turn.prepare(writer.store.prepare)
        if (scope := writer.likely_scope(placed.session, placed.parent)) is not None:
            likely += [(scope, content.digest) for content in contents]

    def work(append: Append) -> list[RecordedTurn]:
        recorded: list[RecordedTurn] = []
        for placed, command in zip(turns, commands, strict=True):
            turn = placed.after(recorded[-1] if recorded else None)
            recorded.append(_write_once(append, turn, command, patience))
        return recorded

    size = sum(placed.turn.weight.size for placed in turns)
    return patience.keep_trying(lambda: writer.write(work, size, likely=likely, session=turns[0].session))


def _write_once(append: Append, placed: PlacedTurn, command: KeyedCommand | None, patience: Patience) -> RecordedTurn:
    def write() -> RecordedTurn:
        return _write_whole(append, placed.turn, _place(append, placed, patience))

    return write() if command is None else _recorded(append.sql, once(append, command, lambda: _answer(write())))


def _answer(recorded: RecordedTurn) -> Answer:
    return Answer(recorded.id, encode(replace(recorded, session=None)).decode())


def _recorded(sql: Sql, answer: Answer) -> RecordedTurn:
    """What was answered first; the session by the label that it has now."""
    recorded, turn = decode(answer.details or "", type=RecordedTurn), load_turn(sql, answer.node)
    session = load_session_number(sql, turn.session) if turn and turn.session is not None else None
    return replace(recorded, session=session.label if session else None)


def _place(append: Append, placed: PlacedTurn, patience: Patience) -> Placement:
    if placed.session is None:
        return find_place(append, None, placed.parent, placed.expected)
    row = ensure_session(append, placed.session, placed.turn.persona)
    ensure_free(append, row, patience)
    return find_place(append, row, placed.parent, placed.expected)


def _write_whole(append: Append, turn: NewTurn, place: Placement) -> RecordedTurn:
    turn_id, session = append.ulids.mint(MESSAGE_ROOM + 1), place.session
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


def move_with_turn(append: Append, session: str, turn: str) -> None:
    row = append.view.session(session)
    append.stream(session_stream(session), bytes(row.last_event).hex(), row.persona).add(
        SessionMoved, to=turn, before=row.head, why=MoveReason.TURN
    )


LARGE_TEXT_CHARACTERS = ROW_BYTES // 6
"""No text shorter than this takes more than a row, whatever its characters need as UTF-8 or as JSON."""


class Weight(Struct, frozen=True):
    size: int
    large: tuple[bytes, ...]


def weigh(messages: Iterable[NewMessage], calls: Iterable[NewToolCall]) -> Weight:
    size = 0
    large: list[bytes] = []
    for text, is_json in _texts(messages, calls):
        size += len(text)
        if len(text) > LARGE_TEXT_CHARACTERS:
            data = json_bytes(text, "result") if is_json else text_bytes(text)
            if len(data) > ROW_BYTES:
                large.append(data)
    return Weight(size, tuple(large))


def _texts(messages: Iterable[NewMessage], calls: Iterable[NewToolCall]) -> Iterator[tuple[str, bool]]:
    """Every string of some length, and whether it is stored as JSON."""
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
