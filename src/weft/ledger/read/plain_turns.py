"""What turns say in a context, read in a straight line: a few lean queries for hundreds of turns.

A turn is plain if each of its messages is one text, none of its calls failed, was answered later or began other turns,
and all of it lies in rows of its own. Everything is hashed when it is read from the database; turns that are kept in
memory are not hashed again. Turns that are not plain (parts, substitutions, late results, contents that
were erased, packed or are very large) are left to `read_leaves`, which reads every turn; so is the whole context where
a row or a content is not what it should be: that way alone says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from msgspec.structs import replace

from weft.kernel.enums import TurnType
from weft.kernel.errors import Damaged
from weft.ledger.model import Message
from weft.ledger.read.access import access_of
from weft.ledger.read.collector_pause import COLLECTOR_PAUSE
from weft.ledger.read.kept_turns import LedgerState, OtherTurns, Piece, Place, SpokenTurns, TurnBlock, TurnMemory
from weft.ledger.read.plain_rows import TurnRows
from weft.ledger.read.threads import CHUNK, Range, turns_in
from weft.ledger.read.turns import Leaf, read_leaves, transcript
from weft.store.port import ReadTxn

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
    txn: ReadTxn, ranges: list[Range], arrived: int | None, memory: TurnMemory | None
) -> list[SpokenTurns]:
    """What the turns of a thread say, in order. Late results that had not come by arrival number `arrived` are left
    out."""
    try:
        with COLLECTOR_PAUSE:
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
        turns, messages, calls = (self._sql.all(query, span) for query in (_TURNS, _MESSAGES, _CALLS))
        rows = TurnRows(turns, messages, calls, {depth for (depth,) in self._sql.all(_SUBSTITUTED, span)})
        blocks = {place: rows.read_block(place[1]) for place in places}
        if self._memory is not None and self._state is not None:
            full = {place: block for place, block in blocks.items() if place[1] % BLOCK == BLOCK - 1}
            self._memory.keep(self._segment, self._state, full)
        return blocks
