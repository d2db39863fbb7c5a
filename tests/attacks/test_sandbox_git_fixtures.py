"""A repository that brings a repository along as files, with a program in its settings, and an agent that has a
person's git obey it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.attacks.git_person import Person, tried
from tests.runtime.sandbox.repositories import make_repository, person_git

ADDED = "git update-index --add --cacheinfo 160000,$(git --git-dir=fixtures/plain rev-parse HEAD),"
SCRIPTS = {
    "a file that leads to it": f'mkdir sub; echo "gitdir: ../fixtures/plain" > sub/.git; {ADDED}sub',
    "a link that leads to it": f"mkdir sub; ln -s ../fixtures/plain sub/.git; {ADDED}sub",
    "another name": f"{ADDED}sub; mkdir sub; mv fixtures/plain sub/.git",
    "the place of another": f"{ADDED}old; mv gits away; mkdir gits; mv fixtures/plain gits/old",
    "the folder above in the place of another": f"{ADDED}old; mv gits away; mv fixtures gits; mv gits/plain gits/old",
    "a file that led to another": f"{ADDED}fixtures/new/old; mkdir fixtures/new; mv old fixtures/new; "
    "mkdir fixtures/gits; mv fixtures/plain fixtures/new/x; mv fixtures/new/x fixtures/gits/old; "
    "mv fixtures/gits fixtures/new/gits",
    "a file that led to another, and is moved alone": f"{ADDED}fixtures/old; mv old fixtures/old",
    "a second tree of it": f"{ADDED}sub; mkdir -p fixtures/plain/worktrees/e sub\n"
    "cp fixtures/plain/HEAD fixtures/plain/worktrees/e/HEAD; echo ../.. > fixtures/plain/worktrees/e/commondir\n"
    'echo "$PWD/sub/.git" > fixtures/plain/worktrees/e/gitdir; echo "gitdir: ../fixtures/plain/worktrees/e" > sub/.git',
}


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """With a repository beside, to which a file leads as in a submodule."""
    person = Person(tmp_path)
    for name in ("fixtures/plain", "gits/old"):
        made = make_repository(tmp_path / "made", files={"file": "one\n"})
        place = person.repository / name
        place.parent.mkdir()
        (made / ".git").rename(place)
        shutil.rmtree(made)
    (person.repository / "old").mkdir()
    (person.repository / "old/.git").write_text("gitdir: ../gits/old\n")
    if not (person.repository / "fixtures/gits").exists():
        (person.repository / "fixtures/plain/config").write_text(
            f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = {person.program!r}\n".replace(
                "'", '"'
            )
        )
    return person


@pytest.mark.parametrize("what", SCRIPTS)
def test_files_that_came_along_become_no_repository_of_a_person(person: Person, what: str) -> None:
    script = SCRIPTS[what]
    if what.endswith("moved alone"):  # the same name, seen from where it is then
        (person.repository / "fixtures/gits").mkdir()
        (person.repository / "fixtures/plain").rename(person.repository / "fixtures/gits/old")
        script = script.replace("fixtures/plain", "fixtures/gits/old")
    outcome = tried(person, script)
    assert outcome.succeeded, outcome.stderr
    person.ensure_unharmed()
    person.ensure_unharmed(*{place.parent for place in person.repository.rglob(".git")})


def test_files_that_came_along_would_run_if_they_were_obeyed(person: Person) -> None:
    (person.repository / "sub").mkdir()
    (person.repository / "sub/.git").write_text("gitdir: ../fixtures/plain\n")
    person.works(person.repository / "sub")
    assert person.canary.exists()


def test_files_that_came_along_stay_as_they_are_where_nothing_leads_to_them(person: Person) -> None:
    before = (person.repository / "fixtures/plain/config").read_bytes()
    outcome = tried(person, "git --git-dir=fixtures/plain log --format=%s; touch fixtures/plain/x")
    assert outcome.git.taken_away == ()
    assert (person.repository / "fixtures/plain/config").read_bytes() == before
    assert (person.repository / "old/.git").exists()
    assert person_git(person.repository / "old", "log", "--format=%s") == "first"


def test_the_folder_to_which_the_persons_own_link_leads_is_no_such(person: Person) -> None:
    folder = make_repository(person.top / "linked", files={"file": "one\n"})
    (folder / ".git").rename(folder / "own")
    (folder / ".git").symlink_to("own")
    person_git(folder, "config", "core.pager", "mine")
    (folder / "own/hooks/pre-commit").write_text("#!/bin/sh\nexit 0\n")
    (folder / "own/hooks/pre-commit").chmod(0o755)
    outcome = tried(person, "echo two > file; git status --short", folder)
    assert outcome.git.taken_away == ()
    assert (folder / ".git").is_symlink()
    assert person_git(folder, "config", "core.pager") == "mine"
    assert (folder / "own/hooks/pre-commit").exists()
