"""Lists of turns by their time, the newest first, as of a moment.

The moment is an arrival number. A turn that arrived later is not in the list; one that another version replaced since
then still is, so that a reader who asks for one page after another meets each turn once.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from heapq import merge
from itertools import islice
from typing import Any

from weft.kernel.canonical import MAX_INTEGER
from weft.ledger.model import UNDATED
from weft.ledger.read.pages import NEWEST, Position
from weft.ledger.read.threads import CHUNK
from weft.ledger.views.recorded_events import fields_of
from weft.ledger.views.rows import TURN, TurnRow, load_turn
from weft.ledger.views.versions import choose_version, is_last, stands_for, versions_among
from weft.store.facts import FactReader, refuse_standstill
from weft.store.port import ReadTxn
from weft.store.sql import Sql, rows_in

_REPLACED = "SELECT s.turn, s.by, s.round, b.n FROM superseded s JOIN turn b ON b.id = s.by WHERE s.turn IN"
_SUPERSEDED, _SIGHTING = b'"kind":"turn_superseded"', b'"kind":"sighting"'
Pair = tuple[str, str, int]
"""A turn, the one that a source put in its place, and the round of that."""


class CurrentTurns:
    """Which turns were current at a moment, by the number of the newest event then."""

    def __init__(self, txn: ReadTxn, arrival: int) -> None:
        self._sql, self._facts, self.arrival = txn.sql, txn.facts, arrival
        self.is_now = arrival >= txn.facts.tip().n
        """Nothing has arrived since."""
        self._rounds: tuple[int, dict[tuple[str, str], int]] | None = None

    def among(self, rows: Sequence[TurnRow]) -> list[TurnRow]:
        """Those of these turns that were current, in the same order."""
        arrived = [row for row in rows if row.n <= self.arrival]
        if self.is_now:
            return [row for row in arrived if row.current]
        versions = self._versions(arrived)
        replaced = self._replaced(row.id for group in versions.values() for row in group)
        return [row for row in arrived if self._was_current(row, versions.get(row.n, [row]), replaced)]

    def _versions(self, rows: Iterable[TurnRow]) -> dict[int, list[TurnRow]]:
        """By the number of a turn: all with its native id; of one that is current and has no other, nothing."""
        natives = {row.native for row in rows if row.native}
        groups: dict[int, list[TurnRow]] = {}
        for values in rows_in(self._sql, f"{TURN.select} WHERE native IN", natives):
            version = TurnRow(*values)
            groups.setdefault(version.native or 0, []).append(version)
        found = {row.n: groups.get(row.native or 0, [row]) for row in rows}
        return {n: group for n, group in found.items() if len(group) > 1 or not group[0].current}

    def _replaced(self, ids: Iterable[str]) -> dict[str, list[tuple[Pair, int]]]:
        """By turn: what was put in its place, with the number of that turn."""
        found: dict[str, list[tuple[Pair, int]]] = {}
        for turn, by, round, n in rows_in(self._sql, _REPLACED, ids):
            found.setdefault(turn, []).append(((turn, by, round), n))
        return found

    def _was_current(self, row: TurnRow, group: list[TurnRow], replaced: dict[str, list[tuple[Pair, int]]]) -> bool:
        if len(group) == 1 and row.current:
            return True
        namesakes = [version for version in group if version.n <= self.arrival]
        ids = {version.id for version in namesakes}
        rounds: dict[tuple[str, str], int] | None = None
        if self._later.superseded.isdisjoint(ids):
            pairs = [pair for id in ids for pair, n in replaced.get(id, ()) if n <= self.arrival]
        else:
            rounds = self._rounds_since(min(version.n for version in namesakes))
            pairs = [(turn, by, round) for (turn, by), round in rounds.items() if turn in ids]
        others = [version for version in namesakes if version.n != row.n and version.closed]
        versions = versions_among(self._sql, row, others, [(turn, by) for turn, by, _ in pairs])
        ids = {version.id for version in versions}
        pairs = [pair for pair in pairs if pair[0] in ids]
        outside = [pair for pair in pairs if pair[1] not in ids]
        if rounds is None:
            taken_in = {turn for turn, by, round in outside if stands_for(self._sql, turn, by, round)}
        else:
            taken_in = {turn for turn, by, round in outside if is_last(turn, by, round, rounds.get((by, turn)))}
        chosen = choose_version(versions, pairs, taken_in)
        return chosen is not None and chosen.n == row.n

    def _rounds_since(self, first: int) -> dict[tuple[str, str], int]:
        """What stood in place of what at the moment, and in which round, as the events from this number on said until
        then. The view has the last round alone, so this is read from the log, where somebody went on since."""
        if self._rounds is None or first < self._rounds[0]:
            rounds: dict[tuple[str, str], int] = {}
            for n, line in self._facts.lines(first, self.arrival):
                if _SUPERSEDED in line and (event := fields_of(n, line))["kind"] == "turn_superseded":
                    pair = event["turn"], event["by"]
                    rounds[pair] = max(rounds.get(pair, 0), event.get("round", 0))
            self._rounds = first, rounds
        return self._rounds[1]

    @cached_property
    def _later(self) -> LaterEvents:
        return LaterEvents(self._facts, self.arrival)

    @cached_property
    def moved(self) -> dict[int, tuple[Position, TurnRow]]:
        """Turns that another time was told of since, by their numbers: the position that each had before."""
        if self.is_now:
            return {}
        rows = [TurnRow(*row) for row in rows_in(self._sql, f"{TURN.select} WHERE id IN", self._later.sightings)]
        places = {
            row.n: ((self._listed_before(row), row.n), row)
            for row in rows
            if row.n <= self.arrival and row.seen is not None and bytes(row.seen) in self._later.sightings[row.id]
        }
        return {n: (place, row) for n, (place, row) in places.items() if place != order_of(row)}

    def _listed_before(self, row: TurnRow) -> int:
        """The time that a turn was listed by: the earliest one that any source told until then; without one, that of
        the turn it follows, if any. Of several sources the first one mostly tells what the others do."""
        starts: list[int] = []
        for n, line in self._facts.lines(row.n, self.arrival):
            if _SIGHTING in line and row.id.encode() in line:
                event = fields_of(n, line)
                if event.get("turn") == row.id and event.get("started") is not None:
                    starts.append(event["started"])
                    if starts == [row.seen_at]:
                        return row.listed_at
        parent = None if row.parent is None else load_turn(self._sql, row.parent)
        if not starts:
            return parent.listed_at if parent else UNDATED
        return max(min(starts), parent.listed_at if parent else -MAX_INTEGER)

    def position_of(self, row: TurnRow) -> Position:
        """A turn's position in a list by time."""
        return self.moved[row.n][0] if row.n in self.moved else order_of(row)

    def in_order(self, rows: Iterable[TurnRow]) -> list[TurnRow]:
        """The newest first."""
        return sorted(rows, key=self.position_of, reverse=True)


class LaterEvents:
    """What the events beyond an arrival number say of turns that came before them."""

    def __init__(self, facts: FactReader, arrival: int) -> None:
        self.superseded: set[str] = set()
        """Turns that were put in place of others, and those others."""
        self.sightings: dict[str, set[bytes]] = {}
        """By turn: the ids of the sightings that tell of it."""
        for n, line in facts.lines(arrival):
            if _SUPERSEDED in line or _SIGHTING in line:
                self._take(fields_of(n, line), line)

    def _take(self, event: dict[str, Any], line: bytes) -> None:
        if event["kind"] == "turn_superseded":
            self.superseded |= {event["turn"], event["by"]}
        elif event["kind"] == "sighting" and "turn" in event:
            self.sightings.setdefault(event["turn"], set()).add(sha256(line).digest())


def newest_turns(
    sql: Sql, current: CurrentTurns, before: Position = NEWEST, *, session: int | None = None, chunk: int = CHUNK
) -> Iterator[TurnRow]:
    """Turns that were current, the newest first, children before their parents: a clock that went back counts as
    standing still. `before` is the position behind which the list goes on; `chunk` turns are read at a time."""
    fits = "current = 1 AND " if current.is_now else ""
    fits += "" if session is None else "session = ? AND "
    rows = turns_by_time(sql, current, before, chunk, fits, () if session is None else (session,))
    while some := list(islice(rows, chunk)):
        yield from (row for row in current.among(some) if session in (None, row.session))


def turns_by_time(
    sql: Sql, current: CurrentTurns, before: Position, chunk: int, fits: str = "", values: tuple[int, ...] = ()
) -> Iterator[TurnRow]:
    """Turns behind a position, the newest first, each where it stood at the moment of `current`; `fits` is a further
    condition that ends with AND, which turns that moved since then need not fulfil."""
    moved = [row for place, row in current.moved.values() if place < before]
    others = _where_they_stand(sql, current.moved, before, chunk, fits, values)
    return merge(current.in_order(moved), others, key=current.position_of, reverse=True)


def _where_they_stand(
    sql: Sql, without: Container[int], place: Position, chunk: int, fits: str, values: tuple[int, ...]
) -> Iterator[TurnRow]:
    while rows := turns_before(sql, place, chunk, fits, values):
        yield from (row for row in rows if row.n not in without)
        refuse_standstill("turn", place, order_of(rows[-1]))
        place = order_of(rows[-1])


def turns_before(sql: Sql, place: Position, limit: int, fits: str = "", values: tuple[int, ...] = ()) -> list[TurnRow]:
    """So many turns before a place in the order of time, the newest first; `fits` is a further condition that ends with
    AND. Two statements, each of which an index leads to its first row: many turns may have one time."""
    at, n = place
    query = f"{TURN.select} WHERE {fits}listed_at = ? AND n < ? ORDER BY n DESC LIMIT ?"
    rows = sql.all(query, (*values, at, n, limit))
    if len(rows) < limit:
        query = f"{TURN.select} WHERE {fits}listed_at < ? ORDER BY listed_at DESC, n DESC LIMIT ?"
        rows = [*rows, *sql.all(query, (*values, at, limit - len(rows)))]
    return [TurnRow(*row) for row in rows]


def order_of(row: TurnRow) -> Position:
    """A turn's position in a list by time, as it is now."""
    return row.listed_at, row.n
