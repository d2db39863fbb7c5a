"""What others wrote about a folder's repository: remotes with tokens in them, pointers of git, and imported claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.credentials import Maker, scanner
from tests.ledger.imported import native_turn, take
from weft.ledger.api import Ledger, SessionFilter, repository_name
from weft.surfaces.cli.trust import local_repository, trusted_repositories

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


def listed_projects(ledger: Ledger) -> dict[str, str]:
    listed = ledger.listing().sessions(SessionFilter()).sessions
    return {str(item.session.title): item.project for item in listed}


def record(ledger: Ledger, title: str, folder: str, metadata: Any = None, answer: str = "yes") -> None:
    turn = native_turn(f"turn-of-{title}", answer, started=1_000, workspace=folder, end=10)
    take(ledger, title, turn, file=f"{title}.jsonl", title=title, workspace=folder, metadata=metadata)


def remote(name: str) -> dict[str, Any]:
    return {"git": {"repository_url": f"https://github.com/{name}.git"}}


def test_an_imported_claim_moves_no_session_of_a_folder_that_lies_here(tmp_path: Path) -> None:
    plain, repository = tmp_path / "private", clone(tmp_path / "clone", "https://example.org/me/mine.git")
    alone = clone(tmp_path / "alone", "")
    below = tmp_path / "private" / "gone"
    plain.mkdir()
    folders = {str(plain): "private", str(repository): "mine", str(alone): "alone", str(below): "gone"}
    with weft.open(":memory:", repository_of=trusted_repositories(lambda: True)) as ledger:
        for number, folder in enumerate(folders):
            record(ledger, f"own-{number}", folder, answer=f"key {Maker(number).github()}")
        expected = {f"own-{number}": name for number, name in enumerate(folders.values())}
        assert listed_projects(ledger) == expected
        for number, folder in enumerate(folders):
            if folder != str(below):
                worktree = {"worktreePath": folder, "originalCwd": "/home/me/public"}
                record(ledger, f"claim-{number}", folder, {**remote("me/public"), "worktree": worktree})
                record(ledger, f"tree-{number}", folder, {"worktree": worktree})
        assert {title: name for title, name in listed_projects(ledger).items() if title in expected} == expected
        rows = {row.key for row in ledger.usage.report("project").rows}
        assert rows == {str(plain), "example.org/me/mine", str(alone), str(below)}
        secrets = {name: ledger.secrets.find(scanner=scanner(), project=name).secrets for name in ("public", "mine")}
        assert {name: len(secrets[name]) for name in secrets} == {"public": 0, "mine": 1}


def test_claims_about_a_folder_that_is_not_here_count_where_they_agree() -> None:
    shop, trees = "/home/me/shop", "/home/me/.codex/worktrees"
    tree = {"worktree": {"worktreePath": shop, "originalCwd": "/home/me/public"}}
    with weft.open(":memory:") as ledger:
        record(ledger, "plain", shop)
        record(ledger, "noted", shop, remote("me/Store"))
        record(ledger, "below", f"{shop}/web")
        record(ledger, "tree-a", f"{trees}/a/app", remote("me/store"))
        record(ledger, "tree-b", f"{trees}/b/app")
        assert set(listed_projects(ledger).values()) <= {"Store", "store"}
        assert {row.key.casefold() for row in ledger.usage.report("project").rows} == {"github.com/me/store"}
        record(ledger, "claim", shop, remote("me/public") | tree)
        record(ledger, "beside", f"{trees}/c/app", remote("me/public"))
        projects = listed_projects(ledger)
        assert [projects[title] for title in ("plain", "noted", "below", "tree-b")] == ["shop", "shop", "web", "app"]
