"""An agent in a subfolder of a repository that reads other repositories, or has them commit what lies beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.git_person import Person, tried
from tests.runtime.sandbox.repositories import agent_does, agent_runs, make_repository, person_git


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


REPLACED = {
    "the index": "cd $(git rev-parse --git-dir) && rm index && ln -s {other}/.git/index index",
    "the whole folder": "cd $(git rev-parse --git-dir)/.. && mv own old && ln -s {other}/.git own",
    "its head": "cd $(git rev-parse --git-dir) && rm HEAD && ln -s {other}/.git/HEAD HEAD",
    "its head is gone": "rm $(git rev-parse --git-dir)/HEAD",
    "its message": "cd $(git rev-parse --git-dir) && ln -s {other}/.git/COMMIT_EDITMSG MERGE_MSG",
}


@pytest.mark.parametrize("what", REPLACED)
def test_a_link_to_another_repository_shows_nothing_of_it(person: Person, what: str) -> None:
    other = make_repository(person.top / "other", files={"a-client-of-the-person": "one\n"})
    person_git(other, "commit", "-q", "--allow-empty", "-m", "the secret message")
    place = person.repository / "below"
    tried(person, REPLACED[what].format(other=other), place)
    seen = agent_does(
        place, "git ls-files --full-name :/; cat $(git rev-parse --git-dir)/MERGE_MSG 2>/dev/null || true"
    )
    assert seen.split() == ["below/inner", "file"]
    assert person_git(person.repository, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert person_git(person.repository, "ls-files").split() == ["below/inner", "file"]
    assert person_git(person.repository, "status", "--porcelain") == ""


EVIL = "blob=$(echo evil | git hash-object -w --stdin)\n"
STAGED = {
    "a file that is there": EVIL + "git update-index --cacheinfo 100644,$blob,file",
    "a new one": EVIL + "git update-index --add --cacheinfo 100644,$blob,.github/workflows/x.yml",
    "a removal": "git rm -q --cached --sparse ../file",
    "a repository": "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),other",
    "one beside a commit": EVIL
    + "git update-index --cacheinfo 100644,$blob,file; echo x > inner; git commit -qm x -- inner",
    "one of a branch without a commit": EVIL
    + "git update-index --cacheinfo 100644,$blob,file; git symbolic-ref HEAD refs/heads/none",
}


@pytest.mark.parametrize("what", STAGED)
def test_nothing_beside_the_workspace_is_staged(person: Person, what: str) -> None:
    outcome = tried(person, STAGED[what], person.repository / "below")
    if what == "one of a branch without a commit":
        person_git(person.repository, "symbolic-ref", "HEAD", "refs/heads/main")
    assert person_git(person.repository, "diff", "--cached", "--name-only") == ""
    assert any("above the workspace" in sentence for sentence in outcome.git.failures)


def test_what_the_person_staged_beside_the_workspace_stays_staged(person: Person) -> None:
    (person.repository / "file").write_text("mine\n")
    person_git(person.repository, "add", "file")
    tried(person, "git reset -q; echo x > inner; git add inner", person.repository / "below")
    assert person_git(person.repository, "diff", "--cached", "--name-only").split() == ["below/inner", "file"]


def test_a_switch_and_a_merge_are_seen_whole(person: Person) -> None:
    """What lies beside the workspace is staged as the commits have it, else the next commit would take it back."""
    person_git(person.repository, "switch", "-qc", "topic")
    for name in ("file", "more"):
        (person.repository / name).write_text("of the topic\n")
    person_git(person.repository, "add", "-A")
    person_git(person.repository, "commit", "-qm", "topic")
    person_git(person.repository, "switch", "-q", "main")
    place = person.repository / "below"
    assert agent_runs(place, "git switch -q topic").git.failures == ()
    assert person_git(person.repository, "diff", "--cached", "--name-only") == ""
    assert agent_runs(place, "git switch -q main; git merge -q --no-ff -m merged topic").git.failures == ()
    assert person_git(person.repository, "diff", "--cached", "--name-only") == ""
    assert person_git(person.repository, "show", "HEAD:file") == "of the topic"


def test_a_merge_that_stops_brings_what_was_merged_beside_the_workspace(person: Person) -> None:
    place = person.repository / "below"
    person_git(person.repository, "switch", "-qc", "topic")
    for path, text in (("below/inner", "of the topic\n"), ("file", "of the topic\n"), ("more", "new\n")):
        (person.repository / path).write_text(text)
    person_git(person.repository, "add", "-A")
    person_git(person.repository, "commit", "-qm", "topic")
    person_git(person.repository, "switch", "-q", "main")
    (place / "inner").write_text("of main\n")
    person_git(person.repository, "commit", "-qam", "main")
    outcome = agent_runs(place, "git merge topic")
    assert (outcome.code, outcome.git.failures) == (1, ())
    agent_does(place, "echo both > inner; git add inner; git commit -qm merged")
    assert person_git(person.repository, "show", "HEAD:file") == "of the topic"
    assert person_git(person.repository, "show", "HEAD:more") == "new"
    assert person_git(person.repository, "diff", "--cached", "--name-only") == ""
