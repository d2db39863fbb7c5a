"""A copy that goes on is another ledger: it answers for what it holds and acknowledges the rest under its own name."""

import asyncio
import shutil
from pathlib import Path

import pytest

import weft
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import grow, problems, queries
from tests.ledger.test_inbox import answered, begun
from tests.runtime.broker.bench import InlineCrossing
from weft.exchange.sync import mark_as_copy
from weft.kernel.errors import LogCut, NotApplicable
from weft.kernel.events import Receipt
from weft.ledger.api import FinishedRun, QueueLimits, Runs
from weft.ledger.api.ledger import Ledger
from weft.runtime.broker.broker import Broker


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


@pytest.mark.slow("starts the PostgreSQL server, where it is the first to")
def test_a_turn_that_was_being_recorded_in_the_origin_is_nobodys_in_the_copy(ledger: Ledger, tmp_path: Path) -> None:
    writer = ledger.begin_turn(session="main")
    writer.message("half")
    ledger.upkeep.backup(tmp_path / "copy.db")
    with weft.open(tmp_path / "copy.db") as copy:
        assert copy.turn(writer.id).status == "failed"
        assert copy.record_turn(session="main", query="on", wait=0).parent_id is None
        assert problems(copy) == []
    assert writer.finish().session == "main"


@pytest.mark.parametrize("way", ["backup", "copy", "new name"])
def test_what_waits_and_runs_in_the_origin_is_not_answered_again_in_the_copy(
    disk: Ledger, tmp_path: Path, way: str
) -> None:
    for session in ("running", "waiting"):
        disk.inbox.admit("one", session=session, key=session)
    run, _ = begun(disk, "running")
    disk.inbox.admit("stop", session="running", mode="interrupt")
    if way == "backup":
        disk.upkeep.backup(tmp_path / "copy.db")
    elif way == "copy":
        weft.copy(disk, tmp_path / "copy.db")
    else:
        disk.upkeep.backup(tmp_path / "copy.db")
        with weft.open(tmp_path / "copy.db") as first:  # a copy whose name is given up is its origin's, too
            mark_as_copy(first)
    limits = QueueLimits(session=1)
    with weft.open(tmp_path / "copy.db") as copy:
        runs = Runs(copy)
        assert (runs.waiting(), runs.look(0, ()).next_due) == ([], None)
        running, waiting, stop = copy.inbox.list(states=["queued", "dead"])
        assert [(one.state, one.is_elsewhere) for one in (running, waiting, stop)] == [
            ("dead", False),
            ("queued", True),
            ("queued", True),
        ]
        assert (copy.turn(run.id).status, runs.standing(copy.session("running").id).open_turn) == ("failed", None)
        with pytest.raises(NotApplicable, match="no turn runs"):
            copy.inbox.interrupt("running")
        own = copy.inbox.admit("here", session="waiting", limits=limits)  # what waits elsewhere takes no room
        assert [one.id for one in runs.standing(own.session_id).queued] == [own.message]
        again = copy.inbox.send_again(waiting.id)  # a person decides that it is answered here, too
        assert [one.id for one in runs.standing(own.session_id).queued] == [own.message, again.message]
        assert copy.inbox.retry(run.id).session == "running"
        assert {one.session for one in runs.waiting()} == {copy.session(name).id for name in ("running", "waiting")}
        answered(copy, "waiting")
        assert problems(copy) == []
    assert disk.inbox.get(waiting.id).is_elsewhere is False
    assert [one.session for one in Runs(disk).waiting()] == [disk.session(name).id for name in ("running", "waiting")]
    run.record([FinishedRun()])


def test_a_key_from_before_the_copy_gives_the_receipt_and_no_answer(ledger: Ledger, tmp_path: Path) -> None:
    sent = ledger.inbox.admit("one", session="main", key="k")
    ledger.upkeep.backup(tmp_path / "copy.db")
    with weft.open(tmp_path / "copy.db") as copy:
        again = copy.inbox.admit("one", session="main", key="k")
        assert again.message == sent.message
        broker = Broker(copy, InlineCrossing())
        with pytest.raises(NotApplicable, match="waits in another ledger"):
            asyncio.run(broker.wait_for_answer(again.message, again.session_id))


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
