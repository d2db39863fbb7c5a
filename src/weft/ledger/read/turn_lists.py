"""Lists of turns by their time, the newest first, as of a moment.

The moment is an arrival number. A turn that arrived later is not in the list; one that another version replaced since
then still is, so that a reader who asks for one page after another meets each turn once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import orjson

from weft.ledger.read.pages import NEWEST, Position
from weft.ledger.read.threads import CHUNK
from weft.ledger.views.rows import TURN, TurnRow
from weft.ledger.views.versions import choose_version, stands_for
from weft.store.facts import refuse_standstill
from weft.store.port import ReadTxn
from weft.store.sql import Sql, rows_in

_REPLACED = "SELECT s.turn, s.by, s.round, b.n FROM superseded s JOIN turn b ON b.id = s.by WHERE s.turn IN"
_SUPERSEDED = b'"kind":"turn_superseded"'
Pair = tuple[str, str, int]
"""A turn, the one that a source put in its place, and the round of that."""


class CurrentTurns:
    """Which turns were current at a moment, by the number of the newest event then."""

    def __init__(self, txn: ReadTxn, arrival: int) -> None:
        self._sql, self._facts, self.arrival = txn.sql, txn.facts, arrival
        self.is_now = arrival >= txn.facts.tip().n
        """Nothing has arrived since."""

    def among(self, rows: Sequence[TurnRow]) -> list[TurnRow]:
        """Those of these turns that were current, in the same order."""
        arrived = [row for row in rows if row.n <= self.arrival]
        if self.is_now:
            return [row for row in arrived if row.current]
        versions = self._versions(arrived)
        replaced = self._replaced(row.id for group in versions.values() for row in group)
        return [row for row in arrived if self._was_current(row, versions.get(row.n, [row]), replaced)]

    def _versions(self, rows: Iterable[TurnRow]) -> dict[int, list[TurnRow]]:
        """By the number of a turn: all its versions; of one that is current and has no other, nothing."""
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
        versions = [version for version in group if version.n <= self.arrival]
        ids = {version.id for version in versions}
        stated = [each for id in ids for each in replaced.get(id, ())]
        pairs = [pair for pair, n in stated if n <= self.arrival and pair[:2] not in self._stated_since]
        outside = {turn for turn, by, round in pairs if by not in ids and stands_for(self._sql, turn, by, round)}
        chosen = choose_version(versions, pairs, outside)
        return chosen is not None and chosen.n == row.n

    @cached_property
    def _stated_since(self) -> set[tuple[str, str]]:
        """What later events put in place of turns."""
        events = (orjson.loads(line) for _, line in self._facts.lines(self.arrival) if _SUPERSEDED in line)
        return {(event["turn"], event["by"]) for event in events if event["kind"] == "turn_superseded"}


def newest_turns(
    sql: Sql, current: CurrentTurns, before: Position = NEWEST, *, session: int | None = None, chunk: int = CHUNK
) -> Iterator[TurnRow]:
    """Turns, the newest first, children before their parents: a clock that went back counts as standing still. `before`
    is the time and the number of the turn behind which the list goes on; `chunk` turns are read at a time."""
    fits = "current = 1 AND " if current.is_now else ""
    fits += "" if session is None else "session = ? AND "
    values = () if session is None else (session,)
    place = before
    while rows := turns_before(sql, place, chunk, fits, values):
        yield from current.among(rows)
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
    """A turn's position in a list by time."""
    return row.listed_at, row.n
