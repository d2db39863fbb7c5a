"""A ledger copied to another address is the same ledger under another name, row by row."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from tests.conftest import NewPostgresLedger
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import change, exported, grow, import_into, plain_reader, problems, select
from tests.ledger.imported import rich_import
from tests.ledger.test_verifying import rich
from tests.sizes import share
from weft.kernel.errors import CopyUnfinished, FactDamaged, LedgerMissing, NotApplicable
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep import ledger_copy
from weft.ledger.upkeep.ledger_copy import LOCAL_TABLES, SIGN_IN_TABLES
from weft.ledger.upkeep.verify import VIEW_TABLES

FACTS = ("log", "content", "content_part")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


class Cut(Exception):
    """The machine went off."""


ROWS = "SELECT * FROM {} ORDER BY 1, 2"


def rows(path: str | Path, table: str) -> list[dict[str, object]]:
    return select(path, ROWS.format(table))


def same(left: str | Path, right: str | Path) -> bool:
    """But for the copies that each knows of: its origin is one more."""
    tables = {*FACTS, *VIEW_TABLES, *LOCAL_TABLES} - {"copy_made"}
    with plain_reader(left) as one, plain_reader(right) as other:
        return all(one(ROWS.format(table)) == other(ROWS.format(table)) for table in tables)


@pytest.fixture
def full(disk: Ledger) -> Ledger:
    """Rows in every table, a large content, one that no event names, and a turn under way."""
    rich(disk)
    rich_import(disk)
    big = disk.put_content([b"x" * 700_000] * 4)
    disk.record_turn(session="big", query={"content": [{"type": "text", "text": "q"}]}, response=big)
    disk.put_content(b"nobody names me")
    disk.upkeep.catch_up()
    return disk


@pytest.mark.slow("compares all rows and facts of a ledger with everything, and verifies its copy twice")
def test_a_copy_has_the_same_rows_in_every_table(full: Ledger, target: Path) -> None:
    copied = weft.copy(full, target)
    assert same(full.path, target)
    assert copied.replica != full.replica
    with weft.open(target) as copy:
        assert copy.replica == copied.replica
        assert exported(copy) == exported(full)
        assert problems(copy) == []
        assert copy.upkeep.stats()["log"] == full.upkeep.stats()["log"]
        grow(copy, "main", "goes on")
        assert problems(copy) == []


@pytest.mark.parametrize("address", ["path", "memory"])
def test_a_ledger_is_copied_by_its_address_or_open(open_ledger: OpenLedger, target: Path, address: str) -> None:
    source = open_ledger() if address == "path" else open_ledger(":memory:")
    grow(source, "main", "a", "b")
    copied = weft.copy(source.path if address == "path" else source, target)
    assert copied.events == source.upkeep.stats()["events"]
    with weft.open(target, read_only=True) as copy:
        assert exported(copy) == exported(source)


@pytest.mark.slow("copies everything to PostgreSQL and back, and verifies it")
def test_a_ledger_goes_to_another_engine_and_back(
    full: Ledger, target: Path, new_postgres_ledger: NewPostgresLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut short on the way there, and run again."""
    monkeypatch.setattr(ledger_copy, "BATCH_ROWS", 7)
    address = new_postgres_ledger().replace("weft@", "weft:hunter2@")
    receipt = full.record_turn(session="main", query="kept").receipt
    full.upkeep.catch_up()

    def cut(done: int, of: int) -> None:
        if done > of // 2:
            raise Cut

    with pytest.raises(Cut):
        weft.copy(full, address, progress=cut)
    with pytest.raises(CopyUnfinished) as unfinished:
        weft.open(address)
    assert "hunter2" not in str(unfinished.value) + unfinished.value.path
    assert "hunter2" not in weft.copy(full, address).target
    with weft.open(address) as there:
        assert problems(there) == []
        assert exported(there) == exported(full)
        assert list(there.verify(facts=False, views=False, receipt=receipt)) == []
        weft.copy(there, target)
        assert [found.check for found in weft.examine(address) if found.grade == "error"] == []
    assert same(full.path, target)


def test_receipts_of_the_origin_hold_for_its_copy(full: Ledger, target: Path) -> None:
    receipt = full.record_turn(session="main", query="kept").receipt
    weft.copy(full, target)
    later = full.record_turn(session="main", query="later").receipt
    with weft.open(target) as copy:
        assert list(copy.verify(facts=False, views=False, receipt=receipt)) == []
        assert list(copy.verify(facts=False, views=False, receipt=later)) != []


def test_imports_go_on_in_the_copy_under_the_same_names(full: Ledger, target: Path) -> None:
    weft.copy(full, target)
    with weft.open(target) as copy:
        before = copy.upkeep.stats()["events"]
        rich_import(copy)
        rich_import(full)
        assert copy.upkeep.stats()["events"] - before == full.upkeep.stats()["events"] - before


def test_a_turn_under_way_is_nobodys_in_the_copy(disk: Ledger, target: Path) -> None:
    writer = disk.begin_turn(session="main")
    writer.message("half")
    weft.copy(disk, target)
    with weft.open(target) as copy:
        assert copy.turn(writer.id).status == "failed"
        assert copy.record_turn(session="main", query="on", wait=0).parent_id is None
    assert writer.finish().session == "main"


@pytest.mark.parametrize("after", share([1, 2, 5], test=1))
def test_a_copy_that_was_cut_short_is_run_again(
    full: Ledger, target: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_copy, "BATCH_ROWS", 3)
    seen: list[tuple[int, int]] = []

    def cut(done: int, of: int) -> None:
        seen.append((done, of))
        if len(seen) == after:
            raise Cut

    with pytest.raises(Cut):
        weft.copy(full, target, progress=cut)
    for options in ({}, {"read_only": True}):
        with pytest.raises(CopyUnfinished):
            weft.open(target, **options)  # type: ignore[arg-type]
    assert "copy" in [found.check for found in weft.examine(target) if found.grade == "error"]
    grow(full, "main", "meanwhile")
    full.upkeep.catch_up()
    weft.copy(full, target, progress=lambda done, of: seen.append((done, of)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert same(full.path, target)
    with weft.open(target) as copy:
        assert problems(copy) == []


KILLED = """
import os, signal, sys, weft
from weft.ledger.upkeep import ledger_copy
ledger_copy.BATCH_ROWS = 3
calls = iter(range(9))
weft.copy(sys.argv[1], sys.argv[2], progress=lambda *_: next(calls) == 3 and os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_copy_that_was_killed_is_run_again(full: Ledger, target: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, full.path, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    weft.copy(full, target)
    assert same(full.path, target)


def test_a_content_that_came_after_its_event_shows_in_the_copy(disk: Ledger, tmp_path: Path, target: Path) -> None:
    grow(disk, "main", "a")
    facts = exported(disk).splitlines(keepends=True)
    with weft.open(tmp_path / "late.db") as late:
        import_into(late, b"".join(line for line in facts if b'"event_id"' in line))
        import_into(late, b"".join(facts))
        weft.copy(late, target)
        assert same(late.path, target)
        assert rows(late.path, "message") != []


def test_what_holds_something_is_not_copied_over(full: Ledger, target: Path, tmp_path: Path) -> None:
    with weft.open(target) as other:
        grow(other, "main", "mine")
    with pytest.raises(NotApplicable, match="not empty"):
        weft.copy(full, target)
    with pytest.raises(LedgerMissing):
        weft.copy(tmp_path / "nothing.db", tmp_path / "new.db")
    weft.open(tmp_path / "empty.db").close()
    assert weft.copy(full, tmp_path / "empty.db").events == full.upkeep.stats()["events"]
    with pytest.raises(NotApplicable, match="not empty"):
        weft.copy(full, tmp_path / "empty.db")


def test_an_unfinished_copy_of_another_ledger_is_refused(full: Ledger, target: Path) -> None:
    with weft.open(target) as other:
        grow(other, "main", "mine")
    change(target, "INSERT INTO local VALUES ('copying', 'x')")
    with pytest.raises(NotApplicable, match="another ledger"):
        weft.copy(full, target)


@pytest.mark.parametrize(
    "damage",
    share(
        [
            "UPDATE content SET bytes = CAST('forged' AS BLOB) WHERE n = 3",
            "UPDATE log SET events = CAST(replace(CAST(events AS TEXT), 'success', 'failure') AS BLOB)",
        ],
        test=1,
    ),
)
def test_a_damaged_fact_is_not_copied(full: Ledger, target: Path, damage: str) -> None:
    change(full.path, damage)
    with pytest.raises(FactDamaged):
        weft.copy(full, target)


def test_every_table_of_the_page_is_copied_made_again_or_its_own() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
    kinds = re.findall(r"^\| (`.*?`) \| (fact|immediate view|lagging view|local state) \|", page, re.M)
    tables = {name: kind for names, kind in kinds for name in re.findall(r"`(\w+)`", names)}
    packs = {"pack", "packed"}  # a copy holds every content in rows of its own
    assert {name for name, kind in tables.items() if kind == "fact"} == {*FACTS, *packs}
    own = {
        "local",
        "lease",
        "watermark",
        "copy_made",
        "secret_found",
        "outcome",
        "writes",
        "weft_schema",
        "partial_reply",
        *SIGN_IN_TABLES,
    }
    assert {name for name, kind in tables.items() if kind == "local state"} == {*LOCAL_TABLES, *own}


def test_what_is_packed_or_erased_is_copied_as_such(disk: Ledger, target: Path) -> None:
    long = "a sentence that says much the same as the one before it. " * 40
    grow(disk, "main", *(f"{i} {long}" for i in range(12)))
    large = disk.put_content(b"0123456789" * 300_000)
    disk.record_turn(session="main", query=large, response="noted")
    gone = grow(disk, "secret", "forget this")[0]
    disk.upkeep.pack("main")
    disk.erasure.erase(gone, reason="asked to")
    before = [list(disk.thread(turn.id).messages) for turn in disk.tree.heads()]
    weft.copy(disk, target)
    with weft.open(target) as copy:
        assert problems(copy) == []
        assert [list(copy.thread(turn.id).messages) for turn in copy.tree.heads()] == before
        assert b"".join(copy.read_content(large.ref)) == b"0123456789" * 300_000
        assert copy.upkeep.stats()["log"] == disk.upkeep.stats()["log"]
        assert b"forget this" not in target.read_bytes()


def test_an_empty_ledger_is_not_copied_onto_itself(disk: Ledger) -> None:
    with pytest.raises(NotApplicable, match="itself"):
        weft.copy(disk, disk.path)
