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
    KEPT_ROW_BYTES,
    OtherTurns,
    Piece,
    Row,
    SpokenTurns,
    TurnBlock,
    TurnMemory,
    parsed,
)
from weft.ledger.read.threads import CHUNK, Range, turns_in
from weft.ledger.read.turns import Leaf, read_leaves, transcript
from weft.store.erased_contents import ERASING
from weft.store.port import ReadTxn

_IN_SPAN = "t.segment = ? AND t.depth BETWEEN ? AND ?"
_TURNS = f"SELECT t.n, t.depth, t.id, t.persona, t.type FROM turn t WHERE {_IN_SPAN} ORDER BY t.depth"
_PLACES = f"SELECT t.n, t.depth FROM turn t WHERE {_IN_SPAN} ORDER BY t.depth"
_SAID = "m.turn, m.position, m.id, m.role, m.seq, m.at, m.source, m.text"
_FROM_SAID = "FROM turn t JOIN message m ON m.turn = t.n"
_MAIN = f"WHERE {_IN_SPAN} AND (m.list IS NULL OR m.list = 'main') ORDER BY t.depth, m.seq"
_SAID_ROWS = f"SELECT {_SAID} {_FROM_SAID} {_MAIN}"
_SAID_TEXTS = f"SELECT {_SAID}, c.ref, c.salt, c.bytes {_FROM_SAID} LEFT JOIN content c ON c.n = m.text {_MAIN}"
_SAID_COLUMNS = 8
_CALL = (
    "k.turn, k.position, k.repeated, k.call_id, k.tool, k.server, k.params, k.result, k.error, k.error_code, k.outcome,"
    " k.started_at, k.completed_at, k.result_position,"
    " CASE WHEN k.detail IS NOT NULL OR k.spawned IS NOT NULL OR k.error IS NOT NULL OR k.error_code IS NOT NULL"
    " OR k.result_position < 0 THEN 1 ELSE 0 END"
)
"""The last column: it has something that a plain call has not."""
_CALL_COLUMNS = 15
_FROM_CALLS = "FROM turn t JOIN tool_call k ON k.turn = t.n"
_CALLS_IN_SPAN = f"WHERE {_IN_SPAN} ORDER BY t.depth, k.seq"
_CALL_ROWS = f"SELECT {_CALL} {_FROM_CALLS} {_CALLS_IN_SPAN}"
_CALL_TEXTS = (
    f"SELECT {_CALL}, i.ref, i.salt, i.bytes, p.ref, p.salt, p.bytes, r.ref, r.salt, r.bytes {_FROM_CALLS}"
    " LEFT JOIN content i ON i.n = k.call_id LEFT JOIN content p ON p.n = k.params"
    f" LEFT JOIN content r ON r.n = k.result {_CALLS_IN_SPAN}"
)
_SUBSTITUTED = f"SELECT s.turn FROM turn t JOIN substitution s ON s.turn = t.n WHERE {_IN_SPAN}"
_CONTAINERS = (b"{", b"[", b" ", b"\t", b"\n", b"\r")
"""What the JSON begins with of values that can be changed, or may begin."""
_END: Row = (None,)
"""Behind the last row: it is of no turn."""
_BROKEN = (Damaged, TypeError, ValueError, LookupError, AttributeError)
"""What rows raise that nobody could have written."""
BLOCK = 32
"""So many turns are kept together."""
BLOCKS_AT_ONCE = 16
Place = tuple[int, int]
"""The depths of the first and the last turn of a block."""


def spoken_turns(
    txn: ReadTxn, ranges: list[Range], arrived: int | None, memory: TurnMemory | None
) -> list[SpokenTurns]:
    """What the turns of a thread say, in order. Late results that had not come by arrival number `arrived` are left
    out."""
    try:
        return [stretch for part in ranges for stretch in _in_range(txn, part, arrived, memory)]
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
    leading: list[Message] = []
    others: list[Message] = []
    for message in messages:
        (leading if message.role == "system" and not others else others).append(message)
    return leading, others


def _in_range(txn: ReadTxn, part: Range, arrived: int | None, memory: TurnMemory | None) -> Iterator[SpokenTurns]:
    """Of a turn that is shown in part, only the general way tells which part."""
    whole = part.high if part.events is None else part.high - 1
    for piece in PlainReader(txn, part.segment, memory).read(part.low, whole):
        if isinstance(piece, SpokenTurns):
            yield piece
        else:
            yield from spoken_in_general(txn, Range(part.segment, piece.low, piece.high, None), arrived)
    if whole < part.high:
        yield from spoken_in_general(txn, replace(part, low=part.high), arrived)


class PlainReader:
    """The plain turns of one segment, from memory as far as their rows are still the same."""

    def __init__(self, txn: ReadTxn, segment: int, memory: TurnMemory | None) -> None:
        self._sql, self._segment, self._memory = txn.sql, segment, memory
        self._reads_prompts = access_of(txn).is_unlimited
        self._erasures = 0 if memory is None else txn.facts.watermark(ERASING)
        self._held = {} if memory is None else memory.find(segment, self._erasures)

    def read(self, low: int, high: int) -> Iterator[Piece]:
        blocks = [
            (max(low, start), min(start + BLOCK - 1, high)) for start in range(low - low % BLOCK, high + 1, BLOCK)
        ]
        for is_held, run in groupby(blocks, self._held.__contains__):
            places = list(run)
            for start in range(0, len(places), BLOCKS_AT_ONCE):
                some = places[start : start + BLOCKS_AT_ONCE]
                for place, block in zip(some, self._remembered(some) if is_held else self._read(some), strict=True):
                    yield from block.pieces if self._reads_prompts or not block.has_prompt else [OtherTurns(*place)]

    def _remembered(self, places: list[Place]) -> Iterator[TurnBlock]:
        """Blocks whose rows are those that they were read from. From the first on that has others, all are read anew:
        where the rows of the next one begin is not known then."""
        span = (self._segment, places[0][0], places[-1][1])
        turns, said, calls = (self._sql.all(query, span) for query in (_PLACES, _SAID_ROWS, _CALL_ROWS))
        substituted = {n for (n,) in self._sql.all(_SUBSTITUTED, span)}
        h = i = j = 0
        for k, place in enumerate(places):
            block = self._held[place]
            last, to, upto = h + len(block.turns), i + len(block.said), j + len(block.calls)
            is_same = (
                turns[h:last] == block.turns
                and said[i:to] == block.said
                and calls[j:upto] == block.calls
                and block.substituted == substituted.intersection([n for n, _ in block.turns])
                and (last == len(turns) or turns[last][1] > place[1])
                and (to == len(said) or said[to][0] != block.turns[-1][0])
                and (upto == len(calls) or calls[upto][0] != block.turns[-1][0])
            )
            if not is_same:
                yield from self._read(places[k:])
                return
            h, i, j = last, to, upto
            yield replace(
                block, pieces=[each.own() if isinstance(each, SpokenTurns) else each for each in block.pieces]
            )

    def _read(self, places: list[Place]) -> Iterator[TurnBlock]:
        """With the bytes of their contents. Blocks that no later turn will belong to are kept."""
        span = (self._segment, places[0][0], places[-1][1])
        substituted = {n for (n,) in self._sql.all(_SUBSTITUTED, span)}
        said, calls = [*self._sql.all(_SAID_TEXTS, span), _END], [*self._sql.all(_CALL_TEXTS, span), _END]
        turns = [*self._sql.all(_TURNS, span), (None, None)]
        h = i = j = 0
        read: dict[Place, TurnBlock] = {}
        for place in places:
            last = _behind_depth(turns, h, place[1])
            numbers = {turn[0] for turn in turns[h:last]}
            to, upto = _behind(said, i, numbers), _behind(calls, j, numbers)
            block = read_block(turns[h:last], said[i:to], calls[j:upto], substituted & numbers)
            h, i, j = last, to, upto
            if place[1] % BLOCK == BLOCK - 1:
                read[place] = block
            yield block
        if self._memory is not None and read:
            self._memory.keep(self._segment, self._erasures, read)


def _behind_depth(turns: list[Row], start: int, depth: int) -> int:
    while turns[start][0] is not None and turns[start][1] <= depth:
        start += 1
    return start


def _behind(rows: list[Row], start: int, turns: set[int]) -> int:
    """The place behind the rows of some turns."""
    while rows[start][0] in turns:
        start += 1
    return start


def read_block(turns: list[Row], said: list[Row], calls: list[Row], substituted: set[int]) -> TurnBlock:
    """A block from its rows with their contents."""
    pieces: list[Piece] = []
    stretch = SpokenTurns([], [], [], [])
    ends = [*said, _END], [*calls, _END]
    i = j = 0
    for turn in turns:
        n, depth = turn[:2]
        to, upto = i, j
        while ends[0][to][0] == n:
            to += 1
        while ends[1][upto][0] == n:
            upto += 1
        if n not in substituted and _tell_turn(stretch, turn, said[i:to], calls[j:upto]):
            if not pieces or pieces[-1] is not stretch:
                pieces.append(stretch)
        elif pieces and isinstance(before := pieces[-1], OtherTurns):
            pieces[-1] = OtherTurns(before.low, depth)
        else:
            pieces.append(OtherTurns(depth, depth))
            stretch = SpokenTurns([], [], [], [])
        i, j = to, upto
    size = KEPT_ROW_BYTES * (len(turns) + len(said) + len(calls))
    for row in said:
        size += len(row[10] or b"")
    for row in calls:
        size += len(row[20] or b"") + len(row[23] or b"")
    return TurnBlock(
        [turn[:2] for turn in turns],
        [row[:_SAID_COLUMNS] for row in said],
        [row[:_CALL_COLUMNS] for row in calls],
        substituted,
        pieces,
        any(row[3] == "system" for row in said),
        size,
    )


def _tell_turn(stretch: SpokenTurns, turn: Row, said: list[Row], calls: list[Row]) -> bool:
    """Add what a turn says. False, and nothing added, where it is not plain."""
    _, _, turn_id, persona, type = turn
    messages, prompt = stretch.messages, list[Message]()
    first, values = len(messages), len(stretch.values)
    is_plain, last, k, count = type != TurnType.COMPACTION, -1, 0, len(calls)
    for _, position, id, role, seq, at, source, _, ref, salt, data in said:
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
        if role == "system" and len(messages) == first:
            prompt.append(Message(id, role, (TextPart(text),), seq, at, source))
        else:
            messages.append(Message(id, role, (TextPart(text),), seq, at, source))
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
        _, position, _, _, tool, server, _, result, _, _, outcome, _, _, _, odd,
        id_ref, id_salt, id_bytes, params_ref, params_salt, params, ref, salt, told,
    ) in rows:  # fmt: skip
        if odd or id_bytes is None or params is None or position < last or (told is None and result is not None):
            return False
        if tool[:1] == "#" or (server is not None and server[:1] == "#"):
            return False
        last = position
        if (
            sha256(CONTENT_DOMAIN + id_salt + id_bytes).digest() != id_ref
            or sha256(CONTENT_DOMAIN + params_salt + params).digest() != params_ref
            or (told is not None and sha256(CONTENT_DOMAIN + salt + told).digest() != ref)
        ):
            raise _damaged(id_ref)
        native = bytes_text(id_bytes)
        if params[:1] in _CONTAINERS:
            stretch.values.append((place, len(uses), params))
        uses.append(ToolUsePart(native, tool, parsed(params)))
        if outcome is None or outcome == "interrupted":
            results.append(ToolResultPart(native, "interrupted", True))
            continue
        if told is not None and told[:1] in _CONTAINERS:
            stretch.values.append((place + 1, len(results), told))
        value = None if told is None else parsed(told)
        results.append(ToolResultPart(native, value, UNSET if outcome == "ok" else True))
    id = f"{turn}:{repeated_id(results[0].tool_call_id, rows[0][2])}"
    stretch.messages.append(Message(f"{id}#use", "assistant", tuple(uses), -1, rows[0][11]))
    stretch.messages.append(Message(f"{id}#result", "tool", tuple(results), -1, rows[-1][12] or rows[-1][11]))
    return True


def _damaged(ref: bytes) -> FactDamaged:
    return FactDamaged("content", ref.hex(), "its bytes do not hash to its reference")
