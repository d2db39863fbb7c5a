"""Threads: a turn with all its ancestry, read as a few ranges of segments; and what relates two of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from msgspec import UNSET, Struct

from weft.kernel.advice import Action
from weft.kernel.dag_events import ModelResponse, RunFinished
from weft.kernel.errors import Damaged, InvalidInput
from weft.ledger.model import Message, Turn
from weft.ledger.read.pages import Page, PageRequest, Position, mapped
from weft.ledger.read.turns import messages_between, placed_messages, to_turns, transcript_of
from weft.ledger.views.recorded_events import event_at, run_events
from weft.ledger.views.rows import GOES_ON, TURN, WHERE_FIRST, TurnRow, has_turn_at, usage_total
from weft.store.port import ReadTxn, Store
from weft.store.sql import Sql

CHUNK = 512


class Range(Struct, frozen=True):
    """Turns of one segment, from `low` to `high`; of the last one only its first `events` events, if not null."""

    segment: int
    low: int
    high: int
    events: int | None


def ranges_to(sql: Sql, segment: int, depth: int, events: int | None = None, *, across: bool = False) -> list[Range]:
    """The thread that ends at this turn, from its root on; `across` links to other chains, if wanted."""
    found: list[Range] = []
    while True:
        row = sql.one("SELECT base, parent, parent_depth, parent_events FROM segment WHERE n = ?", (segment,))
        if row is None:
            raise Damaged(f"segment {segment} is not among the views", Action.VERIFY_AND_REBUILD)
        base, parent, parent_depth, parent_events = row
        _ensure_ends(sql, segment, base, depth)
        found.append(Range(segment, base, depth, events))
        if parent is None:
            linked = _linked(sql, segment, base) if across else None
            if linked is None or any(part.segment == linked[0] for part in found):
                return found[::-1]
            parent, parent_depth = linked
        elif parent >= segment:
            raise Damaged(f"segment {segment} leaves segment {parent}, which is younger", Action.VERIFY_AND_REBUILD)
        segment, depth, events = parent, parent_depth, parent_events


def _ensure_ends(sql: Sql, segment: int, low: int, high: int) -> None:
    """A long range is walked through chunk by chunk, so both its ends must be where they are said to be."""
    if len(range(low, high)) > CHUNK and not (has_turn_at(sql, segment, low) and has_turn_at(sql, segment, high - 1)):
        raise Damaged(f"segment {segment} does not reach from depth {low} to {high}", Action.VERIFY_AND_REBUILD)


def _linked(sql: Sql, segment: int, depth: int) -> tuple[int, int] | None:
    """Where the thread goes on that an imported root was continued or forked from."""
    row = sql.one(
        "SELECT p.segment, p.depth FROM turn t JOIN link l ON l.child = t.id JOIN turn p ON p.id = l.parent"
        f" WHERE t.segment = ? AND t.depth = ? AND {GOES_ON} ORDER BY {WHERE_FIRST} LIMIT 1",
        (segment, depth),
    )
    return (row[0], row[1]) if row else None


def turns_in(sql: Sql, part: Range) -> Iterator[TurnRow]:
    for low in range(part.low, part.high + 1, CHUNK):
        high = min(low + CHUNK - 1, part.high)
        rows = sql.all(
            f"{TURN.select} WHERE segment = ? AND depth BETWEEN ? AND ? ORDER BY depth", (part.segment, low, high)
        )
        yield from (TurnRow(*row) for row in rows)


def thread_turns_up(sql: Sql, end: Position, before: Position = (), *, chunk: int = CHUNK) -> Iterator[TurnRow]:
    """The turn at this end, a segment and a depth, and its ancestors, the last first; `before` is where the turn stands
    behind which the list goes on."""
    for part in _from_place(ranges_to(sql, end[0], end[1], across=True)[::-1], before):
        high = before[1] - 1 if before and part.segment == before[0] else part.high
        for top in range(high, part.low - 1, -chunk):
            yield from reversed(list(turns_in(sql, Range(part.segment, max(part.low, top - chunk + 1), top, None))))


def thread_turns_down(sql: Sql, end: Position, before: Position = (), *, chunk: int = CHUNK) -> Iterator[TurnRow]:
    """The same turns, the root first."""
    for part in _from_place(ranges_to(sql, end[0], end[1], across=True), before):
        low = before[1] + 1 if before and part.segment == before[0] else part.low
        for bottom in range(low, part.high + 1, chunk):
            yield from turns_in(sql, Range(part.segment, bottom, min(bottom + chunk - 1, part.high), None))


def _from_place(parts: list[Range], place: Position) -> list[Range]:
    """The ranges from the one on that holds a place."""
    numbers = [part.segment for part in parts]
    if place and place[0] not in numbers:
        raise InvalidInput("the cursor belongs to another thread", "give one of the same thread")
    return parts[numbers.index(place[0]) :] if place else parts


class Thread:
    """A turn and all its ancestry. Turns and messages are read as they are asked for, 512 turns at a time."""

    def __init__(self, store: Store, row: TurnRow, events: int | None = None, name: str = "") -> None:
        self._store, self._row, self._events, self._name = store, row, events, name

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def depth(self) -> int:
        return self._row.depth

    @property
    def digest(self) -> str:
        """The id of the thread's last event, which commits to everything before it."""
        if self._events is None:
            return self._row.digest
        with self._store.read() as txn:
            return event_at(txn.facts, self._row, self._events - 1)

    @property
    def total_tokens(self) -> int:
        """The sum over its turns; of a turn that is shown in part, over the responses that are."""
        if self._events is None:
            return self._row.tokens_before + (self._row.total_tokens or 0)
        with self._store.read() as txn:
            shown = [found.event for found in islice(run_events(txn.facts, self._row), self._events)]
        counted = [event.usage for event in shown if isinstance(event, ModelResponse | RunFinished)]
        return self._row.tokens_before + sum(usage_total(usage) for usage in counted if usage is not UNSET)

    def _ranges(self) -> list[Range]:
        with self._store.read() as txn:
            return ranges_to(txn.sql, self._row.segment, self._row.depth, self._events, across=True)

    @property
    def transcript(self) -> list[Message]:
        """Its last turn as a model is told it: each tool call is an assistant's use and a tool's result."""
        with self._store.read() as txn:
            return transcript_of(txn, self._row, self._events)

    @property
    def cuts(self) -> dict[str, str]:
        """Turns that the thread shows in part, by their ids, each with the last event of it that is shown."""
        found: dict[str, str] = {}
        for part in self._ranges():
            if part.events is not None:
                with self._store.read() as txn:
                    (row,) = turns_in(txn.sql, Range(part.segment, part.high, part.high, part.events))
                    if part.events < row.events:
                        found[row.id] = event_at(txn.facts, row, part.events - 1)
        return found

    @property
    def turns(self) -> Iterator[Turn]:
        for part in self._ranges():
            for low in range(part.low, part.high + 1, CHUNK):
                chunk = Range(part.segment, low, min(low + CHUNK - 1, part.high), part.events)
                with self._store.read() as txn:
                    turns = to_turns(txn, turns_in(txn.sql, chunk))
                yield from turns

    def page(self, *, limit: int | None = None, after: str | None = None) -> Page[Turn]:
        """The same turns page by page. The first page decides where the thread ends: a session that moves meanwhile
        changes none of the pages behind it."""
        request = PageRequest("thread", self._store.replica, {"name": self._name}, limit, after)
        with self._store.read() as txn:
            start = request.begin(txn.facts.tip().n, 0)
            end = start.position[:2] or (self._row.segment, self._row.depth)
            rows = thread_turns_down(txn.sql, end, start.position[2:], chunk=request.rows_at_once)
            page = request.page(start, (((*end, row.segment, row.depth), row) for row in rows))
            return mapped(page, partial(to_turns, txn))

    @property
    def ancestry(self) -> Iterator[str]:
        """The turn ids from the root to this one."""
        for part in self._ranges():
            for low in range(part.low, part.high + 1, CHUNK):
                with self._store.read() as txn:
                    rows = txn.sql.all(
                        "SELECT id FROM turn WHERE segment = ? AND depth BETWEEN ? AND ? ORDER BY depth",
                        (part.segment, low, min(low + CHUNK - 1, part.high)),
                    )
                yield from (id for (id,) in rows)

    @property
    def messages(self) -> Iterator[Message]:
        for part in self._ranges():
            for low in range(part.low, part.high + 1, CHUNK):
                high = min(low + CHUNK - 1, part.high)
                with self._store.read() as txn:
                    found = self._messages(txn, part, low, high)
                yield from found

    @staticmethod
    def _messages(txn: ReadTxn, part: Range, low: int, high: int) -> list[Message]:
        """A chunk of a range; its last turn may be shown in part only."""
        if part.events is None or high < part.high:
            return messages_between(txn, part.segment, low, high)
        cut = placed_messages(txn, part.segment, high, part.events)
        return [*messages_between(txn, part.segment, low, high - 1), *(placed.message for placed in cut)]


class ThreadDiff(Struct, frozen=True):
    """Two threads: what they share ends at `ancestor` (null: nothing), then each goes its own way."""

    ancestor: str | None
    left: tuple[Turn, ...]
    right: tuple[Turn, ...]


def common_depth(left: list[Range], right: list[Range]) -> tuple[int, int] | None:
    """(segment, depth) of the last turn that both threads contain; no scan, only the lists of ranges."""
    common = None
    for ours, theirs in zip(left, right, strict=False):
        if ours.segment != theirs.segment:
            break
        common = (ours.segment, min(ours.high, theirs.high))
        if ours.high != theirs.high:
            break
    return common


def beyond(sql: Sql, ranges: list[Range], depth: int) -> Iterator[TurnRow]:
    """The thread's turns deeper than `depth`."""
    for part in ranges:
        if part.high > depth:
            yield from turns_in(sql, Range(part.segment, max(part.low, depth + 1), part.high, part.events))


def diff(txn: ReadTxn, left: TurnRow, right: TurnRow) -> ThreadDiff:
    ours, theirs = (ranges_to(txn.sql, row.segment, row.depth) for row in (left, right))
    common = common_depth(ours, theirs)
    depth = common[1] if common else 0
    found = common and txn.sql.one("SELECT id FROM turn WHERE segment = ? AND depth = ?", common)
    return ThreadDiff(
        found[0] if found else None,
        tuple(to_turns(txn, beyond(txn.sql, ours, depth))),
        tuple(to_turns(txn, beyond(txn.sql, theirs, depth))),
    )


def children(sql: Sql, turn: TurnRow) -> list[TurnRow]:
    """In order of arrival."""
    rows = sql.all(
        f"{TURN.select} WHERE segment = ? AND depth = ? UNION ALL SELECT {_columns('c')} FROM segment s"
        " JOIN turn c ON c.segment = s.n AND c.depth = s.base WHERE s.parent = ? AND s.parent_depth = ? ORDER BY n",
        (turn.segment, turn.depth + 1, turn.segment, turn.depth),
    )
    return [TurnRow(*row) for row in rows]


def heads_without_children(sql: Sql) -> list[TurnRow]:
    """Turns that nobody has completed a child of: the tips of the tree, labelled or not."""
    rows = sql.all(
        f"SELECT {_columns('t')} FROM turn t WHERE t.current = 1 AND NOT EXISTS ("
        "SELECT 1 FROM turn c WHERE c.segment = t.segment AND c.depth = t.depth + 1 AND c.status = 'completed')"
        " AND NOT EXISTS (SELECT 1 FROM segment s"
        " JOIN turn c ON c.segment = s.n AND c.depth = s.base WHERE s.parent = t.segment"
        " AND s.parent_depth = t.depth AND c.status = 'completed') ORDER BY t.n"
    )
    return [TurnRow(*row) for row in rows]


def tree_rows(sql: Sql, turn: TurnRow) -> list[TurnRow]:
    """Every turn of the tree that this one belongs to, parents before children."""
    rows = sql.all(
        f"SELECT {_columns('t')} FROM segment s JOIN turn t ON t.segment = s.n"
        " WHERE s.root = (SELECT root FROM segment WHERE n = ?) ORDER BY t.n",
        (turn.segment,),
    )
    shown: set[str | None] = set()
    kept: list[TurnRow] = []
    for row in (TurnRow(*values) for values in reversed(rows)):
        if row.current or row.id in shown:
            shown.add(row.parent)
            kept.append(row)
    return kept[::-1]


def _columns(alias: str) -> str:
    return ", ".join(f"{alias}.{column}" for column in TURN.record.__struct_fields__)
