"""Turns that a ledger has read for a context, kept in memory for the next one of the same thread.

Turns are kept in blocks, all of them as of one state of the ledger. Whoever reads a context brings them up to the state
that it sees: what arrived since names the turns that it changes, and their blocks are forgotten. So a second reading
costs what is new, not what is there. Events are never changed and contents never say anything else, so nothing but
these changes what a turn says:

- an event that touches it: of its run, a late result, a substitution, what a source tells of an imported turn;
- an erasure, which moves a watermark;
- views that were wrong and were made anew, which is counted.

After an erasure or a rebuild, after very many events, and where the log is not the one that was read before, nothing of
what is kept is used again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from weft.kernel.contents import bytes_text, json_value, json_values
from weft.kernel.events import GENESIS
from weft.ledger.model import Message, Part, ToolResultPart, ToolUsePart
from weft.ledger.views.touched_turns import touched
from weft.store.erased_contents import ERASING
from weft.store.port import ReadTxn
from weft.store.records import VIEWS_MENDED
from weft.store.sql import Sql, blob

KEPT_BYTES = 32 * 1024 * 1024
"""About so much memory the kept turns of one open ledger take."""
KEPT_ROW_BYTES = 1_500
"""About so much a row takes with the message made of it, beside the text."""
MAX_NEW_EVENTS = 4_096
"""After more events than these all turns are read anew: looking through so many would take longer."""
CONTAINERS = (dict, list)
"""JSON values that can be changed."""
Place = tuple[int, int]
"""The depths of the first and the last turn of a block."""


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
    it, and the content that spells the value."""

    def own(self) -> SpokenTurns:
        """The same for another one to have: nothing that they could change is shared."""
        messages = self.messages.copy()
        values = parsed_all([data for _, _, data in self.values])
        for (place, which, _), value in zip(self.values, values, strict=True):
            message = messages[place]
            parts = message.content
            part = _with_value(parts[which], value)
            parts = (part,) if len(parts) == 1 else (*parts[:which], part, *parts[which + 1 :])
            messages[place] = Message(message.id, message.role, parts, -1, message.created_at)
        return SpokenTurns(self.turns, messages, self.prompts, [])


def _with_value(part: Part, value: Any) -> Part:
    if isinstance(part, ToolUsePart):
        return ToolUsePart(part.id, part.name, value)
    assert isinstance(part, ToolResultPart), "only calls and results have values"
    return ToolResultPart(part.tool_call_id, value, part.is_error)


def parsed_all(contents: Sequence[bytes]) -> list[Any]:
    """The values of contents, each as `json_of` tells it."""
    try:
        return json_values(contents)
    except (ValueError, RecursionError):
        return [_parsed(data) for data in contents]


def _parsed(data: bytes) -> Any:
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
    """Turns of a segment, from one depth to another."""

    ids: frozenset[str]
    pieces: list[Piece]
    has_prompt: bool
    """One of the messages is a system prompt, which not everybody may read."""
    size: int

    def own(self) -> list[Piece]:
        return [piece.own() if isinstance(piece, SpokenTurns) else piece for piece in self.pieces]


class LedgerState(Struct, frozen=True):
    """What a reader sees of a ledger: where the log ends, and how often something changed without an event."""

    n: int
    chain: bytes
    erasures: int
    """The erasing watermark, which only grows."""
    mended: int
    """How often wrong views were made anew."""

    def is_before(self, other: LedgerState) -> bool:
        return self.n < other.n or self.erasures < other.erasures or self.mended < other.mended


_STATE = (
    "SELECT l.n, l.chain, (SELECT w.n FROM watermark w WHERE w.view = ?), (SELECT o.value FROM local o WHERE o.key = ?)"
    " FROM log l ORDER BY l.n DESC LIMIT 1"
)


def load_state(sql: Sql) -> LedgerState:
    row = sql.one(_STATE, (ERASING, VIEWS_MENDED))
    if row is None:
        return LedgerState(0, GENESIS, 0, 0)
    n, chain, erasures, mended = row
    return LedgerState(n, blob(chain), erasures or 0, int(mended or 0))


def changed_between(txn: ReadTxn, before: LedgerState, now: LedgerState) -> set[str] | None:
    """The turns that may say something else than before. None: any of them."""
    is_other = (before.erasures, before.mended) != (now.erasures, now.mended)
    if is_other or now.n - before.n > MAX_NEW_EVENTS or txn.facts.chain_at(before.n) != before.chain:
        return None
    return set(touched(txn.facts, before.n).turns)


class KeptSegment(Struct):
    """The kept blocks of one segment."""

    blocks: dict[Place, TurnBlock]
    size: int = 0

    def drop(self, places: list[Place]) -> None:
        for place in places:
            self.size -= self.blocks.pop(place).size


class TurnMemory:
    """The kept turns of one open ledger, within a budget. Segments that were not read for the longest time go first; of
    one that alone is too large the turns that were read first stay."""

    def __init__(self, budget: int = KEPT_BYTES) -> None:
        self._budget = budget
        self._state: LedgerState | None = None
        self._segments: OrderedDict[int, KeptSegment] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        with self._lock:
            return self._size()

    def bring_up(self, txn: ReadTxn) -> LedgerState:
        """The state that a reader sees. What is kept is as of this state from now on, unless it is of a later one
        already, or somebody else brings it up at this moment: then this reader finds nothing kept, and keeps
        nothing."""
        state, known = load_state(txn.sql), self._state
        if known is None:
            self._replace(known, state, None)
        elif state != known and not state.is_before(known):
            self._replace(known, state, changed_between(txn, known, state))
        return state

    def find(self, segment: int, state: LedgerState) -> dict[Place, TurnBlock]:
        """The kept blocks of a segment, for a reader who sees this state."""
        with self._lock:
            if state != self._state or segment not in self._segments:
                return {}
            self._segments.move_to_end(segment)
            return self._segments[segment].blocks.copy()

    def keep(self, segment: int, state: LedgerState, blocks: dict[Place, TurnBlock]) -> None:
        """Blocks that were read just now, by a reader who sees this state."""
        with self._lock:
            if state != self._state:
                return
            held = self._segments.setdefault(segment, KeptSegment({}))
            self._segments.move_to_end(segment)
            for place, block in blocks.items():
                held.drop([place] if place in held.blocks else [])
                if held.size + block.size <= self._budget:
                    held.blocks[place] = block
                    held.size += block.size
            while self._size() > self._budget:
                self._segments.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._segments.clear()

    def _replace(self, known: LedgerState | None, state: LedgerState, changed: set[str] | None) -> None:
        with self._lock:
            if self._state is not known:
                return
            self._state = state
            if changed is None:
                self._segments.clear()
                return
            for held in self._segments.values():
                held.drop([place for place, block in held.blocks.items() if not changed.isdisjoint(block.ids)])

    def _size(self) -> int:
        return sum(held.size for held in self._segments.values())
