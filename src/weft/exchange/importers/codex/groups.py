"""Which entries make one native turn.

Codex brackets a turn by `task_started` and `task_complete` or `turn_aborted`. Where it does not (before 0.40, in
generations A and B, in trimmed copies), a turn goes from a person's prompt up to the next one. What stands between two
turns belongs to the one that its turn id names, else results to the turn before and context to the turn after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct, field

from weft.exchange.importers.codex.entries import ANSWERS, Entry, Sort
from weft.exchange.importers.records.values import whole

PREAMBLE = frozenset({Sort.META, Sort.SETTINGS, Sort.INJECTED, Sort.WORLD, Sort.TOOLS, Sort.TITLE})
"""Entries that stand before the prompt they belong to."""
_LOOSE = 4096
"""So many entries without any turn wait for one."""


class Group(Struct):
    """The entries of one native turn, in order."""

    entries: list[Entry] = field(default_factory=list)
    id: str | None = None
    explicit: bool = False
    """It began by `task_started`."""
    ended: bool = False
    """Its end is in the file."""
    closed: bool = False
    """It ended, or another followed it."""
    prompted: bool = False
    answered: bool = False
    compacts: bool = False
    half: Sort | None = None
    """The half of a prompt (item or event) whose other half has not come yet."""
    end_at: int = 0
    """How many entries it had when it ended."""


class Rollback(Struct, frozen=True):
    """The last `turns` prompted turns are dropped: the next one grows from the one before them."""

    turns: int
    entry: Entry


class Assembler:
    """Gives each turn as soon as the next one begins, and in the end what is left."""

    def __init__(self) -> None:
        self._current: Group | None = None
        self._loose: list[Entry] = []
        """What came before the first turn."""
        self._finished: set[str] = set()
        self._moves: dict[Sort, Callable[[Entry], Iterator[Group | Rollback]]] = {
            Sort.START: self._start,
            Sort.END: self._end,
            Sort.ABORT: self._end,
            Sort.PROMPT_EVENT: self._prompt,
            Sort.USER: self._prompt,
            Sort.AGENT: self._agent,
            Sort.ANSWER_TEXT_EVENT: self._answer,
            Sort.COMPACTED: self._compacted,
            Sort.ROLLBACK: self._roll_back,
            **dict.fromkeys(ANSWERS, self._answer),
        }

    def feed(self, entry: Entry) -> Iterator[Group | Rollback]:
        move = self._moves.get(entry.sort)
        if move is not None:
            yield from move(entry)
            return
        current = self._current
        if current is None:
            self._loose.append(entry)
            if len(self._loose) >= _LOOSE:
                yield Group(entries=self._loose)
                self._loose = []
            return
        current.entries.append(entry)
        if entry.sort == Sort.SETTINGS and current.id is None and not current.answered and not current.ended:
            current.id = entry.turn

    @property
    def waiting(self) -> list[Entry]:
        """Entries whose turn may still go on."""
        return self._current.entries if self._current is not None else self._loose

    def finish(self) -> Iterator[Group]:
        if self._current is not None:
            self._current.closed = self._current.ended
            yield self._current
        elif self._loose:
            yield Group(entries=self._loose)

    def _start(self, entry: Entry) -> Iterator[Group]:
        current = self._current
        if current is None or not self._adopts(current, entry):
            yield from self._begin(entry, explicit=True)
            return
        current.entries.append(entry)
        current.explicit, current.id = True, entry.turn or current.id

    @staticmethod
    def _adopts(current: Group, entry: Entry) -> bool:
        """A prompt written just before its `task_started` belongs to it."""
        untouched = not (current.explicit or current.answered or current.ended or current.compacts)
        return untouched and (current.id is None or current.id == entry.turn)

    def _end(self, entry: Entry) -> Iterator[Group]:
        current = self._current
        if current is None:
            self._loose.append(entry)
            return
        current.entries.append(entry)
        late = entry.turn is not None and entry.turn != current.id and entry.turn in self._finished
        if not late:
            current.ended, current.end_at = True, len(current.entries)
            current.id = current.id or entry.turn
        yield from ()

    def _prompt(self, entry: Entry) -> Iterator[Group]:
        current = self._current
        if current is None or not self._continues(current, entry):
            yield from self._begin(entry)
            current = self._current
        else:
            current.entries.append(entry)
        if current is not None:
            current.prompted = True
            current.half = entry.sort if current.half is None and not current.answered else None

    @staticmethod
    def _continues(current: Group, entry: Entry) -> bool:
        """Is this prompt one more of the turn at hand, or the other half of its prompt?"""
        if entry.turn is not None and entry.turn == current.id:
            return True
        if current.ended:
            return False
        if current.explicit or not (current.prompted or current.answered):
            return True
        return not current.answered and current.half is not None and current.half != entry.sort

    def _agent(self, entry: Entry) -> Iterator[Group]:
        current = self._current
        if current is None or (current.ended and entry.turn != current.id):
            yield from self._begin(entry)
        else:
            current.entries.append(entry)
        if self._current is not None:
            self._current.prompted = True

    def _answer(self, entry: Entry) -> Iterator[Group]:
        current = self._current
        elsewhere = current is not None and current.ended and entry.turn not in (None, current.id)
        if current is None or elsewhere:
            yield from self._begin(entry)
            current = self._current
        else:
            current.entries.append(entry)
        if current is not None:
            current.answered, current.half = True, None
            current.id = current.id or entry.turn

    def _compacted(self, entry: Entry) -> Iterator[Group]:
        if self._current is None or self._current.ended:
            yield from self._begin(entry)
        else:
            self._current.entries.append(entry)
        if self._current is not None:
            self._current.compacts = True

    def _roll_back(self, entry: Entry) -> Iterator[Group | Rollback]:
        current, self._current = self._current, None
        if current is not None:
            yield self._close(current)
        yield Rollback(max(whole(entry.value.get("num_turns")) or 0, 0), entry)

    def _begin(self, entry: Entry, explicit: bool = False) -> Iterator[Group]:
        current = self._current
        if current is None:
            before, self._loose = self._loose, []
        else:
            before = _preamble(current)
            yield self._close(current)
        named = next((each.turn for each in before if each.turn is not None), None)
        self._current = Group([*before, entry], entry.turn or named, explicit)

    def _close(self, group: Group) -> Group:
        group.closed = True
        if group.id is not None:
            self._finished.add(group.id)
        return group


def _preamble(group: Group) -> list[Entry]:
    """Takes from a turn what was written for the next one."""
    entries = group.entries
    if group.ended:
        late = entries[group.end_at :]
        group.entries = entries[: group.end_at] + [entry for entry in late if not _is_next(entry, group)]
        return [entry for entry in late if _is_next(entry, group)]
    if group.explicit:
        return []
    at = len(entries)
    while at and _is_next(entries[at - 1], group):
        at -= 1
    group.entries = entries[:at]
    return entries[at:]


def _is_next(entry: Entry, group: Group) -> bool:
    return entry.sort in PREAMBLE and (entry.turn is None or entry.turn != group.id)
