"""The files that are kept beside a ledger, in copies of it: `backup`, `recover --from`, `copy` and `clone`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import weft as library
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_turn_files import Desk, listed
from weft.runtime.folder_snapshots.file_store import FileStore

ONE, TWO = {"page": "one\n"}, {"page": "two\n", "more": "x\n"}


@pytest.fixture
def desk(weft: Shell, folder: Path) -> Desk:
    made = Desk(weft, folder)
    made.work(page="one\n")
    made.work(page="two\n", more="x\n")
    return made


def checked_out(desk: Desk, ledger: str, rev: str = "main") -> dict[str, str]:
    """The files of a turn, as a ledger has them."""
    place = desk.weft.folder / f"out-{len(os.listdir(desk.weft.folder))}"
    answer = desk.weft("checkout", rev, "--to", str(place), "--ledger", ledger)
    assert answer.code == 0, answer.err
    return listed(place)


def stored_blobs(store: Path) -> list[Path]:
    return [path for path in (store / "trees/git/objects").glob("??/*") if len(path.name) == 62]


def test_a_backup_has_the_files_of_turns(desk: Desk, folder: Path) -> None:
    answer = desk.weft("backup", "copy.db")
    assert answer.code == 0, answer.err
    assert "with 3 snapshots of directories" in answer.err
    for path in (folder / ".weft").iterdir():
        if path.name.endswith("-files"):
            path.rename(folder / "gone")
    assert checked_out(desk, "copy.db", "main~1") == ONE
    assert checked_out(desk, "copy.db") == TWO
    assert (folder / "copy.db-files").stat().st_mode & 0o777 == 0o700


def test_a_backup_without_files_says_so_and_where_they_are(desk: Desk, folder: Path) -> None:
    answer = desk.weft("backup", "copy.db", "--no-files")
    assert answer.code == 0, answer.err
    assert f"without the files of turns: they stay in {folder / '.weft/ledger.db-files'}" in answer.err
    refused = desk.weft("checkout", "main", "--to", "out", "--ledger", "copy.db")
    assert refused.code != 0
    assert "stored object" not in refused.err
    assert f"they were left out of this copy of {folder / '.weft/ledger.db'}" in refused.err
    assert desk.weft.json("backup", "other.db", "--no-files")["kept"]["left_out"] is True


def test_a_backup_is_put_back_with_its_files(desk: Desk, folder: Path) -> None:
    assert desk.weft("backup", "copy.db").code == 0
    desk.work(page="three\n")
    (folder / ".weft/ledger.db-files").rename(folder / "lost")
    answer = desk.weft("recover", "--from", "copy.db", "--accept")
    assert answer.code == 0, answer.err
    assert "with 3 snapshots of directories" in answer.err
    assert checked_out(desk, ".") == TWO
    assert checked_out(desk, ".", "main~1") == ONE


def test_what_is_kept_beside_stays_when_an_older_backup_is_put_back(desk: Desk, folder: Path) -> None:
    assert desk.weft("backup", "copy.db").code == 0
    desk.work(page="three\n")
    assert desk.weft("backup", "newer.db").code == 0
    assert desk.weft("recover", "--from", "copy.db", "--accept").code == 0
    assert desk.weft("recover", "--from", "newer.db", "--accept").code == 0
    assert checked_out(desk, ".") == {"page": "three\n", "more": "x\n"}


def test_a_backup_that_is_cut_short_is_no_backup_and_is_made_again(
    desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = FileStore._keep_snapshots

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FileStore, "_keep_snapshots", die)
    assert desk.weft("backup", "copy.db").code != 0
    assert not (folder / "copy.db").exists(), "what has not all its files is not there"
    monkeypatch.setattr(FileStore, "_keep_snapshots", keep)
    assert desk.weft("backup", "copy.db").code == 0
    assert checked_out(desk, "copy.db", "main~1") == ONE


def test_a_snapshot_that_is_recorded_while_the_ledger_is_copied_is_in_the_backup(
    desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying = FileStore.copy_to
    is_late = [True]

    def later(store: FileStore, other: FileStore) -> object:
        if is_late.pop():
            monkeypatch.setattr(FileStore, "copy_to", copying)
            desk.work(page="late\n")
        return copying(store, other)

    monkeypatch.setattr(FileStore, "copy_to", later)
    assert desk.weft("backup", "copy.db").code == 0
    with library.open(folder / "copy.db", read_only=True) as copy:
        kept = [one for resource in copy.resources.list() for one in copy.resources.snapshots(resource.id)]
    references = {one.external_id for one in kept}
    assert references <= FileStore(folder / "copy.db-files/trees").ids()


def test_a_backup_leaves_out_what_is_damaged_and_ends_with_1(desk: Desk, folder: Path) -> None:
    store = FileStore(folder / ".weft/ledger.db-files/trees")
    first = desk.weft.json("checkout", "main~1", "--to", "first")["snapshot_id"]
    with library.open(folder / ".weft/ledger.db", read_only=True) as ledger:
        tree = ledger.resources.snapshot(first).external_id
    assert tree is not None
    blob = store.changes(None, tree)[0].new_content
    assert blob is not None
    (store.path / "git/objects" / blob[:2] / blob[2:]).unlink()
    answer = desk.weft("backup", "copy.db")
    assert answer.code == 1
    assert f"not whole, left out: {tree}" in answer.err
    assert checked_out(desk, "copy.db") == TWO


def test_a_copy_has_the_files_of_turns(desk: Desk, folder: Path) -> None:
    answer = desk.weft("copy", ".", "copy.db")
    assert answer.code == 0, answer.err
    assert "with 3 snapshots of directories" in answer.err
    (folder / ".weft/ledger.db-files").rename(folder / "gone")
    assert checked_out(desk, "copy.db", "main~1") == ONE


def test_a_copy_that_lost_its_way_among_the_files_is_not_finished(
    desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = FileStore._keep_snapshots

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FileStore, "_keep_snapshots", die)
    assert desk.weft("copy", ".", "copy.db").code != 0
    assert "not finished" in desk.weft("log", "--ledger", "copy.db").err
    monkeypatch.setattr(FileStore, "_keep_snapshots", keep)
    assert desk.weft("copy", ".", "copy.db").code == 0
    assert desk.weft("trust", "--ledger", "copy.db").code == 0
    assert checked_out(desk, "copy.db") == TWO


def test_a_clone_has_the_files_of_turns_and_takes_what_is_new_when_it_is_run_again(desk: Desk, folder: Path) -> None:
    answer = desk.weft("clone", ".", "clone.db")
    assert answer.code == 0, answer.err
    assert "with 3 snapshots of directories" in answer.err
    assert checked_out(desk, "clone.db", "main~1") == ONE
    desk.work(page="three\n")
    again = desk.weft.json("clone", ".", "clone.db")
    assert again["kept"]["snapshots"] == 1
    assert checked_out(desk, "clone.db") == {"page": "three\n", "more": "x\n"}


def test_files_that_did_not_travel_are_said_to_be_elsewhere(desk: Desk, folder: Path) -> None:
    assert desk.weft("clone", ".", "clone.db", "--no-files").code == 0
    refused = desk.weft("checkout", "main", "--to", "out", "--ledger", "clone.db")
    assert refused.code != 0
    assert "are not here" in refused.err
    assert str(folder / ".weft/ledger.db") in refused.err
    assert not (folder / "out").exists()
    named = desk.weft("checkout", "main", "--to", "out", "--ledger", "clone.db", "--json")
    assert named.error["code"] == "files_elsewhere"
    assert desk.weft("init", "third.db").code == 0
    assert desk.weft("pull", "clone.db", "--ledger", "third.db").code == 0
    refused = desk.weft("checkout", "main", "--to", "out", "--ledger", "third.db")
    assert "are not here: the ledger …" in refused.err


def test_files_and_volumes_go_along(weft: Shell, folder: Path) -> None:
    weft.record("hello")
    (folder / "note.txt").write_text("kept\n")
    weft.json("resource", "add", "note.txt")
    snapshot = weft.json("resource", "snapshot", "note.txt")["id"]
    (folder / "note.txt").write_text("changed\n")
    answer = weft("backup", "copy.db")
    assert answer.code == 0, answer.err
    assert "1 other file" in answer.err
    (folder / ".weft/ledger.db-files").rename(folder / "gone")
    weft.json("trust", "--ledger", "copy.db")
    weft.json("resource", "restore", snapshot, "--to", "old.txt", "--ledger", "copy.db")
    assert (folder / "old.txt").read_text() == "kept\n"


def first_blob(desk: Desk, folder: Path) -> Path:
    """Where the bytes of the only file of the first turn lie."""
    store = FileStore(folder / ".weft/ledger.db-files/trees")
    tree = tree_of(desk, folder, "main~1")
    blob = store.changes(None, tree)[0].new_content
    assert blob is not None
    return store.path / "git/objects" / blob[:2] / blob[2:]


def tree_of(desk: Desk, folder: Path, rev: str) -> str:
    with library.open(folder / ".weft/ledger.db", read_only=True) as ledger:
        (kept,) = ledger.resources.snapshots_of_turn(ledger.resolve(rev))
    assert kept.external_id is not None
    return kept.external_id


def test_verify_hashes_the_kept_files(desk: Desk, folder: Path) -> None:
    answer = desk.weft("verify")
    assert (answer.code, answer.out) == (0, "no problems\n")
    assert "the kept files of 4 snapshots are whole" in answer.err
    blob = first_blob(desk, folder)
    blob.chmod(0o600)
    blob.write_bytes(b"something else")
    damaged = desk.weft.json("verify", "--facts-only")
    assert "snapshots" not in damaged
    answer = desk.weft("verify", "--files-only")
    assert answer.code == 1
    assert "files snapshot" in answer.out
    assert "'page':" in answer.out
    blob.unlink()
    found = desk.weft("verify", "--json")
    assert found.code == 1
    assert {problem["what"] for problem in found.json["problems"]} == {"files"}
    assert desk.weft("verify", "--files-only", "--views-only").code == 2


def test_verify_and_doctor_tell_lost_files_from_files_that_are_elsewhere(desk: Desk, folder: Path) -> None:
    assert desk.weft("clone", ".", "clone.db", "--no-files").code == 0
    assert desk.weft("backup", "copy.db", "--no-files").code == 0
    for copy in ("clone.db", "copy.db"):
        answer = desk.weft("verify", "--ledger", copy)
        assert answer.code == 0, answer.out
        assert "the files of 4 snapshots are not here" in answer.err
        assert desk.weft.json("verify", "--ledger", copy)["files_elsewhere"] == 4
        shown = desk.weft("resource", "show", "site", "--ledger", copy)
        assert "not here" in shown.out
        assert desk.weft("doctor", "--ledger", copy).code == 0
    assert "not here" not in desk.weft("resource", "show", "site").out
    (folder / ".weft/ledger.db-files").rename(folder / "lost")
    lost = desk.weft("verify")
    assert lost.code == 1
    assert "is not in the store of files" in lost.out
    doctor = desk.weft("doctor")
    assert doctor.code == 1
    assert "the files of 4 snapshots are not in" in doctor.out


def test_doctor_tells_of_the_store_and_of_git(desk: Desk, folder: Path) -> None:
    findings = {(one["check"], one["grade"]): one["what"] for one in desk.weft.json("doctor")["findings"]}
    assert findings["files", "good"].startswith("3 states of resources kept beside the ledger, ")
    assert "keeps the files of turns" in findings["git", "good"]
    (desk.folder / "page").write_text("nobody recorded this")
    FileStore(folder / ".weft/ledger.db-files/trees").snapshot(desk.folder)
    noted = {(one["check"], one["grade"]): one["what"] for one in desk.weft.json("doctor")["findings"]}
    assert noted["files", "note"] == "1 state kept there that no snapshot names"


def test_what_nothing_names_is_removed_when_nobody_is_at_work(desk: Desk, folder: Path) -> None:
    store = FileStore(folder / ".weft/ledger.db-files/trees")
    (desk.folder / "page").write_text("nobody recorded this")
    stray = store.snapshot(desk.folder).id
    with library.open(folder / ".weft/ledger.db") as ledger, ledger.begin_turn(session="main") as turn:
        turn.message("wait")
        answer = desk.weft("erase", "--finish")
        assert "1 kept state that no snapshot names stay: a turn or a resource is being worked on" in answer.err
        turn.finish()
    assert stray in store.ids()
    answer = desk.weft("erase", "--finish")
    assert answer.code == 0, answer.err
    assert "1 kept state that no snapshot names went" in answer.err
    assert stray not in store.ids()
    assert desk.weft("verify").code == 0
    assert checked_out(desk, ".", "main~2") == ONE


def test_a_dry_run_of_an_erasure_counts_the_snapshots_that_would_go(desk: Desk, folder: Path) -> None:
    shown = desk.weft("erase", "main~0", "--dry-run")
    assert "goes: 2 snapshots of files" in shown.out
    assert desk.weft.json("erase", "main~0", "--dry-run")["snapshots"] == 2
    assert checked_out(desk, ".") == TWO
