"""A backup takes the place of a ledger; what lay there is moved aside, and the head file knows what is missing."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import grow, problems, queries
from weft.kernel.errors import InUse, LedgerMissing, LogCut, NotALedger, NotApplicable, StoreError, Unsupported
from weft.ledger.api.ledger import Ledger
from weft.store.private_files import sync
from weft.store.sqlite import examination
from weft.store.sqlite.connection import write_copy


@pytest.fixture
def backup(disk: Ledger, tmp_path: Path) -> Path:
    """Of a ledger with one turn, which went on for another and was closed."""
    grow(disk, "main", "kept")
    disk.upkeep.backup(tmp_path / "backup.db")
    return tmp_path / "backup.db"


def test_a_lost_ledger_is_brought_back(disk: Ledger, backup: Path, path: Path, open_ledger: OpenLedger) -> None:
    disk.close()
    path.unlink()
    before = backup.read_bytes()
    restored = weft.restore(backup, path)
    assert restored.replaced is None
    assert backup.read_bytes() == before
    again = open_ledger()
    assert queries(again, "main") == ["kept"]
    grow(again, "main", "onwards")
    assert problems(again) == []


def test_what_lay_there_is_moved_aside_with_its_log(
    disk: Ledger, backup: Path, path: Path, tmp_path: Path, open_ledger: OpenLedger
) -> None:
    grow(disk, "main", "newer")
    state = tmp_path / "killed"
    state.mkdir()
    for file in tmp_path.glob("ledger.db*"):
        shutil.copy(file, state / file.name)
    restored = weft.restore(backup, state / "ledger.db")
    assert restored.replaced is not None
    assert Path(restored.replaced + "-wal").exists()
    with pytest.raises(LogCut):
        open_ledger(state / "ledger.db")
    accepted = open_ledger(state / "ledger.db", accept_rollback=True)
    assert queries(accepted, "main") == ["kept"]
    with weft.open(restored.replaced, read_only=True) as replaced:
        assert queries(replaced, "main") == ["kept", "newer"]


def test_a_ledger_in_use_is_left_alone(disk: Ledger, backup: Path, path: Path) -> None:
    with pytest.raises(InUse):
        weft.restore(backup, path)
    grow(disk, "main", "undisturbed")
    assert problems(disk) == []
    assert [file.name for file in path.parent.glob("*.replaced*")] == []


def test_a_ledger_that_somebody_writes_to_is_no_backup(
    disk: Ledger, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(disk, "main", "a")

    def disturbed(*arguments: Any) -> None:
        write_copy(*arguments)
        grow(disk, "main", "meanwhile")

    monkeypatch.setattr(examination, "write_copy", disturbed)
    with pytest.raises(InUse):
        weft.restore(path, tmp_path / "other.db")
    assert not list(tmp_path.glob("other.db.*"))


def test_what_is_no_backup_is_refused(disk: Ledger, backup: Path, path: Path, tmp_path: Path) -> None:
    disk.close()
    (tmp_path / "text.db").write_text("not a database")
    (tmp_path / "empty.db").touch()
    for name, kind in (("none.db", LedgerMissing), ("text.db", NotALedger), ("empty.db", LedgerMissing)):
        with pytest.raises(kind):
            weft.restore(tmp_path / name, path)
    with pytest.raises(NotApplicable):
        weft.restore(path, path)
    with pytest.raises(Unsupported):
        weft.restore(backup, "postgresql://host/db")
    with pytest.raises(StoreError):
        weft.restore(backup, tmp_path / "no" / "folder.db")
    assert path.exists()


def test_a_log_that_was_left_behind_follows_its_database(disk: Ledger, backup: Path, path: Path) -> None:
    """As whoever was killed between the two leaves them."""
    disk.close()
    moved = path.rename(f"{path}.replaced-17")
    Path(f"{path}.replaced-2").touch()
    Path(f"{path}-wal").write_bytes(b"what was said last")
    assert weft.restore(backup, path).replaced == str(moved)
    assert Path(f"{moved}-wal").read_bytes() == b"what was said last"
    assert not Path(f"{path}-wal").exists()


def test_nothing_takes_a_ledgers_place_before_its_log_is_away_for_good(
    disk: Ledger, backup: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that are not synced may come back with the power, in any order."""
    disk.close()
    before = {found.name for found in path.parent.iterdir()}
    seen: list[set[str]] = []

    def looking(folder: Path) -> None:
        seen.append(names_in(folder))
        sync(folder)

    monkeypatch.setattr(examination, "sync", looking)
    weft.restore(backup, path)
    (at_sync,) = seen
    assert path.name not in at_sync
    assert path.name in before
    assert path.name in names_in(path.parent)


def names_in(folder: Path) -> set[str]:
    return {found.name for found in folder.iterdir()}
