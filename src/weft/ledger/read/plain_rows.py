"""The rows of plain turns made into what the turns say, column by column.

Whatever does not depend on the row before is done for a whole column by one call: contents are hashed, texts decoded,
values parsed, parts and messages made. Steps of the interpreter for each row would take longer than the work itself.
Then the calls are put between the messages, and what a turn says is a slice of all that was said.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from hashlib import sha256
from itertools import compress, groupby, pairwise, repeat
from typing import Any

from msgspec import UNSET

from weft.kernel.contents import CONTENT_DOMAIN, bytes_text
from weft.kernel.enums import TurnType
from weft.kernel.errors import Damaged
from weft.ledger.model import Message, TextPart, ToolResultPart, ToolUsePart, repeated_id
from weft.ledger.read.kept_turns import (
    CONTAINERS,
    KEPT_ROW_BYTES,
    OtherTurns,
    Piece,
    SpokenTurns,
    TurnBlock,
    parsed_all,
)
from weft.store.sql import Row

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
        self._depths, self._ids, self._personas, types = _columns(turns, TURN_COLUMNS)
        message_columns, call_columns = _columns(messages, MESSAGE_COLUMNS), _columns(calls, CALL_COLUMNS)
        odd = self._odd = substituted | _disordered(message_columns) | _disordered(call_columns)
        odd.update([depth for depth, type in zip(self._depths, types, strict=True) if type == TurnType.COMPACTION])
        odd.update([row[0] for row in messages if row[9] is None], compress(call_columns[0], call_columns[7]))
        if odd:
            message_columns = _columns([row for row in messages if row[0] not in odd], MESSAGE_COLUMNS)
            call_columns = _columns([row for row in calls if row[0] not in odd], CALL_COLUMNS)
        self._message_rows = MessageRows(message_columns)
        self._calls = CallRows(call_columns, dict(zip(self._depths, self._ids, strict=True)), self._message_rows.places)
        self._messages = self._calls.put_into(self._message_rows.messages)
        self._read = (0, 0, 0)
        """How many turns, messages and groups of calls were told so far."""

    def read_block(self, high: int) -> TurnBlock:
        """The turns up to this depth."""
        first, i, j = self._read
        end = bisect_right(self._depths, high)
        pieces: list[Piece] = []
        for is_odd, run in groupby(self._depths[first:end], self._odd.__contains__):
            depths = list(run)
            pieces.append(OtherTurns(depths[0], depths[-1]) if is_odd else self._spoken_turns(depths))
        _, to, upto = self._read
        self._read = (end, to, upto)
        ids = self._ids[first:end]
        size = KEPT_ROW_BYTES * len(ids) + self._message_rows.size(i, to) + self._calls.size(j, upto)
        return TurnBlock(frozenset(ids), pieces, "system" in self._message_rows.roles[i:to], size)

    def _spoken_turns(self, depths: list[int]) -> SpokenTurns:
        """What plain turns say that follow each other."""
        _, i, _ = self._read
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
        _, i, j = self._read
        end = DEPTH * (depth + 1)
        return bisect_left(self._message_rows.places, end, i), bisect_left(self._calls.places, end, j)

    def _add_prompt(self, stretch: SpokenTurns, depth: int, persona: str) -> None:
        """The system messages that a turn begins with."""
        h, first, j = self._read
        to, upto = self._rows_upto(depth)
        to = self._calls.following[j] if j < upto else to
        i = first
        while i < to and self._message_rows.roles[i] == "system":
            i += 1
        if i > first:
            stretch.prompts.append((persona, self._message_rows.messages[first:i]))
        self._read = (h, i, j)

    def _add_messages(self, stretch: SpokenTurns, to: int, upto: int) -> None:
        """The messages and the groups of calls, two messages each, up to these numbers."""
        h, i, j = self._read
        first, end = i + 2 * j, to + 2 * upto
        shift = len(stretch.messages) - first
        values = self._calls.values
        values = values[bisect_left(values, (first,)) : bisect_left(values, (end,))]
        stretch.values.extend([(index + shift, which, data) for index, which, data in values])
        stretch.messages.extend(self._messages[first:end])
        self._read = (h, to, upto)


class MessageRows:
    """Messages made of their columns."""

    def __init__(self, columns: Columns) -> None:
        _, _, ids, self.roles, numbers, times, sources, refs, salts, self._contents = columns
        self.places = _places(columns)
        _check(refs, salts, self._contents)
        parts = zip(map(TextPart, _texts(self._contents)), strict=True)
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
        places = _places(columns)
        has_result = [data is not None for data in results]
        _check(id_refs, id_salts, ids)
        _check(params_refs, params_salts, params)
        _check(*(list(compress(column, has_result)) for column in (refs, salts, results)))
        self._params, self._results = params, [b"null" if data is None else data for data in results]
        natives, asked = _texts(ids), parsed_all(params)
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
        self._uses = _messages(names, "use", "assistant", [uses[first:end] for first, end in groups], begun)
        self._answers = _messages(names, "result", "tool", [answers[first:end] for first, end in groups], ended)
        self.values = sorted([*self._changeable(asked, params, 0), *self._changeable(outputs, self._results, 1)])
        """As in `SpokenTurns`, among all messages and calls."""

    def _changeable(self, values: list[Any], contents: Sequence[bytes], nth: int) -> list[tuple[int, int, bytes]]:
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


def _messages(names: list[str], suffix: str, role: str, parts: list[Any], times: list[int]) -> list[Message]:
    return list(map(Message, [f"{name}#{suffix}" for name in names], repeat(role), parts, repeat(-1), times))


def _unless_cut_short(values: list[Any], outcomes: tuple[str | None, ...]) -> list[Any]:
    """What is told of each call: of one that was cut short, that it was."""
    pairs = zip(values, outcomes, strict=True)
    return ["interrupted" if outcome is None or outcome == "interrupted" else value for value, outcome in pairs]


def _columns(rows: list[Row], count: int) -> Columns:
    return list(zip(*rows, strict=True)) if rows else [()] * count


def _places(columns: Columns) -> list[int]:
    return [depth * DEPTH + position for depth, position in zip(columns[0], columns[1], strict=True)]


def _disordered(columns: Columns) -> set[int]:
    """The depths of turns whose rows do not come in the order of their events, or stand where no event can."""
    depths, positions, *_ = columns
    places = _places(columns)
    if places == sorted(places) and min(positions, default=0) >= 0 and max(positions, default=0) < DEPTH:
        return set()
    beyond = {depth for depth, position in zip(depths, positions, strict=True) if not 0 <= position < DEPTH}
    after = zip(depths[1:], places[1:], places, strict=False)
    return beyond | {depth for depth, place, before in after if place < before}


def _check(refs: Sequence[bytes], salts: Sequence[bytes], contents: Sequence[bytes]) -> None:
    """Every content must hash to its reference."""
    whole = map(b"".join, zip(repeat(CONTENT_DOMAIN), salts, contents, strict=False))
    if list(map(_digest, map(sha256, whole))) != list(refs):
        raise Damaged("a content does not hash to its reference")


def _texts(contents: Sequence[bytes]) -> list[str]:
    try:
        return list(map(bytes.decode, contents))
    except UnicodeDecodeError:
        return list(map(bytes_text, contents))
