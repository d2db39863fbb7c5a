"""Reading totals: as they are stored, with what late events change of them; and whether they are what a scan says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from weft.ledger.reports.counted_turns import (
    FILES,
    NO_CHANGES,
    RESPONSES,
    SLOT,
    WORK,
    Counted,
    FileCell,
    Holdings,
    ResponseCell,
    SegmentCuts,
    TurnChanges,
    TurnCounter,
    WorkCell,
    counted_cell,
    load_holdings,
    response_cell,
    response_values,
    scanned,
)
from weft.ledger.reports.total_tables import CellName, Slots, TotalTable, Values, read_name
from weft.ledger.reports.usage_totals import (
    MOST_LATE_EVENTS,
    TURNS_AT_ONCE,
    VIEW,
    LateTurns,
    forget_totals,
    load_cuts,
    load_state,
    state_now,
)
from weft.store.port import ReadTxn, Store
from weft.store.sql import Sql

CellValues = dict[CellName, Values]
Span = tuple[int, int]
"""From a time on, and up to another."""


class PeriodParts(Struct, frozen=True):
    """A period, cut where slots begin."""

    slots: Slots
    """Those that lie in it as a whole."""
    ends: tuple[Span, ...]
    """What of it lies beside them."""


_CHANGES = {RESPONSES.kind: "responses", WORK.kind: "work", FILES.kind: "files"}


class Totals:
    """The totals as they are at a moment: what is stored, and what late events change of it."""

    def __init__(self, txn: ReadTxn, cuts: SegmentCuts, changes: TurnChanges, late: Holdings) -> None:
        self._txn, self._sql, self.cuts, self._changes, self._late = txn, txn.sql, cuts, changes, late

    def responses(
        self, since: int | None, until: int | None, is_even: Callable[[ResponseCell], bool]
    ) -> Iterator[Counted]:
        """What was spent in a period. Cells that it cuts, those in which not everything has one price, by `is_even`,
        and those whose pieces have no room in a name come response by response: whoever asks looks at their times and
        places."""
        parts: set[CellName] = set()
        for cell in RESPONSES.read(self._sql, self._changes.responses, _slots(since, until)):
            common = ResponseCell(*cell.name)
            if common.has_many_pieces or _cuts(common.slot, since, until) or not is_even(common):
                parts.add(cell.name)
            else:
                yield counted_cell(common, cell.values)
        yield from self._one_by_one(parts)

    def _one_by_one(self, names: set[CellName]) -> Iterator[Counted]:
        owners = RESPONSES.owners(self._sql, self._changes.responses, names)
        natives = {-owner for owner in owners if owner < 0}
        counter = TurnCounter(self._txn, self.cuts, self._late)
        for owner, counted in counter.counted([owner for owner in owners if owner > 0], natives):
            if owner in owners and response_cell(counted, self.cuts).name in names:
                yield counted

    def work(self, since: int | None, until: int | None) -> Iterator[tuple[WorkCell, Values]]:
        """The cells of turns that lie in a period as a whole."""
        for cell in WORK.read(self._sql, self._changes.work, split_period(since, until).slots):
            yield WorkCell(*cell.name), cell.values

    def cells(self, table: TotalTable) -> dict[CellName, Values]:
        """Every cell of a table."""
        changed = getattr(self._changes, _CHANGES[table.kind])
        return {cell.name: cell.values for cell in table.read(self._sql, changed)}

    def files(self, since: int | None, until: int | None) -> Iterator[tuple[FileCell, int]]:
        """The same of files."""
        for cell in FILES.read(self._sql, self._changes.files, split_period(since, until).slots):
            yield FileCell(*cell.name), cell.values[0]


def load_totals(txn: ReadTxn) -> Totals | None:
    """None: they are too far behind, and all rows are to be scanned."""
    state, now = load_state(txn.sql), state_now(txn)
    if state is None or state.begun is not None or not state.holds(now):
        return None
    behind = txn.facts.tip().n - txn.facts.watermark(VIEW)
    if not 0 <= behind <= MOST_LATE_EVENTS:
        return None
    if behind == 0 and state == now:
        return Totals(txn, SegmentCuts(load_cuts(txn.sql)), NO_CHANGES, {})
    late = LateTurns(txn)
    counter = TurnCounter(txn, late.cuts)
    held = load_holdings(txn.sql, counter.numbers(late.turns).values())
    counter = TurnCounter(txn, late.cuts, held)
    return Totals(txn, late.cuts, counter.changes(late.turns), held)


def _slots(since: int | None, until: int | None) -> Slots:
    """Those that a period touches."""
    return None if since is None else since // SLOT, None if until is None else -(-until // SLOT)


def split_period(since: int | None, until: int | None) -> PeriodParts:
    first = None if since is None else -(-since // SLOT)
    end = None if until is None else until // SLOT
    if since is not None and until is not None and -(-since // SLOT) > until // SLOT:  # within one slot
        return PeriodParts((first, first), ((since, until),))
    ends: list[Span] = []
    if since is not None and first is not None and since < first * SLOT:
        ends.append((since, first * SLOT))
    if until is not None and end is not None and end * SLOT < until:
        ends.append((end * SLOT, until))
    return PeriodParts((first, end), tuple(ends))


def _cuts(slot: int | None, since: int | None, until: int | None) -> bool:
    """Does a period begin or end within a slot?"""
    if slot is None:
        return False
    start, end = slot * SLOT, (slot + 1) * SLOT
    return (since is not None and start < since < end) or (until is not None and start < until < end)


# --- checking ---------------------------------------------------------------------------------------------------------


def found_in(store: Store) -> list[tuple[str, str]]:
    """What is wrong in a ledger, in one snapshot of it."""
    with store.read() as txn:
        return list(problems(txn))


def renew(store: Store) -> int:
    """Throw the totals away, if they are wrong; the next reader counts everything anew. How much was wrong."""
    wrong = len(found_in(store))
    if wrong:
        store.write(lambda txn: forget_totals(txn.sql))
    return wrong


def problems(txn: ReadTxn) -> Iterator[tuple[str, str]]:
    """What is wrong, and where: every cell is made anew from all rows. Totals that are too far behind are passed over,
    as nobody reads them."""
    totals = load_totals(txn)
    if totals is None:
        return
    for table, expected in _expected(txn, totals):
        cells = totals.cells(table)
        stored = _apart(cells) if table is RESPONSES else cells
        wrong = sum(1 for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
        if wrong:
            yield table.tables[0], f"{wrong} of its cells are not what turns and messages say"
        if not _adds_up(txn.sql, table):
            yield table.tables[1], "does not add up to the totals"
        if misplaced := _count_misplaced(txn.sql, table):
            yield table.tables[0], f"{misplaced} of its cells stand in another slot than their names say"


def _expected(txn: ReadTxn, totals: Totals) -> Iterator[tuple[TotalTable, CellValues]]:
    counter, responses = TurnCounter(txn, totals.cuts), CellValues()
    for counted in scanned(txn.sql, counter.age_of):
        _add(RESPONSES, responses, response_cell(counted, totals.cuts).name, response_values(counted))
    yield RESPONSES, responses
    work, files, after = CellValues(), CellValues(), 0
    while turns := [
        n for (n,) in txn.sql.all(f"SELECT n FROM turn WHERE n > ? ORDER BY n LIMIT {TURNS_AT_ONCE}", (after,))
    ]:
        after = turns[-1]
        for table, cells, additions in zip((WORK, FILES), (work, files), counter.work_of(turns), strict=True):
            for added in additions.values():
                for name, values in added.items():
                    _add(table, cells, name, values)
    yield from ((WORK, work), (FILES, files))


def _add(table: TotalTable, cells: CellValues, name: CellName, values: Values) -> None:
    cells[name] = table.join(cells[name], values) if name in cells else values


def _apart(cells: CellValues) -> CellValues:
    """Cells that count both ways as two, as a scan gives them."""
    apart = CellValues()
    for name, values in cells.items():
        cell = ResponseCell(*name)
        for way in ("is_once", "is_naive"):
            if getattr(cell, way):
                only = replace(cell, is_once=way == "is_once", is_naive=way == "is_naive")
                _add(RESPONSES, apart, only.name, values)
    return apart


def _adds_up(sql: Sql, table: TotalTable) -> bool:
    """Is each stored cell what its owners add?"""
    total, entry = table.tables
    columns = ", ".join(table.columns)
    cells: dict[int, Values] = {}
    for n, *values in sql.each(f"SELECT cell, {columns} FROM {entry} ORDER BY owner, cell"):
        cells[n] = table.join(cells[n], tuple(values)) if n in cells else tuple(values)
    return cells == {n: tuple(values) for n, *values in sql.each(f"SELECT n, {columns} FROM {total}")}


def _count_misplaced(sql: Sql, table: TotalTable) -> int:
    """How many stored cells a period would not find, or take for its own, as their slot is not that of their name."""
    return sum(slot != read_name(name)[0] for slot, name in sql.each(f"SELECT slot, name FROM {table.tables[0]}"))
