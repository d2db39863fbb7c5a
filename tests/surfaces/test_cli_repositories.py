"""The repositories of folders on this machine, and what the command line makes of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.surfaces.shell import Shell
from weft.surfaces.cli.trust import local_repository, trusted_repositories

REMOTE = '[core]\n\tbare = false\n[remote "up"]\n\turl = /srv/x.git\n[remote "origin"]\n\turl = https://t:k@example.org/me/app.git\n'


@pytest.fixture(autouse=True)
def _unremembered() -> None:
    local_repository.cache_clear()


def clone(folder: Path, config: str = REMOTE) -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text(config)
    return folder


def worktree(folder: Path, of: Path, *, pointer: str | None = None) -> Path:
    own = of / ".git" / "worktrees" / folder.name
    own.mkdir(parents=True)
    (own / "commondir").write_text("../..\n")
    (own / "gitdir").write_text(f"{folder / '.git'}\n")
    folder.mkdir(parents=True)
    (folder / ".git").write_text(pointer or f"gitdir: {own}\n")
    return folder


def test_a_folder_is_known_by_its_remote_and_else_by_its_main_folder(tmp_path: Path) -> None:
    app = clone(tmp_path / "app")
    (app / "src").mkdir()
    tree = worktree(tmp_path / "trees" / "fix", app)
    named = {local_repository(str(folder)) for folder in (app, app / "src", tree, clone(tmp_path / "copy"))}
    assert named == {"example.org/me/app"}
    lonely = clone(tmp_path / "lonely", "[core]\n")
    assert local_repository(str(lonely)) == local_repository(str(worktree(tmp_path / "far", lonely))) == str(lonely)


def test_what_is_no_repository_is_none(tmp_path: Path) -> None:
    odd = {
        "empty": b"", "words": b"hello", "binary": b"gitdir: \0\xff", "elsewhere": b"gitdir: /none/such",
        "long": b"gitdir: " + b"x" * 9000,
    }  # fmt: skip
    for name, text in odd.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / ".git").write_bytes(text)
        assert local_repository(str(tmp_path / name)) is None, name
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / ".git")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / ".git").symlink_to(clone(tmp_path / "real") / ".git")
    big = clone(tmp_path / "big", REMOTE + "#" * 300_000)
    for folder in (tmp_path / "pipe", tmp_path / "link", big, tmp_path / "none", Path("relative"), Path("//server/x")):
        assert local_repository(str(folder)) is None, folder
    assert local_repository("/a\0b") is None


def test_nothing_is_looked_at_for_a_ledger_that_is_not_trusted(tmp_path: Path) -> None:
    folder = str(clone(tmp_path / "app"))
    assert trusted_repositories(lambda: True)(folder) == "example.org/me/app"
    assert trusted_repositories(lambda: False)(folder) is None


def test_worktrees_here_are_one_project_on_the_command_line(weft: Shell, tmp_path: Path) -> None:
    app = clone(tmp_path / "app")
    tree = worktree(tmp_path / "trees" / "fix", app)
    for number, folder in enumerate((app, tree)):
        weft.record("ask", session=f"s{number}", workspace=str(folder), usage={"input_tokens": 5})
    assert [session["project"] for session in weft.json("sessions")] == ["app", "app"]
    (row,) = weft.json("usage", "--by", "project")["rows"]
    assert (row["key"], row["total"]) == ("example.org/me/app", 10)
    assert len(weft.json("search", "ask", "--project", "app", "--role", "user")) == 2
    assert len(weft.json("search", "ask", "--project", str(tree), "--role", "user")) == 2
    (project,) = weft.json("story")["projects"]
    assert (project["name"], project["path"], len(project["sessions"])) == ("app", "example.org/me/app", 2)
