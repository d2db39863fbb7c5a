"""An agent that gives files which git obeys a second name, and writes them through that in its next command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.git_person import Person, tried
from tests.runtime.sandbox.repositories import person_git


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


IN_TWO_COMMANDS = {
    "a hook that is not executable": (
        "git init -q n; echo x > build.sh; chmod 644 build.sh; ln build.sh n/.git/hooks/pre-commit",
        'printf "$HOOK" > build.sh; chmod +x build.sh',
    ),
    "a harmless configuration": (
        "git init -q n; printf '[core]\\n\\tbare = \"false\"\\n' > n/.git/config; ln n/.git/config notes",
        'printf "$SETTINGS" >> notes',
    ),
    "an empty configuration": (
        "git init -q n; : > n/.git/config; ln n/.git/config notes",
        'printf "$SETTINGS" >> notes',
    ),
}


@pytest.mark.parametrize("what", IN_TWO_COMMANDS)
def test_what_git_obeys_is_not_written_through_another_name(person: Person, what: str) -> None:
    for script in IN_TWO_COMMANDS[what]:
        assert tried(person, script).succeeded
    person.ensure_unharmed(person.repository / "n")


def test_a_file_that_was_included_later_is_not_written_through_another_name(person: Person) -> None:
    (person.repository / "team.gitconfig").write_text("[user]\n\tname = x\n")
    assert tried(person, "ln team.gitconfig notes").succeeded
    person_git(person.repository, "config", "include.path", "../team.gitconfig")
    assert tried(person, 'printf "$SETTINGS" >> notes').succeeded
    person.ensure_unharmed()
    assert (person.repository / "team.gitconfig").read_text() == "[user]\n\tname = x\n"


def test_a_hook_of_the_person_is_not_written_through_another_name(person: Person) -> None:
    """A person keeps a hook in the project, and gave git a second name of it."""
    ran = person.top / "own"
    tracked, hook = person.repository / "tools/post-commit", person.repository / ".git/hooks/post-commit"
    tracked.parent.mkdir()
    tracked.write_text(f"#!/bin/sh\ntouch {ran}\n")
    tracked.chmod(0o755)
    os.link(tracked, hook)
    assert tried(person, 'printf "$HOOK" > tools/post-commit').succeeded
    person.ensure_unharmed()
    assert ran.exists()
    assert hook.stat().st_mode & 0o777 == 0o755
