"""A copy that goes on is another ledger: it answers for what it holds and acknowledges the rest under its own name."""

import shutil
from pathlib import Path

import pytest

import weft
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import grow, problems, queries
from weft.kernel.errors import LogCut
from weft.kernel.events import Receipt
from weft.ledger.api.ledger import Ledger


@pytest.fixture
def copy(ledger: Ledger, tmp_path: Path) -> Path:
    """Made after one turn."""
    grow(ledger, "main", "before")
    ledger.upkeep.backup(tmp_path / "copy.db")
    return tmp_path / "copy.db"


def record(ledger: Ledger, query: str) -> Receipt:
    return ledger.record_turn(session="main", query=query).receipt


def holds(ledger: Ledger, receipt: Receipt) -> bool:
    return not list(ledger.verify(facts=False, views=False, receipt=receipt))


def replace(path: Path, backup: Path) -> None:
    """Restore as the page of backups says."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(backup, path)


def test_a_copy_that_goes_on_has_a_name_of_its_own_and_keeps_it(ledger: Ledger, copy: Path) -> None:
    with weft.open(copy) as first:
        name = first.replica
        assert name != ledger.replica
        ours, theirs = record(ledger, "here"), record(first, "there")
        assert ours.n == theirs.n
        assert not holds(ledger, theirs)
        assert not holds(first, ours)
    with weft.open(copy) as again:
        assert again.replica == name
        assert queries(again, "main") == ["before", "there"]
        assert problems(again) == []


def test_a_copy_that_is_only_read_stays_as_it_is(ledger: Ledger, copy: Path) -> None:
    with weft.open(copy, read_only=True) as reader:
        assert reader.replica == ledger.replica
        assert queries(reader, "main") == ["before"]


def test_receipts_from_before_the_copy_hold_for_both_and_for_copies_of_copies(disk: Ledger, tmp_path: Path) -> None:
    receipts, opened = [record(disk, "a")], disk
    for generation in range(3):
        target = tmp_path / f"copy{generation}.db"
        opened.upkeep.backup(target)
        opened = weft.open(target)
        assert all(holds(opened, receipt) for receipt in receipts)
        receipts.append(record(opened, "b"))
        assert holds(opened, receipts[-1])
        assert not holds(disk, receipts[-1])
    later = record(disk, "later")
    assert not holds(opened, later)


def test_a_copy_of_a_copy_that_nobody_opened_takes_a_name_too(ledger: Ledger, copy: Path, tmp_path: Path) -> None:
    with weft.open(copy, read_only=True) as reader:
        reader.upkeep.backup(tmp_path / "second.db")
    with weft.open(copy) as one, weft.open(tmp_path / "second.db") as other:
        assert len({ledger.replica, one.replica, other.replica}) == 3


def test_a_turn_that_was_being_recorded_in_the_origin_is_nobodys_in_the_copy(ledger: Ledger, tmp_path: Path) -> None:
    writer = ledger.begin_turn(session="main")
    writer.message("half")
    ledger.upkeep.backup(tmp_path / "copy.db")
    with weft.open(tmp_path / "copy.db") as copy:
        assert copy.turn(writer.id).status == "failed"
        assert copy.record_turn(session="main", query="on", wait=0).parent_id is None
        assert problems(copy) == []
    assert writer.finish().session == "main"


def test_a_lost_disk_is_replaced_by_its_backup(disk: Ledger, open_ledger: OpenLedger, tmp_path: Path) -> None:
    kept = record(disk, "kept")
    disk.upkeep.backup(tmp_path / "backup.db")
    path = Path(disk.path)
    disk.close()
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    replace(path, tmp_path / "backup.db")
    restored = open_ledger()
    assert restored.replica != disk.replica
    assert holds(restored, kept)
    grow(restored, "main", "onwards")
    assert queries(restored, "main") == ["kept", "onwards"]
    assert problems(restored) == []


def test_a_backup_that_holds_all_that_was_acknowledged_is_simply_put_back(
    disk: Ledger, open_ledger: OpenLedger, tmp_path: Path
) -> None:
    kept = record(disk, "kept")
    disk.upkeep.backup(tmp_path / "backup.db")
    disk.close()
    replace(Path(disk.path), tmp_path / "backup.db")
    restored = open_ledger()
    assert holds(restored, kept)
    grow(restored, "main", "onwards")
    restored.close()
    assert problems(open_ledger()) == []


def test_a_backup_that_lacks_something_is_put_back_once_the_loss_is_accepted(
    disk: Ledger, open_ledger: OpenLedger, tmp_path: Path
) -> None:
    kept = record(disk, "kept")
    disk.upkeep.backup(tmp_path / "backup.db")
    lost = record(disk, "lost")
    disk.close()
    replace(Path(disk.path), tmp_path / "backup.db")
    with pytest.raises(LogCut):
        open_ledger()
    restored = open_ledger(accept_rollback=True)
    name = restored.replica
    assert (holds(restored, kept), holds(restored, lost)) == (True, False)
    restored.close()
    assert open_ledger().replica == name != disk.replica
