"""A person who works with git after an agent did, and what the agent would have them run."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import sys
from pathlib import Path

from tests.runtime.sandbox.repositories import agent_runs, make_repository
from tests.sandbox import machine_sandbox
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


ROOT = Path(__file__).parents[2]
RUN = """
import sys
from pathlib import Path
from tests.runtime.sandbox.repositories import agent_runs
workspace, script, commands, home, caches = sys.argv[1:]
agent_runs(Path(workspace), script, commands=Path(commands), home=Path(home), caches=Path(caches) if caches else None)
"""


class KilledAgent:
    """Commands whose weft is killed when they say so, by a file."""

    def __init__(self, person: Person) -> None:
        self.person, self.commands = person, person.top / "commands"

    def does(self, script: str, workspace: Path | None = None, *, caches: Path | None = None) -> None:
        """A script, up to its end; then it lives on."""
        machine_sandbox()
        place = workspace or self.person.repository
        started = place / "started"
        os.mkfifo(started)
        variables = {"SETTINGS": self.person.settings, "HOOK": self.person.hook}
        words = [f"{name}='{value}'" for name, value in variables.items()]
        whole = "\n".join([*words, f"PROGRAM='{self.person.program}'", script, f"echo done > {started}; sleep 60"])
        arguments = (place, whole, self.commands, self.person.home, caches or "")
        process = subprocess.Popen([sys.executable, "-c", RUN, *map(str, arguments)], cwd=ROOT)
        pipe = os.open(started, os.O_RDONLY | os.O_NONBLOCK)
        while not select.select([pipe], [], [], 0.1)[0]:
            assert process.poll() is None, "it ended before it had come so far"
        os.close(pipe)
        process.kill()
        process.wait()
        started.unlink()

    def is_followed(self) -> tuple[str, ...]:
        """By another command in the same place. What is said of the killed one."""
        return agent_runs(self.person.repository, "true", commands=self.commands, home=self.person.home).git.interrupted
