"""Reconstructions of files, in a folder and as snapshots that say what they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.exchange.conftest import take, written
from weft.kernel.enums import RestoreOutcome
from weft.kernel.errors import NotApplicable
from weft.ledger.api import Ledger
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.drivers import Drivers
from weft.runtime.resources.local_drivers import DirectoryDriver
from weft.runtime.resources.turn_files import TurnFiles, check_out_reconstruction, record_reconstruction


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    return tmp_path / "shop"


@pytest.fixture
def ledger(tmp_path: Path, shop: Path) -> Iterator[Ledger]:
    calls = [
        {"id": "1", "name": "Write", "arguments": {"path": "a", "content": "one\n"}, "result": "ok"},
        {"id": "2", "name": "Edit", "arguments": {"path": "b", "old_string": "x", "new_string": "y"}, "result": "ok"},
    ]
    turn = {"id": "t", "ask": "do", "calls": calls, "workspace": str(shop)}
    idle = {"id": "i", "ask": "hi", "answer": "yo"}
    with weft.open(tmp_path / "ledger.db") as opened:
        take(opened, written(tmp_path / "s.jsonl", {"session": "s", "workspace": str(shop)}, turn))
        take(opened, written(tmp_path / "idle.jsonl", {"session": "idle"}, idle))
        yield opened


def test_a_reconstruction_is_checked_out_beside(ledger: Ledger, tmp_path: Path) -> None:
    found = check_out_reconstruction(ledger, "s", str(tmp_path / "out"))
    assert [gap.path for gap in found.gaps] == ["b"]
    assert (tmp_path / "out" / "a").read_text() == "one\n"
    with pytest.raises(NotApplicable, match="no file of"):
        check_out_reconstruction(ledger, "idle", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_recorded_one_says_so_and_is_never_restored_over_the_workspace(
    ledger: Ledger, tmp_path: Path, shop: Path
) -> None:
    (shop / "own").write_text("mine")
    driver = DirectoryDriver(FileStore(tmp_path / "kept"))
    found = check_out_reconstruction(ledger, "s", str(tmp_path / "out"))
    snapshot = record_reconstruction(ledger, driver, found)
    assert (snapshot.is_inferred, snapshot.restorable, snapshot.run) == (True, False, found.turn)
    assert snapshot.skipped == [{"path": "b", "why": "its text before the edit is not told"}]
    assert TurnFiles(ledger, driver).snapshot_of("s").id == snapshot.id
    restore = ResourceController(ledger, Drivers(driver)).restore(snapshot)
    assert restore.outcome is RestoreOutcome.UNSUPPORTED
    assert (shop / "own").read_text() == "mine"
    TurnFiles(ledger, driver).check_out("s", str(tmp_path / "beside"))
    assert [path.name for path in (tmp_path / "beside").iterdir()] == ["a"]
    (resource,) = ledger.resources.list()
    assert resource.place == str(shop)
    assert record_reconstruction(ledger, driver, found).resource == resource.id
    TurnFiles(ledger, driver).undo("s")
    assert ledger.session("s").head is None, "the conversation alone goes back"
    assert (shop / "own").read_text() == "mine"
