"""Turns that a ledger has read for a context, kept in memory for the next one of the same thread.

Turns are kept in blocks, each with the rows that it was read from: all but the bytes of contents. Whoever wants a block
again reads those rows again, which is a small part of the work, and takes what is kept only where they are the same: a
late result, a substitution, another import and views that were made anew all show in them. The bytes of a content never
change; where any are erased, everything that is kept is forgotten.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from msgspec import Struct

from weft.kernel.contents import bytes_text, json_value
from weft.ledger.model import Message, Part, ToolResultPart, ToolUsePart

KEPT_BYTES = 32 * 1024 * 1024
"""About so much memory the kept turns of one open ledger take."""
KEPT_ROW_BYTES = 1_500
"""About so much a row takes with the message made of it, beside the text."""
Row = tuple[Any, ...]


class SpokenTurns(Struct, frozen=True, gc=False):
    """What turns that follow each other say in a context."""

    turns: list[str]
    """Their ids, without compactions."""
    messages: list[Message]
    """All that was said, with calls in place, without system prompts."""
    prompts: list[tuple[str, list[Message]]]
    """Who answered a turn that begins with system messages, and these."""
    values: list[tuple[int, int, bytes]]
    """Values of calls that can be changed by whoever is given them: the place of the message, the place of the part in
    it, and the bytes that the value is made of."""

    def own(self) -> SpokenTurns:
        """The same for another one to have: nothing that they could change is shared."""
        messages = self.messages.copy()
        for place, which, data in self.values:
            told = messages[place]
            parts = told.content
            one = parts[which]
            part: Part
            if isinstance(one, ToolUsePart):
                part = ToolUsePart(one.id, one.name, parsed(data))
            else:
                assert isinstance(one, ToolResultPart), "only calls and results have values"
                part = ToolResultPart(one.tool_call_id, parsed(data), one.is_error)
            parts = (part,) if len(parts) == 1 else (*parts[:which], part, *parts[which + 1 :])
            messages[place] = Message(told.id, told.role, parts, -1, told.created_at)
        return SpokenTurns(self.turns, messages, self.prompts, [])


def parsed(data: bytes) -> Any:
    """The value of a content, as `json_of` tells it."""
    try:
        return json_value(data)
    except (ValueError, RecursionError):
        return bytes_text(data)


class OtherTurns(Struct, frozen=True, gc=False):
    """Turns that are not plain, from one depth to another: they are read in the general way."""

    low: int
    high: int


Piece = SpokenTurns | OtherTurns


class TurnBlock(Struct, frozen=True, gc=False):
    """Turns of a segment, from one depth to another, and the rows they were read from."""

    turns: list[Row]
    """Number and depth of each."""
    said: list[Row]
    calls: list[Row]
    substituted: set[int]
    pieces: list[Piece]
    has_prompt: bool
    """One of the messages is a system prompt, which not everybody may read."""
    size: int


class KeptSegment(Struct):
    """The kept blocks of one segment, each by the depths of its first and its last turn."""

    blocks: dict[tuple[int, int], TurnBlock]
    size: int = 0


class TurnMemory:
    """The kept turns of one open ledger, within a budget. Segments that were not read for the longest time go first; of
    one that alone is too large the turns that were read first stay."""

    def __init__(self, budget: int = KEPT_BYTES) -> None:
        self._budget, self._erasures = budget, 0
        self._segments: OrderedDict[int, KeptSegment] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        with self._lock:
            return self._size()

    def find(self, segment: int, erasures: int) -> dict[tuple[int, int], TurnBlock]:
        """The kept blocks of a segment; `erasures` is the erasing watermark of the reader."""
        with self._lock:
            if not self._is_current(erasures) or segment not in self._segments:
                return {}
            self._segments.move_to_end(segment)
            return self._segments[segment].blocks.copy()

    def keep(self, segment: int, erasures: int, blocks: dict[tuple[int, int], TurnBlock]) -> None:
        """Blocks that were read just now. What a reader would keep who began before an erasure is not wanted."""
        with self._lock:
            if not self._is_current(erasures):
                return
            held = self._segments.setdefault(segment, KeptSegment({}))
            self._segments.move_to_end(segment)
            for place, block in blocks.items():
                known = held.blocks.pop(place, None)
                held.size -= known.size if known else 0
                if held.size + block.size <= self._budget:
                    held.blocks[place] = block
                    held.size += block.size
            while self._size() > self._budget:
                self._segments.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._segments.clear()

    def _size(self) -> int:
        return sum(held.size for held in self._segments.values())

    def _is_current(self, erasures: int) -> bool:
        if erasures > self._erasures:
            self._segments.clear()
            self._erasures = erasures
        return erasures == self._erasures
