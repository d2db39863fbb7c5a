"""Whole snapshots: git's folders with their objects, and ignored files, kept and given back."""

from __future__ import annotations

import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.runtime.resources.directories.folders import write
from tests.runtime.sandbox.repositories import make_repository, person_git
from weft.kernel.clock import SystemClock
from weft.kernel.errors import InvalidInput, LimitExceeded, NotFound, Unsupported
from weft.runtime.folder_snapshots import git_objects, whole_folders
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.folder_scan import FolderScan, FolderTaking
from weft.runtime.folder_snapshots.git_objects import GitObjects
from weft.runtime.folder_snapshots.known_files import Table
from weft.runtime.folder_snapshots.snapshot_objects import FolderRestore, SkipReason, SnapshotLimit
from weft.runtime.sandbox.git_view import writable_git_folders
from weft.store.private_files import new_file


def nothing(path: str) -> bool:
    return False


@pytest.fixture
def store(quick_path: Path) -> FileStore:
    return FileStore(quick_path / "store")


@pytest.fixture
def folder(quick_path: Path) -> Path:
    """A repository with three commits, a tag with words, and something staged."""
    place = make_repository(quick_path / "work", files={"a.txt": "one\n", ".gitignore": "*.db\nbig/\n"})
    for text in ("two\n", "three\n"):
        (place / "a.txt").write_text(text)
        person_git(place, "commit", "-qam", text.strip())
    person_git(place, "tag", "-a", "-m", "words", "v1")
    write(place, {"staged.txt": "staged\n", "rows.db": "rows", "new.txt": "new"})
    person_git(place, "add", "staged.txt")
    return place


def keep(store: FileStore, folder: Path, is_withheld: Callable[[str], bool] = nothing) -> str:
    return store.snapshot_whole(folder, writable_git_folders, is_withheld).id


def give_back(store: FileStore, snapshot: str, folder: Path) -> FolderRestore:
    return store.restore_whole(snapshot, folder, writable_git_folders)


def history(folder: Path) -> list[str]:
    assert person_git(folder, "fsck", "--full", "--no-dangling") == ""
    words = ("log --all --format=%H%d", "reflog --all", "show-ref", "diff --cached --stat", "status --porcelain")
    return [person_git(folder, *line.split()) for line in words]


def forget(folder: Path) -> None:
    """As an agent does it: nothing that was committed is found any longer."""
    person_git(folder, "reset", "-q", "--hard", "HEAD~2")
    person_git(folder, "tag", "-d", "v1")
    person_git(folder, "reflog", "expire", "--expire=now", "--all")
    person_git(folder, "gc", "-q", "--prune=now")


def test_a_repository_is_given_back_with_objects_that_were_thrown_away(store: FileStore, folder: Path) -> None:
    before, snapshot = history(folder), keep(store, folder)
    forget(folder)
    (folder / "rows.db").write_text("none")
    assert give_back(store, snapshot, folder).left == ()
    assert history(folder) == before
    assert (folder / "rows.db").read_text() == "rows"
    assert store.verify(snapshot) == []


def test_a_repository_of_the_other_hash_is_too(store: FileStore, quick_path: Path) -> None:
    place = quick_path / "new"
    place.mkdir()
    person_git(place, "init", "-q", "-b", "main", "--object-format=sha256")
    for text in ("one", "two"):
        write(place, {"a.txt": text})
        person_git(place, "add", "a.txt")
        person_git(place, "commit", "-qm", text)
    before, snapshot = history(place), keep(store, place)
    shutil.rmtree(place / ".git" / "objects")
    give_back(store, snapshot, place)
    assert history(place) == before


@pytest.mark.slow("packs megabytes that cannot be compressed")
def test_what_was_kept_before_is_not_packed_again(store: FileStore, folder: Path) -> None:
    first = keep(store, folder)
    assert keep(store, folder) == first
    size = sum(path.stat().st_size for path in store.path.rglob("*") if path.is_file())
    os.chmod(folder / "a.txt", 0o644)
    (folder / "random.bin").write_bytes(os.urandom(2_000_000))
    person_git(folder, "add", "-f", "random.bin")
    person_git(folder, "commit", "-qm", "large")
    keep(store, folder)
    (folder / "a.txt").write_text("four\n")
    person_git(folder, "commit", "-qam", "small")
    last, before = keep(store, folder), history(folder)
    grown = sum(path.stat().st_size for path in store.path.rglob("*") if path.is_file()) - size
    assert grown < 2 * 2_000_000 + 500_000, "the large file, as a file and as an object, once each"
    forget(folder)
    give_back(store, last, folder)
    assert history(folder) == before


def test_a_keeping_that_is_killed_between_any_two_of_its_files_loses_no_object(
    store: FileStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, folder)
    person_git(folder, "commit", "-qm", "four")
    before = history(folder)

    @contextmanager
    def killed_behind(path: Path) -> Iterator[BinaryIO]:
        with new_file(path) as file:
            yield file
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(git_objects, "new_file", killed_behind)
        with pytest.raises(KeyboardInterrupt):
            keep(store, folder)
    snapshot = keep(store, folder)
    forget(folder)
    give_back(store, snapshot, folder)
    assert history(folder) == before


class WaitingClock(SystemClock):
    """Tells of the first wait."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.waits.set()
        super().sleep(seconds)


def test_two_working_trees_are_kept_one_after_the_other(
    store: FileStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share the objects, and what is remembered of them."""
    tree = folder.with_name("tree")
    person_git(folder, "worktree", "add", "-q", "-b", "beside", str(tree))
    keep(store, folder)
    person_git(folder, "commit", "-qm", "four")
    clock, snapshots = WaitingClock(), list[str]()

    def keep_the_other() -> None:
        snapshots.append(keep(FileStore(store.path, clock=clock), tree))
        clock.waits.set()

    other = threading.Thread(target=keep_the_other)

    @contextmanager
    def paused_behind(path: Path) -> Iterator[BinaryIO]:
        with new_file(path) as file:
            yield file
        if not other.ident:
            write(tree, {"b.txt": "b"})
            person_git(tree, "add", "b.txt")
            person_git(tree, "commit", "-qm", "beside")
            other.start()
            clock.waits.wait()
            assert not snapshots, "it waits until what is remembered is whole"

    with monkeypatch.context() as patched:
        patched.setattr(git_objects, "new_file", paused_behind)
        keep(store, folder)
        other.join()
    before = history(tree)
    forget(tree)
    give_back(store, snapshots[0], tree)
    assert history(tree) == before


def test_of_a_second_working_tree_the_main_one_keeps_head_and_index(store: FileStore, folder: Path) -> None:
    tree = folder.with_name("tree")
    person_git(folder, "worktree", "add", "-q", "-b", "beside", str(tree))
    (tree / "b.txt").write_text("b")
    person_git(tree, "add", "b.txt")
    before, snapshot = history(tree)[2:], keep(store, tree)
    person_git(tree, "commit", "-qm", "of the agent")
    person_git(tree, "tag", "-d", "v1")
    (folder / "late.txt").write_text("the person's")
    person_git(folder, "add", "late.txt")
    assert give_back(store, snapshot, tree).left == ()
    assert history(tree)[2:] == before
    assert "late.txt" in person_git(folder, "diff", "--cached", "--name-only")


def test_of_a_subfolder_the_repository_above_is_given_back(store: FileStore, folder: Path) -> None:
    write(folder, {"deep/b.txt": "b"})
    before, snapshot = history(folder), keep(store, folder / "deep")
    forget(folder)
    give_back(store, snapshot, folder / "deep")
    assert person_git(folder, "log", "--all", "--format=%H%d") == before[0]
    assert person_git(folder, "show-ref") == before[2]


@pytest.mark.parametrize("way", ["repository", "second tree", "submodule", "shared folder of one inside"])
def test_an_undo_resets_no_repository_that_a_file_of_the_workspace_names(
    store: FileStore, folder: Path, quick_path: Path, way: str
) -> None:
    """A file says what it likes: what commands could not write is neither kept nor given back."""
    workspace = quick_path / "workspace"
    write(workspace, {"a.txt": "one\n"})
    named = folder / ".git"
    if way == "second tree":
        person_git(folder, "worktree", "add", "-q", str(quick_path / "tree"))
        named /= "worktrees/tree"
    elif way == "submodule":
        person_git(folder, "submodule", "--quiet", "add", str(folder), "sub")
        named /= "modules/sub"
    if way == "shared folder of one inside":
        write(workspace, {"sub/.git": "gitdir: ../g\n", "g/commondir": f"{named}\n", "g/HEAD": "ref: refs/heads/x\n"})
    else:
        write(workspace, {".git": f"gitdir: {named}\n"})
    snapshot = keep(store, workspace)
    (folder / "a.txt").write_text("later\n")
    person_git(folder, "commit", "-qam", "the person's later work")
    person_git(folder, "branch", "mine")
    before = history(folder)
    give_back(store, snapshot, workspace)
    assert history(folder) == before
    assert writable_git_folders(workspace) == ()


def test_submodules_and_repositories_inside_are_given_back(store: FileStore, folder: Path, quick_path: Path) -> None:
    other = make_repository(quick_path / "other", files={"c.txt": "c"})
    person_git(folder, "submodule", "-q", "add", str(other), "part")
    person_git(folder, "commit", "-qm", "a submodule")
    inner = make_repository(folder / "inner", files={"d.txt": "d"})
    before = [history(place) for place in (folder, folder / "part", inner)]
    snapshot = keep(store, folder)
    for place in (folder / ".git" / "modules" / "part", inner / ".git", folder / ".git"):
        for name in ("objects", "refs", "logs"):
            shutil.rmtree(place / name)
        for name in ("HEAD", "index"):
            (place / name).unlink()
    assert give_back(store, snapshot, folder).left == ()
    assert [history(place) for place in (folder, folder / "part", inner)] == before


def test_configuration_hooks_and_what_leads_elsewhere_stay_as_they_are(store: FileStore, folder: Path) -> None:
    snapshot = keep(store, folder)
    settings: dict[str, bytes | str] = {
        "config": "[core]\n\tbare = false\n",
        "hooks/pre-commit": "mine",
        "info/exclude": "x\n",
    }
    write(folder / ".git", settings)
    give_back(store, snapshot, folder)
    assert {name: (folder / ".git" / name).read_text() for name in settings} == settings


def test_another_stores_objects_are_neither_kept_nor_left_named(
    store: FileStore, folder: Path, quick_path: Path
) -> None:
    """A command can name any folder of the machine as one with more objects, and any id as a reference."""
    secret = make_repository(quick_path / "secret", files={"s.txt": "of somebody else"})
    clean = keep(store, folder)
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{secret}/.git/objects\n")
    person_git(folder, "update-ref", "refs/heads/theirs", person_git(secret, "rev-parse", "HEAD"))
    snapshot = keep(store, folder)
    give_back(store, clean, folder)
    assert not (folder / ".git" / "objects" / "info" / "alternates").exists()
    give_back(store, snapshot, folder)
    (folder / ".git" / "objects" / "info" / "alternates").unlink()
    wanted = person_git(secret, "rev-parse", "HEAD:s.txt")
    shutil.rmtree(secret)
    with pytest.raises(Exception, match="returned non-zero"):
        person_git(folder, "cat-file", "-p", wanted)


def test_what_git_believes_of_objects_unasked_is_removed_where_it_changed(store: FileStore, folder: Path) -> None:
    person_git(folder, "commit-graph", "write", "--reachable")
    graph = folder / ".git" / "objects" / "info" / "commit-graph"
    snapshot = keep(store, folder)
    give_back(store, snapshot, folder)
    assert graph.exists()
    graph.chmod(0o644)
    graph.write_bytes(b"forged")
    (folder / ".git" / "objects" / "pack" / "multi-pack-index").write_bytes(b"forged")
    give_back(store, snapshot, folder)
    assert not graph.exists()
    assert not (folder / ".git" / "objects" / "pack" / "multi-pack-index").exists()


def test_a_repository_whose_parts_are_links_is_not_kept(store: FileStore, folder: Path, quick_path: Path) -> None:
    shutil.move(folder / ".git" / "objects", quick_path / "objects")
    (folder / ".git" / "objects").symlink_to(quick_path / "objects")
    with pytest.raises(Unsupported, match="no repository that git made"):
        keep(store, folder)


def test_one_with_too_much_in_it_is_not_kept(store: FileStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_objects, "MOST_OBJECT_BYTES", 100)
    with pytest.raises(LimitExceeded, match="git repository"):
        keep(store, folder)


def test_ignored_files_are_kept_the_smallest_first_and_the_others_are_named(store: FileStore, folder: Path) -> None:
    write(folder, {f"big/{number}": "x" for number in range(1100)} | {"secret.db": "s", "sub/more.db": "more"})
    (folder / "huge.db").write_bytes(bytes(17 * 1024 * 1024))
    taken = store.snapshot_whole(folder, writable_git_folders, lambda path: path == "secret.db")
    assert [(one.path, one.why) for one in taken.skipped] == [
        ("big/", SkipReason.IGNORED),
        ("huge.db", SkipReason.IGNORED),
    ]
    for path in ("secret.db", "sub/more.db", "huge.db", "big/1"):
        (folder / path).write_text("changed")
    (folder / "later.db").write_text("later")
    assert give_back(store, taken.id, folder).left == ()
    texts = {path: (folder / path).read_text() for path in ("secret.db", "sub/more.db", "huge.db", "big/1", "later.db")}
    assert texts == {
        **dict.fromkeys(("secret.db", "huge.db", "big/1"), "changed"),
        "sub/more.db": "more",
        "later.db": "later",
    }


def test_an_ignored_file_is_not_replaced_that_nothing_kept(store: FileStore, folder: Path) -> None:
    """It was kept in the snapshot that is given back; what lies beside it has become too large since."""
    write(folder, {"big/out": "kept", "big/same": "same"})
    taken = store.snapshot_whole(folder, writable_git_folders, nothing)
    write(folder, {"big/out": "changed"} | {f"big/{number}": "x" for number in range(1100)})
    done = give_back(store, taken.id, folder)
    ((path, why),) = [(one.path, one.why) for one in done.left]
    assert path == "big/out"
    aside = why.removeprefix("what stood in its place is '").removesuffix("' now")
    assert (folder / "big" / aside).read_text() == "changed"
    assert [(folder / "big" / name).read_text() for name in ("out", "same", "7")] == ["kept", "same", "x"]


def test_files_that_are_compared_know_nothing_of_the_rest(store: FileStore, folder: Path) -> None:
    plain, whole = store.snapshot(folder).id, keep(store, folder)
    assert plain != whole
    assert store.changes(plain, whole) == []
    store.restore(whole, folder.with_name("copy"))
    assert sorted(os.listdir(folder.with_name("copy"))) == [".gitignore", "a.txt", "new.txt", "staged.txt"]


def test_a_copy_of_the_store_has_it_all(store: FileStore, folder: Path, quick_path: Path) -> None:
    before, snapshot = history(folder), keep(store, folder)
    other = FileStore(quick_path / "other-store")
    store.copy_to(other)
    shutil.rmtree(store.path)
    forget(folder)
    give_back(other, snapshot, folder)
    assert history(folder) == before


def test_what_is_missing_of_it_is_found(store: FileStore, folder: Path) -> None:
    snapshot = keep(store, folder)
    packs = sorted((store.path / "git" / "objects").glob("??/*"), key=lambda path: path.stat().st_size)
    packs[-1].unlink()
    assert store.verify(snapshot) != []
    assert [id for id, _ in store.damaged([snapshot])] == [snapshot]


def test_it_is_removed_whole_and_kept_anew(store: FileStore, folder: Path) -> None:
    before, snapshot = history(folder), keep(store, folder)
    store.prune(set)
    with pytest.raises(NotFound):
        give_back(store, snapshot, folder)
    again = keep(store, folder)
    forget(folder)
    give_back(store, again, folder)
    assert history(folder) == before


def test_what_was_seen_of_folder_and_repository_stays_when_older_snapshots_are_removed(
    store: FileStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, folder)
    (folder / "a.txt").write_text("four\n")
    person_git(folder, "commit", "-qam", "four")
    before, last = history(folder), keep(store, folder)
    assert keep(store, folder) == last  # what changed in the very tick of the first look is settled by the second
    store.prune(lambda: {last})
    assert store.ids() == {last}
    monkeypatch.setattr(GitObjects, "_pack_objects", None)
    monkeypatch.setattr(FolderTaking, "_scan_folder", None)
    assert keep(store, folder) == last, "nothing is packed or looked through again"
    plain = store.snapshot(folder).id
    assert store.verify(plain) == []
    assert store.ids() == {last, plain}
    forget(folder)
    monkeypatch.undo()
    give_back(store, last, folder)
    assert history(folder) == before


def test_what_was_seen_of_them_goes_with_the_last_snapshot(store: FileStore, folder: Path) -> None:
    keep(store, folder)
    store.prune(set)
    assert list((store.path / "folders").iterdir()) == []


def test_no_stranger_gives_a_repository(store: FileStore, folder: Path, quick_path: Path) -> None:
    snapshot, data = keep(store, folder), io.BytesIO()
    store.send(snapshot, data)
    data.seek(0)
    with pytest.raises(InvalidInput, match="it has more than files"):
        FileStore(quick_path / "other-store").receive(snapshot, data)


def test_what_a_command_adds_to_gits_folder_is_removed_and_large_files_are_named(
    store: FileStore, folder: Path
) -> None:
    write(folder / ".git", {"lfs/objects/ab/cd": "large"})
    taken = store.snapshot_whole(folder, writable_git_folders, nothing)
    assert [(one.path, one.why) for one in taken.skipped] == [(".git/lfs/", SkipReason.TOO_LARGE)]
    write(folder / ".git", {"remotes/evil": "URL: ext::sh", "branches/evil": "ext::sh", "refs/heads/evil": "0" * 40})
    give_back(store, taken.id, folder)
    assert list((folder / ".git").rglob("evil")) == []
    assert (folder / ".git" / "lfs" / "objects" / "ab" / "cd").exists()


def test_what_no_snapshot_takes_does_not_keep_its_place(
    store: FileStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command puts a pipe or a file that is too large where something is to be given back."""
    write(folder, {"deep/b.txt": "b"})
    before, snapshot = history(folder), keep(store, folder)
    for path in ("a.txt", "staged.txt", ".git/HEAD", ".git/index", "deep/b.txt"):
        (folder / path).unlink()
    (folder / "deep").rmdir()
    for path in ("a.txt", ".git/HEAD", "deep"):
        os.mkfifo(folder / path)
    for path in ("staged.txt", ".git/index", ".git/more"):
        (folder / path).write_bytes(bytes(3 * 1024 * 1024))
    small = SnapshotLimit(file_bytes=2 * 1024 * 1024, total_bytes=2**50, files=2**31)
    monkeypatch.setattr(whole_folders, "_PRESENT_LIMIT", small)
    monkeypatch.setattr(whole_folders, "STATE_LIMIT", SnapshotLimit(total_bytes=1024))
    left = give_back(store, snapshot, folder).left
    assert sorted(one.path for one in left) == sorted([f"{folder}/.git/index", "staged.txt"])
    for place in (folder, folder / ".git"):
        for aside in place.glob("*.????????????????"):
            aside.unlink()
    assert history(folder) == before
    assert (folder / "deep" / "b.txt").read_text() == "b"


def test_folders_that_a_command_closed_are_opened_all_at_once(
    store: FileStore, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root folders are closed to nobody: here the look says so of each that has no rights."""
    folder = quick_path / "many"
    write(folder, {f"{number}/a": "a" for number in range(20)})
    snapshot, looks = keep(store, folder), 0
    for number in range(20):
        (folder / str(number)).chmod(0)

    class ClosedScan(FolderScan):
        def look_at_all(self, known: Table) -> None:
            nonlocal looks
            looks += 1
            super().look_at_all(known)
            for record in self.folders.values():
                record.is_unreadable = record.mode == 0

    monkeypatch.setattr(whole_folders, "FolderScan", ClosedScan)
    assert give_back(store, snapshot, folder).left == ()
    assert looks <= 4, "two for each of two passes"
    assert sorted(path.name for path in folder.rglob("a")) == ["a"] * 20
