"""An agent names another repository of the person's as one from which git takes objects, and a commit of it, which it
knows, as a branch: the person's `git gc` would copy that where the agent reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.sandbox.repositories import agent_runs, make_repository, person_git
from weft.runtime.sandbox.profiles import READ_ONLY_PROFILE

WAYS = {
    "at once": ("echo {other} > .git/objects/info/alternates",),
    "on the way over a folder": (
        "mkdir -p x/info; echo ../../x > .git/objects/info/alternates",
        "echo {other} > x/info/alternates",
    ),
    "quoted": ("echo '\"{other}\"' > .git/objects/info/alternates",),
    "through a link": ("ln -s {other} x; echo ../../x > .git/objects/info/alternates",),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_command_adds_the_objects_of_a_repository_elsewhere(tmp_path: Path, way: str) -> None:
    repository = make_repository(tmp_path / "repository", files={"file": "one\n"})
    other = make_repository(tmp_path / "other", files={"secret": "another's\n"})
    commit = person_git(other, "rev-parse", "HEAD")
    commands = [script.format(other=other / ".git/objects") for script in WAYS[way]]
    outcomes = [agent_runs(repository, script) for script in commands]
    (taken,) = outcomes[-1].git.taken_away
    assert taken.endswith("info/alternates")
    agent_runs(repository, f"echo {commit} > .git/refs/heads/theirs")
    with pytest.raises(Exception, match="non-zero exit status"):
        person_git(repository, "cat-file", "-e", commit)


BARE_WAYS = {
    "at once": ("echo {other} > bare/objects/info/alternates",),
    "over a folder": (
        "mkdir -p x/info; echo ../../x > bare/objects/info/alternates; echo {other} > x/info/alternates",
    ),
    "over a folder later": (
        "mkdir -p x/info; echo ../../x > bare/objects/info/alternates",
        "echo {other} > x/info/alternates",
    ),
    "of its own": ("git init -q --bare bare/own; echo {other} > bare/own/objects/info/alternates",),
    "of its own, over a folder": (
        "git init -q --bare own; mkdir -p x/info; echo ../../x > own/objects/info/alternates",
        "echo {other} > x/info/alternates",
    ),
}


@pytest.mark.parametrize("way", BARE_WAYS)
def test_no_command_adds_them_to_a_repository_of_another_name(tmp_path: Path, way: str) -> None:
    repository = make_repository(tmp_path / "repository", files={"file": "one\n"})
    person_git(repository, "clone", "-q", "--bare", ".", "bare")
    other = make_repository(tmp_path / "other", files={"secret": "another's\n"})
    outcomes = [agent_runs(repository, script.format(other=other / ".git/objects")) for script in BARE_WAYS[way]]
    assert any(path.endswith("info/alternates") for path in outcomes[-1].git.taken_away)
    assert outcomes[-1].git.not_cleaned == ()
    objects = str(other / ".git/objects")
    assert not [path for path in repository.rglob("alternates") if objects in path.read_text()]


def test_a_person_s_of_a_repository_of_another_name_stay(tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other", files={"file": "one\n"})
    repository = make_repository(tmp_path / "repository", files={"file": "two\n"})
    person_git(repository, "clone", "-q", "--bare", "--shared", str(other), "bare")
    for script in ("echo more > file", "echo more > bare/description; git -C bare update-ref refs/heads/x HEAD"):
        outcome = agent_runs(repository, script)
        assert outcome.git.taken_away == ()
    agent_runs(repository, "cat file", profile=READ_ONLY_PROFILE)
    assert person_git(repository / "bare", "show", "HEAD:file") == "one"


def test_those_that_a_person_has_and_those_in_the_workspace_stay(tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other", files={"file": "one\n"})
    person_git(tmp_path, "clone", "-q", "--shared", str(other), "clone")
    clone = tmp_path / "clone"
    make_repository(clone / "inner", files={"file": "two\n"})
    outcome = agent_runs(clone, "git clone -q --shared inner another && git -C another log -1 --format=%s")
    assert outcome.succeeded
    assert not any("alternates" in path for path in outcome.git.taken_away)
    assert person_git(clone, "show", "HEAD:file") == "one"
    assert person_git(clone / "another", "show", "HEAD:file") == "two"
