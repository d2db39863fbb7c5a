"""What was said and done in a turn, as lines: messages with their tool calls in place, long parts folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import UNSET

from weft.kernel.events import HistoryAppend, ModelResponse
from weft.kernel.events import ToolCallRequested as ToolCallEvent
from weft.ledger.model import FileNote, Message, Part, ToolCall, ToolUsePart
from weft.surfaces.cli.rendering.calls import CallRenderer
from weft.surfaces.cli.rendering.messages import MessageRenderer
from weft.surfaces.cli.rendering.page import ASCII, UNICODE, PageLayout
from weft.surfaces.cli.screen import Line

if TYPE_CHECKING:
    from weft.ledger.api import Ledger


def in_order(ledger: Ledger, turn_id: str) -> list[Message | ToolCall]:
    """The messages and tool calls of a turn in the order of their events."""
    messages = {message.id: message for message in ledger.messages(turn_id)}
    calls = iter(ledger.tool_calls(turn_id))
    items: list[Message | ToolCall | None] = []
    for recorded in ledger.events(turn_id):
        match recorded.event:
            case HistoryAppend(message=fact):
                items.append(messages.pop(fact.id, None))
            case ModelResponse(output=fact) if fact is not UNSET:
                items.append(messages.pop(fact.id, None))
            case ToolCallEvent():
                items.append(next(calls, None))
    return [item for item in (*items, *messages.values(), *calls) if item is not None]


class Transcript:
    """Renders messages and calls; `full` folds nothing."""

    def __init__(
        self,
        *,
        full: bool,
        columns: int,
        unicode: bool = False,
        workspace: str | None = None,
        labels: Mapping[str, str] = MappingProxyType({}),
        wraps: bool = False,
        unfold: str = "--full",
    ) -> None:
        """`wraps`: long lines of what was said are broken at words."""
        page = PageLayout(columns, full, UNICODE if unicode else ASCII, workspace, labels, wraps, unfold)
        self._calls, self._messages = CallRenderer(page), MessageRenderer(page)

    def lines(
        self, items: Sequence[Message | ToolCall], files: Mapping[str, Sequence[FileNote]] | None = None
    ) -> Iterator[Line]:
        """Each message under who spoke; calls under the message that made them, without a gap."""
        called = {item.call_id for item in items if isinstance(item, ToolCall)}
        tools = tools_called(items)
        speaker, first = "", True
        for item in items:
            if isinstance(item, ToolCall):
                if not first and speaker in ("user", "system"):
                    yield []
                    speaker = "tool"
                yield from self._calls.lines(item)
                first = False
                continue
            parts = shown_parts(item, called)
            notes = (files or {}).get(item.id, ())
            if not (parts or notes) and speaker == item.role:
                continue
            if not first:
                yield []
            yield self._messages.heading(item)
            yield from self._messages.body(item, parts, notes, tools)
            speaker, first = item.role, False


def tools_called(items: Sequence[Message | ToolCall]) -> dict[str, str]:
    """The names of tools by the ids of their calls."""
    parts = (part for item in items if isinstance(item, Message) for part in item.content)
    return {part.id: part.name for part in parts if isinstance(part, ToolUsePart)}


def shown_parts(message: Message, called: set[str]) -> list[Part]:
    """The parts of a message without the tool uses that stand as calls of their own."""
    return [part for part in message.content if not (isinstance(part, ToolUsePart) and part.id in called)]
