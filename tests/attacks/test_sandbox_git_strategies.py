"""An agent begins a rebase or a cherry-pick, and names a program of the workspace as its strategy: the person's git
would run that, outside of the sandbox, when they go on with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.attacks.git_person import Person, tried

PROGRAM = """
mkdir git-merge-a
printf "#!/bin/sh\\n$PROGRAM exit 0\\n" > git-merge-a/x
chmod +x git-merge-a/x
"""
REBASE = """
git switch -qc side
for i in 1 2; do echo $i > file$i; git add .; git commit -qm $i; done
git switch -q main
git commit -q --allow-empty -m other
git switch -q side
GIT_SEQUENCE_EDITOR="sed -i 1s/^pick/edit/" git rebase -qi main
"""
PICK = """
git switch -qc side
for i in 1 2 3; do echo $i > file; git commit -qam $i; done
git switch -q main
echo other > file
git commit -qam other
git cherry-pick main..side
"""
OPTIONS = '[options]\\n\\tstrategy = "a/x"\\n'


def _goes_on(person: Person, *words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(person.home), "GIT_EDITOR": "true"}
    (person.repository / "file").write_text("solved\n")
    for command in (("add", "file"), words):
        settings = ("-c", "user.name=a", "-c", "user.email=b")
        subprocess.run(
            ["git", *settings, *command], cwd=person.repository, env=environment, capture_output=True, check=False
        )


WAYS = {
    "rebase": (f"{REBASE}{PROGRAM}printf a/x > .git/rebase-merge/strategy", "rebase-merge/strategy"),
    "cherry-pick": (f"{PICK}{PROGRAM}printf '{OPTIONS}' > .git/sequencer/opts", "sequencer/opts"),
    "cherry-pick, unreadable": (f"{PICK}{PROGRAM}printf '{OPTIONS}[' > .git/sequencer/opts", "sequencer/opts"),
    "rebase, closed": (
        f"{REBASE}{PROGRAM}printf a/x > .git/rebase-merge/strategy; chmod 500 .git/rebase-merge",
        "rebase-merge/strategy",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_strategy_is_a_program_of_the_workspace(tmp_path: Path, way: str) -> None:
    person = Person(tmp_path)
    script, file = WAYS[way]
    outcome = tried(person, script)
    assert f".git/{file}" in outcome.git.taken_away
    _goes_on(person, way.partition(",")[0], "--continue")
    person.ensure_unharmed()


def test_a_strategy_of_gits_own_stays(tmp_path: Path) -> None:
    person = Person(tmp_path)
    outcome = tried(person, f"{REBASE}printf ort > .git/rebase-merge/strategy")
    assert outcome.git.taken_away == ()
    assert (person.repository / ".git/rebase-merge/strategy").read_text() == "ort"
