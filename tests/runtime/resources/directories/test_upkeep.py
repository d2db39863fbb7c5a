"""Snapshots merged, read, checked, removed and handed on."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from tests.runtime.resources.directories.folders import contents, write
from weft.kernel.clock import SystemClock
from weft.kernel.errors import InUse, InvalidInput, LimitExceeded, NotFound
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.snapshot_objects import locked


@pytest.fixture
def store(quick_path: Path) -> FileStore:
    return FileStore(quick_path / "store")


@pytest.fixture
def folder(quick_path: Path) -> Path:
    place = quick_path / "work"
    place.mkdir()
    return place


LINES = "".join(f"line {number}\n" for number in range(20))


def test_changes_of_two_sides_come_together(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"text": LINES, ".gitattributes": "* merge=union\n", "run": "r", "gone": "g", "a/": b"", "c/": b""})
    base = store.snapshot(folder)
    write(folder, {"text": LINES.replace("line 1\n", "line one\n"), "ours": "o", "b/": b""})
    (folder / "run").chmod(0o700)
    (folder / "a").rmdir()
    ours = store.snapshot(folder)
    store.restore(base.id, folder)
    write(folder, {"text": LINES.replace("line 18\n", "line eighteen\n"), "theirs": "t"})
    (folder / "gone").unlink()
    (folder / "theirs").chmod(0o600)
    (folder / "c").chmod(0o700)
    theirs = store.snapshot(folder)
    merge = store.merge(base.id, ours.id, theirs.id)
    assert merge.conflicts == ()
    assert merge.id is not None
    store.restore(merge.id, quick_path / "merged")
    found = contents(quick_path / "merged")
    assert found.keys() == {b"text", b".gitattributes", b"run", b"ours", b"theirs", b"b", b"c"}
    assert found[b"text"][2].decode() == LINES.replace("line 1\n", "line one\n").replace("18\n", "eighteen\n")
    assert [found[name][1] for name in (b"run", b"theirs", b"c")] == [0o700, 0o600, 0o700]
    assert store.snapshot(quick_path / "merged").id == merge.id
    assert store.merge(base.id, ours.id, base.id).id == ours.id
    assert store.merge(base.id, base.id, theirs.id).id == theirs.id


@pytest.mark.parametrize(
    ("ours", "theirs", "path"),
    [
        ({"a": "ours"}, {"a": "theirs"}, "a"),
        ({".gitmodules": "ours"}, {".gitmodules": "theirs"}, ".gitmodules"),
        ({"new": "ours"}, {"new": "theirs"}, "new"),
        ({"x/": b""}, {"x": "a file"}, "x"),
        ({"x": "a file"}, {"x/": b""}, "x"),
    ],
)
def test_conflicts_are_listed_and_nothing_is_merged(
    store: FileStore, folder: Path, ours: dict[str, str | bytes], theirs: dict[str, str | bytes], path: str
) -> None:
    write(folder, {"a": "base", ".gitmodules": "base"})
    base = store.snapshot(folder)
    sides = []
    for files in (ours, theirs):
        write(folder, files)
        sides.append(store.snapshot(folder).id)
        store.restore(base.id, folder)
    merge = store.merge(base.id, *sides)
    assert (merge.id, [conflict.path for conflict in merge.conflicts]) == (None, [path])


def test_both_sides_set_another_mode(store: FileStore, folder: Path) -> None:
    write(folder, {"a": "base", "b": "usual"})
    base = store.snapshot(folder)
    sides = []
    for mode in (0o600, 0o640):
        (folder / "a").chmod(mode)
        sides.append(store.snapshot(folder).id)
    merge = store.merge(base.id, *sides)
    assert [(conflict.path, conflict.why) for conflict in merge.conflicts] == [("a", "mode 600 here, 640 there")]


def test_a_file_is_read_out_of_a_snapshot(store: FileStore, folder: Path) -> None:
    write(folder, {"deep/a": b"\0bytes", ".gitignore": "x\n"})
    (folder / "link").symlink_to("/etc/passwd")
    snapshot = store.snapshot(folder).id
    assert store.read(snapshot, "deep/a") == b"\0bytes"
    assert store.read(snapshot, ".gitignore") == b"x\n"
    assert store.read(snapshot, "link") == b"/etc/passwd"
    for path in ("deep", "missing", "deep/a/b", "link/x"):
        with pytest.raises(NotFound):
            store.read(snapshot, path)
    with pytest.raises(LimitExceeded):
        store.read(snapshot, "deep/a", most=3)
    for path in ("../a", ".git/config", "/etc/passwd", ""):
        with pytest.raises(InvalidInput):
            store.read(snapshot, path)


def test_changed_lines_are_told(store: FileStore, folder: Path) -> None:
    write(folder, {"a": "one\ntwo\n", "bytes": b"\0\1", "gone": "last\n", "link": "x"})
    old = store.snapshot(folder).id
    write(folder, {"a": "one\nthree\n", "bytes": b"\0\2", "new": "first\n"})
    (folder / "gone").unlink()
    changes = {change.path: change for change in store.changes(old, store.snapshot(folder).id)}
    assert store.text_diff(changes["a"]) == ["@@ -1,2 +1,2 @@", " one", "-two", "+three"]
    assert store.text_diff(changes["bytes"]) is None
    assert store.text_diff(changes["gone"]) == ["@@ -1 +0,0 @@", "-last"]
    assert store.text_diff(changes["new"]) == ["@@ -0,0 +1 @@", "+first"]
    assert [change.path for change in store.changes(None, old)] == ["a", "bytes", "gone", "link"]


def test_what_is_not_kept_is_gone_from_the_disk(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"a": "stays", "secret": "a secret that is to be erased"})
    first = store.snapshot(folder).id
    (folder / "secret").unlink()
    second = store.snapshot(folder).id
    blob = store.changes(second, first)[0].new_content
    assert store.ids() == {first, second}
    assert store.prune(lambda: [second]) == 1
    assert store.ids() == {second}
    assert store.verify(second) == []
    with pytest.raises(NotFound):
        store.read(first, "a")
    assert blob is not None
    assert not any(blob[2:] in name for _, _, names in os.walk(quick_path / "store") for name in names)
    assert store.snapshot(folder).id == second
    assert store.prune(list) == 1
    assert [
        name for _, _, names in os.walk(quick_path / "store/git/objects") for name in names if name != "packs"
    ] == []
    assert store.snapshot(folder).id == second
    assert store.verify(second) == []


def test_nothing_is_removed_while_a_snapshot_is_being_recorded(store: FileStore, folder: Path) -> None:
    write(folder, {"a": "1"})
    recorded: set[str] = set()
    with store.hold():
        snapshot = store.snapshot(folder).id
        removal = threading.Thread(target=lambda: store.prune(lambda: recorded))
        removal.start()
        assert store.snapshot(folder).id == snapshot  # others go on taking snapshots
        recorded.add(snapshot)
    removal.join()
    assert store.ids() == {snapshot}


def test_a_folder_that_somebody_has_for_himself_is_waited_for_only_so_long(quick_path: Path) -> None:
    with locked(quick_path / "lock", SystemClock()), pytest.raises(InUse):
        locked(quick_path / "lock", SystemClock(), wait_seconds=0).__enter__()


def test_packing_changes_nothing_that_is_read(store: FileStore, folder: Path) -> None:
    ids = []
    for number in range(5):
        write(folder, {"a": str(number)})
        ids.append(store.snapshot(folder).id)
    store.pack()
    assert [store.read(snapshot, "a") for snapshot in ids] == [b"0", b"1", b"2", b"3", b"4"]
    assert store.ids() == set(ids)


def test_a_snapshot_is_handed_to_another_store(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"a": "1", "deep/b": "2", "empty/": b""})
    snapshot = store.snapshot(folder).id
    file = io.BytesIO()
    store.send(snapshot, file)
    other = FileStore(quick_path / "other")
    with pytest.raises(InvalidInput, match="not the snapshot"):
        other.receive("1" * 64, io.BytesIO(file.getvalue()))
    other.receive(snapshot, io.BytesIO(file.getvalue()))
    assert other.verify(snapshot) == []
    other.restore(snapshot, quick_path / "beside")
    assert contents(quick_path / "beside") == contents(folder)
    assert snapshot in other.ids()


def test_damaged_bytes_are_found_and_never_restored(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"a": "good bytes", "b": "others"})
    snapshot = store.snapshot(folder).id
    change = next(change for change in store.changes(None, snapshot) if change.path == "a")
    assert change.new_content is not None
    place = quick_path / "store/git/objects" / change.new_content[:2] / change.new_content[2:]
    place.chmod(0o600)
    other = next(change for change in store.changes(None, snapshot) if change.path == "b").new_content
    assert other is not None
    place.write_bytes((quick_path / "store/git/objects" / other[:2] / other[2:]).read_bytes())
    assert [problem.split(":")[0] for problem in store.verify(snapshot)] == ["'a'"]
    place.unlink()
    assert len(store.verify(snapshot)) == 1


def _stored(store: Path, blob: str | None) -> Path:
    assert blob is not None
    return store / "git/objects" / blob[:2] / blob[2:]


def test_a_store_takes_over_what_it_lacks_and_only_that(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"a": "1", "deep/b": "2", "empty/": b""})
    first = store.snapshot(folder).id
    other = FileStore(quick_path / "other")
    assert store.copy_to(other).copied == 1
    write(folder, {"a": "3"})
    second = store.snapshot(folder).id
    assert store.copy_to(other).copied == 1
    packed = [path for path in (quick_path / "other/git/objects/pack").iterdir() if path.suffix == ".pack"]
    assert len(packed) == 2
    assert max(path.stat().st_size for path in packed) < 600, "the second pack holds what is new"
    assert store.copy_to(other).copied == 0
    assert other.ids() == {first, second}
    assert list(other.damaged([first, second])) == []
    other.restore(second, quick_path / "beside")
    assert contents(quick_path / "beside") == contents(folder)


def test_nothing_is_made_where_nothing_was_kept(store: FileStore, quick_path: Path) -> None:
    assert store.copy_to(FileStore(quick_path / "other")).copied == 0
    assert not (quick_path / "store").exists()
    assert not (quick_path / "other").exists()


def test_what_is_not_whole_is_left_out_and_named(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"a": "1", "same": "s"})
    first = store.snapshot(folder).id
    write(folder, {"a": "2"})
    second = store.snapshot(folder).id
    write(folder, {"a": "3"})
    third = store.snapshot(folder).id
    lost, changed = (store.changes(None, one)[0].new_content for one in (first, second))
    _stored(quick_path / "store", lost).unlink()
    place = _stored(quick_path / "store", changed)
    place.chmod(0o600)
    place.write_bytes(b"not what was stored")
    assert [(one, why[0].split(":")[0]) for one, why in store.damaged([first, second, third])] == [
        (first, "'a'"),
        (second, "'a'"),
    ]
    other = FileStore(quick_path / "other")
    copied = store.copy_to(other)
    assert (copied.copied, set(copied.damaged)) == (1, {first, second})
    assert other.ids() == {third}
    assert list(other.damaged([third])) == []


def test_shared_bytes_are_read_once_and_damage_is_told_of_each_snapshot(store: FileStore, folder: Path) -> None:
    write(folder, {"a": "1", "deep/same": "shared"})
    ids = [store.snapshot(folder).id]
    for number in (2, 3):
        write(folder, {"a": str(number)})
        ids.append(store.snapshot(folder).id)
    shared = next(one for one in store.changes(None, ids[0]) if one.path == "deep/same").new_content
    _stored(store.path, shared).unlink()
    assert [one for one, _ in store.damaged(ids)] == ids


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_cannot_be_written_to_is_read(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"a": "1"})
    snapshot = store.snapshot(folder).id
    closed = [place for place in (store.path, *store.path.rglob("*")) if not place.is_symlink()]
    modes = {place: place.stat().st_mode for place in closed}
    try:
        for place, mode in modes.items():
            place.chmod(mode & 0o555)
        other = FileStore(quick_path / "other")
        assert FileStore(store.path).copy_to(other).copied == 1
    finally:
        for place, mode in modes.items():
            place.chmod(mode)
    assert other.read(snapshot, "a") == b"1"
