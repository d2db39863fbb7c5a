"""What providers reported: every response with its own numbers, and where it lies in the tree;
which sessions' threads contain what; and tables of totals: cells, and what each owner adds to which
of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.contents import MAX_INTEGER
from weft.kernel.errors import Action, Damaged, quoted
from weft.ledger.views.sightings import SessionAge
from weft.store.sql import Insert, Row, Sql, rows_in

# --- Which sessions' threads contain what: for all of them at once, from segments and heads alone.

Place = tuple[int, int]
WHOLE = MAX_INTEGER
"""More events than any turn has."""
NOWHERE: Place = (0, 0)


class SessionHead(Struct, frozen=True):
    """Where a session stands."""

    session: int
    segment: int
    place: Place


class ThreadOrigin(Struct, frozen=True):
    """Where a segment's thread comes from."""

    segment: int
    place: Place


class CoverageTree:
    """Every segment and what it grew from."""

    def __init__(self, sql: Sql) -> None:
        rows = sql.fetch_rows("SELECT n, parent, parent_depth, parent_events FROM segment ORDER BY n DESC")
        self.grown: dict[int, ThreadOrigin | None] = {
            n: None if parent is None else ThreadOrigin(parent, (depth, WHOLE if events is None else events))
            for n, parent, depth, events in rows
        }
        """Children before their parents: a segment's number is higher than that of the one it left."""
        self.linked = links(sql)

    def before(self, segment: int) -> ThreadOrigin | None:
        """Its parent; of a root, what it was continued or forked from in another chain."""
        if segment not in self.grown:
            raise Damaged(f"segment {segment} is not among the views", Action.VERIFY_AND_REBUILD)
        return self.grown[segment] or self.linked.get(segment)


def links(sql: Sql) -> dict[int, ThreadOrigin]:
    """By the segment of a root: what it was continued or forked from in another chain."""
    rows = sql.fetch_rows(
        "SELECT t.segment, p.segment, p.depth FROM link l JOIN turn t ON t.id = l.child JOIN turn p ON p.id = l.parent"
        " WHERE l.why IN ('continuation', 'fork') AND t.parent IS NULL ORDER BY t.segment, p.current DESC, p.id"
    )
    found: dict[int, ThreadOrigin] = {}
    for child, parent, depth in rows:
        found.setdefault(child, ThreadOrigin(parent, (depth, WHOLE)))
    return found


def heads(sql: Sql, where: str, values: tuple[object, ...] = ()) -> list[SessionHead]:
    rows = sql.fetch_rows(
        f"SELECT n, head_segment, head_depth, head_events FROM session WHERE head IS NOT NULL AND ({where})", values
    )
    return [SessionHead(n, segment, (depth, WHOLE if events is None else events)) for n, segment, depth, events in rows]


class ThreadReach:
    """How far threads go in each segment, and what only one of them contains.

    Of each segment the two sessions that go furthest are kept: what lies between them is the first one's alone.
    """

    def __init__(self, tree: CoverageTree, heads: list[SessionHead]) -> None:
        self._furthest: dict[int, dict[int, Place]] = {}
        self._followed_sessions: dict[int, set[int]] = {}
        waiting = [(head.segment, head.place, head.session) for head in heads]
        while waiting:
            segment, place, session = waiting.pop()
            self._note_place(segment, place, session)
            followed, before = self._followed_sessions.setdefault(segment, set()), tree.before(segment)
            if before is not None and len(followed) < 2 and session not in followed:
                followed.add(session)
                waiting.append((before.segment, before.place, session))

    def _note_place(self, segment: int, place: Place, session: int) -> None:
        best = self._furthest.setdefault(segment, {})
        best[session] = max(place, best.get(session, NOWHERE))
        if len(best) > 2:
            del best[min(best, key=best.__getitem__)]

    @property
    def segments(self) -> Set[int]:
        """Those that threads go through."""
        return self._furthest.keys()

    def contains(self, segment: int, place: Place) -> bool:
        best = self._furthest.get(segment)
        return best is not None and place < max(best.values())

    def sessions(self, segment: int, place: Place) -> set[int]:
        """Two at most of the sessions whose threads contain this: enough to tell none, one and several apart."""
        best = self._furthest.get(segment, {})
        return {session for session, end in best.items() if place < end}


class ThreadCount:
    """How many threads contain a place, each by its own chain alone."""

    def __init__(self, tree: CoverageTree, heads: list[SessionHead]) -> None:
        ends: dict[int, list[tuple[Place, int]]] = {}
        for head in heads:
            ends.setdefault(head.segment, []).append((head.place, 1))
        self._ends: dict[int, tuple[list[Place], list[int]]] = {}
        for segment, left in tree.grown.items():
            found = ends.pop(segment, None)
            if found is None:
                continue
            found.sort()
            below = [0, *accumulate(threads for _, threads in found)]
            self._ends[segment] = ([place for place, _ in found], below)
            if left is not None:
                ends.setdefault(left.segment, []).append((left.place, below[-1]))

    def threads(self, segment: int, place: Place) -> int:
        if segment not in self._ends:
            return 0
        places, below = self._ends[segment]
        return below[-1] - below[bisect_right(places, place)]


# --- What providers reported: every response with its own numbers, and where it lies in the tree.

Tokens = tuple[int, int, int, int, int, int, int]
"""Input, output, cached, cache writes; one-hour writes, which lie inside these; reasoning, which lies inside output;
and what is known as a total only."""
INPUT, OUTPUT, CACHED, CACHE_WRITE, CACHE_WRITE_1H, REASONING, UNSPECIFIED = range(7)
PAGE = 1024
_COUNTS = (
    "input_tokens, output_tokens, cached_input_tokens, cache_write_tokens, cache_write_1h_tokens, reasoning_tokens"
)
_MESSAGE_COUNTS = ", ".join(f"m.{count}" for count in _COUNTS.split(", "))
HAS_NUMBERS = f"coalesce({_MESSAGE_COUNTS}) IS NOT NULL"
"""Of a message `m`: its provider reported something of it."""


class TurnPlace(Struct, frozen=True, gc=False):
    """The turn that a response lies in."""

    id: str
    session: int | None
    origin: str
    workspace: int | None
    current: bool


class ReportedUsage(Struct, gc=False):
    """Numbers of one response, or the rest of a turn. `model` is a name as its column holds it."""

    segment: int
    place: Place
    turn: TurnPlace
    at: int | None
    model: str | None
    provider: str | None
    tokens: Tokens
    recorded: int | None = None
    """Micro-dollars that its tool noted as its cost."""
    native: int | None = None
    """The provider's id of the response, where it is known."""
    is_rest: bool = False


class CountedResponse(Struct, gc=False):
    """One response, wherever it lies."""

    first: ReportedUsage
    """Where it was seen earliest; it counts for that turn."""
    tokens: Tokens
    recorded: int | None
    places: list[tuple[int, Place]]


_TURN = (
    "SELECT segment, depth, id, session, origin, workspace, current, started_at, completed_at, synthesised, model,"
    f" provider, {_COUNTS}, total_tokens FROM turn"
)
_MESSAGE = (
    "SELECT t.segment, t.depth, m.position, m.role, m.native, m.at, m.model, m.provider, m.recorded_cost,"
    f" {_MESSAGE_COUNTS} FROM turn t JOIN message m ON m.turn = t.n"
)


_IS_REPORTED = "coalesce(total_tokens, reasoning_tokens) IS NOT NULL"
_PLACE = itemgetter(0, 1)
"""Segment and depth, of rows of both."""


def reported_in(sql: Sql, turns: Iterable[str]) -> Iterator[ReportedUsage]:
    """The rows of these turns, by their ids, each turn once."""
    ids = list(dict.fromkeys(turns))
    messages = rows_in(sql, f"{_MESSAGE} WHERE {HAS_NUMBERS} AND t.id IN", ids)
    by_turn = _by_turn(sorted(messages, key=itemgetter(0, 1, 2)))
    for row in sorted(rows_in(sql, f"{_TURN} WHERE {_IS_REPORTED} AND id IN", ids), key=_PLACE):
        yield from _of_turn(row, by_turn.get(_PLACE(row), []))


def reported(sql: Sql, segment: int | None = None) -> Iterator[ReportedUsage]:
    """Every row in the order of segments and depths, turns that another version stands for among them; or those of one
    segment."""
    after, end = ((0, 0), (MAX_INTEGER, 0)) if segment is None else ((segment, 0), (segment, MAX_INTEGER))
    while turns := sql.fetch_rows(
        f"{_TURN} WHERE (segment, depth) > (?, ?) AND (segment, depth) <= (?, ?)"
        f" AND {_IS_REPORTED} ORDER BY segment, depth LIMIT {PAGE}",
        (*after, *end),
    ):
        last = (turns[-1][0], turns[-1][1])
        messages = sql.fetch_rows(
            f"{_MESSAGE} WHERE (t.segment, t.depth) > (?, ?) AND (t.segment, t.depth) <= (?, ?)"
            f" AND {HAS_NUMBERS} ORDER BY t.segment, t.depth, m.seq",
            (*after, *last),
        )
        by_turn = _by_turn(messages)
        for turn in turns:
            yield from _of_turn(turn, by_turn.get(_PLACE(turn), []))
        after = last


def _by_turn(messages: Iterable[Row]) -> dict[Row, list[Row]]:
    """By segment and depth."""
    found: dict[Row, list[Row]] = {}
    for row in messages:
        found.setdefault(_PLACE(row), []).append(row)
    return found


def _of_turn(row: Row, messages: list[Row]) -> Iterator[ReportedUsage]:
    segment, depth, id, session, origin, workspace, current, started, ended, synthesised, *named, total = row
    model, provider, *counts = named
    turn = TurnPlace(id, session, origin or "weft", workspace, bool(current))
    carried = [0] * len(counts)
    for _, _, position, role, native, at, message_model, served_by, recorded, *given in messages:
        tokens = [count or 0 for count in given]
        carried = [one + other for one, other in zip(carried, tokens, strict=True)]
        undated = synthesised and at == started
        yield ReportedUsage(
            segment,
            (depth, position),
            turn,
            None if undated else at,
            message_model or model,
            served_by or provider,
            (tokens[0], tokens[1], tokens[2], tokens[3], tokens[4], tokens[5], 0),
            recorded,
            (native or None) if role == "assistant" else None,
        )
    whole = [count or 0 for count in counts]
    rest = [max(one - other, 0) for one, other in zip(whole, carried, strict=True)]
    unspecified = max((total or 0) - sum(whole[:4]), 0)
    if any(rest) or unspecified:
        left = (rest[0], rest[1], rest[2], rest[3], min(rest[4], rest[3]), rest[5], unspecified)
        at = None if synthesised else ended or started
        yield ReportedUsage(segment, (depth, WHOLE - 1), turn, at, model, provider, left, is_rest=bool(messages))


_REPEATED = (
    "SELECT native FROM message WHERE native > 0 AND role = 'assistant'"
    f" AND coalesce({_COUNTS}) IS NOT NULL GROUP BY native HAVING count(*) > 1"
)


def repeated(sql: Sql) -> set[int]:
    """The ids of responses that lie in more than one place."""
    return {native for (native,) in sql.fetch_rows(_REPEATED)}


def reported_elsewhere(sql: Sql, natives: Set[int], turns: Set[str]) -> Iterator[ReportedUsage]:
    """The rows of these responses that lie in other turns than these."""
    if not natives:
        return
    copied = (
        f"SELECT m.native, t.id FROM message m JOIN turn t ON t.n = m.turn WHERE m.native IN ({_REPEATED})"
        " OR (m.native > 0 AND t.current = 0) ORDER BY t.n, m.seq"
    )
    found = [turn for native, turn in sql.fetch_rows(copied) if native in natives and turn not in turns]
    yield from (row for row in reported_in(sql, found) if row.native in natives)


STANDING = (
    "SELECT m.native, t.segment, t.depth, m.position"
    " FROM turn u CROSS JOIN message o CROSS JOIN message m CROSS JOIN turn t"  # in this order: few are not current
    " WHERE u.current = 0 AND o.turn = u.n AND o.native > 0 AND o.role = 'assistant'"
    " AND m.native = o.native AND m.role = 'assistant' AND t.n = m.turn AND t.current = 1"
)


def standing(sql: Sql) -> dict[int, tuple[int, Place]]:
    """Where responses lie in current turns that another version of their turn reports on, perhaps it alone."""
    rows = sql.fetch_rows(STANDING)
    return {native: (segment, (depth, position)) for native, segment, depth, position in sorted(rows, reverse=True)}


def count_responses(
    rows: Iterable[ReportedUsage],
    repeated: set[int],
    standing: dict[int, tuple[int, Place]],
    age_of: Callable[[int | None], SessionAge],
    look: Callable[[ReportedUsage], object] | None = None,
) -> Iterator[CountedResponse]:
    """Every response of a turn that is current, once, with what other versions of it report. Of its places the one in
    the earliest session is first, by `age_of` a session's number. `look` is shown every row on the way."""
    gathered: dict[int, CountedResponse] = {}
    for row in rows:
        if look is not None:
            look(row)
        native = row.native
        if not row.turn.current:
            if native is None or native not in standing:
                continue
            segment, place = standing[native]
            row = replace(row, segment=segment, place=place)  # whoever was shown the row may have kept it
        elif native is None or (native not in repeated and native not in standing):
            yield CountedResponse(row, row.tokens, row.recorded, [(row.segment, row.place)])
            continue
        if (known := gathered.get(native)) is None:
            gathered[native] = CountedResponse(row, row.tokens, row.recorded, [(row.segment, row.place)])
        else:
            _join_response(known, row, age_of)
    yield from gathered.values()


def _join_response(known: CountedResponse, row: ReportedUsage, age_of: Callable[[int | None], SessionAge]) -> None:
    known.tokens = tuple(map(max, known.tokens, row.tokens))  # type: ignore[assignment]
    known.recorded = max((cost for cost in (known.recorded, row.recorded) if cost is not None), default=None)
    known.places.append((row.segment, row.place))
    if _response_rank(row, age_of) < _response_rank(known.first, age_of):
        known.first = row


def _response_rank(
    row: ReportedUsage, age_of: Callable[[int | None], SessionAge]
) -> tuple[bool, int, SessionAge, Place, str]:
    """Whatever order they came in, the same one is first: with a time before without, then the earliest, then that of
    the earliest session."""
    return row.at is None, row.at or 0, age_of(row.turn.session), row.place, row.turn.id


# --- Tables of totals: cells, what each owner adds to which of them, and how both stay equal.

CellName = tuple[Any, ...]
Values = tuple[int, ...]
Additions = dict[CellName, Values]
"""What one owner adds to each cell."""
Slots = tuple[int | None, int | None]
"""From a slot on, and up to another; None: whatever it is."""
ALL_SLOTS: Slots = (None, None)


def sums(one: Values, other: Values) -> Values:
    return tuple(left + right for left, right in zip(one, other, strict=True))


class UsageCell(Struct, frozen=True):
    """A cell as it is read."""

    name: CellName
    values: Values


class TotalTable(Struct, frozen=True, dict=True):
    """One kind of totals. `join` makes one of what two owners add."""

    kind: str
    columns: tuple[str, ...]
    join: Callable[[Values, Values], Values] = sums

    @property
    def tables(self) -> tuple[str, str]:
        return f"{self.kind}_total", f"{self.kind}_entry"

    @cached_property
    def _value_columns(self) -> str:
        return ", ".join(self.columns)

    @cached_property
    def _new_entry(self) -> Insert:
        return Insert(f"{self.kind}_entry", ("owner", "cell", *self.columns))

    @cached_property
    def _new_total(self) -> Insert:
        return Insert(f"{self.kind}_total", ("n", "slot", "name", *self.columns), ("n",), self.columns)

    # --- writing ------------------------------------------------------------------------------------------------

    def put(self, sql: Sql, additions: Mapping[int, Additions]) -> None:
        """Let these owners add this, and no longer what they did."""
        before, numbers = self._entries_of(sql, additions), self._cell_numbers(sql, additions.values())
        gone: list[tuple[int, int]] = []
        new: list[tuple[int, ...]] = []
        for owner, cells in additions.items():
            now = {numbers[name]: values for name, values in cells.items()}
            old = before.get(owner, {})
            gone += [(owner, n) for n, values in old.items() if now.get(n) != values]
            new += [(owner, n, *values) for n, values in now.items() if old.get(n) != values]
        sql.run_many(f"DELETE FROM {self.kind}_entry WHERE owner = ? AND cell = ?", gone)
        sql.add(self._new_entry, new)
        changed = {row[1] for row in (*gone, *new)}
        self._sum_up(sql, changed, {n: name for name, n in numbers.items()})

    def _sum_up(self, sql: Sql, changed: Collection[int], names: Mapping[int, CellName]) -> None:
        """Make these cells anew; those that nobody adds to are taken away."""
        cells: dict[int, Values] = {}
        for n, *values in rows_in(
            sql, f"SELECT cell, {self._value_columns} FROM {self.kind}_entry WHERE cell IN", changed
        ):
            cells[n] = self.join(cells[n], tuple(values)) if n in cells else tuple(values)
        sql.run_many(f"DELETE FROM {self.kind}_total WHERE n = ?", [(n,) for n in changed if n not in cells])
        known = dict(names)
        for n, text in rows_in(sql, f"SELECT n, name FROM {self.kind}_total WHERE n IN", cells.keys() - known.keys()):
            known[n] = read_name(text)
        sql.add(self._new_total, [(n, known[n][0], write_name(known[n]), *values) for n, values in cells.items()])

    def _cell_numbers(self, sql: Sql, additions: Iterable[Additions]) -> dict[CellName, int]:
        """The number of each cell, of new ones too."""
        names = {write_name(name): name for cells in additions for name in cells}
        rows = rows_in(sql, f"SELECT name, n FROM {self.kind}_total WHERE name IN", names)
        numbers = {names[text]: int(n) for text, n in rows}
        (highest,) = sql.fetch_row(f"SELECT max(n) FROM {self.kind}_total") or (0,)
        for name in names.values():
            if name not in numbers:
                highest = numbers[name] = (highest or 0) + 1
        return numbers

    def clear(self, sql: Sql) -> None:
        for table in self.tables:
            sql.run(f"DELETE FROM {table}")

    # --- reading ------------------------------------------------------------------------------------------------

    def read(self, sql: Sql, changed: Mapping[int, Additions], slots: Slots = ALL_SLOTS) -> Iterator[UsageCell]:
        """Every cell of these slots, as it is once the changed owners add what they do now."""
        totals = self._cell_totals(sql, slots)
        entries = self._entries_of(sql, changed)
        touched = {n for cells in entries.values() for n in cells}
        late: dict[CellName, Values] = {}
        for n, owner, values in self._entries_in(sql, touched & totals.keys()):
            if owner not in changed:
                name = totals[n].name
                late[name] = self.join(late[name], values) if name in late else values
        for cells in changed.values():
            for name, values in cells.items():
                if _is_among(name[0], slots):
                    late[name] = self.join(late[name], values) if name in late else values
        for n, cell in totals.items():
            if n in touched:
                continue
            added = late.pop(cell.name, None)
            yield cell if added is None else UsageCell(cell.name, self.join(cell.values, added))
        yield from (UsageCell(name, values) for name, values in late.items())

    def owners(self, sql: Sql, changed: Mapping[int, Additions], names: Collection[CellName]) -> set[int]:
        """Who adds to cells of these names now."""
        rows = rows_in(sql, f"SELECT n FROM {self.kind}_total WHERE name IN", map(write_name, names))
        stored = {owner for _, owner, _ in self._entries_in(sql, [n for (n,) in rows])} - changed.keys()
        wanted = set(names)
        return stored | {owner for owner, cells in changed.items() if not wanted.isdisjoint(cells)}

    def _cell_totals(self, sql: Sql, slots: Slots) -> dict[int, UsageCell]:
        query = f"SELECT n, name, {self._value_columns} FROM {self.kind}_total"
        if slots == ALL_SLOTS:
            rows = sql.fetch_rows(query)
        else:
            low, high = (-MAX_INTEGER if slots[0] is None else slots[0], MAX_INTEGER if slots[1] is None else slots[1])
            rows = sql.fetch_rows(f"{query} WHERE slot >= ? AND slot < ?", (low, high))
        return {n: UsageCell(read_name(name), tuple(values)) for n, name, *values in rows}

    def _entries_of(self, sql: Sql, owners: Iterable[int]) -> dict[int, dict[int, Values]]:
        entries: dict[int, dict[int, Values]] = {}
        query = f"SELECT owner, cell, {self._value_columns} FROM {self.kind}_entry WHERE owner IN"
        for owner, cell, *values in rows_in(sql, query, owners):
            entries.setdefault(owner, {})[cell] = tuple(values)
        return entries

    def _entries_in(self, sql: Sql, cells: Collection[int]) -> Iterator[tuple[int, int, Values]]:
        query = f"SELECT cell, owner, {self._value_columns} FROM {self.kind}_entry WHERE cell IN"
        yield from ((n, owner, tuple(values)) for n, owner, *values in rows_in(sql, query, cells))


def _is_among(slot: int | None, slots: Slots) -> bool:
    if slots == ALL_SLOTS:
        return True
    low, high = slots
    return slot is not None and (low is None or slot >= low) and (high is None or slot < high)


def write_name(name: CellName) -> str:
    return orjson.dumps(name).decode()


def read_name(text: str) -> CellName:
    try:
        return tuple(orjson.loads(text))
    except (orjson.JSONDecodeError, TypeError):
        raise Damaged(f"the total of {quoted(text)} cannot be read", Action.VERIFY_AND_REBUILD) from None
