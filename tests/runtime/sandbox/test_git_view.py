"""An agent works with git in the sandbox as people do, wherever the workspace lies in a repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.runtime.sandbox.repositories import agent_does, agent_runs, make_repository, person_git
from weft.kernel.authority import SandboxFiles
from weft.runtime.sandbox.git_view import GitGuard
from weft.runtime.sandbox.profiles import SandboxProfile

WORK = """
git status --short
echo changed > file
git diff --stat
git commit -qam second
git switch -qc topic
echo more > other
git add other
git stash -q
git stash pop -q
git commit -qm third
git switch -q -
git merge -q topic
git log --format=%an:%ae:%s
"""
LOG = "Ada Person:ada@example.org:third\nAda Person:ada@example.org:second\nAda:ada@example.org:first"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository", files={"file": "one\n", "below/inner": "two\n"})


def test_ordinary_work_goes_well_in_a_repository_and_is_seen_by_the_person(repository: Path) -> None:
    assert agent_does(repository, WORK).endswith(LOG)
    assert person_git(repository, "status", "--porcelain") == ""
    assert person_git(repository, "log", "--format=%s").split() == ["third", "second", "first"]
    assert person_git(repository, "fsck", "--strict", "--no-dangling") == ""
    assert not (repository / ".git/commondir").exists()


def test_ordinary_work_goes_well_in_a_second_working_tree(repository: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere" / "tree"
    person_git(repository, "worktree", "add", "-q", "-b", "second", str(place))
    assert agent_does(place, WORK).endswith(LOG)
    assert person_git(place, "status", "--porcelain") == ""
    assert person_git(repository, "log", "--format=%s", "second").split() == ["third", "second", "first"]
    assert person_git(repository, "status", "--porcelain", "--branch") == "## main"


def test_ordinary_work_goes_well_where_the_second_working_tree_lies_in_the_workspace(repository: Path) -> None:
    person_git(repository, "worktree", "add", "-q", "-b", "second", str(repository / "tree"))
    assert agent_does(repository, f"cd tree\n{WORK}").endswith(LOG)
    assert person_git(repository / "tree", "status", "--porcelain") == ""


def test_ordinary_work_goes_well_with_a_submodule_and_in_it(repository: Path, tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library", files={"file": "library\n"})
    person_git(repository, "submodule", "--quiet", "add", str(library), "deep/module")
    person_git(repository, "commit", "-qm", "with a module")
    assert agent_does(repository, f"git submodule status\ncd deep/module\n{WORK}").endswith(LOG)
    agent_does(repository, "git status --short | grep -q deep/module; git commit -qam moved")
    assert person_git(repository, "status", "--porcelain") == ""
    assert agent_does(repository / "deep/module", "git status --short; git log --format=%s -1") == "third"
    assert not list(repository.rglob("commondir"))


def test_a_repository_without_commits_gets_its_first_one(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "empty")
    assert agent_does(
        repository, "git status --short; echo a > a; git add a; git commit -qm first; git log --format=%an"
    )
    assert person_git(repository, "log", "--format=%s") == "first"


def test_a_folder_without_git_says_so_and_can_become_a_repository(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    assert b"not a git repository" in agent_runs(folder, "git status").stderr
    agent_does(folder, "git init -q; echo a > a; git add a; git commit -qm first")
    assert person_git(folder, "log", "--format=%an %s") == "Ada Person first"
    agent_does(folder, "echo b > a; git commit -qam second")


def test_a_read_only_command_reads_the_repository(repository: Path) -> None:
    profile = SandboxProfile(files=SandboxFiles.READ_ONLY)
    outcome = agent_runs(repository, "git status --short && git log --format=%s", profile=profile)
    assert outcome.stdout == b"first\n"
    assert not (repository / ".git/commondir").exists()


def test_the_name_of_a_repository_goes_before_the_persons_own(repository: Path) -> None:
    person_git(repository, "config", "user.name", "Work Name")
    agent_does(repository, "git commit -q --allow-empty -m two")
    assert person_git(repository, "log", "-1", "--format=%an %ae") == "Work Name ada@example.org"


def test_a_commit_without_a_known_name_is_refused_as_git_refuses_it(repository: Path) -> None:
    outcome = agent_runs(repository, "git commit -q --allow-empty -m two", identity=None)
    assert b"Please tell me who you are" in outcome.stderr


def test_remotes_are_shown_without_what_opens_them(repository: Path) -> None:
    person_git(repository, "remote", "add", "origin", "https://ada:secret-token@example.org/a/b.git")
    person_git(repository, "config", "http.extraHeader", "Authorization: secret-token")
    answer = agent_does(repository, "git remote -v; cat .git/config; git config -l")
    assert "https://example.org/a/b.git" in answer
    assert "secret-token" not in answer


def test_commands_at_the_same_time_share_what_they_need_and_the_last_one_removes_it(repository: Path) -> None:
    first, second = GitGuard(repository), GitGuard(repository)
    first.close()
    assert (repository / ".git/commondir").read_text() == ".\n"
    assert person_git(repository, "rev-parse", "--git-common-dir") == str(repository / ".git")
    second.close()
    assert not (repository / ".git/commondir").exists()


def test_what_a_killed_process_left_is_removed_by_the_next_command(repository: Path) -> None:
    (repository / ".git/commondir").write_text(".\n")
    agent_does(repository, "git status")
    assert not (repository / ".git/commondir").exists()


def test_a_branch_that_is_made_from_a_remotes_follows_it(repository: Path, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other", files={"file": "one\n"})
    person_git(other, "branch", "topic/one")
    person_git(repository, "remote", "add", "origin", str(other))
    person_git(repository, "fetch", "-q", "origin")
    outcome = agent_runs(repository, "git switch topic/one && git switch -c mine origin/main")
    assert outcome.git.upstreams == ("mine", "topic/one")
    assert person_git(repository, "rev-parse", "--abbrev-ref", "topic/one@{u}") == "origin/topic/one"
    assert person_git(repository, "rev-parse", "--abbrev-ref", "mine@{u}") == "origin/main"
    assert agent_does(repository, "git rev-parse --abbrev-ref mine@{u}") == "origin/main"


def test_a_command_that_writes_the_configuration_fails_and_says_where_to_do_it(repository: Path) -> None:
    for script, code in (("git config a.b c", 4), ("git remote add origin https://example.org/a.git", 128)):
        outcome = agent_runs(repository, script)
        assert outcome.code == code
        assert "outside of it" in outcome.git.sentences(outcome.stderr)[0]


def test_settings_for_all_repositories_are_gone_and_the_result_says_where_to_set_them(repository: Path) -> None:
    for script in (
        "git config --global user.name x && git commit -q --allow-empty -m x",
        "mkdir -p ~/.config/git && touch ~/.config/git/config && git config --global a.b c",
    ):
        outcome = agent_runs(repository, script)
        assert outcome.succeeded
        (sentence,) = outcome.git.sentences(outcome.stderr)
        assert "a person sets them outside of it" in sentence
    linked = f"rm -rf ~/.config; ln -s {repository.parent} ~/.config"
    (repository.parent / "git").mkdir()
    (repository.parent / "git/config").write_text("")
    for script in ("git config --global -l; git status", linked):
        assert agent_runs(repository, script).git.sentences(b"") == []
    assert agent_does(repository, "git config --global a.b || echo unset") == "unset"


def test_ordinary_work_goes_well_in_a_subfolder_and_sees_nothing_beside_it(repository: Path) -> None:
    place = repository / "below"
    (place / "file").write_text("one\n")
    (repository / "untracked").write_text("private\n")
    person_git(repository, "add", "below")
    person_git(repository, "commit", "-qm", "a file below")
    (repository / "file").write_text("the person works here\n")
    assert agent_does(place, "git status --short") == ""
    assert agent_does(place, "ls -A ..; cat ../untracked 2>/dev/null || true").split() == [".git", "below"]
    assert "third\nAda Person:ada@example.org:second\nAda:" in agent_does(place, WORK)
    assert agent_does(
        place, "echo x > more; git add -A; git commit -qam fourth; git show --stat --format=%s"
    ).startswith("fourth")
    assert person_git(repository, "status", "--porcelain") == "M file\n?? untracked"
    assert person_git(repository, "ls-tree", "-r", "--name-only", "HEAD").split() == [
        "below/file", "below/inner", "below/more", "below/other", "file",
    ]  # fmt: skip


def test_a_branch_and_what_is_staged_in_a_subfolder_are_seen_by_the_person(repository: Path) -> None:
    person_git(repository, "branch", "other")
    agent_does(repository / "below", "git switch -qc topic; echo x > new; git add new; git rm -q inner")
    assert person_git(repository, "symbolic-ref", "HEAD") == "refs/heads/topic"
    assert person_git(repository, "status", "--porcelain").split("\n") == ["D  below/inner", "A  below/new"]
    assert agent_does(repository / "below", "git status --short").split("\n") == ["D  inner", "A  new"]


def test_a_merge_that_stops_in_a_subfolder_goes_on_in_the_next_command(repository: Path) -> None:
    place = repository / "below"
    agent_does(
        place,
        "git switch -qc a; echo a > inner; git commit -qam a; git switch -q main; echo b > inner; git commit -qam b",
    )
    assert agent_runs(place, "git merge a").code == 1
    agent_does(place, "echo both > inner; git add inner; git commit -qm merged")
    assert len(person_git(repository, "rev-list", "--parents", "-1", "HEAD").split()) == 3
    assert person_git(repository, "status", "--porcelain") == ""


def test_a_repository_above_that_is_anothers_is_not_shown(tmp_path: Path) -> None:
    above = make_repository(tmp_path / "above", files={"file": "one\n"})
    (above / "work").mkdir()
    os.chown(above / ".git", 12345, 12345)
    assert b"not a git repository" in agent_runs(above / "work", "git status").stderr


def test_a_folder_with_a_repository_in_it_can_be_moved(repository: Path) -> None:
    make_repository(repository / "vendor/inner", files={"file": "inner\n"})
    person_git(repository / "vendor/inner", "config", "alias.mine", "log")
    agent_does(repository, "mv vendor third; sleep 0.2; cd third/inner; git status; git commit -q --allow-empty -m two")
    assert person_git(repository / "third/inner", "config", "alias.mine") == "log"
    agent_does(repository, "cd third/inner; git log")
    assert not list(repository.rglob("commondir"))
