"""Turns as the first pass over a source plans them: which records each is made of, and which turn it follows.

A plan holds places of records, not what they say, so memory grows with the number of records, not with their size.
Answers may branch: a second answer to a prompt is a turn of its own that begins with the records both answers share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct, field

from weft.exchange.importers.records.jsonl import Record
from weft.exchange.importers.records.values import UniqueKeys, text

LONGEST_SHARED_RECORDS = 256
"""An answer that leaves another one later than this is planned as its continuation, without the shared records."""


class Entry(Struct, frozen=True, gc=False):
    """A record of a turn: its kind as it is counted, its native id and its place in the source."""

    kind: str
    id: str | None
    line: int | None
    offset: int
    end: int
    nested: int | None = None
    """Its place in a list of messages that one record holds."""


def entry_of(record: Record, kind: str) -> Entry:
    return Entry(kind, text(record.value.get("id")), record.line, record.offset, record.end)


class PlannedTurn(Struct, kw_only=True):
    """A turn to be built. `entries` are numbers of entries of its `TurnPlan`; the first `shared` of them belong to an
    earlier answer to the same prompt too."""

    parent: int | None
    """The planned turn that it follows."""
    entries: list[int] = field(default_factory=list)
    shared: int = 0
    prompt: int | None = None
    """The entry of its first prompt."""
    continues: str | None = None
    """The key of the prompt that this turn goes on answering, or answers again."""
    is_compaction: bool = False
    is_answered: bool = False
    is_finished: bool = False
    """Its last response asked for no more calls, or its end was recorded."""
    first_kept: int | None = None
    """Of a compaction: the first turn that stays in the context."""
    is_split: bool = False
    """Only the end of that turn stays in the context."""
    compacted_prompt: str | None = None
    """Of a compaction: the key of the prompt that was being answered."""
    key: str = ""


Turn = TypeVar("Turn", bound=PlannedTurn)


class TurnPlan(Generic[Turn]):
    """The planned turns of one session, in the order in which they begin."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.turns: list[Turn] = []

    def begin(self, turn: Turn) -> int:
        self.turns.append(turn)
        return len(self.turns) - 1

    def begin_again(self, turn: Turn, earlier: Turn, depth: int) -> int:
        """Begin another answer to the prompt of an earlier turn: it shares the first `depth` entries."""
        turn.entries, turn.shared, turn.prompt = earlier.entries[:depth], depth, earlier.prompt
        return self.begin(turn)

    def add(self, entry: Entry) -> int:
        """Take an entry that is not yet part of a turn; its number."""
        self.entries.append(entry)
        return len(self.entries) - 1

    def append(self, turn: int, entry: Entry) -> int:
        number = self.add(entry)
        self.turns[turn].entries.append(number)
        return number

    def entries_of(self, turn: Turn) -> list[Entry]:
        return [self.entries[number] for number in turn.entries]

    def last_summarised(self, turn: Turn) -> int | None:
        """Of a compaction: the last turn that its summary covers; None where that is its parent."""
        kept = turn.first_kept
        return None if kept is None else kept if turn.is_split else self.turns[kept].parent

    def prompt_key(self, turn: Turn, name_of: Callable[[int], str]) -> str:
        """The key that answers of this turn's prompt share; `name_of` names an entry by its number."""
        if turn.continues is not None:
            return turn.continues
        return name_of(turn.entries[0] if turn.prompt is None else turn.prompt)

    def assign_keys(self, name_of: Callable[[int], str]) -> None:
        """A turn is known by its prompt; one that continues or repeats an answer also by its own first entry."""
        keys = UniqueKeys()
        for turn in self.turns:
            key = self.prompt_key(turn, name_of)
            if turn.continues is not None:
                key = f"{key}#{name_of(turn.entries[turn.shared])}"
            turn.key = keys.claim(key)
