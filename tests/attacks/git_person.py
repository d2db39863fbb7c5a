"""A person who works with git after an agent did, and what the agent would have them run."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from tests.runtime.sandbox.repositories import agent_runs, make_repository
from weft.runtime.sandbox.processes import ProcessOutcome

NESTED = "git init -q n\ngit -C n commit -q --allow-empty -m n\ngit add n\n"


class Person:
    """A person with a repository, and what they do with git after an agent worked in it."""

    def __init__(self, top: Path) -> None:
        self.canary, self.top = top / "ran", top
        self.home = top / "home"
        self.home.mkdir()
        self.repository = make_repository(top / "repository", files={"file": "one\n", "below/inner": "two\n"})
        self.program = f"touch {shlex.quote(str(self.canary))};"
        """Named as a file monitor, git runs it for each status."""

    @property
    def settings(self) -> str:
        return f'[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tfsmonitor = "{self.program}"\\n'

    @property
    def hook(self) -> str:
        return f"#!/bin/sh\\n{self.program}\\n"

    def works(self, *folders: Path) -> None:
        for folder in folders or (self.repository,):
            (folder / "person").write_text(os.urandom(4).hex())
            for words in (
                ("status",),
                ("add", "person"),
                ("-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "mine"),
                ("checkout", "-q", "-B", "mine"),
            ):
                environment = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
                subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, check=False)

    def ensure_unharmed(self, *folders: Path) -> None:
        self.works(*folders)
        assert not self.canary.exists()


def tried(person: Person, script: str, workspace: Path | None = None, *, caches: Path | None = None) -> ProcessOutcome:
    """What an agent tries; the person's words are variables of its script."""
    variables = {"PROGRAM": person.program, "SETTINGS": person.settings, "HOOK": person.hook}
    lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return agent_runs(workspace or person.repository, "\n".join([*lines, script]), caches=caches, home=person.home)
