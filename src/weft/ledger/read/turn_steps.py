"""A turn as people read it: what was said, and between it groups of steps that were taken.

Steps are tool calls. Thinking, results and short remarks that lead to a call stand in the group of their steps. The
last words before a prompt or the end of the turn are never taken into a group, and neither are words of some length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from weft.ledger.model import Message, Part, ReasoningPart, TextPart, ToolCall, ToolResultPart, ToolUsePart
from weft.ledger.read.full_threads import Item
from weft.ledger.read.turn_titles import first_line

LONGEST_REMARK_CHARS = 300
LONGEST_TOOL_NAME_CHARS = 40
TOOLS_NAMED = 4
"""More tools than these are counted together."""


class StepGroup(Struct, frozen=True):
    """Consecutive work of a turn. A message holds only those of its parts that belong here."""

    items: tuple[Item, ...]

    @property
    def tools(self) -> Counter[str]:
        """How often each tool was called; a call in a message counts where no call of the group has its id."""
        calls = [item for item in self.items if isinstance(item, ToolCall)]
        called = {call.call_id for call in calls}
        names = [call.name for call in calls]
        names += [part.name for part in self._parts() if isinstance(part, ToolUsePart) and part.id not in called]
        return Counter(names)

    @property
    def failures(self) -> int:
        return sum(isinstance(item, ToolCall) and item.outcome == "error" for item in self.items)

    @property
    def summary(self) -> str:
        """Such as `14 steps: 9 Bash, 2 Edit, 3 others · 1 failed`."""
        tools = self.tools
        steps = tools.total()
        if not steps:
            return "Thinking" if any(isinstance(part, ReasoningPart) for part in self._parts()) else "Result"
        if steps == 1:
            line = f"1 step: {_tool_name(*tools)}"
        else:
            named = tools.most_common(TOOLS_NAMED if len(tools) > TOOLS_NAMED + 1 else None)
            words = [f"{count:,} {_tool_name(name)}" for name, count in named]
            if others := steps - sum(count for _, count in named):
                words.append(f"{others:,} others")
            line = f"{steps:,} steps: {', '.join(words)}"
        return f"{line} · {self.failures:,} failed" if self.failures else line

    def hint(self, *, thinking: bool = True) -> str:
        """What the work was about: the first line of the first remark or thinking; empty where there is none."""
        kinds = (TextPart, ReasoningPart) if thinking else (TextPart,)
        texts = (part.text for part in self._parts() if isinstance(part, kinds))
        return next((line for text in texts if (line := first_line(str(text)))), "")

    def _parts(self) -> Iterator[Part]:
        return (part for item in self.items if isinstance(item, Message) for part in item.content)


def _tool_name(name: str) -> str:
    line = " ".join(name.split()) or "?"
    return line if len(line) <= LONGEST_TOOL_NAME_CHARS else f"{line[:LONGEST_TOOL_NAME_CHARS]}…"


class _PieceKind(Enum):
    SPOKEN = auto()
    """Stands by itself and ends a group."""
    REMARK = auto()
    """Belongs to a group if work follows."""
    ASIDE = auto()
    """Belongs to a group only between other work: notices of a tool, messages that no person sent."""
    WORK = auto()


class _TurnPiece(NamedTuple):
    kind: _PieceKind
    item: Item


def sections(items: Iterable[Item]) -> Iterator[Message | StepGroup]:
    """The messages and groups of steps of a turn, in order. A message that both says and does something comes in
    pieces, each with its own parts; every part of every message is in one of them, except uses of a tool whose call is
    an item, and messages of no parts, which say nothing."""
    items = tuple(items)
    called = {item.call_id for item in items if isinstance(item, ToolCall)}
    run: list[_TurnPiece] = []
    for piece in (piece for item in items for piece in _pieces(item, called)):
        if piece.kind is _PieceKind.SPOKEN:
            yield from _grouped(run)
            run = []
            yield _message(piece)
        else:
            run.append(piece)
    yield from _grouped(run)


def _message(piece: _TurnPiece) -> Message:
    assert isinstance(piece.item, Message)
    return piece.item


def _grouped(run: list[_TurnPiece]) -> Iterator[Message | StepGroup]:
    """A run without its ends: asides before it, and words after it, stand by themselves."""
    work = [at for at, piece in enumerate(run) if piece.kind is _PieceKind.WORK]
    if not work:
        yield from map(_message, run)
        return
    start, end = work[0], work[-1] + 1
    while start and run[start - 1].kind is _PieceKind.REMARK:
        start -= 1
    yield from map(_message, run[:start])
    yield StepGroup(tuple(piece.item for piece in run[start:end]))
    yield from map(_message, run[end:])


def _pieces(item: Item, called: set[str]) -> Iterator[_TurnPiece]:
    """A message cut where its parts change from words to work or back."""
    if isinstance(item, ToolCall):
        yield _TurnPiece(_PieceKind.WORK, item)
        return
    parts = [part for part in item.content if not (isinstance(part, ToolUsePart) and part.id in called)]
    start = 0
    kinds = [_kind(item, part) for part in parts]
    for end in range(1, len(parts) + 1):
        if end == len(parts) or kinds[end] is not kinds[start]:
            whole = end - start == len(item.content)
            yield _TurnPiece(kinds[start], item if whole else replace(item, content=tuple(parts[start:end])))
            start = end


def _kind(message: Message, part: Part) -> _PieceKind:
    if isinstance(part, ToolUsePart | ToolResultPart | ReasoningPart) or message.role == "tool":
        return _PieceKind.WORK
    if message.role == "assistant":
        return _PieceKind.REMARK if isinstance(part, TextPart) and _is_remark(str(part.text)) else _PieceKind.SPOKEN
    return _PieceKind.SPOKEN if message.role == "user" and not is_from_tool(message) else _PieceKind.ASIDE


def _is_remark(text: str) -> bool:
    """One paragraph of a few lines."""
    text = text[: LONGEST_REMARK_CHARS + 1].strip()
    return len(text) <= LONGEST_REMARK_CHARS and "\n\n" not in text


def is_from_tool(message: Message) -> bool:
    """Was it put into the user's place by the tool itself, rather than sent by a person, an agent or a schedule?"""
    return message.source in ("event", "trigger")
