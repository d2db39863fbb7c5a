"""What ordinary turns say in a context, by a few lean queries for hundreds of turns: their rows
made into messages column by column, and turns that were read before, kept in memory for the next
context of the same thread.
"""

from __future__ import annotations

import gc
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import compress, groupby, pairwise, repeat
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.contents import CONTENT_DOMAIN, bytes_text, json_value, json_values
from weft.kernel.enums import TurnType
from weft.kernel.errors import Damaged
from weft.kernel.events import GENESIS
from weft.ledger.model import Message, Part, TextPart, ToolResultPart, ToolUsePart, repeated_id
from weft.ledger.read.access import access_of
from weft.ledger.read.turns import CHUNK, SegmentRange, WholeTurn, read_leaves, transcript, turns_in
from weft.ledger.views.rows import touched
from weft.store.fact_log import ERASING, VIEWS_MENDED
from weft.store.port import ReadTxn
from weft.store.sql import Row, Sql, blob

# --- A pause of Python's collector of cycles, for a stretch of work that makes thousands of objects and no cycle.


class CollectorPause:
    """Held by any number of threads; the collector goes on when the last one lets go, unless it was off before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._holders:
                self._was_on = gc.isenabled()
                gc.disable()
            self._holders += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders and self._was_on:
                gc.enable()


COLLECTOR_PAUSE = CollectorPause()


# --- Turns that a ledger has read for a context, kept in memory for the next one of the same thread.

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
        return [_parsed_json(data) for data in contents]


def _parsed_json(data: bytes) -> Any:
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
    row = sql.fetch_row(_STATE, (ERASING, VIEWS_MENDED))
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
            return self._total_size()

    def bring_up(self, txn: ReadTxn) -> LedgerState:
        """The state that a reader sees. What is kept is as of this state from now on, unless it is of a later one
        already, or somebody else brings it up at this moment: then this reader finds nothing kept, and keeps
        nothing."""
        state, known = load_state(txn.sql), self._state
        if known is None:
            self._replace_state(known, state, None)
        elif state != known and not state.is_before(known):
            self._replace_state(known, state, changed_between(txn, known, state))
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
            while self._total_size() > self._budget:
                self._segments.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._segments.clear()

    def _replace_state(self, known: LedgerState | None, state: LedgerState, changed: set[str] | None) -> None:
        with self._lock:
            if self._state is not known:
                return
            self._state = state
            if changed is None:
                self._segments.clear()
                return
            for held in self._segments.values():
                held.drop([place for place, block in held.blocks.items() if not changed.isdisjoint(block.ids)])

    def _total_size(self) -> int:
        return sum(held.size for held in self._segments.values())


# --- The rows of plain turns made into what the turns say, column by column.

DEPTH = 1 << 32
"""Where something stands in its segment is one number, its place: its turn's depth times this, and its position in the
turn."""
Columns = Sequence[tuple[Any, ...]]
TURN_COLUMNS, MESSAGE_COLUMNS, CALL_COLUMNS = 4, 10, 17
_digest = type(sha256()).digest


class TurnRows:
    """The rows of turns that follow each other, with their contents, from which one block after the other is read.

    Of a turn: depth, id, persona, type. Of a message: depth, position, id, role, number, time, source; reference, salt
    and bytes of its text. Of a call: depth, position, how many before it have its id, tool, outcome, when it began and
    ended, whether it is odd; reference, salt and bytes of its id, of its parameters and of its result."""

    def __init__(self, turns: list[Row], messages: list[Row], calls: list[Row], substituted: set[int]) -> None:
        self._depths, self._ids, self._personas, types = _columns_of(turns, TURN_COLUMNS)
        message_columns, call_columns = _columns_of(messages, MESSAGE_COLUMNS), _columns_of(calls, CALL_COLUMNS)
        odd = self._odd = substituted | _disordered_depths(message_columns) | _disordered_depths(call_columns)
        odd.update([depth for depth, type in zip(self._depths, types, strict=True) if type == TurnType.COMPACTION])
        odd.update([row[0] for row in messages if row[9] is None], compress(call_columns[0], call_columns[7]))
        if odd:
            message_columns = _columns_of([row for row in messages if row[0] not in odd], MESSAGE_COLUMNS)
            call_columns = _columns_of([row for row in calls if row[0] not in odd], CALL_COLUMNS)
        self._message_rows = MessageRows(message_columns)
        self._calls = CallRows(call_columns, dict(zip(self._depths, self._ids, strict=True)), self._message_rows.places)
        self._messages = self._calls.put_into(self._message_rows.messages)
        self._read_pieces = (0, 0, 0)
        """How many turns, messages and groups of calls were told so far."""

    def read_block(self, high: int) -> TurnBlock:
        """The turns up to this depth."""
        first, i, j = self._read_pieces
        end = bisect_right(self._depths, high)
        pieces: list[Piece] = []
        for is_odd, run in groupby(self._depths[first:end], self._odd.__contains__):
            depths = list(run)
            pieces.append(OtherTurns(depths[0], depths[-1]) if is_odd else self._spoken_turns(depths))
        _, to, upto = self._read_pieces
        self._read_pieces = (end, to, upto)
        ids = self._ids[first:end]
        size = KEPT_ROW_BYTES * len(ids) + self._message_rows.size(i, to) + self._calls.size(j, upto)
        return TurnBlock(frozenset(ids), pieces, "system" in self._message_rows.roles[i:to], size)

    def _spoken_turns(self, depths: list[int]) -> SpokenTurns:
        """What plain turns say that follow each other."""
        _, i, _ = self._read_pieces
        first = bisect_left(self._depths, depths[0])
        end = first + len(depths)
        to, upto = self._rows_upto(depths[-1])
        stretch = SpokenTurns(list(self._ids[first:end]), [], [], [])
        if "system" in self._message_rows.roles[i:to]:
            for depth, persona in zip(depths, self._personas[first:end], strict=True):
                self._add_prompt(stretch, depth, persona)
                self._add_messages(stretch, *self._rows_upto(depth))
        else:
            self._add_messages(stretch, to, upto)
        return stretch

    def _rows_upto(self, depth: int) -> tuple[int, int]:
        """How many messages and groups of calls there are in turns no deeper than this."""
        _, i, j = self._read_pieces
        end = DEPTH * (depth + 1)
        return bisect_left(self._message_rows.places, end, i), bisect_left(self._calls.places, end, j)

    def _add_prompt(self, stretch: SpokenTurns, depth: int, persona: str) -> None:
        """The system messages that a turn begins with."""
        h, first, j = self._read_pieces
        to, upto = self._rows_upto(depth)
        to = self._calls.following[j] if j < upto else to
        i = first
        while i < to and self._message_rows.roles[i] == "system":
            i += 1
        if i > first:
            stretch.prompts.append((persona, self._message_rows.messages[first:i]))
        self._read_pieces = (h, i, j)

    def _add_messages(self, stretch: SpokenTurns, to: int, upto: int) -> None:
        """The messages and the groups of calls, two messages each, up to these numbers."""
        h, i, j = self._read_pieces
        first, end = i + 2 * j, to + 2 * upto
        shift = len(stretch.messages) - first
        values = self._calls.values
        values = values[bisect_left(values, (first,)) : bisect_left(values, (end,))]
        stretch.values.extend([(index + shift, which, data) for index, which, data in values])
        stretch.messages.extend(self._messages[first:end])
        self._read_pieces = (h, to, upto)


class MessageRows:
    """Messages made of their columns."""

    def __init__(self, columns: Columns) -> None:
        _, _, ids, self.roles, numbers, times, sources, refs, salts, self._contents = columns
        self.places = _places_in_order(columns)
        _check_references(refs, salts, self._contents)
        parts = zip(map(TextPart, _decoded_texts(self._contents)), strict=True)
        self.messages = list(map(Message, ids, self.roles, parts, numbers, times, sources))

    def size(self, i: int, to: int) -> int:
        return KEPT_ROW_BYTES * (to - i) + sum(map(len, self._contents[i:to]))


class CallRows:
    """Calls made of their columns. Those that follow each other within a turn are a group: an assistant's use and a
    tool's result, as `call_messages` tells them. `turns` has the ids of turns by depth, `message_places` the places of
    messages."""

    def __init__(self, columns: Columns, turns: dict[int, str], message_places: Sequence[int]) -> None:
        (
            depths, _, repeated, tools, outcomes, starts, ends, _, id_refs, id_salts, ids,
            params_refs, params_salts, params, refs, salts, results,
        ) = columns  # fmt: skip
        if not all(map(isinstance, tools, repeat(str))):
            raise Damaged("the name of a tool is no text")
        places = _places_in_order(columns)
        has_result = [data is not None for data in results]
        _check_references(id_refs, id_salts, ids)
        _check_references(params_refs, params_salts, params)
        _check_references(*(list(compress(column, has_result)) for column in (refs, salts, results)))
        self._params, self._results = params, [b"null" if data is None else data for data in results]
        natives, asked = _decoded_texts(ids), parsed_all(params)
        outputs = _unless_cut_short(parsed_all(self._results), outcomes)
        uses = tuple(map(ToolUsePart, natives, tools, asked))
        answers = tuple(map(ToolResultPart, natives, outputs, [UNSET if each == "ok" else True for each in outcomes]))
        where = list(zip(map(bisect_right, repeat(message_places), places), depths, strict=True))
        firsts = [k for k, (own, before) in enumerate(zip(where, [None, *where], strict=False)) if own != before]
        self._ends = [*firsts, len(where)]
        """Where each group begins, and the last one ends."""
        groups = list(pairwise(self._ends))
        self.places = [places[k] for k in firsts]
        self.following = [where[k][0] for k in firsts]
        """Which message is the first after each group."""
        names = [f"{turns[depths[k]]}:{repeated_id(natives[k], repeated[k])}" for k in firsts]
        begun, ended = [starts[k] for k in firsts], [ends[end - 1] or starts[end - 1] for _, end in groups]
        self._uses = _messages_of_columns(names, "use", "assistant", [uses[first:end] for first, end in groups], begun)
        self._answers = _messages_of_columns(
            names, "result", "tool", [answers[first:end] for first, end in groups], ended
        )
        self.values = sorted(
            [*self._changeable_values(asked, params, 0), *self._changeable_values(outputs, self._results, 1)]
        )
        """As in `SpokenTurns`, among all messages and calls."""

    def _changeable_values(
        self, values: list[Any], contents: Sequence[bytes], nth: int
    ) -> list[tuple[int, int, bytes]]:
        """The values that can be changed by whoever is given them: all in the first or the second message of a
        group."""
        noted = []
        for k in compress(range(len(values)), map(isinstance, values, repeat(CONTAINERS))):
            group = bisect_right(self._ends, k) - 1
            noted.append((self.following[group] + 2 * group + nth, k - self._ends[group], contents[k]))
        return noted

    def put_into(self, text_messages: list[Message]) -> list[Message]:
        """All messages, with the calls in place."""
        messages: list[Message] = []
        i = 0
        for following, use, answer in zip(self.following, self._uses, self._answers, strict=True):
            messages += text_messages[i:following]
            messages.append(use)
            messages.append(answer)
            i = following
        messages += text_messages[i:]
        return messages

    def size(self, j: int, upto: int) -> int:
        first, end = self._ends[j], self._ends[upto]
        data = sum(map(len, self._params[first:end])) + sum(map(len, self._results[first:end]))
        return KEPT_ROW_BYTES * (end - first) + data


def _messages_of_columns(names: list[str], suffix: str, role: str, parts: list[Any], times: list[int]) -> list[Message]:
    return list(map(Message, [f"{name}#{suffix}" for name in names], repeat(role), parts, repeat(-1), times))


def _unless_cut_short(values: list[Any], outcomes: tuple[str | None, ...]) -> list[Any]:
    """What is told of each call: of one that was cut short, that it was."""
    pairs = zip(values, outcomes, strict=True)
    return ["interrupted" if outcome is None or outcome == "interrupted" else value for value, outcome in pairs]


def _columns_of(rows: list[Row], count: int) -> Columns:
    return list(zip(*rows, strict=True)) if rows else [()] * count


def _places_in_order(columns: Columns) -> list[int]:
    return [depth * DEPTH + position for depth, position in zip(columns[0], columns[1], strict=True)]


def _disordered_depths(columns: Columns) -> set[int]:
    """The depths of turns whose rows do not come in the order of their events, or stand where no event can."""
    depths, positions, *_ = columns
    places = _places_in_order(columns)
    if places == sorted(places) and min(positions, default=0) >= 0 and max(positions, default=0) < DEPTH:
        return set()
    beyond = {depth for depth, position in zip(depths, positions, strict=True) if not 0 <= position < DEPTH}
    after = zip(depths[1:], places[1:], places, strict=False)
    return beyond | {depth for depth, place, before in after if place < before}


def _check_references(refs: Sequence[bytes], salts: Sequence[bytes], contents: Sequence[bytes]) -> None:
    """Every content must hash to its reference."""
    whole = map(b"".join, zip(repeat(CONTENT_DOMAIN), salts, contents, strict=False))
    if list(map(_digest, map(sha256, whole))) != list(refs):
        raise Damaged("a content does not hash to its reference")


def _decoded_texts(contents: Sequence[bytes]) -> list[str]:
    try:
        return list(map(bytes.decode, contents))
    except UnicodeDecodeError:
        return list(map(bytes_text, contents))


# --- What turns say in a context, read in a straight line: a few lean queries for hundreds of turns.

_IN_SPAN = "t.segment = ? AND t.depth BETWEEN ? AND ?"
_TURNS = f"SELECT t.depth, t.id, t.persona, t.type FROM turn t WHERE {_IN_SPAN} ORDER BY t.depth"
_MESSAGES = (
    "SELECT t.depth, m.position, m.id, m.role, m.seq, m.at, m.source, c.ref, c.salt, c.bytes"
    " FROM turn t JOIN message m ON m.turn = t.n LEFT JOIN content c ON c.n = m.text"
    f" WHERE {_IN_SPAN} AND (m.list IS NULL OR m.list = 'main') ORDER BY t.depth, m.seq"
)
_CALLS = (
    "SELECT t.depth, k.position, k.repeated, k.tool, k.outcome, k.started_at, k.completed_at,"
    " CASE WHEN k.detail IS NOT NULL OR k.spawned IS NOT NULL OR k.error IS NOT NULL OR k.error_code IS NOT NULL"
    " OR k.result_position < 0 OR substr(k.tool, 1, 1) = '#' OR substr(k.server, 1, 1) = '#' OR i.bytes IS NULL"
    " OR p.bytes IS NULL OR (k.result IS NOT NULL AND r.bytes IS NULL) THEN 1 ELSE 0 END,"
    " i.ref, i.salt, i.bytes, p.ref, p.salt, p.bytes, r.ref, r.salt, r.bytes"
    " FROM turn t JOIN tool_call k ON k.turn = t.n LEFT JOIN content i ON i.n = k.call_id"
    " LEFT JOIN content p ON p.n = k.params LEFT JOIN content r ON r.n = k.result"
    f" WHERE {_IN_SPAN} ORDER BY t.depth, k.seq"
)
"""The eighth column: the call has what a plain one has not, or contents that do not lie in rows of their own."""
_SUBSTITUTED = f"SELECT t.depth FROM turn t JOIN substitution s ON s.turn = t.n WHERE {_IN_SPAN}"
_BROKEN = (Damaged, TypeError, ValueError, LookupError, AttributeError, RecursionError)
"""What rows raise that nobody could have written."""
BLOCK = 32
"""So many turns are kept together."""
BLOCKS_AT_ONCE = 8


def spoken_turns(
    txn: ReadTxn, ranges: list[SegmentRange], arrived: int | None, memory: TurnMemory | None
) -> list[SpokenTurns]:
    """What the turns of a thread say, in order. Late results that had not come by arrival number `arrived` are left
    out."""
    try:
        with COLLECTOR_PAUSE:
            state = None if memory is None else memory.bring_up(txn)
            return [stretch for part in ranges for stretch in _in_range(txn, part, arrived, memory, state)]
    except _BROKEN:
        return [stretch for part in ranges for stretch in spoken_in_general(txn, part, arrived)]


def spoken_in_general(txn: ReadTxn, part: SegmentRange, arrived: int | None) -> Iterator[SpokenTurns]:
    """The same of one range, for turns of every kind."""
    for low in range(part.low, part.high + 1, CHUNK):
        high = min(low + CHUNK - 1, part.high)
        turns = list(turns_in(txn.sql, replace(part, low=low, high=high)))
        yield from map(_spoken, read_leaves(txn, turns, part.events if high == part.high else None, arrived))


def _spoken(leaf: WholeTurn) -> SpokenTurns:
    prompt, messages = split_system(transcript(leaf))
    prompts = [(leaf.turn.persona, prompt)] if prompt else []
    if leaf.turn.type == TurnType.COMPACTION:
        return SpokenTurns([], [], prompts, [])
    return SpokenTurns([leaf.turn.id], messages, prompts, [])


def split_system(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """System messages that open a turn are its system prompt; one that comes later stays where it is."""
    every = list(messages)
    count = next((k for k, message in enumerate(every) if message.role != "system"), len(every))
    return every[:count], every[count:]


def _in_range(
    txn: ReadTxn, part: SegmentRange, arrived: int | None, memory: TurnMemory | None, state: LedgerState | None
) -> Iterator[SpokenTurns]:
    """Of a turn that is shown in part, only the general way tells which part."""
    whole = part.high if part.events is None else part.high - 1
    for piece in PlainReader(txn, part.segment, memory, state).read(part.low, whole):
        if isinstance(piece, SpokenTurns):
            yield piece
        else:
            yield from spoken_in_general(txn, SegmentRange(part.segment, piece.low, piece.high, None), arrived)
    if whole < part.high:
        yield from spoken_in_general(txn, replace(part, low=part.high), arrived)


class PlainReader:
    """The plain turns of one segment, from memory as far as they are kept as of the state that the reader sees."""

    def __init__(
        self, txn: ReadTxn, segment: int, memory: TurnMemory | None = None, state: LedgerState | None = None
    ) -> None:
        self._sql, self._segment, self._memory, self._state = txn.sql, segment, memory, state
        self._reads_prompts = access_of(txn).is_unlimited
        self._held = {} if memory is None or state is None else memory.find(segment, state)

    def read(self, low: int, high: int) -> Iterator[Piece]:
        blocks = [
            (max(low, start), min(start + BLOCK - 1, high)) for start in range(low - low % BLOCK, high + 1, BLOCK)
        ]
        for is_held, run in groupby(blocks, self._held.__contains__):
            if is_held:
                for place in run:
                    block = self._held[place]
                    yield from block.own() if self._may_show(block) else [OtherTurns(*place)]
            else:
                yield from self._read_pieces(list(run))

    def _read_pieces(self, places: list[Place]) -> Iterator[Piece]:
        for start in range(0, len(places), BLOCKS_AT_ONCE):
            read = self._read_blocks(places[start : start + BLOCKS_AT_ONCE])
            for place, block in read.items():
                yield from block.pieces if self._may_show(block) else [OtherTurns(*place)]

    def _may_show(self, block: TurnBlock) -> bool:
        return self._reads_prompts or not block.has_prompt

    def _read_blocks(self, places: list[Place]) -> dict[Place, TurnBlock]:
        """Blocks that no later turn will belong to are kept."""
        span = (self._segment, places[0][0], places[-1][1])
        turns, messages, calls = (self._sql.fetch_rows(query, span) for query in (_TURNS, _MESSAGES, _CALLS))
        rows = TurnRows(turns, messages, calls, {depth for (depth,) in self._sql.fetch_rows(_SUBSTITUTED, span)})
        blocks = {place: rows.read_block(place[1]) for place in places}
        if self._memory is not None and self._state is not None:
            full = {place: block for place, block in blocks.items() if place[1] % BLOCK == BLOCK - 1}
            self._memory.keep(self._segment, self._state, full)
        return blocks
