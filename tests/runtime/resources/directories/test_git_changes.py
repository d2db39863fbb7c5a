"""What is told of git's folders that are not what they were when a whole snapshot was taken."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.runtime.sandbox.repositories import make_repository, person_git
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.sandbox.git_view import writable_git_folders


@pytest.fixture
def store(quick_path: Path) -> FileStore:
    return FileStore(quick_path / "store")


@pytest.fixture
def folder(quick_path: Path) -> Path:
    place = make_repository(quick_path / "work", files={"a.txt": "one\n"})
    person_git(place, "branch", "-M", "main")
    person_git(place, "tag", "v1")
    return place


def keep(store: FileStore, folder: Path) -> str:
    return store.snapshot_whole(folder, writable_git_folders, lambda path: False).id


def told(store: FileStore, folder: Path, snapshot: str) -> list[str]:
    return [change.words for change in store.git_changes(snapshot, folder.resolve(), writable_git_folders)]


def commit(folder: Path, text: str) -> str:
    (folder / "a.txt").write_text(text)
    person_git(folder, "commit", "-qam", text.strip())
    return short(folder)


def short(folder: Path) -> str:
    return person_git(folder, "rev-parse", "HEAD").strip()[:8]


def test_a_commit_a_branch_and_a_checkout_are_told(store: FileStore, folder: Path) -> None:
    first, snapshot = short(folder), keep(store, folder)
    assert told(store, folder, snapshot) == []
    second = commit(folder, "two\n")
    assert told(store, folder, snapshot) == [f".git: branch main {first} -> {second}", ".git: index changed"]
    person_git(folder, "checkout", "-q", "-b", "side", "HEAD~1")
    person_git(folder, "tag", "-d", "v1")
    assert told(store, folder, snapshot) == [
        ".git: HEAD branch main -> branch side",
        f".git: branch main {first} -> {second}",
        f".git: branch side is new ({first})",
        f".git: tag v1 is gone ({first})",
    ]


def test_packing_and_looking_change_nothing_that_is_told(store: FileStore, folder: Path) -> None:
    snapshot = keep(store, folder)
    person_git(folder, "pack-refs", "--all")
    os.utime(folder / "a.txt", (1, 1))
    person_git(folder, "status")  # writes the index anew
    assert told(store, folder, snapshot) == []


def test_what_is_staged_and_repositories_that_come_and_go_are_told(store: FileStore, folder: Path) -> None:
    snapshot = keep(store, folder)
    (folder / "new.txt").write_text("new")
    person_git(folder, "add", "new.txt")
    make_repository(folder / "inner", files={"b.txt": "one\n"})
    assert told(store, folder, snapshot) == [".git: index changed", "inner/.git: the repository is new"]
    with_both = keep(store, folder)
    shutil.rmtree(folder / "inner")
    assert told(store, folder, with_both) == ["inner/.git: the repository is gone"]
