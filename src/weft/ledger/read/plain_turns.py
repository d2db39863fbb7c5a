"""What turns say in a context, read in a straight line: a few lean queries for hundreds of turns, and one loop.

A turn is plain if each of its messages is one text, its calls ended within it, and all of it lies in rows of its own.
Everything is hashed before it is shown. Turns that are not plain (parts, substitutions, late results, contents that
were erased, packed or are very large) are left to `read_leaves`, which reads every turn; so is the whole context where
a row or a content is not what it should be: that way alone says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby

from msgspec import UNSET
from msgspec.structs import replace

from weft.kernel.contents import CONTENT_DOMAIN, bytes_text
from weft.kernel.enums import TurnType
from weft.kernel.errors import Damaged, FactDamaged
from weft.ledger.model import Message, Part, TextPart, ToolResultPart, ToolUsePart, repeated_id
from weft.ledger.read.access import access_of
from weft.ledger.read.kept_turns import (
    CONTAINERS,
    KEPT_ROW_BYTES,
    LedgerState,
    OtherTurns,
    Piece,
    Place,
    SpokenTurns,
    TurnBlock,
    TurnMemory,
    copied,
    parsed,
)
from weft.ledger.read.threads import CHUNK, Range, turns_in
from weft.ledger.read.turns import Leaf, read_leaves, transcript
from weft.store.port import ReadTxn
from weft.store.sql import Row

_IN_SPAN = "t.segment = ? AND t.depth BETWEEN ? AND ?"
_TURNS = f"SELECT t.n, t.depth, t.id, t.persona, t.type FROM turn t WHERE {_IN_SPAN} ORDER BY t.depth"
_SAID = (
    "SELECT m.turn, m.position, m.id, m.role, m.seq, m.at, m.source, c.ref, c.salt, c.bytes"
    " FROM turn t JOIN message m ON m.turn = t.n LEFT JOIN content c ON c.n = m.text"
    f" WHERE {_IN_SPAN} AND (m.list IS NULL OR m.list = 'main') ORDER BY t.depth, m.seq"
)
_CALLS = (
    "SELECT k.turn, k.position, k.repeated, k.tool, k.outcome, k.started_at, k.completed_at,"
    " CASE WHEN k.detail IS NOT NULL OR k.spawned IS NOT NULL OR k.error IS NOT NULL OR k.error_code IS NOT NULL"
    " OR k.result_position < 0 OR (k.result IS NOT NULL AND r.n IS NULL)"
    " OR substr(k.tool, 1, 1) = '#' OR substr(k.server, 1, 1) = '#' THEN 1 ELSE 0 END,"
    " i.ref, i.salt, i.bytes, p.ref, p.salt, p.bytes, r.ref, r.salt, r.bytes"
    " FROM turn t JOIN tool_call k ON k.turn = t.n LEFT JOIN content i ON i.n = k.call_id"
    " LEFT JOIN content p ON p.n = k.params LEFT JOIN content r ON r.n = k.result"
    f" WHERE {_IN_SPAN} ORDER BY t.depth, k.seq"
)
"""The eighth column: the call has something that a plain one has not, or lacks its result."""
_SUBSTITUTED = f"SELECT s.turn FROM turn t JOIN substitution s ON s.turn = t.n WHERE {_IN_SPAN}"
_END: Row = (None, None)
"""Behind the last row: it is of no turn."""
_BROKEN = (Damaged, TypeError, ValueError, LookupError, AttributeError, RecursionError)
"""What rows raise that nobody could have written, and values that are nested too deeply to be copied."""
BLOCK = 32
"""So many turns are kept together."""
BLOCKS_AT_ONCE = 16


def spoken_turns(
    txn: ReadTxn, ranges: list[Range], arrived: int | None, memory: TurnMemory | None
) -> list[SpokenTurns]:
    """What the turns of a thread say, in order. Late results that had not come by arrival number `arrived` are left
    out."""
    try:
        state = None if memory is None else memory.bring_up(txn)
        return [stretch for part in ranges for stretch in _in_range(txn, part, arrived, memory, state)]
    except _BROKEN:
        return [stretch for part in ranges for stretch in spoken_in_general(txn, part, arrived)]


def spoken_in_general(txn: ReadTxn, part: Range, arrived: int | None) -> Iterator[SpokenTurns]:
    """The same of one range, for turns of every kind."""
    for low in range(part.low, part.high + 1, CHUNK):
        high = min(low + CHUNK - 1, part.high)
        turns = list(turns_in(txn.sql, replace(part, low=low, high=high)))
        yield from map(_spoken, read_leaves(txn, turns, part.events if high == part.high else None, arrived))


def _spoken(leaf: Leaf) -> SpokenTurns:
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
    txn: ReadTxn, part: Range, arrived: int | None, memory: TurnMemory | None, state: LedgerState | None
) -> Iterator[SpokenTurns]:
    """Of a turn that is shown in part, only the general way tells which part."""
    whole = part.high if part.events is None else part.high - 1
    for piece in PlainReader(txn, part.segment, memory, state).read(part.low, whole):
        if isinstance(piece, SpokenTurns):
            yield piece
        else:
            yield from spoken_in_general(txn, Range(part.segment, piece.low, piece.high, None), arrived)
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
                yield from self._read(list(run))

    def _read(self, places: list[Place]) -> Iterator[Piece]:
        for start in range(0, len(places), BLOCKS_AT_ONCE):
            read = self._read_blocks(places[start : start + BLOCKS_AT_ONCE])
            for place, block in read.items():
                yield from block.pieces if self._may_show(block) else [OtherTurns(*place)]

    def _may_show(self, block: TurnBlock) -> bool:
        return self._reads_prompts or not block.has_prompt

    def _read_blocks(self, places: list[Place]) -> dict[Place, TurnBlock]:
        """Blocks that no later turn will belong to are kept."""
        span = (self._segment, places[0][0], places[-1][1])
        turns, said, calls = (self._sql.all(query, span) for query in (_TURNS, _SAID, _CALLS))
        rows = TurnRows(turns, said, calls, {n for (n,) in self._sql.all(_SUBSTITUTED, span)})
        blocks = {place: rows.read_block(place[1]) for place in places}
        if self._memory is not None and self._state is not None:
            full = {place: block for place, block in blocks.items() if place[1] % BLOCK == BLOCK - 1}
            self._memory.keep(self._segment, self._state, full)
        return blocks


class TurnRows:
    """The rows of turns that follow each other, with their contents, from which one block after the other is read."""

    def __init__(self, turns: list[Row], said: list[Row], calls: list[Row], substituted: set[int]) -> None:
        self._turns, self._said, self._calls = turns, [*said, _END], [*calls, _END]
        self._substituted = substituted
        self._read = (0, 0, 0)
        """How many rows of each kind belong to the blocks so far."""

    def read_block(self, high: int) -> TurnBlock:
        """The turns up to this depth."""
        turns, said, calls = self._turns, self._said, self._calls
        first_turn, first_said, first_call = h, i, j = self._read
        pieces: list[Piece] = []
        stretch = SpokenTurns([], [], [], [])
        while h < len(turns) and turns[h][1] <= high:
            turn = turns[h]
            n, depth = turn[:2]
            to, upto = i, j
            while said[to][0] == n:
                to += 1
            while calls[upto][0] == n:
                upto += 1
            if n not in self._substituted and _tell_turn(stretch, turn, said[i:to], calls[j:upto]):
                if not pieces or pieces[-1] is not stretch:
                    pieces.append(stretch)
            elif pieces and isinstance(before := pieces[-1], OtherTurns):
                pieces[-1] = OtherTurns(before.low, depth)
            else:
                pieces.append(OtherTurns(depth, depth))
                stretch = SpokenTurns([], [], [], [])
            h, i, j = h + 1, to, upto
        self._read = (h, i, j)
        ids = frozenset([turn[2] for turn in turns[first_turn:h]])
        return _block(ids, pieces, said[first_said:i], calls[first_call:j])


def _block(ids: frozenset[str], pieces: list[Piece], said: list[Row], calls: list[Row]) -> TurnBlock:
    size = KEPT_ROW_BYTES * (len(ids) + len(said) + len(calls))
    size += sum([len(row[9] or b"") for row in said])
    size += sum([len(row[13] or b"") + len(row[16] or b"") for row in calls])
    return TurnBlock(ids, pieces, "system" in [row[3] for row in said], size)


def _tell_turn(stretch: SpokenTurns, turn: Row, said: list[Row], calls: list[Row]) -> bool:
    """Add what a turn says. False, and nothing added, where it is not plain."""
    _, _, turn_id, persona, type = turn
    messages, prompt = stretch.messages, list[Message]()
    first, values = len(messages), len(stretch.values)
    is_plain, last, k, count = type != TurnType.COMPACTION, -1, 0, len(calls)
    for _, position, id, role, seq, at, source, ref, salt, data in said:
        if data is None or position < last:
            is_plain = False
            break
        last = position
        if k < count and calls[k][1] < position:
            begin = k
            while k < count and calls[k][1] < position:
                k += 1
            is_plain = is_plain and _tell_calls(stretch, turn_id, calls[begin:k])
        if sha256(CONTENT_DOMAIN + salt + data).digest() != ref:
            raise _damaged(ref)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = bytes_text(data)
        message = Message(id, role, (TextPart(text),), seq, at, source)
        if role == "system" and len(messages) == first:
            prompt.append(message)
        else:
            messages.append(message)
    if not is_plain or (k < count and not _tell_calls(stretch, turn_id, calls[k:])):
        del messages[first:], stretch.values[values:]
        return False
    stretch.turns.append(turn_id)
    if prompt:
        stretch.prompts.append((persona, prompt))
    return True


def _tell_calls(stretch: SpokenTurns, turn: str, rows: list[Row]) -> bool:
    """Calls that follow each other as an assistant's use and a tool's result, as `call_messages` tells them. False: one
    of them is not plain."""
    uses: list[Part] = []
    results: list[ToolResultPart] = []
    place, last = len(stretch.messages), -1
    for (
        _, position, _, tool, outcome, _, _, is_odd,
        id_ref, id_salt, id_bytes, params_ref, params_salt, params, ref, salt, told,
    ) in rows:  # fmt: skip
        if is_odd or id_bytes is None or params is None or position < last or (told is None and ref is not None):
            return False
        last = position
        if (
            sha256(CONTENT_DOMAIN + id_salt + id_bytes).digest() != id_ref
            or sha256(CONTENT_DOMAIN + params_salt + params).digest() != params_ref
            or (told is not None and sha256(CONTENT_DOMAIN + salt + told).digest() != ref)
        ):
            raise _damaged(id_ref)
        native, asked = bytes_text(id_bytes), parsed(params)
        if isinstance(asked, CONTAINERS):
            stretch.values.append((place, len(uses), copied(asked)))
        uses.append(ToolUsePart(native, tool, asked))
        if outcome is None or outcome == "interrupted":
            results.append(ToolResultPart(native, "interrupted", True))
            continue
        value = None if told is None else parsed(told)
        if isinstance(value, CONTAINERS):
            stretch.values.append((place + 1, len(results), copied(value)))
        results.append(ToolResultPart(native, value, UNSET if outcome == "ok" else True))
    id = f"{turn}:{repeated_id(results[0].tool_call_id, rows[0][2])}"
    stretch.messages.append(Message(f"{id}#use", "assistant", tuple(uses), -1, rows[0][5]))
    stretch.messages.append(Message(f"{id}#result", "tool", tuple(results), -1, rows[-1][6] or rows[-1][5]))
    return True


def _damaged(ref: bytes) -> FactDamaged:
    return FactDamaged("content", ref.hex(), "its bytes do not hash to its reference")
