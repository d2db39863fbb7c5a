"""Recording a whole turn at once: one append, one row, one sync."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, UnsetType

from weft.kernel.enums import MessageRole, MoveReason, RunExit, TurnType
from weft.kernel.errors import InvalidInput
from weft.kernel.events import session_stream
from weft.kernel.ledger_events import SessionMoved
from weft.ledger.arguments import checked_label
from weft.ledger.model import (
    DEFAULT_AGENT,
    NewError,
    NewMessage,
    NewToolCall,
    RecordedTurn,
    ToolUsePart,
    as_messages,
    as_record,
    as_usage,
)
from weft.ledger.write.append import MESSAGE_ROOM, Append, LedgerWriter, expected_scope
from weft.ledger.write.contents import Preparation, weigh
from weft.ledger.write.leases import Patience, ensure_free
from weft.ledger.write.placement import Placement, ensure_session, ensure_spawned, find_place
from weft.ledger.write.turn_events import Setting, TurnEvents, as_setting

ORDINARY = Setting()
UNASKED = -1
"""The place of calls that no message of the answer asks for: before it."""
TURN_FIELDS = tuple(
    "session query response parent expected wait system model provider params usage tool_calls tools_spec finish_reason"
    " error permissions_used persona".split()
)


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
        **setting: Any,
    ) -> None:
        self.messages = as_messages(system, MessageRole.SYSTEM, "system")
        self.messages += as_messages(query, MessageRole.USER, "query")
        self.response = as_messages(response, MessageRole.ASSISTANT, "response")
        self.calls = [as_record(call, NewToolCall, f"tool_calls[{i}]") for i, call in enumerate(_calls(tool_calls))]
        for call in self.calls:
            if call.spawned_session is not None:
                checked_label(call.spawned_session, "spawned session")
        self.usage = as_usage(usage)
        self.model, self.provider, self.params, self.tools_spec = model, provider, params, tools_spec
        self.finish_reason, self.permissions_used = finish_reason, permissions_used
        self.error = error if error is None or isinstance(error, str) else as_record(error, NewError, "error")
        self.persona, self.setting = persona, as_setting(setting, TURN_FIELDS) if setting else ORDINARY
        asked = (model, provider, params, tools_spec, finish_reason)
        self.asks_model = bool(self.response) or any(given is not None for given in asked)
        self.weight = weigh([*self.messages, *self.response], self.calls)

    def prepared(self, ready: Preparation) -> Preparation:
        ready.messages(self.messages)
        ready.messages(self.response)
        ready.calls(self.calls)
        return ready

    def write(self, turn_events: TurnEvents) -> tuple[str | None, str]:
        """All its events after the first. Returns the response message's id and the digest."""
        for message in self.messages:
            turn_events.message(message)
        correlation, request = turn_events.turn, None
        if self.asks_model:
            request = self._write_request(turn_events, correlation)
        asked = self._calls_by_message()
        self._write_calls(turn_events, asked.get(UNASKED, ()), correlation)
        response = self._write_response(turn_events, correlation, request, asked)
        exit = RunExit.SUCCESS if self.error is None else RunExit.ERROR
        answered = self.asks_model
        return response, turn_events.finish(
            exit,
            response=response,
            usage=UNSET if answered else self.usage,
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

    def _calls_by_message(self) -> dict[int, list[NewToolCall]]:
        """Calls by the message of the answer whose tool use asks for them; others go with the call before them."""
        uses = _uses(self.response) if self.calls else {}
        asked: dict[int, list[NewToolCall]] = {}
        place = UNASKED
        for call in self.calls:
            named = uses.get(call.id) if call.id else None
            place = named.pop(0) if named else place
            asked.setdefault(place, []).append(call)
        return asked

    def _write_calls(
        self, turn_events: TurnEvents, calls: Iterable[NewToolCall], correlation: str, message: str | None = None
    ) -> None:
        """Tool calls with their outcomes; `message` asked for them, if it is known and was the last thing written."""
        requested_by = None if message is None else turn_events.run.prev
        for call in calls:
            event, call_id = turn_events.call(call, correlation, requested_by=requested_by, message=message)
            turn_events.result(
                event, call_id, call, correlation, spawned_by(turn_events, call.spawned_session, call_id)
            )

    def _write_response(
        self, turn_events: TurnEvents, correlation: str, request: str | None, asked: dict[int, list[NewToolCall]]
    ) -> str | None:
        """Every message of the answer, each with the calls it asks for; the last one carries the usage and is the
        response."""
        if not self.asks_model:
            return None
        final = self.response[-1] if self.response and self.response[-1].role == MessageRole.ASSISTANT else None
        for k, message in enumerate(self.response[:-1] if final else self.response):
            made = turn_events.message(message)
            self._write_calls(turn_events, asked.get(k, ()), correlation, made)
        response = turn_events.response(
            final, correlation, request=request, usage=self.usage, finish_reason=self.finish_reason
        )
        if final:
            self._write_calls(turn_events, asked.get(len(self.response) - 1, ()), correlation, response)
        return response


def spawned_by(turn_events: TurnEvents, label: str | None, call_id: str) -> str | None:
    """The id of the session that a call of this turn started, if it did."""
    if label is None:
        return None
    return ensure_spawned(turn_events.append, label, turn_events.turn, call_id, turn_events.run.actor).id


def _uses(answer: list[NewMessage]) -> dict[str, list[int]]:
    """The ids of all tool uses of the assistant, each with the messages that it stands in."""
    found: dict[str, list[int]] = {}
    for k, message in enumerate(answer):
        if message.role == MessageRole.ASSISTANT and isinstance(message.content, tuple):
            for part in message.content:
                if isinstance(part, ToolUsePart):
                    found.setdefault(part.id, []).append(k)
    return found


def _calls(given: Any) -> list[Any] | tuple[Any, ...]:
    if given is None or isinstance(given, list | tuple):
        return given or ()
    raise InvalidInput(f"tool_calls is {type(given).__name__}", "it is a list of tool calls")


def record_turn(
    writer: LedgerWriter,
    turn: NewTurn,
    *,
    session: str | None,
    parent: str | UnsetType | None,
    expected: str | UnsetType | None,
    wait: float,
    ttl: float,
) -> RecordedTurn:
    """Append to whatever the head is at commit; `parent` and `expected` pin it."""
    patience = Patience(writer, wait, ttl)
    if turn.weight.large:
        writer.put_large(turn.weight.large, expected_scope(writer, session, parent))
    ready = turn.prepared(writer.prepare(session, parent))

    def work(append: Append) -> RecordedTurn:
        place = _place(append, turn, session, parent, expected, patience)
        return _write_whole(append, turn, place)

    return patience.keep_trying(lambda: writer.write(work, turn.weight.size, ready, session=session))


def _place(
    append: Append,
    turn: NewTurn,
    session: str | None,
    parent: str | UnsetType | None,
    expected: str | UnsetType | None,
    patience: Patience,
) -> Placement:
    if session is None:
        return find_place(append, None, parent, expected)
    row = ensure_session(append, session, turn.persona)
    ensure_free(append, row, patience)
    return find_place(append, row, parent, expected)


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
