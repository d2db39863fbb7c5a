"""What others wrote about a folder's repository: remotes with tokens in them, pointers of git, and imported claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.ledger.api import repository_name
from weft.surfaces.cli.repositories import local_repository

TOKEN = "glpat-abc"


@pytest.fixture(autouse=True)
def _unremembered() -> None:
    local_repository.cache_clear()


def clone(folder: Path, address: str) -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {address}\n')
    return folder


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (f"https://u:tok@git.corp.example/secret/repo.git?private_token={TOKEN}", "git.corp.example/secret/repo"),
        (f"https://git.corp.example/secret/repo.git/#{TOKEN}", "git.corp.example/secret/repo"),
        (f"git@git.corp.example:secret/repo.git?token={TOKEN}", "git.corp.example/secret/repo"),
        (f"https://git.corp.example?token={TOKEN}/repo", None),
        (f"https://u:{TOKEN}#x@git.corp.example/repo", None),
    ],
)
def test_a_token_in_a_remote_is_in_no_name(tmp_path: Path, address: str, name: str | None) -> None:
    assert repository_name(address) == name
    folder = str(clone(tmp_path / "app", address))
    assert local_repository(folder) == (name or folder)


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_a_pointer_of_git_alone_makes_a_folder_part_of_no_repository(tmp_path: Path) -> None:
    victim = clone(tmp_path / "victim", "https://example.org/me/victim.git") / ".git"
    written(victim / "worktrees" / "fix" / "commondir", "../..")
    written(victim / "worktrees" / "fix" / "gitdir", str(tmp_path / "fix" / ".git"))
    written(
        victim / "modules" / "lib" / "config",
        '[core]\n\tworktree = ../../../lib\n[remote "origin"]\n\turl = a@b.c:d/lib',
    )
    written(tmp_path / "fix" / ".git", f"gitdir: {victim / 'worktrees' / 'fix'}")
    written(tmp_path / "victim" / "lib" / ".git", "gitdir: ../.git/modules/lib")
    assert local_repository(str(tmp_path / "fix")) == "example.org/me/victim"
    assert local_repository(str(tmp_path / "victim" / "lib")) == "b.c/d/lib"

    evil = tmp_path / "evil"
    written(evil / "own" / "commondir", "../../victim/.git")
    written(evil / "own" / "gitdir", str(evil / ".git"))
    written(evil / "worktrees" / "own" / "commondir", "../../../victim/.git")
    written(evil / "worktrees" / "own" / "gitdir", str(evil / ".git"))
    pointers = ("../victim/.git", "../victim/.git/worktrees/fix", "../victim/.git/modules/lib", "own", "worktrees/own")
    for pointer in pointers:
        written(evil / ".git", f"gitdir: {pointer}")
        local_repository.cache_clear()
        assert local_repository(str(evil)) is None, pointer
