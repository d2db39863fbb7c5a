"""A value of another type than its column's: whoever reads it says so in words, and comes to an end."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import Struct

import weft
from tests.faults.checks import answers, copy_ledger
from tests.faults.test_bit_flips import make_varied
from tests.ledger.histories import select
from tests.sizes import Record, chance, share
from weft.kernel.errors import Damaged, WeftError
from weft.ledger.api.ledger import Ledger

ODD: tuple[Any, ...] = (None, -1, 10**15, "odd", b"\xff\xfe", "#x", "[1]", "{}", 3.5, "")
PARTS = range(2)
FACTS = ("log", "content", "content_part")


class Change(Struct, frozen=True):
    """One stored value, and what stands in its place."""

    table: str
    column: str
    key: tuple[tuple[str, Any], ...]
    value: Any

    def make(self, path: Path) -> bool:
        """False where the engine itself does not take it."""
        connection = apsw.Connection(str(path))
        where = " AND ".join(f"{name} = ?" for name, _ in self.key)
        try:
            connection.execute(
                f"UPDATE {self.table} SET {self.column} = ? WHERE {where}",
                (self.value, *(value for _, value in self.key)),
            )
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except apsw.ConstraintError:
            return False
        except apsw.MismatchError:
            return False
        finally:
            connection.close()
        return True


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "ledger.db"
    make_varied(path)
    with weft.open(path) as ledger:
        ledger.upkeep.catch_up()
    return path


def changes(path: Path, rng: random.Random) -> Iterator[Change]:
    """Each column of each table of views and local state, each odd value, in some row."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    tables: list[Any] = connection.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
    ).fetchall()
    for (table,) in tables:
        columns: list[Any] = connection.execute(
            "SELECT name, pk FROM pragma_table_info(?) WHERE type <> '' ORDER BY pk", (table,)
        ).fetchall()
        key = [name for name, place in columns if place] or ["rowid"]
        rows = connection.execute(f"SELECT {', '.join(key)} FROM {table}").fetchall() if columns else []
        if table in FACTS or table.startswith("sqlite_") or not rows:
            continue
        for name, _ in columns:
            for odd in ODD:
                yield Change(table, name, tuple(zip(key, rng.choice(rows), strict=True)), odd)
    connection.close()


def tried(ask: Callable[[Ledger], object], path: Path) -> str:
    try:
        with weft.open(path) as ledger:
            ask(ledger)
    except Damaged:
        return "damaged"
    except WeftError:
        return "refused"
    return "answered"


def record(ledger: Ledger) -> None:
    ledger.record_turn(session="new", query="q", response="r")
    ledger.record_turn(session="main", query="q", response="r", wait=0)


@pytest.mark.slow("opens 36 ledgers and asks everything")
@pytest.mark.parametrize("part", PARTS)
def test_whoever_meets_a_value_of_the_wrong_type_says_so_in_words(
    tmp_path: Path, source: Path, part: int, record_property: Record
) -> None:
    rng = chance("misfits", part)
    every = list(changes(source, rng))
    counted = dict.fromkeys(("damaged", "refused", "answered"), 0)
    taken = share(every, test=6)
    for change in taken:
        path = copy_ledger(source, tmp_path / "ledger.db")
        if not change.make(path):
            continue
        for ask in (answers, lambda ledger: list(ledger.verify()), record):
            counted[tried(ask, path)] += 1
    record_property("counted", counted)
    assert counted["damaged"] > 0 or len(taken) < len(every), "nobody ever said so"


def test_a_rebuild_mends_a_value_that_was_named(tmp_path: Path, source: Path) -> None:
    path = copy_ledger(source, tmp_path / "ledger.db")
    (row,) = select(path, "SELECT min(n) AS n FROM usage_total")
    change = Change("usage_total", "input_tokens", (("n", row["n"]),), "odd")
    assert change.make(path)
    with weft.open(path) as ledger:
        with pytest.raises(Damaged, match=r"usage_total\.input_tokens"):
            ledger.usage.report("session")
        ledger.upkeep.rebuild()
        ledger.usage.report("session")
        assert list(ledger.verify()) == []


def test_a_fault_of_a_reader_is_not_called_damage(tmp_path: Path, source: Path) -> None:
    ledger = weft.open(copy_ledger(source, tmp_path / "ledger.db"))
    with ledger, pytest.raises(ZeroDivisionError), ledger._store.read():
        _ = 1 // 0


@pytest.mark.parametrize("odd", ["odd", "3", "[1]", '["a", 0, 0, null, 0]', b"\xff"])
def test_totals_are_counted_anew_where_nobody_can_read_by_what_they_were_counted(
    tmp_path: Path, source: Path, odd: Any
) -> None:
    path = copy_ledger(source, tmp_path / "ledger.db")
    with weft.open(path) as ledger:
        before = ledger.usage.report("session")
    assert Change("local", "value", (("key", "usage_totals"),), odd).make(path)
    with weft.open(path) as ledger:
        assert ledger.usage.report("session") == before
        assert list(ledger.verify()) == []
