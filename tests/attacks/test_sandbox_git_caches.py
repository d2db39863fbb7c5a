"""An agent that puts a repository with hooks into the caches of commands, and has the person's git push there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.attacks.git_person import KilledAgent, Person, tried

PLANT = """
    outside() { awk -v place="$1" '$5 == place { print $4 }' /proc/self/mountinfo; }
    plant() {
        git init -q --bare "$1"
        printf "$HOOK" > "$1/hooks/pre-receive"
        chmod +x "$1/hooks/pre-receive"
    }
    git init -q n
    git -C n commit -q --allow-empty -m n
"""
CACHES = ["/home/agent/.cache", "/home/agent/.npm"]


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def pushes(person: Person, *words: str) -> subprocess.CompletedProcess[bytes]:
    """From the repository that the agent made, as the person."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(person.home)}
    folder = person.repository / "n"
    return subprocess.run(["git", "push", *words], cwd=folder, env=environment, capture_output=True, check=False)


@pytest.mark.parametrize("cache", CACHES)
def test_no_push_leads_to_a_hook_in_the_caches(person: Person, cache: str) -> None:
    caches = person.top / "caches"
    script = f'{PLANT}\nplant {cache}/x.git\ngit -C n remote add origin "$(outside {cache})/x.git"\n'
    outcome = tried(person, script + "git -C n remote get-url origin", caches=caches)
    assert outcome.succeeded, outcome.stderr
    assert pushes(person, "origin", "HEAD:main").returncode != 0
    assert not person.canary.exists()
    again = tried(person, f"test -x {cache}/x.git/hooks/pre-receive", caches=caches)
    assert again.succeeded, "what was fetched once is there for the next command"


def test_the_hook_would_run_if_the_caches_kept_their_name(person: Person) -> None:
    """By the name that they have now, which no command can know."""
    caches = person.top / "caches"
    tried(person, f"{PLANT}\nplant ~/.cache/x.git", caches=caches)
    (place,) = caches.glob("*/cache-*/x.git")
    pushes(person, str(place), "HEAD:main")
    assert person.canary.exists()


def test_a_command_that_was_cut_off_knows_no_name_of_the_caches(person: Person, tmp_path: Path) -> None:
    agent = KilledAgent(person)
    agent.does(f"{PLANT}\nplant ~/.cache/x.git", caches=tmp_path / "caches")
    (before,) = (tmp_path / "caches").glob("*/cache-*")
    agent.is_followed()
    (after,) = (tmp_path / "caches").glob("*/cache-*")
    assert before.name != after.name


def test_caches_that_already_had_a_name_are_taken_over(person: Person, tmp_path: Path) -> None:
    """As an earlier version called them."""
    caches = tmp_path / "caches"
    tried(person, "echo kept > ~/.cache/a", caches=caches)
    (folder,) = caches.glob("*/cache-*")
    folder.rename(folder.with_name("cache"))
    assert tried(person, "cat ~/.cache/a", caches=caches).stdout == b"kept\n"
    assert not folder.with_name("cache").exists()
