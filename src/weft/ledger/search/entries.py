"""What search can find: messages, tool calls and summaries, with their texts in the places where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import orjson
from msgspec import Struct

from weft.kernel.contents import bytes_text, json_value
from weft.ledger.views.rows import CALL, MESSAGE, CallRow, MessageRow, TurnRow
from weft.ledger.views.values import list_in, remainder_of
from weft.store.facts import FactReader
from weft.store.port import ReadTxn, WriteTxn
from weft.store.sql import rows_in

Txn = ReadTxn | WriteTxn
LOOSE = 1 << 16
"""The sequence of what belongs to no message: more than a turn has messages."""


class EntryPlace(StrEnum):
    """Where words were found."""

    TEXT = "text"
    THINKING = "thinking"
    SUMMARY = "summary"
    TOOL = "tool"
    ARGUMENTS = "arguments"
    RESULT = "result"
    ERROR = "error"
    TITLE = "title"
    """Of a session, as is its project."""
    PROJECT = "project"


class EntrySource(Struct, frozen=True, gc=False):
    """A text that is not read yet: a content, as it is or as JSON; or a short one that stood in the row itself."""

    place: EntryPlace
    content: int = 0
    is_json: bool = False
    text: str = ""


class Entry(Struct, frozen=True):
    """One thing that search finds: a message, a tool call or a summary."""

    turn: TurnRow
    seq: int
    role: str
    at: int
    """Of the message; of a call, that of the message that asked for it."""
    model: str | None
    sources: tuple[EntrySource, ...]
    message: str | None = None
    call: CallRow | None = None

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """Sorts the newest last and those of turns without a time before all others, the same way on every engine."""
        call = -1 if self.call is None else self.call.seq
        return has_time(self.turn.synthesised), self.at, self.turn.n, self.seq, call

    @property
    def time_known(self) -> bool:
        """False: its origin gives no time, and `at` is when its turn came in."""
        return is_time_known(self.turn, self.at)

    def texts(self, facts: FactReader) -> Iterator[tuple[EntryPlace, str]]:
        for source in self.sources:
            yield source.place, read_source(facts, source)


def has_time(synthesised: int | None) -> int:
    """1 for a turn whose time is known; 0 where that of its arrival stands for it."""
    return 0 if synthesised else 1


def is_time_known(turn: TurnRow, at: int) -> bool:
    """Whether this time of something in a turn is its own; what has none has that of the turn, which may be unknown."""
    return not turn.synthesised or at != turn.started_at


def load_entries(txn: Txn, turns: Sequence[TurnRow]) -> dict[int, list[Entry]]:
    """What there is to find in each of these turns, in order: each message, the calls it made, then what is loose."""
    numbers = [turn.n for turn in turns]
    messages = _by_turn(MessageRow(*row) for row in rows_in(txn.sql, f"{MESSAGE.select} WHERE turn IN", numbers))
    calls = _by_turn(CallRow(*row) for row in rows_in(txn.sql, f"{CALL.select} WHERE turn IN", numbers))
    compacted = [turn.id for turn in turns if turn.type == "compaction"]
    summaries: dict[str, int] = dict(rows_in(txn.sql, "SELECT turn, summary FROM compaction WHERE turn IN", compacted))
    return {
        turn.n: list(_entries(turn, messages.get(turn.n, []), calls.get(turn.n, []), summaries.get(turn.id)))
        for turn in turns
    }


def _by_turn(rows: Iterable[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row.turn, []).append(row)
    for some in found.values():
        some.sort(key=lambda row: row.seq)
    return found


def _entries(turn: TurnRow, messages: list[MessageRow], calls: list[CallRow], summary: int | None) -> Iterator[Entry]:
    made: dict[str | None, list[CallRow]] = {}
    for call in calls:
        made.setdefault(call.message, []).append(call)
    called = {call.call_id for call in calls}
    for row in messages:
        model = row.model or turn.model
        yield Entry(turn, row.seq, row.role, row.at, model, tuple(_message_sources(row, called)), row.id)
        for call in made.pop(row.id, ()):
            yield Entry(turn, row.seq, row.role, row.at, model, tuple(_done(call)), row.id, call)
    if summary is not None:
        yield Entry(turn, LOOSE, "assistant", turn.started_at, turn.model, (EntrySource(EntryPlace.SUMMARY, summary),))
    for call in sorted((call for some in made.values() for call in some), key=lambda call: call.seq):
        yield Entry(turn, LOOSE, "assistant", call.started_at, turn.model, tuple(_done(call)), call.message, call)


def _message_sources(row: MessageRow, called: set[int]) -> Iterator[EntrySource]:
    """A message's own words. Tools that it uses are found as calls, where the turn has them as such."""
    if row.text is not None:
        yield EntrySource(EntryPlace.TEXT, row.text)
        return
    for part in list_in(row.parts):
        match part["type"]:
            case "text":
                yield EntrySource(EntryPlace.TEXT, part["text"])
            case "reasoning":
                yield EntrySource(EntryPlace.THINKING, part["text"])
            case "tool_use" if part["id"] not in called:
                yield _named(part["name"])
                yield EntrySource(EntryPlace.ARGUMENTS, part["input"], True)
            case "tool_result" if part["tool_call_id"] not in called or row.role == "tool":
                yield EntrySource(EntryPlace.RESULT, part["output"], True)


def _done(call: CallRow) -> Iterator[EntrySource]:
    yield _named(call.tool)
    yield EntrySource(EntryPlace.ARGUMENTS, call.params, True)
    if call.result:
        yield EntrySource(EntryPlace.RESULT, call.result, True)
    if call.error:
        yield EntrySource(EntryPlace.ERROR, call.error)


def _named(column: str) -> EntrySource:
    return (
        EntrySource(EntryPlace.TOOL, int(column[1:]))
        if column[:1] == "#"
        else EntrySource(EntryPlace.TOOL, text=column)
    )


def hold_texts(facts: FactReader, entries: Iterable[Entry]) -> None:
    """Read the texts of many entries at once."""
    facts.hold(source.content for entry in entries for source in entry.sources)


def known_text(facts: FactReader, n: int | None) -> str:
    """A text, as far as it is here."""
    return bytes_text(facts.beginning(n)) if n else ""


def known_name(facts: FactReader, column: str | None) -> str:
    """A name: as it stands in the column, or in the content that the column names."""
    return known_text(facts, int(column[1:])) if column and column[0] == "#" else column or ""


def read_source(facts: FactReader, source: EntrySource) -> str:
    """The text; of a content that is not here none, of one beyond 1 MiB its beginning."""
    if not source.content:
        return source.text
    data = facts.beginning(source.content)
    if not data and (remainder := remainder_of(facts, source.content)) is not None:
        data = facts.beginning(remainder)
    return text_in(data, source.is_json)


def text_in(data: bytes, is_json: bool) -> str:
    """The text of a content, as search knows it."""
    if is_json:
        try:
            return plain_text(orjson.loads(data) if data[:1] == b'"' else json_value(data))
        except (ValueError, RecursionError):
            pass
    return bytes_text(data)


def plain_text(value: Any) -> str:
    """A JSON value as people would write it down: its strings as they are, each member on a line behind its key."""
    if isinstance(value, str):
        return value
    return "\n".join(_lines(value))


def _lines(value: Any) -> Iterator[str]:
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        lead, node = waiting.pop()
        if isinstance(node, dict):
            yield from (lead,) if lead else ()
            waiting += [(f"{key}: ", child) for key, child in reversed(node.items())]
        elif isinstance(node, list):
            yield from (lead,) if lead else ()
            waiting += [("", child) for child in reversed(node)]
        elif node is not None:
            yield lead + _spelled(node)


def _spelled(node: Any) -> str:
    """A string as it is, an integer of any size in its digits, the rest as JSON."""
    if isinstance(node, str):
        return node
    return str(node) if type(node) is int else orjson.dumps(node, default=str).decode()
