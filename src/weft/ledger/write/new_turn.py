"""A turn as its caller tells it: checked, encoded and hashed before the writers' lock is taken, then written event by
event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.contents import ROW_BYTES, Prepared, json_bytes, text_bytes
from weft.kernel.enums import MessageRole, RunExit
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
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from weft.ledger.write.placement import ensure_spawned
from weft.ledger.write.turn_events import PreparedCall, Setting, TurnEvents

DEFAULT_SETTING = Setting()
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
        setting: Setting = DEFAULT_SETTING,
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
        self.prepared_calls: list[PreparedCall] = []

    def request(self) -> list[Any]:
        """Everything that its caller told, for the digest of a retry key."""
        written = [self.messages, self.response, self.calls, self.error, self.usage, self.persona, vars(self.setting)]
        asked = [self.model, self.provider, self.params, self.tools_spec, self.finish_reason, self.permissions_used]
        return written + asked

    def prepare(self, prepare: Callable[[bytes], Prepared]) -> list[Prepared]:
        """Encode and hash the contents of messages and calls; they are kept by the place of each in the turn."""
        messages = enumerate([*self.messages, *self.response])
        self._texts = {k: prepare(text_bytes(m.content)) for k, m in messages if isinstance(m.content, str)}
        self.prepared_calls = [_prepared_call(call, prepare) for call in self.calls]
        calls = (part for call in self.prepared_calls for part in (call.id, call.arguments, call.result) if part)
        return [*self._texts.values(), *calls]

    @property
    def prepared_texts(self) -> Iterable[Prepared]:
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


def _prepared_call(call: NewToolCall, prepare: Callable[[bytes], Prepared]) -> PreparedCall:
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


class Weight(Struct, frozen=True):
    """How many characters a write brings, and the contents that take more than a row."""

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
