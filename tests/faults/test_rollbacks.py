"""A database that was cut, rolled back, edited or lost is noticed: by the head file, or by anybody's older receipt."""

import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import apsw
import pytest

import weft
from tests.faults import scenarios
from tests.faults.checks import answers, assert_sound, copy_ledger
from tests.faults.processes import KILLED, run
from tests.faults.scenarios import make_ledger
from weft.kernel.errors import Damaged, LogCut, WeftError
from weft.kernel.events import GENESIS, Receipt, extend
from weft.ledger.api.ledger import Ledger
from weft.surfaces.wire.hints import phrase

FILES = ("", "-wal", "-head")


def record(path: Path, times: int = 1) -> Receipt:
    """So many turns more; the receipt of the last."""
    with weft.open(path) as ledger:
        made = [ledger.record_turn(session="main", query=f"more {k}", response="yes") for k in range(times)]
    return made[-1].receipt


def bytes_of(path: Path) -> dict[str, bytes]:
    found = {suffix: Path(f"{path}{suffix}") for suffix in FILES}
    return {suffix: sha256(file.read_bytes()).digest() for suffix, file in found.items() if file.exists()}


def problems(ledger: Ledger, receipt: Receipt) -> list[str]:
    return [problem.what for problem in ledger.verify(facts=False, views=False, receipt=receipt)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "ledger.db"
    make_ledger(made).close()
    return made


def older_copy(path: Path) -> None:
    """Last week's database comes back; the head file is today's."""
    kept = path.with_name("kept.db")
    shutil.copyfile(path, kept)
    record(path, 3)
    shutil.copyfile(kept, path)


def copy_that_went_on(path: Path) -> None:
    """A backup that was continued elsewhere under a name of its own takes the place of its origin, which knew more."""
    copy = path.with_name("copy.db")
    with weft.open(path) as ledger:
        ledger.upkeep.backup(copy)
    record(path, 3)
    record(copy, 1)
    shutil.copyfile(copy, path)


def leave_log(path: Path) -> Path:
    """A new ledger whose facts lie in the write-ahead log, in place of the old one."""
    Path(f"{path}-head").unlink()
    path.unlink()
    assert run(scenarios.leave_unclosed, str(path)) == (KILLED, [])
    return Path(f"{path}-wal")


def lost_log(path: Path) -> None:
    """The write-ahead log is deleted, or the database copied without it."""
    leave_log(path).unlink()


def cut_log(path: Path) -> None:
    """The write-ahead log ends too early."""
    log = leave_log(path)
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 4096)


def lost_database(path: Path) -> None:
    path.unlink()


def emptied_database(path: Path) -> None:
    path.write_bytes(b"")


def another_ledger(path: Path) -> None:
    """A whole and sound ledger, but not the one that was acknowledged."""
    other = path.with_name("other.db")
    make_ledger(other).close()
    shutil.copyfile(other, path)


def dropped_tail(path: Path) -> None:
    """Somebody deletes the newest rows, with everything that was computed from them."""
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM log WHERE n = (SELECT max(n) FROM log)")
    connection.close()


def rewritten_history(path: Path) -> None:
    """Somebody changes the past and computes every hash after it anew."""
    connection = apsw.Connection(str(path))
    chain, renamed = GENESIS, dict[bytes, bytes]()
    for n, events in connection.execute("SELECT n, events FROM log ORDER BY n").fetchall():
        lines = [rewritten(line, renamed) for line in bytes(events).split(b"\n")]  # type: ignore[arg-type]
        chain = extend(chain, (sha256(line).digest() for line in lines))
        connection.execute("UPDATE log SET events = ?, chain = ? WHERE n = ?", (b"\n".join(lines), chain, n))
    connection.close()


def rewritten(line: bytes, renamed: dict[bytes, bytes]) -> bytes:
    """Another role, and the new ids of all earlier events in place of their old ones."""
    changed = line.replace(b'"role":"unified"', b'"role":"worker"')
    for old, new in renamed.items():
        changed = changed.replace(old, new)
    renamed[sha256(line).hexdigest().encode()] = sha256(changed).hexdigest().encode()
    return changed


FAULTS = (
    older_copy,
    copy_that_went_on,
    lost_log,
    cut_log,
    lost_database,
    emptied_database,
    another_ledger,
    dropped_tail,
    rewritten_history,
)
HOLD_IT_STILL = (older_copy, copy_that_went_on)  # the turn that was recorded before the fault


@pytest.mark.parametrize("fault", FAULTS)
def test_the_head_file_notices_it_when_the_ledger_is_opened(path: Path, fault: Callable[[Path], None]) -> None:
    fault(path)
    before = bytes_of(path)
    with pytest.raises(LogCut) as refused:
        weft.open(path)
    assert refused.value.n > 0
    assert "weft recover" in phrase(refused.value.advice)
    assert {suffix: found for suffix, found in bytes_of(path).items() if suffix in before} == before


@pytest.mark.parametrize("fault", [older_copy, cut_log, another_ledger, dropped_tail, rewritten_history])
def test_so_does_a_reader(path: Path, fault: Callable[[Path], None]) -> None:
    fault(path)
    with pytest.raises(WeftError):
        weft.open(path, read_only=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_accepted_loss_goes_on_under_a_new_name_and_everything_verifies(
    path: Path, fault: Callable[[Path], None]
) -> None:
    receipt = record(path)
    fault(path)
    with weft.open(path, accept_rollback=True) as ledger:
        assert ledger.replica != receipt.replica
        assert problems(ledger, receipt) == ([] if fault in HOLD_IT_STILL else ["receipt"])
        if fault in (dropped_tail, rewritten_history):
            ledger.upkeep.rebuild()  # what was edited by hand has views of its own
    assert_sound(path)


def test_accepting_a_loss_that_did_not_happen_changes_nothing(path: Path) -> None:
    receipt = record(path)
    with weft.open(path, accept_rollback=True) as ledger:
        assert ledger.replica == receipt.replica
        assert problems(ledger, receipt) == []


@pytest.mark.parametrize("fault", [older_copy, dropped_tail, rewritten_history, another_ledger])
def test_an_older_receipt_notices_it_where_the_head_file_is_gone_too(path: Path, fault: Callable[[Path], None]) -> None:
    receipt = record(path)
    fault(path)
    if fault is older_copy:
        receipt = Receipt(receipt.replica, receipt.n + 10, receipt.log, receipt.digest)
    Path(f"{path}-head").unlink()
    with weft.open(path) as ledger:
        assert problems(ledger, receipt) == ["receipt"]


def test_an_older_database_beneath_a_newer_log_is_noticed(path: Path) -> None:
    record(path, 30)
    kept = shutil.copyfile(path, path.with_name("kept.db"))
    record(path, 60)
    assert run(scenarios.leave_unclosed, str(path)) == (KILLED, [])
    shutil.copyfile(kept, path)
    try:
        with weft.open(path) as ledger:
            found = [problem.what for problem in ledger.verify()]
    except Damaged:
        found = ["damaged"]
    assert found


def test_a_receipt_holds_for_as_long_as_the_ledger_grows(path: Path) -> None:
    receipts = [record(path) for _ in range(5)]
    with weft.open(path) as ledger:
        assert [problems(ledger, receipt) for receipt in receipts] == [[]] * 5
        forged = Receipt(receipts[0].replica, receipts[0].n, receipts[1].log, receipts[0].digest)
        assert problems(ledger, forged) == ["receipt"]


def test_a_head_file_that_lags_behind_is_what_a_crash_leaves(path: Path) -> None:
    head = Path(f"{path}-head").read_bytes()
    receipt = record(path, 3)
    Path(f"{path}-head").write_bytes(head)
    with weft.open(path) as ledger:
        assert problems(ledger, receipt) == []
    assert_sound(path)


def test_the_head_file_is_not_needed(path: Path) -> None:
    Path(f"{path}-head").unlink()
    assert_sound(path)
    assert Path(f"{path}-head").exists()


def test_a_backup_opens_without_the_head_file_of_its_origin(path: Path) -> None:
    with weft.open(path) as ledger:
        ledger.upkeep.backup(path.with_name("backup.db"))
        before = answers(ledger)
    with weft.open(path.with_name("backup.db")) as backup:
        assert {**answers(backup), "stats": None} == {**before, "stats": None}  # it has a name of its own
        assert list(backup.verify()) == []


def test_with_any_one_slot_of_the_head_file_damaged_an_old_copy_is_still_noticed(path: Path) -> None:
    record(path, 30)
    kept = copy_ledger(path, path.with_name("kept.db"))
    record(path, 60)
    head = Path(f"{path}-head").read_bytes()
    shutil.copyfile(kept, path)
    for byte in range(0, len(head), 17):
        damaged = bytearray(head)
        damaged[byte] ^= 0xFF
        Path(f"{path}-head").write_bytes(damaged)
        with pytest.raises(LogCut):
            weft.open(path)
