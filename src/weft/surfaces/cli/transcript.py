"""What was said and done in a turn, as lines: messages with their tool calls in place, long parts folded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from weft.kernel.dag_events import HistoryAppend, ModelResponse
from weft.kernel.dag_events import ToolCall as ToolCallEvent
from weft.ledger.model import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCall, ToolResultPart, ToolUsePart
from weft.surfaces.cli.plain_text import cut, safe, safe_lines
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_lines import counted

if TYPE_CHECKING:
    from weft.ledger.ledger import Ledger

INDENT = "  "
FOLD = 5
URL_COLUMNS = 80
ROLE_STYLES = {"user": "user", "assistant": "assistant", "system": "dim", "tool": "tool"}


def in_order(ledger: Ledger, turn_id: str) -> list[Message | ToolCall]:
    """The messages and tool calls of a turn in the order of their events."""
    messages = {message.id: message for message in ledger.messages(turn_id)}
    calls = iter(ledger.tool_calls(turn_id))
    found: list[Message | ToolCall | None] = []
    for recorded in ledger.events(turn_id):
        match recorded.event:
            case HistoryAppend(message=fact):
                found.append(messages.pop(fact.id, None))
            case ModelResponse(output=fact) if fact is not UNSET:
                found.append(messages.pop(fact.id, None))
            case ToolCallEvent():
                found.append(next(calls, None))
    return [item for item in (*found, *messages.values(), *calls) if item is not None]


class Transcript:
    """Renders messages and calls; `full` folds nothing."""

    def __init__(self, *, full: bool, columns: int) -> None:
        self._full, self._columns = full, columns

    def lines(self, items: Sequence[Message | ToolCall]) -> Iterator[Line]:
        called = {item.call_id for item in items if isinstance(item, ToolCall)}
        for i, item in enumerate(items):
            if i:
                yield []
            yield from self._call(item) if isinstance(item, ToolCall) else self._message(item, called)

    def _message(self, message: Message, called: set[str]) -> Iterator[Line]:
        """A message; the tool uses in it that stand as calls of their own are not shown twice."""
        source = f" ({message.source})" if message.source else ""
        yield [Span(message.role, ROLE_STYLES.get(message.role, "heading")), Span(source, "dim")]
        for part in message.content:
            if not (isinstance(part, ToolUsePart) and part.id in called):
                yield from self._part(part)

    def _part(self, part: Part) -> Iterator[Line]:
        match part:
            case TextPart():
                yield from ([INDENT, line] for line in safe_lines(str(part.text)))
            case ReasoningPart():
                yield from self._folded("thinking: ", str(part.text))
            case ImagePart():
                yield [INDENT, Span(f"image {cut(safe(str(part.url)), URL_COLUMNS)}", "dim")]
            case ToolUsePart():
                yield [INDENT, *self._use(part.name, part.input)]
            case ToolResultPart():
                failed = part.is_error is True
                yield [INDENT, Span("result of ", "dim"), Span(part.tool_call_id, "bad" if failed else "tool")]
                yield from self._folded("", as_text(part.output))

    def _call(self, call: ToolCall) -> Iterator[Line]:
        took = (call.completed_at or call.started_at) - call.started_at
        outcome = Span(f" {call.outcome or call.status}", "good" if call.outcome == "ok" else "bad")
        yield [*self._use(call.name, call.arguments), outcome, Span(f" {took} ms" if took else "", "dim")]
        if call.error is not None:
            yield from self._folded("error: ", call.error, "bad")
        if call.result is not None:
            yield from self._folded("", as_text(call.result))

    def _use(self, name: str, arguments: Any) -> Line:
        text = safe(compact(arguments))
        room = max(20, self._columns - len(name) - 16)
        return [Span(name, "tool"), f"({text if self._full else cut(text, room)})"]

    def _folded(self, lead: str, text: str, style: str = "dim") -> Iterator[Line]:
        lines = safe_lines(text)
        shown = lines if self._full or len(lines) <= FOLD + 1 else lines[:FOLD]
        room = max(20, self._columns - 2 * len(INDENT) - len(lead))
        for i, line in enumerate(shown):
            yield [INDENT, INDENT, Span((lead if i == 0 else "") + (line if self._full else cut(line, room)), style)]
        if len(shown) < len(lines):
            yield [INDENT, INDENT, Span(f"… {counted(len(lines) - len(shown), 'more line')} (--full)", "dim")]


def compact(arguments: Any) -> str:
    """Arguments on one line: `path="x", depth=2`, or the JSON itself where they are not an object."""
    if isinstance(arguments, dict):
        return ", ".join(f"{name}={_json(value)}" for name, value in arguments.items())
    return _json(arguments)


def as_text(value: Any) -> str:
    """A result as people read it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else _json(value, indent=2)


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
