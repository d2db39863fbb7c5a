"""Ledgers in folders that commands are shown and cannot write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.file_clock import let_tick
from weft.runtime.sandbox import sandbox_plan
from weft.runtime.sandbox.sandbox_plan import ledger_folders


def test_ledgers_are_found_and_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "a" / ".weft" / "inner" / ".weft").mkdir(parents=True)
    (tmp_path / ".WEFT").mkdir()
    (tmp_path / "node_modules" / ".weft").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "file" / ".weft").parent.mkdir()
    (tmp_path / "file" / ".weft").touch()
    assert sorted(ledger_folders(tmp_path)) == [".WEFT", "a/.weft"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "tree"


@pytest.mark.parametrize("settled_ns", [0, 2_000_000_000])
def test_a_ledger_that_comes_later_is_found(tree: Path, monkeypatch: pytest.MonkeyPatch, settled_ns: int) -> None:
    monkeypatch.setattr(sandbox_plan, "_SETTLED_NS", settled_ns)
    (tree / "a" / "b").mkdir(parents=True)
    let_tick(tree)
    assert list(ledger_folders(tree)) == []
    (tree / "a" / "b" / ".weft").mkdir()
    let_tick(tree)
    assert list(ledger_folders(tree)) == ["a/b/.weft"]
    (tree / "a" / "b" / ".weft").rename(tree / "a" / ".weft")
    let_tick(tree)
    assert list(ledger_folders(tree)) == ["a/.weft"]
    (tree / "a").rename(tree / "gone")
    (tree / "a").mkdir()
    assert list(ledger_folders(tree)) == ["gone/.weft"]


def test_a_folder_in_which_nothing_changed_is_not_listed_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_plan, "_SETTLED_NS", 0)
    for number in range(9):
        (tree / str(number) / "inner").mkdir(parents=True)
    let_tick(tree)
    assert list(ledger_folders(tree)) == []
    listings: list[object] = []
    scandir = os.scandir

    def counted(folder: int) -> object:
        listings.append(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    assert list(ledger_folders(tree)) == []
    assert listings == []
    (tree / "3" / "inner" / "new").mkdir()
    assert list(ledger_folders(tree)) == []
    assert len(listings) == 2  # the folder, and the new one
