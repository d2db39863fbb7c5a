"""From lines to turns: how the chain of lines, with its combs, branches and compactions, falls into turns.

A turn is a prompt with all that answers it. Lines of one API message, results of parallel calls, and transparent lines
(attachments, notices, progress) all join the turn of the line they hang from, so a comb of parallel calls is no fork.
A prompt begins a turn below the turn it hangs from, wherever that is: rewinds and edited prompts are branches. A second
answer to a prompt is a branch too, unless the first was still calling tools.
"""

from __future__ import annotations

from collections.abc import Container

from msgspec import Struct, field

from weft.exchange.importers.claude_code.index import ABSENT, Entry, Index
from weft.exchange.importers.claude_code.lines import Kind

_BEGINNING = frozenset({Kind.PROMPT, Kind.COMMAND, Kind.COMPACT, Kind.CAVEAT, Kind.CONTINUED})
_COMMANDS = frozenset({Kind.COMMAND, Kind.COMPACT})
_COMPACTING = frozenset({Kind.BOUNDARY, Kind.SUMMARY})
_LATE = frozenset({Kind.RESULT, Kind.OUTPUT, Kind.INTERRUPT})
"""What joins even a turn that was marked as ended."""
_AFTER_INTERRUPT = frozenset({Kind.META, Kind.QUEUED})


class PlannedTurn(Struct, gc=False):
    """A turn to be mapped: which lines it is made of."""

    first: int
    """The line whose id is its key."""
    parent: int
    entries: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    """Transparent lines that say nothing: only their ids count."""
    answers: int = ABSENT
    """The turn whose prompt it answers a second time; `shared` are the lines of that prompt."""
    shared: tuple[int, ...] = ()
    missing: str | None = None
    """A parent that is named and not in the file."""
    first_prompt: int = ABSENT
    first_answer: int = ABSENT
    last_answer: int = ABSENT
    is_compaction: bool = False
    is_ended: bool = False
    is_interrupted: bool = False

    @property
    def is_preface(self) -> bool:
        """Nothing but commands and what came with them: a prompt that follows belongs to it."""
        is_asked = self.first_prompt != ABSENT or self.first_answer != ABSENT
        return not (is_asked or self.is_compaction or self.is_ended or self.is_interrupted)

    @property
    def opened(self) -> int:
        """Its first prompt, or the first answer where there is none."""
        asked = [place for place in (self.first_prompt, self.first_answer) if place != ABSENT]
        return min(asked, default=self.first)


def plan_turns(index: Index, unwanted: Container[str]) -> list[PlannedTurn]:
    """Every turn of a file, parents before children. Marks in each entry which turn it belongs to. Mirrored lines of
    the unwanted subagents are left out: those have files of their own."""
    _link(index)
    _undo_relinks(index)
    tree = _Tree(index.entries)
    for place in _order(index.entries):
        entry = index.entries[place]
        if not (entry.mirror and entry.agent in unwanted):
            tree.place(place, entry)
    return tree.plans


def _link(index: Index) -> None:
    """Parents that came later in the file, or that it does not hold: some exports leave lines out, so a line whose
    parent is missing follows what stands before it, and only the first line of all hangs from another file."""
    entries = index.entries
    for place, parent in index.named:
        entry, above = entries[place], index.places.get(parent, ABSENT)
        if above not in (ABSENT, place):
            entry.parent = above
        else:
            entry.parent, entry.missing = entry.before, parent
    for place, entry in enumerate(entries):
        if entry.kind is Kind.BOUNDARY and entry.parent == ABSENT:
            named = index.logical.get(place)
            above = index.places.get(named, ABSENT) if named else ABSENT
            entry.parent = entry.before if above in (ABSENT, place) else above
            entry.missing = named if entry.parent == ABSENT else None


def _undo_relinks(index: Index) -> None:
    """A session copied after a compaction hangs the lines it kept behind the summary, though they came before it."""
    entries: list[Entry] = index.entries
    moved: dict[int, int] = {}
    for place, kept in index.preserved.items():
        head, tail, anchor = (index.places.get(id or "", ABSENT) for id in (kept.head, kept.tail, kept.anchor))
        if place < head <= tail and anchor != ABSENT and entries[head].parent == anchor:
            before = entries[place].before
            is_command = before != ABSENT and entries[before].kind is Kind.COMPACT
            entries[head].parent = entries[before].parent if is_command else before
            entries[place].parent = tail
            moved[tail] = anchor
    if moved:
        for place, entry in enumerate(entries):
            if entry.parent in moved and place > entry.parent and entry.kind is not Kind.BOUNDARY:
                entry.parent = moved[entry.parent]


def _order(entries: list[Entry]) -> list[int]:
    """File order, but parents first; circles of parents are cut."""
    order: list[int] = []
    state = bytearray(len(entries))  # 1: on the way up, 2: done
    for start in range(len(entries)):
        path = _way_up(entries, state, start)
        while path and (top := entries[path[-1]].parent) != ABSENT and state[top] == 1:
            _cut(entries, path[path.index(top) :])
            for place in path:
                state[place] = 0
            path = _way_up(entries, state, start)
        for place in reversed(path):
            state[place] = 2
            order.append(place)
    return order


def _way_up(entries: list[Entry], state: bytearray, place: int) -> list[int]:
    path = []
    while place != ABSENT and not state[place]:
        state[place] = 1
        path.append(place)
        place = entries[place].parent
    return path


def _cut(entries: list[Entry], circle: list[int]) -> None:
    """A compaction only says where it logically belongs, so its link is the first to go; else the earliest line's."""
    place = next((line for line in circle if entries[line].kind is Kind.BOUNDARY), min(circle))
    entry = entries[place]
    is_new = entry.kind is Kind.BOUNDARY and entry.parent != entry.before
    entry.parent = entry.before if is_new and entry.before not in circle else ABSENT


class _Tree:
    """The turns so far, and where the next line goes."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.plans: list[PlannedTurn] = []

    def place(self, place: int, entry: Entry) -> None:
        """Give a line to its turn, or begin one with it."""
        if entry.kind is Kind.ASIDE:
            self._place_aside(place, entry)
            return
        base, above, pending = self._above(entry)
        if entry.kind is Kind.BOUNDARY and (asked := self._command_for(entry)) is not None:
            base = asked
        elif base is None or self._begins(entry, base, above):
            if base is not None and entry.kind in _COMMANDS and self.entries[above].kind is Kind.CAVEAT:
                base, above = self._latest(entry, base, above)
            base = self._begin(place, entry, base, above, pending)
        for waiting in reversed(pending):
            self._add(base, waiting, self.entries[waiting])
        self._add(base, place, entry)

    def _place_aside(self, place: int, entry: Entry) -> None:
        """A transparent line goes with the line it hangs from; behind a compaction, and where there is no turn yet, it
        waits for the turn that will hang from it."""
        over = self.entries[entry.parent] if entry.parent != ABSENT else entry
        if over.turn != ABSENT and _same_chain(entry, over) and not self.plans[over.turn].is_compaction:
            self._add(self.plans[over.turn], place, entry)

    def _above(self, entry: Entry) -> tuple[PlannedTurn | None, int, list[int]]:
        """The turn that a line hangs from, the line of it, and transparent lines between that wait for a turn."""
        pending: list[int] = []
        above = entry.parent
        while above != ABSENT and _same_chain(entry, over := self.entries[above]):
            if over.turn != ABSENT:
                return self.plans[over.turn], above, pending
            pending.append(above)
            above = over.parent
        return None, ABSENT, pending

    def _command_for(self, entry: Entry) -> PlannedTurn | None:
        """The turn of the command that asked for this compaction, where it stands alone before it."""
        if entry.before == ABSENT or self.entries[entry.before].kind is not Kind.COMPACT:
            return None
        turn = self.entries[entry.before].turn
        return self.plans[turn] if turn != ABSENT and self.plans[turn].is_preface else None

    def _latest(self, entry: Entry, base: PlannedTurn, above: int) -> tuple[PlannedTurn, int]:
        """Old versions hang every command from the first caveat of a session, however long ago that was: such a command
        follows what was written before it."""
        turn = self.entries[entry.before].turn if entry.before != ABSENT else ABSENT
        return (base, above) if turn == ABSENT else (self.plans[turn], entry.before)

    def _begins(self, entry: Entry, base: PlannedTurn, above: int) -> bool:
        kind, over = entry.kind, self.entries[above].kind
        if kind in _BEGINNING:
            return not base.is_preface and not (base.is_compaction and _reports_compaction(entry, above, over))
        if kind in _COMPACTING:
            return kind is Kind.BOUNDARY or over is not Kind.BOUNDARY
        if base.is_compaction:
            return kind is not Kind.OUTPUT
        if base.is_ended and kind not in _LATE:
            return True
        if kind is Kind.ANSWER:
            return self._is_second_answer(entry, base, above)
        return base.is_interrupted and kind in _AFTER_INTERRUPT

    def _is_second_answer(self, entry: Entry, base: PlannedTurn, above: int) -> bool:
        if base.first_answer == ABSENT or above >= base.first_answer:
            return False
        first, last = self.entries[base.first_answer], self.entries[base.last_answer]
        is_same = entry.message in (first.message, last.message) if entry.message else entry.uuid == last.uuid
        return not is_same and not last.calls

    def _begin(self, place: int, entry: Entry, base: PlannedTurn | None, above: int, pending: list[int]) -> PlannedTurn:
        parent = ABSENT
        if base is not None:
            parent = base.parent if above < base.opened and not base.is_compaction else self.entries[base.first].turn
        named = (self.entries[waiting].missing for waiting in pending)
        missing = entry.missing or next((parent_id for parent_id in named if parent_id), None)
        plan = PlannedTurn(place, parent, missing=missing)
        if base is not None and entry.kind is Kind.ANSWER and not base.is_compaction and not base.is_ended:
            plan.parent, plan.answers = base.parent, self.entries[base.first].turn
            plan.shared = tuple(before for before in base.entries if before <= above)
        self.plans.append(plan)
        entry.turn = len(self.plans) - 1
        if entry.kind in _COMPACTING or (entry.kind is Kind.CONTINUED and base is None):
            plan.is_compaction = True
        return plan

    def _add(self, plan: PlannedTurn, place: int, entry: Entry) -> None:
        entry.turn = self.entries[plan.first].turn
        (plan.entries if entry.counts else plan.names).append(place)
        match entry.kind:
            case Kind.PROMPT | Kind.CONTINUED | Kind.QUEUED if plan.first_prompt == ABSENT:
                plan.first_prompt = place
            case Kind.ANSWER:
                plan.first_answer = place if plan.first_answer == ABSENT else plan.first_answer
                plan.last_answer = place
            case Kind.INTERRUPT:
                plan.is_interrupted = True
            case Kind.BOUNDARY:
                plan.is_compaction = True
            case Kind.ASIDE if entry.label == "system/turn_duration":
                plan.is_ended = True
            case _:
                pass


def _same_chain(entry: Entry, other: Entry) -> bool:
    """Lines of a subagent hang from lines of that subagent only."""
    return entry.is_side == other.is_side and entry.agent == other.agent


def _reports_compaction(entry: Entry, above: int, over: Kind) -> bool:
    """The caveat and the command of `/compact` are written right behind the summary it made."""
    if entry.parent != above:
        return False
    return (entry.kind is Kind.CAVEAT and over is Kind.SUMMARY) or entry.kind is Kind.COMPACT
