"""An agent that moves git's folders, or puts links into them, so that Weft or the person's git writes elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.attacks.git_person import Person, tried
from tests.runtime.sandbox.repositories import make_repository, person_git


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.fixture
def project(person: Person) -> Path:
    """Another one of the person's, which no command is shown. Parts of it are links."""
    project = make_repository(person.home / "project", files={"a": "1"})
    person_git(project, "remote", "add", "origin", "/nowhere")
    (project / ".git/modules").symlink_to("/nowhere")
    (project / ".git/logs/refs/heads/new").write_text(
        f"{'0' * 40} {'1' * 40} a <b> 0 +0000\tbranch: Created from origin/x\n"
    )
    (project / ".git/refs/heads/new").write_text(person_git(project, "rev-parse", "HEAD"))
    return project


def test_nothing_is_changed_in_what_has_the_place_of_a_folder_now(person: Person, project: Path) -> None:
    tried(person, "git init -q n")
    files, config = sorted(project.rglob("*")), (project / ".git/config").read_bytes()
    tried(person, f"mv n moved; ln -s {project} n")
    assert sorted(project.rglob("*")) == files
    assert (project / ".git/config").read_bytes() == config


def test_a_link_in_a_folder_that_was_moved_is_taken_away(person: Person) -> None:
    mine = person.home / ".bashrc"
    mine.write_text("mine")
    make_repository(person.repository / "n", files={"a": "1"})
    tried(person, f"rm -f n/.git/COMMIT_EDITMSG; ln -s {mine} n/.git/COMMIT_EDITMSG; mv n moved")
    person_git(person.repository / "moved", "commit", "-q", "--allow-empty", "-m", "text of the commit")
    assert mine.read_text() == "mine"


def test_objects_of_a_persons_repository_lead_to_no_folder_of_theirs(person: Person) -> None:
    mine = person.home / "docs"
    mine.mkdir()
    tried(person, f"rmdir .git/objects/pack; ln -s {mine} .git/objects/pack; ln -s {mine} .git/objects/info/x")
    for number in range(256):
        assert not os.path.islink(person.repository / f".git/objects/{number:02x}")
    assert not os.path.islink(person.repository / ".git/objects/pack")
    assert not os.path.lexists(person.repository / ".git/objects/info/x")


def test_links_that_the_person_had_in_git_s_folder_stay(person: Person) -> None:
    link = person.repository / ".git/objects/ff"
    link.symlink_to(person.home)
    tried(person, "echo a > b; git add b; git -c user.name=a -c user.email=b commit -qm b")
    assert link.is_symlink()


def test_a_repository_that_is_nested_too_deep_keeps_no_other_from_being_cleaned(person: Person) -> None:
    deep = "import os; os.chdir('aa/.git/logs'); [(os.mkdir('a'), os.chdir('a')) for _ in range(1200)]"
    outcome = tried(
        person,
        f'git init -q aa; mkdir -p aa/.git/logs; python3 -c "{deep}"\n'
        'git init -q zz; git -C zz commit -q --allow-empty -m z; git -C zz config core.fsmonitor "$PROGRAM"\n'
        "git add zz",
    )
    subprocess.run(["rm", "-rf", person.repository / "aa"], check=True)
    assert outcome.git.taken_away
    person.ensure_unharmed(person.repository, person.repository / "zz")


RESOLUTIONS = """
    commit() { git -c user.name=a -c user.email=b commit -qam "$1"; }
    git switch -qc one; echo 'one # $(touch "$CANARY")' > file; commit one
    git switch -qc two main; echo two > file; commit two
    mkdir .git/rr-cache
    git -c user.name=a -c user.email=b merge -q one
    echo resolved > file
    git rerere
    git reset -q --hard
"""


def test_no_conflict_is_noted_through_a_link(person: Person) -> None:
    """Git notes a conflict in `rr-cache`, beside how it was solved before. The agent knows the name beforehand, and
    writes the text."""
    mine = person.home / ".bashrc"
    mine.write_text("mine")
    tried(
        person,
        f"CANARY={person.canary}\n{RESOLUTIONS}\n"
        f'for place in .git/rr-cache/*; do ln -s {mine} "$place/thisimage"; done',
    )
    assert list((person.repository / ".git/rr-cache").iterdir()), "git made one"
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=b", "merge", "-q", "one"],
        cwd=person.repository,
        capture_output=True,
        check=False,
    )
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("place", ["rebase-merge/done", "rebase-apply/x", "sequencer/todo", "rebase-merge/deep/x"])
@pytest.mark.parametrize("repository", [".", "n"])
def test_no_step_that_git_goes_on_with_is_a_link(person: Person, place: str, repository: str) -> None:
    mine = person.home / ".bashrc"
    mine.write_text("mine")
    tried(
        person,
        f"test -d {repository}/.git || git init -q {repository}; cd {repository}/.git\n"
        f"mkdir -p {os.path.dirname(place)}; ln -s {mine} {place}",
    )
    folder = person.repository / repository / ".git"
    assert (folder / place).parent.is_dir()
    assert not os.path.lexists(folder / place)
