"""Tables of totals: cells, what each owner adds to which of them, and how both stay equal.

A cell's name says what all that it holds has in common, its slot first. What an owner adds is kept beside the cells:
where one changes, its old additions are taken out, its new ones put in, and each cell that either is in is made anew
from what all its owners add.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import orjson
from msgspec import Struct

from weft.kernel.advice import Action
from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import Damaged
from weft.kernel.weft_error import quoted
from weft.store.sql import Insert, Sql, rows_in

CellName = tuple[Any, ...]
Values = tuple[int, ...]
Additions = dict[CellName, Values]
"""What one owner adds to each cell."""
Slots = tuple[int | None, int | None]
"""From a slot on, and up to another; None: whatever it is."""
ALL_SLOTS: Slots = (None, None)


def sums(one: Values, other: Values) -> Values:
    return tuple(left + right for left, right in zip(one, other, strict=True))


class Cell(Struct, frozen=True):
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
    def _values(self) -> str:
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
        before, numbers = self._entries_of(sql, additions), self._numbers(sql, additions.values())
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
        for n, *values in rows_in(sql, f"SELECT cell, {self._values} FROM {self.kind}_entry WHERE cell IN", changed):
            cells[n] = self.join(cells[n], tuple(values)) if n in cells else tuple(values)
        sql.run_many(f"DELETE FROM {self.kind}_total WHERE n = ?", [(n,) for n in changed if n not in cells])
        known = dict(names)
        for n, text in rows_in(sql, f"SELECT n, name FROM {self.kind}_total WHERE n IN", cells.keys() - known.keys()):
            known[n] = read_name(text)
        sql.add(self._new_total, [(n, known[n][0], write_name(known[n]), *values) for n, values in cells.items()])

    def _numbers(self, sql: Sql, additions: Iterable[Additions]) -> dict[CellName, int]:
        """The number of each cell, of new ones too."""
        names = {write_name(name): name for cells in additions for name in cells}
        rows = rows_in(sql, f"SELECT name, n FROM {self.kind}_total WHERE name IN", names)
        numbers = {names[text]: int(n) for text, n in rows}
        (highest,) = sql.one(f"SELECT max(n) FROM {self.kind}_total") or (0,)
        for name in names.values():
            if name not in numbers:
                highest = numbers[name] = (highest or 0) + 1
        return numbers

    def clear(self, sql: Sql) -> None:
        for table in self.tables:
            sql.run(f"DELETE FROM {table}")

    # --- reading ------------------------------------------------------------------------------------------------

    def read(self, sql: Sql, changed: Mapping[int, Additions], slots: Slots = ALL_SLOTS) -> Iterator[Cell]:
        """Every cell of these slots, as it is once the changed owners add what they do now."""
        totals = self._totals(sql, slots)
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
            yield cell if added is None else Cell(cell.name, self.join(cell.values, added))
        yield from (Cell(name, values) for name, values in late.items())

    def owners(self, sql: Sql, changed: Mapping[int, Additions], names: Collection[CellName]) -> set[int]:
        """Who adds to cells of these names now."""
        rows = rows_in(sql, f"SELECT n FROM {self.kind}_total WHERE name IN", map(write_name, names))
        stored = {owner for _, owner, _ in self._entries_in(sql, [n for (n,) in rows])} - changed.keys()
        wanted = set(names)
        return stored | {owner for owner, cells in changed.items() if not wanted.isdisjoint(cells)}

    def _totals(self, sql: Sql, slots: Slots) -> dict[int, Cell]:
        query = f"SELECT n, name, {self._values} FROM {self.kind}_total"
        if slots == ALL_SLOTS:
            rows = sql.all(query)
        else:
            low, high = (-MAX_INTEGER if slots[0] is None else slots[0], MAX_INTEGER if slots[1] is None else slots[1])
            rows = sql.all(f"{query} WHERE slot >= ? AND slot < ?", (low, high))
        return {n: Cell(read_name(name), tuple(values)) for n, name, *values in rows}

    def _entries_of(self, sql: Sql, owners: Iterable[int]) -> dict[int, dict[int, Values]]:
        entries: dict[int, dict[int, Values]] = {}
        query = f"SELECT owner, cell, {self._values} FROM {self.kind}_entry WHERE owner IN"
        for owner, cell, *values in rows_in(sql, query, owners):
            entries.setdefault(owner, {})[cell] = tuple(values)
        return entries

    def _entries_in(self, sql: Sql, cells: Collection[int]) -> Iterator[tuple[int, int, Values]]:
        query = f"SELECT cell, owner, {self._values} FROM {self.kind}_entry WHERE cell IN"
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
