"""A conversation in messages as turns: where each begins, and which tool calls its answer made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.kernel.enums import MessageRole, ToolCallStatus
from weft.kernel.errors import InvalidInput
from weft.ledger.dialects.messages import TranslatedMessage, metadata_collision
from weft.ledger.model import NewMessage, NewToolCall, Part, TextPart, ToolResultPart, ToolUsePart


class MessageTurn(Struct):
    """The messages of one turn: the prompt with what precedes it, and the answer with all its steps."""

    query: list[NewMessage] = field(default_factory=list)
    response: list[NewMessage] = field(default_factory=list)


def split_turns(messages: Iterable[NewMessage]) -> list[MessageTurn]:
    """A turn begins with a system's or a user's message after an answer; results of tools belong to the answer."""
    turns: list[MessageTurn] = []
    for message in messages:
        is_answer = message.role in (MessageRole.ASSISTANT, MessageRole.TOOL)
        if not turns or (turns[-1].response and not is_answer):
            turns.append(MessageTurn())
        (turns[-1].response if is_answer else turns[-1].query).append(message)
    return turns


def with_uses(response: Sequence[NewMessage], uses: Sequence[ToolUsePart]) -> list[NewMessage]:
    """The answer with these tool uses in it: those that it lacks go to the end of its last message."""
    messages = list(response)
    if not uses:
        return messages
    spelled = {part.id for message in messages for part in _parts_of(message) if isinstance(part, ToolUsePart)}
    missing = [use for use in uses if use.id not in spelled]
    if missing and (not messages or messages[-1].role != MessageRole.ASSISTANT):
        messages.append(NewMessage(role=MessageRole.ASSISTANT, content=()))
    if missing:
        messages[-1] = replace(messages[-1], content=(*_parts_of(messages[-1]), *missing))
    return messages


def with_usage_rest(response: Sequence[NewMessage], rest: dict[str, Any]) -> list[NewMessage]:
    """The answer, with what its usage says besides the counts in the metadata of its last message."""
    messages = list(response)
    if not rest:
        return messages
    if not messages or not isinstance(messages[-1].metadata, dict | None):
        raise InvalidInput(
            f"usage: {', '.join(rest)} can be kept only beside an answer", "leave it out, or give the response"
        )
    metadata = messages[-1].metadata or {}
    if metadata.get("usage", rest) != rest:
        raise metadata_collision("response", "usage")
    messages[-1] = replace(messages[-1], metadata={**metadata, "usage": rest})
    return messages


def with_outcomes(
    response: Sequence[NewMessage], calls: Sequence[NewToolCall]
) -> tuple[list[NewMessage], list[NewToolCall]]:
    """The answer, with tool calls where an API's results answer tool uses of it: these results leave the messages. Uses
    without a result, and results without a use, stay as they are."""
    if not any(isinstance(message, TranslatedMessage) for message in response):
        return list(response), list(calls)
    answer = _Answer({call.id for call in calls if call.id is not None})
    messages = [rest for message in response if (rest := answer.without_outcomes(message)) is not None]
    return messages, [*calls, *(_call(use, result) for use, result in answer.uses if result is not None)]


class _Answer:
    """The tool uses of an answer, each with its result once that is met."""

    def __init__(self, known: set[str]) -> None:
        self._known = known
        self._waiting: dict[str, deque[int]] = {}
        self.uses: list[tuple[ToolUsePart, ToolResultPart | None]] = []

    def without_outcomes(self, message: NewMessage) -> NewMessage | None:
        """The message without the results that answer a use; None if nothing is left."""
        parts = _parts_of(message)
        if message.role == MessageRole.ASSISTANT:
            for part in parts:
                if isinstance(part, ToolUsePart) and part.id not in self._known:
                    self._waiting.setdefault(part.id, deque()).append(len(self.uses))
                    self.uses.append((part, None))
        if not isinstance(message, TranslatedMessage):
            return message
        rest = tuple(part for part in parts if not (isinstance(part, ToolResultPart) and self._answers(part)))
        if len(rest) == len(parts):
            return message
        names = [{"name": use.name} for use, result in self.uses if result in parts]
        is_metadata_known = message.metadata is None or message.metadata in names
        return None if is_metadata_known and not rest else replace(message, content=rest)

    def _answers(self, result: ToolResultPart) -> bool:
        waiting = self._waiting.get(result.tool_call_id)
        if not waiting:
            return False
        number = waiting.popleft()
        self.uses[number] = (self.uses[number][0], result)
        return True


def _call(use: ToolUsePart, result: ToolResultPart) -> NewToolCall:
    status = ToolCallStatus.ERROR if result.is_error is True else None
    return NewToolCall(name=use.name, id=use.id, arguments=use.input, result=result.output, status=status)


def _parts_of(message: NewMessage) -> tuple[Part, ...]:
    content: Any = message.content
    return content if isinstance(content, tuple) else (TextPart(content),)
