"""Every flipped bit of a fact is noticed when it is read or verified, wherever it lies."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import Struct

import weft
from tests.faults import scenarios
from tests.faults.checks import Answers, answers, copy_ledger
from tests.faults.processes import KILLED, run
from tests.sizes import PROVING, Record, chance, points, share, sized
from weft.kernel.errors import Damaged, WeftError
from weft.ledger.api.ledger import Ledger

PARTS = 8
FILE_FLIPS = 5_000  # per part; with all of the head file's more than 100,000 together
FILE_PARTS = {
    ("closed", ""): sized(test=1, prove=10),
    ("unclosed", ""): 1,
    ("unclosed", "-wal"): sized(test=1, prove=8),
}
HEAD_FLIPS = 10_000
EFFECTS = ("without effect", "refused", "named by verify", "a reader failed")
FACTS = (
    ("log", "n", "events"),
    ("log", "n", "chain"),
    ("log", "n", "count"),
    ("log", "n", "n"),
    ("content", "n", "bytes"),
    ("content", "n", "salt"),
    ("content", "n", "ref"),
    ("content_part", "idx", "bytes"),
)


class Cell(Struct, frozen=True):
    """One stored value of a fact."""

    table: str
    key: str
    column: str
    row: int
    value: bytes | int

    @property
    def bits(self) -> int:
        return 16 if isinstance(self.value, int) else min(len(self.value), 4096) * 8

    def flipped(self, bit: int) -> bytes | int:
        if isinstance(self.value, int):
            return self.value ^ (1 << bit)
        return flip(self.value, bit)

    def write(self, connection: apsw.Connection, old: bytes | int, new: bytes | int) -> None:
        key = old if self.column == self.key else self.row
        connection.execute(f"UPDATE {self.table} SET {self.column} = ? WHERE {self.key} = ?", (new, key))


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def make_varied(path: Path) -> None:
    """A little of everything: turns by steps and at once, a fork, a compaction, aliases, odd texts, a large content."""
    with weft.open(path) as ledger:
        for scenario in ("whole_turn", "turn_by_steps", "fork", "compaction"):
            list(scenarios.SCENARIOS[scenario](ledger, 1))
        ledger.labels.add_alias("other", "main")
        inside = ledger.events("main~1")[2].id
        ledger.fork(inside, label="inside")
        ledger.record_turn(session="inside", query="from the middle of a turn")
        ledger.record_turn(
            session="main", query="a\0b \ud800", response={"content": [{"type": "reasoning", "text": "hm"}]}
        )
        ledger.record_turn(session="odd", query="x", error="it broke", persona="Zoë")
        note = {"content": "show me", "files": [{"kind": "read", "path": "src/file.py"}]}
        ledger.record_turn(session="odd", query=note, response="so:\n```py\nx = 1\n```\n", usage=scenarios.USAGE)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose facts all lie in the database file."""
    path = tmp_path_factory.mktemp("closed") / "ledger.db"
    make_varied(path)
    return path


@pytest.fixture(scope="module")
def unclosed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose facts all lie in the write-ahead log."""
    path = tmp_path_factory.mktemp("unclosed") / "ledger.db"
    assert run(scenarios.leave_unclosed, str(path)) == (KILLED, [])
    return path


def cells(connection: apsw.Connection) -> Iterator[Cell]:
    for table, key, column in FACTS:
        rows: list[Any] = connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
        yield from (Cell(table, key, column, row, value) for row, value in rows if value is not None)


def all_flips(found: list[Cell], part: int) -> list[tuple[Cell, int]]:
    numbers = {cell.value for cell in found if cell.column == cell.key}
    return [
        (cell, bit)
        for cell in found
        for bit in range(cell.bits)
        if cell.column != cell.key or cell.flipped(bit) not in numbers  # the engine itself refuses a number twice
    ][part::PARTS]


def notices(ledger: Ledger) -> bool:
    try:
        return any(True for _ in ledger.verify(views=False))
    except WeftError:
        return True


def tells_the_truth(ledger: Ledger, truth: Answers) -> bool:
    """No message that a reader gets differs from what was written; refusing to answer is no lie."""
    try:
        return {**answers(ledger), "facts": None} == {**truth, "facts": None}
    except Damaged:
        return True


@pytest.mark.parametrize("part", points(PARTS, test=1))
def test_a_flipped_bit_of_a_fact_is_noticed(tmp_path: Path, closed: Path, part: int, record_property: Record) -> None:
    path = copy_ledger(closed, tmp_path / "ledger.db")
    connection = apsw.Connection(str(path))
    flips = share(all_flips(list(cells(connection)), part), test=100)
    with weft.open(path) as ledger:
        truth, unnoticed, lies = answers(ledger), [], []
        for i, (cell, bit) in enumerate(flips):
            changed = cell.flipped(bit)
            cell.write(connection, cell.value, changed)
            if not notices(ledger):
                unnoticed.append((cell.table, cell.row, cell.column, bit))
            if (PROVING or i % 4 == 0) and not tells_the_truth(ledger, truth):
                lies.append((cell.table, cell.row, cell.column, bit))
            cell.write(connection, changed, cell.value)
        assert (unnoticed, lies) == ([], [])
        assert not notices(ledger)
    connection.close()
    record_property("measured", f"{len(flips)} flips, all noticed")


def effect(path: Path, truth: Answers) -> str:
    """What came of a flip: nothing, a refusal by whoever opens or reads, words of `verify`; or a lie."""
    try:
        with weft.open(path) as ledger:
            try:
                if answers(ledger) == truth:
                    return "without effect"
            except WeftError:
                raise
            except Exception:  # whatever a damaged value made of itself: `verify` must know better
                return "a reader failed" if list(ledger.verify()) else "a lie"
            return "named by verify" if list(ledger.verify()) else "a lie"
    except WeftError:
        return "refused"


def truth_of(source: Path, target: Path) -> Answers:
    with weft.open(copy_ledger(source, target)) as ledger:
        assert list(ledger.verify()) == []
        return answers(ledger)


def flip_file(source: Path, suffix: str, target: Path, bit: int) -> None:
    copy_ledger(source, target)
    file = Path(f"{target}{suffix}")
    file.write_bytes(flip(file.read_bytes(), bit))


def file_bits(path: Path, suffix: str, dice: random.Random, wanted: int) -> list[int]:
    size = Path(f"{path}{suffix}").stat().st_size * 8
    return dice.sample(range(size), min(size, wanted))


@pytest.mark.slow("opens a ledger after each of many flips, and asks it everything")
@pytest.mark.parametrize(
    ("origin", "suffix", "part"), [(*file, part) for file, parts in FILE_PARTS.items() for part in range(parts)]
)
def test_a_flipped_bit_of_a_file_is_noticed_or_changes_no_answer(
    quick_path: Path, origin: str, suffix: str, part: int, request: pytest.FixtureRequest, record_property: Record
) -> None:
    source: Path = request.getfixturevalue(origin)
    target, found, lies = quick_path / "ledger.db", Counter[str](), []
    truth = truth_of(source, target)
    for bit in share(file_bits(source, suffix, chance("file", origin, suffix, part), FILE_FLIPS), test=6):
        flip_file(source, suffix, target, bit)
        came = effect(target, truth)
        found[came] += 1
        if came == "a lie":
            lies.append(bit)
    assert lies == []
    told = ", ".join(f"{found[came]} {came}" for came in EFFECTS)
    record_property("measured", f"{found.total()} flips: {told}")


def disordered(source: Path, target: Path, table: str) -> bool:
    """Flip the one bit that makes the number of a row greater than those after it; False if there is none."""
    numbers = numbers_in(source, table)
    wrong = max(n for n in numbers[:-1] if n < 64)
    wanted = [n + 64 if n == wrong else n for n in numbers]
    for at, byte in enumerate(source.read_bytes()):
        if byte == wrong:
            flip_file(source, "", target, at * 8 + 6)
            with suppress(apsw.Error):
                if numbers_in(target, table) == wanted:
                    return True
    return False


def numbers_in(path: Path, table: str) -> list[Any]:
    with closing(apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)) as connection:
        return [n for (n,) in connection.execute(f"SELECT n FROM {table} ORDER BY n").fetchall()]


@pytest.mark.parametrize("table", ["log", "content", "turn"])
def test_rows_out_of_order_are_named_and_hold_nobody_up(quick_path: Path, closed: Path, table: str) -> None:
    """Whoever goes on from the last number seen would meet the same rows for ever."""
    target, source = quick_path / "ledger.db", copy_ledger(closed, quick_path / "source.db")
    with closing(apsw.Connection(str(source))) as connection:  # so that what finds facts by their hash is made again
        for name in ("watermark", "lookup_event", "lookup_content", "lookup_bytes"):
            connection.execute(f"DELETE FROM {name}")
    assert disordered(source, target, table)
    with suppress(Damaged), weft.open(target) as ledger:
        assert list(ledger.verify())


@pytest.mark.slow("opens a ledger after each of many flips, and asks it everything")
def test_a_flipped_bit_of_the_head_file_harms_nothing(quick_path: Path, closed: Path, record_property: Record) -> None:
    target = quick_path / "ledger.db"
    truth = truth_of(closed, target)
    bits = share(file_bits(closed, "-head", chance("head"), HEAD_FLIPS), test=6)
    for bit in bits:
        flip_file(closed, "-head", target, bit)
        assert effect(target, truth) == "without effect"
    record_property("measured", f"{len(bits)} flips, the ledger opened and answered after each")
