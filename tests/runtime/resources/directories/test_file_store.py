"""Snapshots of folders: what is kept, what comes back, and what is left alone."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from pathlib import Path

import pytest

from tests.runtime.resources.directories.folders import contents, write
from weft.kernel.errors import InvalidInput, LimitExceeded, NotFound, Unsupported
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.snapshot_objects import (
    ChangeStatus,
    EntryKind,
    SkipReason,
    SnapshotLimit,
    readable_path,
)
from weft.runtime.sandbox.own_git import find_git

ODD_NAMES = (
    b"new\nline",
    b"quo\"te's",
    b"\xff\xfe not utf-8",
    b".GIT",
    b".Git",
    b"git~1",
    b".git ",
    b".gitmodules",
    b".gitattributes",
    b"=equals",
    b":(top)colon",
    b"-dash",
    b"back\\slash",
    b" space ",
    b"*",
    b"\x01\x7f",
    "é".encode(),
    "e\u0301".encode(),
    b"x" * 255,
)


@pytest.fixture
def store(quick_path: Path) -> FileStore:
    return FileStore(quick_path / "store")


@pytest.fixture
def folder(quick_path: Path) -> Path:
    place = quick_path / "work"
    place.mkdir()
    return place


def test_a_folder_comes_back_byte_for_byte_beside_and_in_place(
    store: FileStore, folder: Path, quick_path: Path
) -> None:
    write(folder, {"a.txt": "one", "deep/er/b.bin": bytes(range(256)), "empty/inner/": b"", "nothing": b""})
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o750)
    (folder / "secret").write_text("s")
    (folder / "secret").chmod(0o600)
    (folder / "deep").chmod(0o700)
    (folder / "link").symlink_to("a.txt")
    (folder / "dangling").symlink_to("/no/such/place")
    (folder / "up").symlink_to("..")
    before = contents(folder)
    snapshot = store.snapshot(folder)
    assert (snapshot.files, snapshot.skipped) == (8, ())

    store.restore(snapshot.id, quick_path / "beside")
    assert contents(quick_path / "beside") == before

    write(folder, {"a.txt": "two", "new/file": "x", "new/empty/": b""})
    (folder / "run.sh").unlink()
    (folder / "secret").chmod(0o644)
    (folder / "link").unlink()
    (folder / "link").mkdir()
    (folder / "deep/er/b.bin").unlink()
    (folder / "deep/er").rmdir()
    (folder / "deep/er").write_text("a file now")
    after = contents(folder)
    done = store.restore(snapshot.id, folder)
    assert (contents(folder), done.left) == (before, ())
    assert store.snapshot(folder).id == snapshot.id

    store.restore(done.before, folder)
    assert contents(folder) == after


def test_odd_names_and_names_that_mean_something_to_git_are_kept(
    store: FileStore, folder: Path, quick_path: Path
) -> None:
    top = os.fsencode(folder)
    for name in ODD_NAMES:
        with open(os.path.join(top, name), "wb") as file:
            file.write(b"* filter=evil\n" + name)
    os.mkdir(os.path.join(top, b".gIT"))
    with open(os.path.join(top, b".gIT", b"config"), "wb") as file:
        file.write(b"[core]\n")
    before = contents(folder)
    snapshot = store.snapshot(folder)
    assert snapshot.files == len(ODD_NAMES) + 1
    store.restore(snapshot.id, quick_path / "beside")
    assert contents(quick_path / "beside") == before
    assert store.snapshot(folder).id == store.snapshot(quick_path / "beside").id == snapshot.id
    shown = {readable_path(change.path) for change in store.changes(None, snapshot.id)}
    assert {"\\xff\\xfe not utf-8", "é", "new\nline"} <= shown


def test_the_same_state_has_the_same_id_whatever_came_before(store: FileStore, folder: Path) -> None:
    write(folder, {"a": "1", "b/c": "2"})
    first = store.snapshot(folder)
    assert store.snapshot(folder) == first
    write(folder, {"a": "3"})
    assert store.snapshot(folder).id != first.id
    write(folder, {"a": "1"})
    assert store.snapshot(folder) == first


def test_a_change_that_keeps_size_and_time_is_seen(store: FileStore, folder: Path) -> None:
    write(folder, {"a": "one", "b": "same"})
    os.utime(folder / "a", (1, 1))
    first = store.snapshot(folder)
    for text in ("two", "six", "ten"):
        (folder / "a").write_text(text)
        os.utime(folder / "a", (1, 1))
        second = store.snapshot(folder)
        assert second.id != first.id
        first = second


def test_what_the_folder_ignores_is_neither_stored_nor_touched(store: FileStore, folder: Path) -> None:
    write(
        folder,
        {
            ".gitignore": "*.log\nbuild/\n!keep.log\n/only-here\n",
            "a.log": "ignored",
            "keep.log": "kept",
            "build/x": "ignored",
            "src/build": "a file is no folder",
            "src/only-here": "kept",
            "only-here": "ignored",
            "src/.gitignore": "*\n!*/\n!*.py\n!.gitignore\n",
            "src/deep/a.py": "kept",
            "src/deep/a.o": "ignored",
        },
    )
    first = store.snapshot(folder)
    assert {change.path for change in store.changes(store.snapshot(empty_beside(folder)).id, first.id)} == {
        ".gitignore",
        "keep.log",
        "src/.gitignore",
        "src/deep/a.py",
    }
    write(folder, {"a.log": "ignored and new", "build/y": "new", "src/deep/b.py": "goes"})
    store.restore(first.id, folder)
    assert (folder / "a.log").read_text() == "ignored and new"
    assert (folder / "build/y").exists()
    assert not (folder / "src/deep/b.py").exists()


def empty_beside(folder: Path) -> Path:
    place = folder.parent / "nothing"
    place.mkdir(exist_ok=True)
    return place


def test_new_rules_change_what_is_kept_and_a_restore_overwrites_nothing_that_they_ignore(
    store: FileStore, folder: Path
) -> None:
    write(folder, {"a.dat": "one", "b": "two"})
    first = store.snapshot(folder)
    write(folder, {".gitignore": "*.dat\n"})
    second = store.snapshot(folder)
    assert [(change.path, change.status) for change in store.changes(first.id, second.id)] == [
        (".gitignore", ChangeStatus.ADDED),
        ("a.dat", ChangeStatus.DELETED),
    ]
    assert store.restore(first.id, folder).left == ()  # what is ignored is what the snapshot has
    write(folder, {".gitignore": "*.dat\n", "a.dat": "ignored, and other bytes"})
    done = store.restore(first.id, folder)
    assert [left.path for left in done.left] == ["a.dat"]
    assert (folder / "a.dat").read_text() == "ignored, and other bytes"


def test_large_special_and_vanishing_files_are_listed_and_left(store: FileStore, folder: Path) -> None:
    write(folder, {"small": "x", "large": b"y" * 2000})
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    limit = SnapshotLimit(file_bytes=1000)
    snapshot = store.snapshot(folder, limit=limit)
    assert {skipped.path: skipped.why for skipped in snapshot.skipped} == {
        "large": SkipReason.TOO_LARGE,
        "pipe": SkipReason.SPECIAL,
        "socket": SkipReason.SPECIAL,
    }
    write(folder, {"small": "other"})
    assert store.restore(snapshot.id, folder, limit=limit).left == ()
    assert sorted(os.listdir(folder)) == ["large", "pipe", "small", "socket"]
    write(folder, {"large": "short now"})
    assert "large" not in {skipped.path for skipped in store.snapshot(folder, limit=limit).skipped}


def test_a_folder_over_the_limits_in_all_is_refused(store: FileStore, folder: Path) -> None:
    write(folder, {"a": b"x" * 600, "b": b"x" * 600})
    with pytest.raises(LimitExceeded, match="the bytes in the folder"):
        store.snapshot(folder, limit=SnapshotLimit(total_bytes=1000))
    with pytest.raises(LimitExceeded, match="the files and folders"):
        store.snapshot(folder, limit=SnapshotLimit(files=2))


def test_only_some_paths_are_restored(store: FileStore, folder: Path) -> None:
    write(folder, {"a": "1", "b/c": "1", "b/d": "1"})
    first = store.snapshot(folder)
    (folder / "b/c").unlink()
    (folder / "b/d").unlink()
    (folder / "b").rmdir()
    write(folder, {"a": "2", "b": "a file"})
    store.restore(first.id, folder, only=["b/c"])
    assert contents(folder).keys() == {b"a", b"b", b"b/c"}
    assert (folder / "a").read_text() == "2"
    for path in ("", "../a", "/a", "b//c", ".git/config", "b/\0"):
        with pytest.raises(InvalidInput):
            store.restore(first.id, folder, only=[path])


@pytest.mark.parametrize("how", ["written", "replaced", "linked"])
def test_what_changes_while_the_folder_is_restored_is_left_and_told(folder: Path, quick_path: Path, how: str) -> None:
    def change_at_the_last_moment(count: int) -> bytes:
        if how == "written":
            write(folder, {"a": "somebody wrote this just now"})
        else:
            (folder / "a").rename(folder / "moved")
            write(folder, {"a": "another file"}) if how == "replaced" else (folder / "a").symlink_to("moved")
        return os.urandom(count)

    store = FileStore(quick_path / "store", random=change_at_the_last_moment)
    write(folder, {"a": "one", "b": "1"})
    first = store.snapshot(folder).id
    write(folder, {"a": "two", "b": "1"})
    done = store.restore(first, folder)
    assert [(left.path, left.why) for left in done.left] == [("a", "it changed while the folder was restored")]
    expected = {"written": "somebody wrote this just now", "replaced": "another file", "linked": "two"}
    assert (folder / "a").read_text() == expected[how]
    assert not [name for name in os.listdir(folder) if name.startswith(".weft")]


def test_changes_name_kinds_and_modes(store: FileStore, folder: Path) -> None:
    write(folder, {"same": "s", "text": "1", "mode": "m", "turns": "t", "gone/deep/file": "g", "empty/": b""})
    old = store.snapshot(folder)
    write(folder, {"text": "2", "new/deep/file": "n"})
    (folder / "mode").chmod(0o600)
    (folder / "turns").unlink()
    (folder / "turns").symlink_to("text")
    (folder / "gone/deep/file").unlink()
    (folder / "gone/deep").rmdir()
    (folder / "gone").rmdir()
    (folder / "empty").rmdir()
    new = store.snapshot(folder)
    changes = {change.path: change for change in store.changes(old.id, new.id)}
    assert {path: change.status for path, change in changes.items()} == {
        "text": ChangeStatus.MODIFIED,
        "mode": ChangeStatus.MODE,
        "turns": ChangeStatus.KIND,
        "gone/deep/file": ChangeStatus.DELETED,
        "new/deep/file": ChangeStatus.ADDED,
        "empty": ChangeStatus.DELETED,
    }
    assert (changes["mode"].old_mode, changes["mode"].new_mode) == (0o644, 0o600)
    assert (changes["turns"].old_kind, changes["turns"].new_kind) == (EntryKind.FILE, EntryKind.LINK)
    assert changes["empty"].old_kind is EntryKind.FOLDER
    assert store.changes(old.id, old.id) == []


def test_a_file_that_changes_while_it_is_read_is_read_again_by_the_next_snapshot(
    store: FileStore, folder: Path
) -> None:
    write(folder, {"log": "", "other": "o"})
    stop = threading.Event()

    def go_on_writing() -> None:
        with open(folder / "log", "r+b", buffering=0) as file:
            for number in itertools.count():
                if stop.is_set():
                    return
                file.seek(0)
                file.write(b"%020d\n" % number)

    thread = threading.Thread(target=go_on_writing)
    thread.start()
    try:
        during = [store.snapshot(folder) for _ in range(3)]
    finally:
        stop.set()
        thread.join()
    assert all(store.verify(snapshot.id) == [] for snapshot in during)
    assert store.read(store.snapshot(folder).id, "log") == (folder / "log").read_bytes()


def test_a_lost_or_damaged_cache_costs_only_time(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"a": "1", "b/c": "2"})
    first = store.snapshot(folder)
    (cache,) = (quick_path / "store" / "folders").iterdir()
    for pattern in ("head", "table-*", "index-*"):
        for damage in (lambda _: b"", lambda _: b"nonsense", lambda data: data[:-1]):
            (path,) = cache.glob(pattern)
            path.write_bytes(damage(path.read_bytes()))
            assert store.snapshot(folder) == first
    write(folder, {"a": "other"})
    store.snapshot(folder)
    for path in cache.glob("table-*"):
        path.write_bytes(b"nonsense")
    assert store.restore(first.id, folder).left == ()
    assert (folder / "a").read_text() == "1"


def test_ids_and_folders_that_are_none_are_refused(store: FileStore, folder: Path, quick_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not the id"):
        store.restore("HEAD", folder)
    with pytest.raises(NotFound):
        store.restore("0" * 64, folder)
    with pytest.raises(InvalidInput, match="cannot be opened"):
        store.snapshot(quick_path / "missing")
    with pytest.raises(InvalidInput, match="part of the store"):
        store.snapshot(quick_path / "store" / "folders")


def test_a_store_inside_the_folder_is_not_a_part_of_it(folder: Path) -> None:
    write(folder, {"a": "1"})
    store = FileStore(folder / "kept")
    assert store.snapshot(folder).files == 1
    assert store.snapshot(folder).files == 1
    assert (folder / "kept").stat().st_mode & 0o777 == 0o700


def test_without_git_or_with_an_old_one_nothing_is_kept(quick_path: Path) -> None:
    with pytest.raises(Unsupported, match="git is not installed"):
        find_git(str(quick_path))
    program = quick_path / "git"
    program.write_text("#!/bin/sh\necho git version 2.20.1\n")
    program.chmod(0o755)
    with pytest.raises(Unsupported, match=r"git 2\.20 is too old"):
        find_git(str(quick_path))


def test_git_is_found_on_the_path_where_nobody_else_can_have_put_it(quick_path: Path) -> None:
    nowhere, own, open_to_all = str(quick_path / "nowhere"), quick_path / "own", quick_path / "open"
    for folder in (own, open_to_all):
        folder.mkdir(0o755)
        (folder / "git").write_text("#!/bin/sh\necho git version 2.50.1\n")
        (folder / "git").chmod(0o755)
    open_to_all.chmod(0o777)
    assert find_git(nowhere, path=f"{open_to_all}:.::{own}") == str(own / "git")
    with pytest.raises(Unsupported, match="git is not installed"):
        find_git(nowhere, path=f"{open_to_all}")
    (own / "git").chmod(0o775)
    with pytest.raises(Unsupported, match="git is not installed"):
        find_git(nowhere, path=str(own))
